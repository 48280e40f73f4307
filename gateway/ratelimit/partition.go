package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
)

// maxValue is the longest escaped form of a dimension or value, in bytes, that
// a partition key carries as it is; longer ones are hashed, so that a caller
// decides neither how much memory its key takes nor how long a log line gets.
const maxValue = 128

// A Part is one dimension of a partition key and its value: user, priya123.
type Part struct {
	// Dimension says what the value is: user, tenant, ip, header:x-tenant, …
	Dimension string
	// Value comes from the request and may be anything. Empty means that the
	// dimension has no value, as global has none.
	Value string
}

// Partition names the bucket of a charge: {user:priya123}, or
// {tenant:acme|route:weather} for a list, or {global} for a part without value.
// No parts at all are {global} too: one bucket for everybody. The braces make
// it the hash tag of a Redis Cluster key, so that all buckets of one caller
// live in one slot.
//
// Different parts have different names, whatever the values are: all bytes but
// A-Z a-z 0-9 . _ @ - are percent-escaped, so that no caller can write a
// separator, a brace, a space or a line break and so forge another's key, hash
// tag or log line. What is longer than 128 bytes when escaped is named by ~ and
// its SHA-256 in hex; a ~ of the caller's own is escaped.
//
// The order of the parts matters: the caller keeps to one.
func Partition(parts ...Part) string {
	var buf [160]byte // on the stack; enough for almost all
	return string(AppendPartition(buf[:0], parts...))
}

// AppendPartition appends what [Partition] returns to dst.
func AppendPartition(dst []byte, parts ...Part) []byte {
	if len(parts) == 0 {
		return append(dst, "{global}"...)
	}
	dst = append(dst, '{')
	for i, p := range parts {
		if i > 0 {
			dst = append(dst, '|')
		}
		dst = appendEscaped(dst, p.Dimension)
		if p.Value != "" {
			dst = append(dst, ':')
			dst = appendEscaped(dst, p.Value)
		}
	}
	return append(dst, '}')
}

// BucketHash names the bucket of a policy in a partition in 64 bits: the FNV-1a of
// partition, a colon and the policy's key. It is the same in every instance and in
// every version of this program, so instances can tell each other of a bucket by
// it, whatever its name takes.
//
// Two buckets may have one hash, and a caller may see to that. So it is for
// forgetting what is known of a bucket, where one too many does no harm, and never
// for finding what a bucket holds.
func BucketHash(partition string, p *Policy) uint64 {
	h := fnv1a(fnvOffset, partition)
	h = fnv1a(h, ":")
	return fnv1a(h, p.Key())
}

// The constants of FNV-1a with 64 bits, draft-eastlake-fnv. hash/fnv would have
// the strings copied into slices.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func fnv1a(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}

// appendEscaped appends s percent-escaped, or ~ and its hash if that is long.
func appendEscaped(dst []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	start := len(dst)
	for i := range len(s) {
		if c := s[i]; plain[c] {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', digits[c>>4], digits[c&15])
		}
		// Stopping here, a value of a megabyte costs its hash and no more.
		if len(dst)-start > maxValue {
			sum := sha256.Sum256([]byte(s))
			return hex.AppendEncode(append(dst[:start], '~'), sum[:])
		}
	}
	return dst
}

// plain holds the bytes that may stand in a key as they are. What separates
// keys, means something to Redis (braces), to logs and terminals (controls,
// quotes, backslash) or to the escaping itself (% and ~) is not among them; nor
// is any byte of a non-ASCII character, so that two that look alike stay apart
// to the eye.
var plain = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-") {
		t[c] = true
	}
	return t
}()
