package auth

import (
	"net/http"
	"slices"
	"strings"
)

// Strip removes from h, the header of an outgoing request, every credential
// that this configuration could have accepted, good or bad: Authorization
// fields of our schemes, the key field under any spelling that an upstream
// could take for it (x_api_key, x.api.key), and the configured cookies. Other cookies
// stay as they are, byte for byte; a Cookie field with none left goes.
//
// The slices of h may be those of the inbound request: they are replaced, not
// written to.
func (a *Authenticator) Strip(h http.Header) {
	a.stripAuthorization(h)
	if a.tokens != nil && len(a.tokens.cookies) > 0 {
		a.stripCookies(h)
	}
	if a.keys != nil {
		for name := range h {
			if sameField(name, a.keys.header) {
				delete(h, name)
			}
		}
	}
}

func (a *Authenticator) stripAuthorization(h http.Header) {
	fields := h["Authorization"]
	ours := func(f string) bool { return a.ourScheme(trimOWS(f)) != "" }
	if !slices.ContainsFunc(fields, ours) {
		return
	}
	var rest []string
	for _, f := range fields {
		if !ours(f) {
			rest = append(rest, f)
		}
	}
	replace(h, "Authorization", rest)
}

func (a *Authenticator) stripCookies(h http.Header) {
	lines := h["Cookie"]
	for i, line := range lines {
		if !a.hasCookie(line) {
			continue
		}
		rest := slices.Clone(lines[:i])
		for _, line := range lines[i:] {
			if !a.hasCookie(line) {
				rest = append(rest, line)
			} else if line = a.withoutCookies(line); line != "" {
				rest = append(rest, line)
			}
		}
		replace(h, "Cookie", rest)
		return
	}
}

// replace sets a field, or removes it when there is nothing left of it.
func replace(h http.Header, name string, values []string) {
	if len(values) == 0 {
		delete(h, name)
		return
	}
	h[name] = values
}

// isOurCookie says whether pair is one of the configured cookies.
func (a *Authenticator) isOurCookie(pair string) bool {
	name, _, _ := strings.Cut(pair, "=")
	return slices.Contains(a.tokens.cookies, trimOWS(name))
}

func (a *Authenticator) hasCookie(line string) bool {
	for more := true; more; {
		var pair string
		pair, line, more = strings.Cut(line, ";")
		if a.isOurCookie(pair) {
			return true
		}
	}
	return false
}

// withoutCookies returns a Cookie line without the configured cookies.
func (a *Authenticator) withoutCookies(line string) string {
	var b strings.Builder
	first := true
	for more := true; more; {
		var pair string
		pair, line, more = strings.Cut(line, ";")
		if a.isOurCookie(pair) {
			continue
		}
		if !first {
			b.WriteByte(';')
		}
		b.WriteString(pair)
		first = false
	}
	// What came after the first cookie had a space before it.
	s := trimOWS(b.String())
	if strings.Trim(s, "; \t") == "" {
		return ""
	}
	return s
}

// sameField says whether an upstream could take the field a for the field b:
// case is no difference, and servers that hand fields on as environment
// variables (CGI, WSGI) write every byte that is no letter or digit as _.
func sameField(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if foldField(a[i]) != foldField(b[i]) {
			return false
		}
	}
	return true
}

func foldField(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		return c
	}
	return '-'
}
