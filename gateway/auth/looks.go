package auth

import (
	"bytes"
	"encoding/base64"
	"iter"
	"strings"
)

// LooksSecret reports whether a text holds what looks like a whole API key of the
// gateway's making, a token (RFC 7519), a name with its password (RFC 7617) or a private key, so that it must not be
// searched for, shown or logged. The public part of a key, and its id, do not.
func LooksSecret(text string) bool {
	for at := strings.Index(text, keyPrefix); at >= 0; {
		rest := text[at+len(keyPrefix):]
		if len(rest) > 2*keyPublicBytes+1 && rest[2*keyPublicBytes] == '_' {
			return true
		}
		next := strings.Index(rest, keyPrefix)
		if next < 0 {
			break
		}
		at += len(keyPrefix) + next
	}
	if strings.Contains(text, "-----BEGIN") {
		return true
	}
	before := ""
	for word := range Words(text) {
		if looksToken(word) || strings.EqualFold(before, "Basic") && looksBasic(word) {
			return true
		}
		before = word
	}
	return false
}

// Words are the parts of a text, one of which may be a credential that was pasted with
// what stood around it: a scheme, a field's name, quotation marks.
func Words(text string) iter.Seq[string] {
	return strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n,;=\"'", r) })
}

// looksBasic reports whether a word is a name and a password in base64 (RFC 7617). Its
// padding has been cut off.
func looksBasic(word string) bool {
	b, err := base64.RawStdEncoding.DecodeString(word)
	return err == nil && bytes.IndexByte(b, ':') >= 0
}

// looksToken reports whether a word is three parts in base64url, the first of which
// begins an object of JSON. Padding has been cut off; it makes no difference.
func looksToken(word string) bool {
	parts := strings.Split(word, ".")
	if len(parts) != 3 && len(parts) != 5 || !strings.HasPrefix(parts[0], "ey") {
		return false
	}
	for _, p := range parts {
		if strings.IndexFunc(p, notBase64URL) >= 0 {
			return false
		}
	}
	return len(parts[0]) >= 8 && len(word) >= 24
}

func notBase64URL(r rune) bool {
	return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// HasKey reports whether a text is one of the keys of the key file, of whatever form.
// Keys in Redis are not looked at.
func (a *Authenticator) HasKey(text string) bool {
	return a.keys != nil && a.keys.entries[digestOf(text)] != nil
}
