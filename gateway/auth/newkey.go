package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"math/big"
	"strings"
)

// The form of a key that the gateway makes:
//
//	bn_live_3f9a12cd_0Zk…(43)…q2Xyz01
//	│       │        │        └ checksum: CRC-32 (IEEE) of all bytes before it, 6 digits of base 62
//	│       │        └ secret: 256 random bits, 43 digits of base 62
//	│       └ public part: 8 hex digits; the key's id is "k-" and these
//	└ prefix: lets people and secret scanners know a key of ours when they see one
//
// Letters, digits and underscores only: a double click selects it whole, and
// no shell, URL or YAML file needs it quoted. The checksum protects nothing;
// it tells a typo from a wrong key in the log.
const (
	keyPrefix      = "bn_live_"
	keyIDPrefix    = "k-"
	keyPublicBytes = 4
	keySecretBytes = 32
	keySecretChars = 43
	keyCheckChars  = 6
	keyChars       = len(keyPrefix) + 2*keyPublicBytes + len("_") + keySecretChars + keyCheckChars
)

// NewKey makes an API key from the random bits of rand, which must be fit for
// secrets (crypto/rand.Reader). It returns the key, to be shown once and kept
// nowhere, the id to call it by, and the digest to store. Ids are 32 random
// bits: a caller that finds the id taken makes another key. The error is
// rand's.
func NewKey(rand io.Reader) (key, id string, digest [32]byte, err error) {
	var bits [keyPublicBytes + keySecretBytes]byte
	if _, err := io.ReadFull(rand, bits[:]); err != nil {
		return "", "", [32]byte{}, fmt.Errorf("read random bits for a new key: %w", err)
	}
	public := hex.EncodeToString(bits[:keyPublicBytes])
	body := keyPrefix + public + "_" + base62(new(big.Int).SetBytes(bits[keyPublicBytes:]), keySecretChars)
	key = body + checksum(body)
	return key, keyIDPrefix + public, sha256.Sum256([]byte(key)), nil
}

// checksumFits says whether a key that begins like one of ours is whole.
func checksumFits(key string) bool {
	return len(key) == keyChars && key[keyChars-keyCheckChars:] == checksum(key[:keyChars-keyCheckChars])
}

// publicID is the id that NewKey gave to a key with this public part; empty if it is
// none of our form.
func publicID(key string) string {
	rest, ok := strings.CutPrefix(key, keyPrefix)
	if !ok || len(rest) <= 2*keyPublicBytes || rest[2*keyPublicBytes] != '_' {
		return ""
	}
	return keyIDPrefix + rest[:2*keyPublicBytes]
}

func checksum(body string) string {
	return base62(new(big.Int).SetUint64(uint64(crc32.ChecksumIEEE([]byte(body)))), keyCheckChars)
}

// base62 writes n with the digits 0-9, a-z, A-Z, padded to width.
func base62(n *big.Int, width int) string {
	s := n.Text(62)
	return strings.Repeat("0", width-len(s)) + s
}
