package scope

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// A traceparent of W3C Trace Context level 1, version 00:
//
//	00-<32 hex trace id>-<16 hex parent id>-<2 hex flags>
const traceparentLen = 55

// flagSampled is the bit of the flags that says that somebody keeps the trace.
const flagSampled = 1

// ParseTraceparent reads a traceparent that may be passed on (section 3.2.2): lower
// case hex, no all-zero id, no version ff. A version after 00 may be longer,
// after another hyphen; the parts known today must still be right.
func ParseTraceparent(v string) (trace [16]byte, span [8]byte, sampled, ok bool) {
	if len(v) < traceparentLen || v[2] != '-' || v[35] != '-' || v[52] != '-' {
		return trace, span, false, false
	}
	var version, flags [1]byte
	ok = readHex(version[:], v[:2]) && readHex(trace[:], v[3:35]) && readHex(span[:], v[36:52]) && readHex(flags[:], v[53:55])
	switch {
	case !ok, version[0] == 0xff, trace == [16]byte{}, span == [8]byte{},
		len(v) > traceparentLen && (version[0] == 0 || v[traceparentLen] != '-'):
		return [16]byte{}, [8]byte{}, false, false
	}
	return trace, span, flags[0]&flagSampled != 0, true
}

// readHex reads lower-case hex, two digits for each byte of to.
func readHex(to []byte, s string) bool {
	for i := range to {
		hi, lo := digit(s[2*i]), digit(s[2*i+1])
		if hi < 0 || lo < 0 {
			return false
		}
		to[i] = byte(hi<<4 | lo) //nolint:gosec // two digits
	}
	return true
}

func digit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}

// Traceparent writes a traceparent of version 00.
func Traceparent(trace [16]byte, span [8]byte, sampled bool) string {
	var v [traceparentLen]byte
	copy(v[:], "00-")
	hex.Encode(v[3:35], trace[:])
	v[35] = '-'
	hex.Encode(v[36:52], span[:])
	copy(v[52:], "-00")
	if sampled {
		v[54] = '0' + flagSampled
	}
	return string(v[:])
}

// NewTrace makes the ids of a trace and of a span of it. They need to be
// different from others, not secret.
func NewTrace() (trace [16]byte, span [8]byte) {
	hi, lo := rand.Uint64(), rand.Uint64() //nolint:gosec // ids, not secrets
	binary.BigEndian.PutUint64(trace[:], hi)
	binary.BigEndian.PutUint64(trace[8:], lo|1) // never all zero
	return trace, NewSpan()
}

// NewSpan makes the id of a span.
func NewSpan() (span [8]byte) {
	binary.BigEndian.PutUint64(span[:], rand.Uint64()|1) //nolint:gosec // an id, not a secret
	return span
}
