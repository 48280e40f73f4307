package jwks

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
)

const (
	// MinRSABits is the least size of an RSA key (RFC 7518 section 3.3).
	MinRSABits = 2048
	// maxRSABits is the greatest: what a verification costs grows with the square
	// of the size, and whoever sends a token makes us pay it.
	maxRSABits = 8192
)

// smallOrder are the encodings, but for the bit of the sign, of the points on
// Ed25519's curve whose order divides 8. Under such a key anybody can sign:
// most of the message does not enter the equation.
var smallOrder = [][ed25519.PublicKeySize]byte{
	hexKey("0000000000000000000000000000000000000000000000000000000000000000"), // order 4
	hexKey("0100000000000000000000000000000000000000000000000000000000000000"), // order 1
	hexKey("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), // order 8
	hexKey("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), // order 8
	hexKey("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"), // order 2
	hexKey("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"), // order 4, spelt beyond the field
	hexKey("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"), // order 1, likewise
}

func hexKey(s string) [ed25519.PublicKeySize]byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic("bug: " + err.Error())
	}
	return [ed25519.PublicKeySize]byte(b)
}

// Usable says what is wrong with a public key, so that none is found out by a
// panic or a refusal while requests come in. The text goes on after "the key".
func Usable(key crypto.PublicKey) error {
	switch k := key.(type) {
	case *rsa.PublicKey:
		switch {
		case k == nil || k.N == nil:
			return errors.New("is empty")
		case k.N.BitLen() < MinRSABits || k.N.BitLen() > maxRSABits:
			return fmt.Errorf("is an RSA key of %d bits; want %d to %d", k.N.BitLen(), MinRSABits, maxRSABits)
		// With the exponent 1 a signature is the padded hash, which anybody can
		// write; what is even is no RSA key.
		case k.E < 3 || k.E%2 == 0 || k.E > math.MaxInt32 || k.N.Bit(0) == 0:
			return errors.New("is an RSA key with an impossible exponent or modulus")
		}
	case *ecdsa.PublicKey:
		//lint:ignore SA1019 nothing else tells a point that is not there, on which ECDH panics
		if k == nil || k.Curve == nil || k.X == nil || k.Y == nil { //nolint:staticcheck // SA1019, as above
			return errors.New("is empty")
		}
		if _, err := k.ECDH(); err != nil {
			return errors.New("is not a point on its curve P-256, P-384 or P-521")
		}
	case ed25519.PublicKey:
		if len(k) != ed25519.PublicKeySize {
			return fmt.Errorf("is an Ed25519 key of %d bytes; want %d", len(k), ed25519.PublicKeySize)
		}
		y := [ed25519.PublicKeySize]byte(k)
		y[len(y)-1] &= 0x7f
		if slices.Contains(smallOrder, y) {
			return errors.New("is a point of small order, under which anybody can sign")
		}
	default:
		return fmt.Errorf("is a %T; want an RSA, ECDSA or Ed25519 public key", key)
	}
	return nil
}

// SameKey reports whether two public keys are one.
func SameKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}
