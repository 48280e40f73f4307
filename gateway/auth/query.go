package auth

import (
	"net/url"
	"strings"
)

// A key in a query is read from the pairs between ampersands alone (as the WHATWG URL
// standard splits them), with percent signs decoded and nothing else: a plus is a plus.
// A name that is written with escapes is the same name, since it is to whoever
// decodes it later.

// inQuery returns the value of the parameter that keys come in, not decoded yet,
// and how often it is there.
func (k *keys) inQuery(raw string) (value string, n int) {
	if k.query == "" {
		return "", 0
	}
	for more := raw != ""; more; {
		var pair string
		pair, raw, more = strings.Cut(raw, "&")
		if name, v, _ := strings.Cut(pair, "="); k.isQuery(name) {
			value = v
			n++
		}
	}
	return value, n
}

// isQuery says whether a name in a query is that of the parameter.
func (k *keys) isQuery(name string) bool {
	if strings.IndexByte(name, '%') < 0 {
		return name == k.query
	}
	name, err := url.PathUnescape(name)
	return err == nil && name == k.query
}

// fromQuery reads the key out of a query; of no method if there is none.
func (k *keys) fromQuery(raw string) (credential, *refusal) {
	value, n := k.inQuery(raw)
	if n == 0 {
		return credential{}, nil
	}
	c := credential{method: MethodAPIKey}
	if n > 1 {
		return c, refuse(ReasonSeveral, "the parameter %s is there %d times", k.query, n)
	}
	var err error
	if c.value, err = url.PathUnescape(value); err != nil {
		return c, refuse(ReasonMalformed, "the parameter %s has a percent sign without two hexadecimal digits", k.query)
	}
	return c, nil
}

// StripQuery returns a raw query without the parameter that API keys come in, good
// or bad, as often as it is there. The rest stays as it is, byte for byte and in its
// order. It is raw itself where there is none, or keys do not come in queries.
func (a *Authenticator) StripQuery(raw string) string {
	if a.keys == nil {
		return raw
	}
	if _, n := a.keys.inQuery(raw); n == 0 {
		return raw
	}
	rest := make([]string, 0, strings.Count(raw, "&"))
	for pair := range strings.SplitSeq(raw, "&") {
		if name, _, _ := strings.Cut(pair, "="); !a.keys.isQuery(name) {
			rest = append(rest, pair)
		}
	}
	return strings.Join(rest, "&")
}

// MaskQuery is StripQuery for showing: the parameter stays and its value does not.
func (a *Authenticator) MaskQuery(raw string) string {
	if a.keys == nil {
		return raw
	}
	if _, n := a.keys.inQuery(raw); n == 0 {
		return raw
	}
	pairs := strings.Split(raw, "&")
	for i, pair := range pairs {
		if name, _, _ := strings.Cut(pair, "="); a.keys.isQuery(name) {
			pairs[i] = name + "=********"
		}
	}
	return strings.Join(pairs, "&")
}

// isUnreserved says whether s is of characters that mean the same in a URL escaped
// or not (RFC 3986 section 2.3).
func isUnreserved(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~") == ""
}
