package auth

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxIdentity is the longest user, tenant, plan or key id, in bytes. It
// bounds keys in the store and fields of the upstream request.
const maxIdentity = 256

// keyUserPrefix begins the user name of callers whose API key names no user.
const keyUserPrefix = "key:"

// checkIdentity says whether s may be part of an identity. Identities become
// fields of the upstream request: a control character could end a field and
// begin another, space around a value is cut by the receiver (so that " admin"
// would arrive as "admin"), and U+FFFD is what different broken strings decode
// to, so that two callers would become one. The empty string is fine.
func checkIdentity(s string) error {
	if len(s) > maxIdentity {
		return fmt.Errorf("is %d bytes long; at most %d", len(s), maxIdentity)
	}
	for i, r := range s {
		switch {
		case r == utf8.RuneError:
			return errors.New("is not valid UTF-8")
		case unicode.IsControl(r), r == '\u2028', r == '\u2029':
			return fmt.Errorf("has a control character at byte %d", i)
		}
	}
	if strings.TrimSpace(s) != s {
		return errors.New("has space around it")
	}
	return nil
}
