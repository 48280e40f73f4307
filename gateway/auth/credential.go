package auth

import (
	"net/http"
	"strings"
)

// credential is what a request presents.
type credential struct {
	method Method // empty: nothing
	value  string // the token or key
	cookie string // the cookie's name, for MethodCookie
}

// The schemes of the Authorization field that may be ours.
const (
	schemeBearer = "Bearer"
	schemeAPIKey = "ApiKey"
)

// find returns the first credential present; the package's documentation says
// in which order and why. On a refusal the credential still says its method.
func (a *Authenticator) find(r *http.Request) (credential, *refusal) {
	h := r.Header
	authorization, scheme := "", ""
	fields := h["Authorization"]
	for _, f := range fields {
		f = trimOWS(f)
		if s := a.ourScheme(f); s != "" {
			authorization, scheme = f, s
			break
		}
	}
	if scheme != "" && len(fields) > 1 {
		// Which of them counts is anybody's guess, so none does.
		return credential{method: methodOf(scheme)}, refuse(ReasonSeveral, "%d Authorization fields", len(fields))
	}
	if scheme == schemeBearer {
		return fromScheme(authorization, scheme)
	}
	if a.tokens != nil {
		for _, name := range a.tokens.cookies {
			value, n, same := cookieValue(h["Cookie"], name)
			if n == 0 || same && value == "" {
				continue
			}
			c := credential{method: MethodCookie, value: value, cookie: name}
			if !same {
				return c, refuse(ReasonSeveral, "the cookie %s is there %d times with different values", name, n)
			}
			return c, nil
		}
	}
	if a.keys == nil {
		return credential{}, nil
	}
	c := credential{method: MethodAPIKey}
	switch keys := h[a.keys.header]; {
	case len(keys) > 1:
		return c, refuse(ReasonSeveral, "%d %s fields", len(keys), a.keys.header)
	case len(keys) == 1:
		c.value = trimOWS(keys[0])
		return c, nil
	}
	if scheme == schemeAPIKey {
		return fromScheme(authorization, scheme)
	}
	if r.URL == nil {
		return credential{}, nil
	}
	return a.keys.fromQuery(r.URL.RawQuery)
}

// ourScheme returns the scheme of an Authorization field if it is configured.
// It reads up to the first byte that no scheme can contain, so that a
// malformed field ("Bearer<tab>x", "Bearer,x") is still known for what it
// tries to be, to refuse it and to keep it from the upstream.
func (a *Authenticator) ourScheme(f string) string {
	n := 0
	for n < len(f) && isTokenChar(f[n]) {
		n++
	}
	switch s := f[:n]; {
	case a.tokens != nil && strings.EqualFold(s, schemeBearer):
		return schemeBearer
	case a.keys != nil && strings.EqualFold(s, schemeAPIKey):
		return schemeAPIKey
	}
	return ""
}

func methodOf(scheme string) Method {
	if scheme == schemeBearer {
		return MethodJWT
	}
	return MethodAPIKey
}

// fromScheme reads what follows the scheme and its spaces: credentials =
// auth-scheme 1*SP token68 (RFC 9110 section 11.4). It is one word; what it may
// consist of depends on what it is and is checked by those who read it.
func fromScheme(f, scheme string) (credential, *refusal) {
	c := credential{method: methodOf(scheme)}
	rest := f[len(scheme):]
	word := strings.TrimLeft(rest, " ")
	switch {
	case word == "":
		return c, refuse(ReasonMalformed, "nothing follows the scheme %s", scheme)
	case len(word) == len(rest):
		return c, refuse(ReasonMalformed, "no space follows the scheme %s", scheme)
	}
	// A token has none of these: whoever reads it sees to that, and need not where it
	// is known already. What a key may consist of is up to those who bring it.
	if scheme == schemeAPIKey && strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r == 0x7f || r == ',' }) {
		return c, refuse(ReasonMalformed, "a space, control character or comma stands in what follows the scheme %s", scheme)
	}
	c.value = word
	return c, nil
}

// trimOWS cuts the white space around a field's value, which is not part of
// it (RFC 9110 section 5.5).
func trimOWS(s string) string { return strings.Trim(s, " \t") }

// cookieValue returns the value of the cookie called name, how often it
// is there, and whether it has the same value everywhere. net/http's own
// reading is not used because it drops what it does not like without a word,
// and a cookie that we do not see we could neither refuse nor strip.
func cookieValue(lines []string, name string) (value string, n int, same bool) {
	same = true
	for _, line := range lines {
		for more := true; more; {
			var pair string
			pair, line, more = strings.Cut(line, ";")
			k, v := splitCookie(pair)
			if k != name {
				continue
			}
			if n > 0 && v != value {
				same = false
			}
			value = v
			n++
		}
	}
	return value, n, same
}

// splitCookie splits one cookie-pair (RFC 6265 section 4.2.1). A pair of
// quotes around the value is part of the grammar, not of the value.
func splitCookie(pair string) (name, value string) {
	name, value, _ = strings.Cut(pair, "=")
	name, value = trimOWS(name), trimOWS(value)
	if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	}
	return name, value
}
