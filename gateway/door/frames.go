package door

import "time"

// frames follows the frames of a connection of HTTP/2 (RFC 9113 section 4.1) by their
// heads, to know what is under way. It keeps nothing of them but a head, and judges
// nothing: that is net/http's.
type frames struct {
	head  [frameHead]byte
	n     int  // how much of it is here
	left  int  // bytes of the frame that are to come, once it is here
	block bool // fields are to be continued in the next frame
	any   bool // one has been whole
	ended bool // something was whole in what was followed last: its time is over
}

const (
	frameHead = 9

	frameData         = 0x0
	frameHeaders      = 0x1
	frameContinuation = 0x9
	flagEndHeaders    = 0x4
)

// follow takes the next bytes.
func (f *frames) follow(b []byte) {
	f.ended = false
	for len(b) > 0 {
		if f.n < frameHead {
			n := copy(f.head[f.n:], b)
			f.n, b = f.n+n, b[n:]
			if f.n < frameHead {
				return
			}
			f.left = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		}
		n := min(len(b), f.left)
		f.left, b = f.left-n, b[n:]
		if f.left > 0 {
			return
		}
		f.n, f.any = 0, true
		switch f.head[3] {
		case frameHeaders, frameContinuation:
			f.block = f.head[4]&flagEndHeaders == 0
		}
		f.ended = f.ended || !f.block
	}
}

// due returns by when what is under way has to be whole, if now was the last that came
// of it and it had to be by until; zero if nothing is. A frame, and a block of fields in
// several of them, has the time that a head has; the first one has it together with the
// preface before it. A part of a body has it from byte to byte.
func (f *frames) due(until time.Time, o *Options) time.Time {
	switch {
	case f.any && f.n == 0 && !f.block:
		return time.Time{}
	case f.n == frameHead && f.head[3] == frameData && f.any && !f.block:
		return time.Now().Add(o.BodyTimeout)
	case until.IsZero(), f.ended:
		return time.Now().Add(o.HeaderTimeout)
	}
	return until
}
