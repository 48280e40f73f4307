package proxy

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// A traceparent of W3C Trace Context level 1, version 00:
//
//	00-<32 hex trace id>-<16 hex parent id>-<2 hex flags>
const traceparentLen = 55

// validTraceparent reports whether v may be passed on (section 3.2.2): lower
// case hex, no all-zero id, no version ff. A version after 00 may be longer,
// after another hyphen; the parts known today must still be right.
func validTraceparent(v string) bool {
	if len(v) < traceparentLen || v[2] != '-' || v[35] != '-' || v[52] != '-' {
		return false
	}
	switch version := v[:2]; {
	case !isHex(version), version == "ff":
		return false
	case len(v) > traceparentLen && (version == "00" || v[traceparentLen] != '-'):
		return false
	}
	trace, parent := v[3:35], v[36:52]
	return isHex(trace) && isHex(parent) && isHex(v[53:55]) && !isZero(trace) && !isZero(parent)
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isZero(s string) bool {
	for i := range len(s) {
		if s[i] != '0' {
			return false
		}
	}
	return true
}

// newTraceparent starts a trace that is not sampled. Its ids need to be
// different from others, not secret.
func newTraceparent() string {
	hi, lo, parent := rand.Uint64(), rand.Uint64(), rand.Uint64() //nolint:gosec // ids, not secrets
	var ids [24]byte
	binary.BigEndian.PutUint64(ids[0:], hi)
	binary.BigEndian.PutUint64(ids[8:], lo|1) // never all zero
	binary.BigEndian.PutUint64(ids[16:], parent|1)
	var v [traceparentLen]byte
	copy(v[:], "00-")
	hex.Encode(v[3:35], ids[:16])
	v[35] = '-'
	hex.Encode(v[36:52], ids[16:])
	copy(v[52:], "-00")
	return string(v[:])
}
