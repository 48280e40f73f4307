package door

import (
	"bytes"
	"strings"

	"bouncer/gateway/httperr"
)

// A state is where in the messages of a connection the next byte lies.
type state uint8

const (
	atStart    state = iota // before a request
	inHead                  // its first byte has come
	inBody                  // in a body of known length
	atChunk                 // in the line before a chunk
	inChunk                 // in a chunk
	afterChunk              // in the end of its line
	inTrailer               // behind the last chunk
	undecided               // behind a request for an upgrade that is not answered
	inFrames                // of HTTP/2
	tunnel                  // another protocol
	over                    // something was refused: nothing is read any more
)

// A verdict is what becomes of the next bytes.
type verdict uint8

const (
	wait   verdict = iota // they cannot be told yet
	pass                  // they are well formed
	drop                  // they mean nothing
	refuse                // they are malformed
)

// Bounds within a body that is sent in chunks.
const (
	maxChunkLine    = 256 // its size, an extension that nobody reads
	maxChunkDigits  = 15  // below 2^60 bytes
	maxTrailerBytes = 8 << 10
)

// preface begins a connection of HTTP/2 (RFC 9113 section 3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// A framing follows the messages of a connection (RFC 9112).
type framing struct {
	o      *Options
	state  state
	first  bool   // no request has come yet
	only2  bool   // HTTP/2 was agreed on, and nothing else is spoken
	left   int64  // bytes of the body or of the chunk
	method string // of the head last looked at; "" if it could not be read

	frames frames // of HTTP/2

	// Of what is complete only with a later byte: how far it was looked at, and
	// where the line begins that ends there.
	seen, line, lines int
}

// step says what becomes of the first n bytes of b, which is not empty. What is
// to wait is given again, with more behind it. e is the answer to a head that is
// refused.
func (f *framing) step(b []byte) (n int, v verdict, e *httperr.Error) {
	switch f.state {
	case atStart:
		return f.start(b)
	case inHead:
		return f.head(b)
	case inBody, inChunk:
		n = int(min(int64(len(b)), f.left))
		f.left -= int64(n)
		switch {
		case f.left > 0:
		case f.state == inChunk:
			f.state = afterChunk
		default:
			f.state = atStart
		}
		return n, pass, nil
	case atChunk:
		n, v = f.chunk(b)
		return n, v, nil
	case afterChunk:
		n, v = f.chunkEnd(b)
		return n, v, nil
	case inTrailer:
		n, v = f.trailer(b)
		return n, v, nil
	case inFrames:
		f.frames.follow(b)
		return len(b), pass, nil
	case undecided:
		return 0, wait, nil
	default:
		return len(b), pass, nil
	}
}

// start tells HTTP/2 from HTTP/1, and forgets an empty line, which some clients
// send behind a body (RFC 9112 section 2.2).
func (f *framing) start(b []byte) (int, verdict, *httperr.Error) {
	if f.first && (f.o.HTTP2 || f.only2) && strings.HasPrefix(preface, string(b[:min(len(b), len(preface))])) {
		if len(b) < len(preface) {
			return 0, wait, nil
		}
		f.state = inFrames
		return len(preface), pass, nil
	}
	if f.only2 {
		f.state = over
		return len(b), drop, nil
	}
	if b[0] == '\r' {
		if len(b) == 1 {
			return 0, wait, nil
		}
		if b[1] == '\n' && f.lines == 0 {
			f.lines++ // one, and no more
			return 2, drop, nil
		}
	}
	f.first, f.state = false, inHead
	f.seen, f.line, f.lines, f.method = 0, 0, 0, ""
	return f.head(b)
}

// head waits for the end of a head, and reads it.
func (f *framing) head(b []byte) (int, verdict, *httperr.Error) {
	for {
		i := bytes.IndexByte(b[f.seen:], '\n')
		if i < 0 {
			f.seen = len(b)
			if f.seen > f.o.MaxHeader {
				return 0, refuse, f.tooLarge()
			}
			return 0, wait, nil
		}
		end := f.seen + i
		switch empty := end-1 == f.line; {
		case end > f.o.MaxHeader, f.lines > f.o.MaxFields && !empty:
			return 0, refuse, f.tooLarge()
		case end == 0 || b[end-1] != '\r':
			return 0, refuse, badRequest("A line ends with a bare LF. Lines end with CR LF.")
		case empty:
			return f.headIs(b[:end+1])
		case f.lines == 0:
			f.method = methodOf(b[:end])
		}
		f.lines++
		f.seen, f.line = end+1, end+1
	}
}

// headIs goes by what a whole head says of what follows it.
func (f *framing) headIs(b []byte) (int, verdict, *httperr.Error) {
	h, e := readHead(b)
	if e != nil {
		return 0, refuse, e
	}
	f.lines, f.seen, f.line = 0, 0, 0
	switch {
	case h.chunked:
		f.state = atChunk
	case h.length > 0:
		f.state, f.left = inBody, h.length
	case h.upgrade:
		f.state = undecided
	default:
		f.state = atStart
	}
	return len(b), pass, nil
}

// chunk reads the line before a chunk: its size in hex, and an extension that
// nobody is told of (RFC 9112 section 7.1).
func (f *framing) chunk(b []byte) (int, verdict) {
	i := bytes.IndexByte(b[:min(len(b), maxChunkLine)], '\n')
	if i < 0 {
		if len(b) >= maxChunkLine {
			return 0, refuse
		}
		return 0, wait
	}
	if i == 0 || b[i-1] != '\r' {
		return 0, refuse
	}
	size, extension := b[:i-1], []byte(nil)
	if j := bytes.IndexByte(size, ';'); j >= 0 {
		size, extension = size[:j], size[j:]
	}
	if len(size) == 0 || len(size) > maxChunkDigits || !isValue(extension) {
		return 0, refuse
	}
	f.left = 0
	for _, c := range size {
		d := hexDigit(c)
		if d < 0 {
			return 0, refuse
		}
		f.left = f.left<<4 | int64(d)
	}
	if f.state = inChunk; f.left == 0 {
		f.state, f.line, f.lines = inTrailer, 0, 0
	}
	return i + 1, pass
}

func (f *framing) chunkEnd(b []byte) (int, verdict) {
	switch {
	case b[0] != '\r':
		return 0, refuse
	case len(b) == 1:
		return 0, wait
	case b[1] != '\n':
		return 0, refuse
	}
	f.state = atChunk
	return 2, pass
}

// trailer reads the fields behind the last chunk, which may be none.
func (f *framing) trailer(b []byte) (int, verdict) {
	for {
		i := bytes.IndexByte(b[f.line:], '\n')
		if i < 0 {
			if len(b) > maxTrailerBytes {
				return 0, refuse
			}
			return 0, wait
		}
		end := f.line + i
		if end == f.line || b[end-1] != '\r' || end > maxTrailerBytes {
			return 0, refuse
		}
		if end-1 == f.line {
			f.state, f.line, f.lines = atStart, 0, 0
			return end + 1, pass
		}
		name, _, ok := readField(b[f.line : end-1])
		if f.lines++; !ok || f.lines > f.o.MaxFields || framingField(name) {
			return 0, refuse
		}
		f.line = end + 1
	}
}
