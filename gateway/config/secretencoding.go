package config

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
)

// SecretEncoding says how the file of a secret spells the bytes that are shared.
type SecretEncoding string

// The encodings. Base64 is with padding or without (RFC 4648 sections 4 and 5),
// and hex in capitals or not.
const (
	EncodingRaw       SecretEncoding = "raw" // the bytes as they are
	EncodingBase64    SecretEncoding = "base64"
	EncodingBase64URL SecretEncoding = "base64url"
	EncodingHex       SecretEncoding = "hex"
)

var secretEncodings = []string{string(EncodingRaw), string(EncodingBase64), string(EncodingBase64URL), string(EncodingHex)}

// encodingLooks says what a file in each encoding consists of.
var encodingLooks = map[SecretEncoding]string{
	EncodingBase64:    "letters, digits, + and /, with = at the end or without",
	EncodingBase64URL: "letters, digits, - and _, with = at the end or without",
	EncodingHex:       "pairs of 0 to 9 and a to f",
}

// readSecretEncoding reads secret_encoding of an issuer; empty where it has no
// secret that could be encoded.
func (o *object) readSecretEncoding() SecretEncoding {
	v, ok := o.get("secret_encoding", oneOf(secretEncodings))
	if !o.has("secret_file") {
		if ok {
			v.keyErrorf("has no effect, since there is no secret_file; remove it")
		}
		return ""
	}
	if ok {
		s, _ := v.choice(secretEncodings)
		return SecretEncoding(s)
	}
	return EncodingRaw
}

// decode returns the bytes that s spells. Line ends within are skipped, since
// tools wrap what is long; anything else that does not belong there is refused,
// and so is a second spelling of the same bytes.
func (e SecretEncoding) decode(s string) (Secret, bool) {
	if e == EncodingRaw {
		return Secret(s), true
	}
	s = strings.NewReplacer("\r", "", "\n", "").Replace(s)
	var b []byte
	var err error
	switch e {
	case EncodingBase64:
		b, err = base64.RawStdEncoding.Strict().DecodeString(withoutPadding(s))
	case EncodingBase64URL:
		b, err = base64.RawURLEncoding.Strict().DecodeString(withoutPadding(s))
	default:
		b, err = hex.DecodeString(s)
	}
	return b, err == nil
}

// withoutPadding cuts the padding of base64 if it is whole; what is cut in half
// stays, and does not decode.
func withoutPadding(s string) string {
	if len(s)%4 != 0 {
		return s
	}
	for range 2 {
		s = strings.TrimSuffix(s, "=")
	}
	return s
}

// others names the encodings besides e that s could be in. That is all that is
// said of a secret.
func (e SecretEncoding) others(s string) string {
	var fit []string
	for _, name := range secretEncodings[1:] {
		if _, ok := SecretEncoding(name).decode(s); ok && name != string(e) {
			fit = append(fit, name)
		}
	}
	if len(fit) == 0 {
		return ""
	}
	return " (it could be " + oneOf(fit) + ")"
}

// readSecrets reads secret_file: one file or a list. encoding is empty where it
// could not be read.
func (v value) readSecrets(algorithms []string, encoding SecretEncoding) (secrets []Secret, files []string) {
	least := 32
	for _, alg := range algorithms {
		least = max(least, map[string]int{"HS384": 48, "HS512": 64}[alg])
	}
	for _, f := range v.fileList() {
		path, secret, ok := f.readSecret(encoding)
		if !ok {
			continue
		}
		decoded := ""
		if encoding != EncodingRaw {
			decoded = " when it is decoded"
		}
		switch {
		case len(secret) < least:
			f.errorf("the secret in %s has %d bytes%s; want at least the length of the hash, %d (openssl rand -base64 %d)",
				path, len(secret), decoded, least, least)
			continue
		case slices.ContainsFunc(secrets, func(other Secret) bool { return bytes.Equal(other, secret) }):
			f.errorf("%s holds the same secret as another file here; remove one", path)
			continue
		}
		secrets = append(secrets, secret)
		files = append(files, absolute(path))
	}
	return secrets, files
}

// readSecret reads one file of a secret, and decodes it.
func (v value) readSecret(encoding SecretEncoding) (path string, secret Secret, ok bool) {
	path, text, ok := v.secretText("the secret")
	if !ok || encoding == "" {
		return path, nil, false
	}
	if strings.Contains(text, "-----BEGIN ") {
		v.errorf("%s holds PEM; want a secret: bytes that nobody else knows", path)
		return path, nil, false
	}
	if encoding == EncodingRaw {
		v.warnSpace(path, text)
	}
	secret, ok = encoding.decode(text)
	if !ok {
		v.errorf("the secret in %s is not %s%s; want %s, or another secret_encoding",
			path, encoding, encoding.others(text), encodingLooks[encoding])
	}
	return path, secret, ok
}
