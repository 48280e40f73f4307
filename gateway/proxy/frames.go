package proxy

import (
	"crypto/rand"
	"encoding/binary"
)

// frames follows the frames of one way of a WebSocket (RFC 6455 section 5.2), to
// know where one ends: only there another may be put in. It reads heads, and
// nothing of what is in the frames.
type frames struct {
	head   [14]byte // of the frame under way, as far as it is here
	have   int
	left   uint64 // how much of the frame is to come behind its head
	closes bool   // the frame under way is a Close frame
	closed bool   // a Close frame went by; nothing follows it (section 5.5.1)
}

const opClose = 0x8

// step takes bytes of p, to the end of a frame or all of them, and returns how many.
func (f *frames) step(p []byte) (n int) {
	for n < len(p) {
		if f.left > 0 {
			some := min(f.left, uint64(len(p)-n))
			n, f.left = n+int(some), f.left-some //nolint:gosec // at most len(p)
			if f.left == 0 {
				f.whole()
				return n
			}
			continue
		}
		f.head[f.have] = p[n]
		f.have, n = f.have+1, n+1
		if f.have < 2 || f.have < headLen(f.head[1]) {
			continue
		}
		f.closes = f.head[0]&0x0f == opClose
		f.left = payloadLen(&f.head)
		if f.left == 0 {
			f.whole()
			return n
		}
		f.have = 0
	}
	return n
}

// whole is called at the end of a frame.
func (f *frames) whole() {
	f.have = 0
	f.closed = f.closed || f.closes
	f.closes = false
}

// between reports whether no frame is under way.
func (f *frames) between() bool { return f.have == 0 && f.left == 0 }

// headLen is how long a head is, by its second byte.
func headLen(second byte) int {
	n := 2
	switch second & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if second&0x80 != 0 {
		n += 4 // the masking key
	}
	return n
}

func payloadLen(head *[14]byte) uint64 {
	switch n := head[1] & 0x7f; n {
	case 126:
		return uint64(binary.BigEndian.Uint16(head[2:]))
	case 127:
		return binary.BigEndian.Uint64(head[2:])
	default:
		return uint64(n)
	}
}

// closeFrame is a Close frame (RFC 6455 section 5.5.1), masked as those of clients
// have to be. The reason is cut to what fits into a control frame.
func closeFrame(code uint16, reason string, masked bool) []byte {
	const most = 125 - 2 // two are the code
	reason = reason[:min(len(reason), most)]
	b := []byte{0x80 | opClose, byte(2 + len(reason))} //nolint:gosec // at most 125
	if masked {
		b[1] |= 0x80
		b = append(b, 0, 0, 0, 0)
		_, _ = rand.Read(b[2:]) // it never fails
	}
	body := len(b)
	b = binary.BigEndian.AppendUint16(b, code)
	b = append(b, reason...)
	if masked {
		for i := range b[body:] {
			b[body+i] ^= b[2+i%4]
		}
	}
	return b
}
