package jwks

import (
	"bytes"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

const (
	// MaxKeys is how many keys of a set are used; what comes after them is left out.
	MaxKeys = 64
	// MaxBytes is how long a set, or a discovery document, may be.
	MaxBytes = 1 << 20
	// maxKeyID is how long a kid may be, in bytes.
	maxKeyID = 256
	// maxSkipped is how many lines tell what was left out.
	maxSkipped = 32
)

// Key is one public key of a set that signatures can be verified with.
type Key struct {
	// ID is its kid, or empty; not necessarily unique in its set.
	ID string
	// Algorithm is the only one that the key is for (alg); empty: any that fits.
	Algorithm string
	// Public is an *rsa.PublicKey of 2048 to 8192 bits, an *ecdsa.PublicKey on P-256,
	// P-384 or P-521, or an ed25519.PublicKey. It must not be changed.
	Public crypto.PublicKey
}

// Set is the usable keys of a JWK set. It never changes.
type Set struct {
	keys    []Key
	byID    map[string][]Key
	skipped []string
}

// Parse reads a JWK set. It is an error if b is none, or none of its keys can be
// used; the text quotes nothing of b.
func Parse(b []byte) (*Set, error) {
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("it has more than %d bytes", MaxBytes)
	}
	var doc struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := parseObject(b, &doc); err != nil {
		return nil, err
	}
	if doc.Keys == nil {
		return nil, errors.New(`it is not a JWK set: it has no list "keys"`)
	}
	s := &Set{byID: map[string][]Key{}}
	for n, raw := range *doc.Keys {
		k, err := parseKey(raw)
		switch {
		case err == nil && len(s.keys) == MaxKeys:
			s.skip(n, k.ID, fmt.Errorf("only the first %d are used", MaxKeys))
		case err == nil:
			s.keys = append(s.keys, k)
			s.byID[k.ID] = append(s.byID[k.ID], k)
		default:
			s.skip(n, k.ID, err)
		}
	}
	switch {
	case len(*doc.Keys) == 0:
		return nil, errors.New("the JWK set is empty")
	case len(s.keys) == 0:
		return nil, fmt.Errorf("the JWK set has no key to verify signatures with: %s", s.skipped[0])
	}
	return s, nil
}

func (s *Set) skip(n int, id string, err error) {
	if len(s.skipped) == maxSkipped {
		return
	}
	name := fmt.Sprintf("key %d", n+1)
	if id != "" {
		name += fmt.Sprintf(" (kid %q)", id)
	}
	s.skipped = append(s.skipped, fmt.Sprintf("%s: %v", name, err))
}

// Keys returns all keys, in the order of the set. The caller must not change the slice.
func (s *Set) Keys() []Key { return s.keys }

// Find returns the keys called kid, none if there are none. The caller must not
// change the slice.
func (s *Set) Find(kid string) []Key { return s.byID[kid] }

// Skipped says of each key that was left out which it is and why, of the first 32.
func (s *Set) Skipped() []string { return s.skipped }

// Equal reports whether other has the same usable keys in the same order.
func (s *Set) Equal(other *Set) bool {
	return other != nil && slices.EqualFunc(s.keys, other.keys, func(a, b Key) bool {
		return a.ID == b.ID && a.Algorithm == b.Algorithm && SameKey(a.Public, b.Public)
	})
}

// parseObject reads a JSON object and nothing after it. Errors quote nothing.
func parseObject(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(into); err != nil {
		if bytes.HasPrefix(bytes.TrimSpace(b), []byte("<")) {
			return errors.New("it is not JSON but looks like HTML")
		}
		return errors.New("it is not JSON of the form that is wanted")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something stands after its JSON")
	}
	return nil
}

// parseKey reads one JWK. Its error says why it is left out; the key says its
// kid even then, as far as it could be read.
func parseKey(raw json.RawMessage) (Key, error) {
	// What the library does not look at.
	var about struct {
		Kty string   `json:"kty"`
		Kid string   `json:"kid"`
		Use string   `json:"use"`
		Alg string   `json:"alg"`
		Ops []string `json:"key_ops"`
		D   any      `json:"d"`
	}
	if bytes.Equal(raw, []byte("null")) || json.Unmarshal(raw, &about) != nil {
		return Key{}, errors.New("it is not a JSON object with texts where texts belong")
	}
	if len(about.Kid) > maxKeyID {
		return Key{}, fmt.Errorf("its kid has more than %d bytes", maxKeyID)
	}
	id := Key{ID: about.Kid}
	switch {
	case about.Kty == "oct":
		return id, errors.New("it is a shared secret, which nobody may publish")
	case about.D != nil:
		return id, errors.New("it is a private key: whoever can read the set can sign with it")
	case about.Use != "" && about.Use != "sig":
		return id, errors.New("it is not for signatures (use)")
	case about.Ops != nil && !slices.Contains(about.Ops, "verify"):
		return id, errors.New("it is not for verifying (key_ops)")
	}
	var k jose.JSONWebKey
	if err := k.UnmarshalJSON(raw); errors.Is(err, jose.ErrUnsupportedKeyType) {
		return id, errors.New("it is of a type or on a curve that no algorithm here uses")
	} else if err != nil {
		return id, errors.New("a member is missing or damaged")
	}
	if err := Usable(k.Key); err != nil {
		return id, fmt.Errorf("it %w", err)
	}
	return Key{ID: about.Kid, Algorithm: about.Alg, Public: k.Key}, nil
}
