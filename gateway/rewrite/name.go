package rewrite

import (
	"errors"
	"fmt"
	"strings"
)

// SameName reports whether a server could take the field a for the field b: if they
// are the same but for case, every byte that is no letter or digit taken for a hyphen.
// Servers that hand fields on as environment variables (RFC 3875 section 4.1.18) make
// one HTTP_X_AUTH_USER of X-Auth-User, X_Auth_User and X.Auth.User; none is known to
// make one underscore of two such bytes. It allocates nothing.
func SameName(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if folded[a[i]] != folded[b[i]] {
			return false
		}
	}
	return true
}

// folded is what SameName takes each byte of a name for.
var folded = func() (t [256]byte) {
	for i := range t {
		switch c := byte(i); {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			t[i] = c
		case 'A' <= c && c <= 'Z':
			t[i] = c + 'a' - 'A'
		default:
			t[i] = '-'
		}
	}
	return t
}()

// ValidHost reports whether v looks like host or host:port: the characters of
// RFC 3986 host names, IP literals and ports, 261 bytes at most.
func ValidHost(v string) bool { return v != "" && len(v) <= 255+6 && hostBytes(v) }

func hostBytes(v string) bool {
	for i := range len(v) {
		switch c := v[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '-', c == '_', c == ':', c == '[', c == ']':
		default:
			return false
		}
	}
	return true
}

// CheckHost reports why a value, with placeholders or not, can be no Host: see [NewFields].
func CheckHost(value string) error {
	t, err := parse(value)
	if err != nil {
		return err
	}
	for _, text := range t.texts {
		if !hostBytes(text) {
			return errors.New("is no host; want a name with or without a port, such as api.example.com, or {host} to keep the client's")
		}
	}
	for _, name := range []string{"path", "query"} {
		if strings.Contains(value, "{"+name+"}") {
			return fmt.Errorf("{%s} makes no host; want a name with or without a port, such as api.example.com, or {host} to keep the client's", name)
		}
	}
	if len(t.values) == 0 && !ValidHost(value) {
		return errors.New("is no host; want at most 261 bytes")
	}
	return nil
}
