package clientip

import (
	"net/netip"
	"strings"

	"bouncer/gateway/scope"
)

// parsePeer reads http.Request.RemoteAddr. A unix socket's is "@" for a peer
// that did not bind, or the path it did bind: local is true, and there is no
// address. Anything else that is not an address gives neither.
func parsePeer(s string) (a netip.Addr, local bool) {
	if scope.PeerName(s) == scope.NoAddress {
		return netip.Addr{}, true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return fold(ap.Addr()), false
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return fold(a), false
	}
	return netip.Addr{}, false
}

// fold gives the one form in which addresses are compared and counted: without
// zone, which means something on one link only, and IPv4 as IPv4, so that
// ::ffff:203.0.113.7 is no second bucket for 203.0.113.7.
func fold(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// parseNode reads an address as proxies write it, with or without port:
// 203.0.113.7, 203.0.113.7:50123, 2001:db8::1, [2001:db8::1], [2001:db8::1]:443.
// Names, obfuscated identifiers and numbers with leading zeros are none.
func parseNode(s string) (netip.Addr, bool) {
	host, port, hasPort := s, "", false
	switch {
	case strings.HasPrefix(s, "["):
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return netip.Addr{}, false
		}
		host, port = s[1:end], s[end+1:]
		if port != "" {
			if port[0] != ':' {
				return netip.Addr{}, false
			}
			port, hasPort = port[1:], true
		}
		if strings.IndexByte(host, ':') < 0 {
			return netip.Addr{}, false // brackets are for IPv6
		}
	case strings.Count(s, ":") == 1:
		host, port, hasPort = strings.Cut(s, ":")
	}
	if hasPort && !isPort(port) {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, false
	}
	return fold(a), true
}

// isPort reports whether s is a port as RFC 7239 section 6 writes it: up to
// five digits, or an obfuscated one, "_" and then letters, digits, ".", "_", "-".
func isPort(s string) bool {
	if obfuscated, ok := strings.CutPrefix(s, "_"); ok {
		for i := range len(obfuscated) {
			if c := obfuscated[i]; !isAlnum(c) && c != '.' && c != '_' && c != '-' {
				return false
			}
		}
		return obfuscated != ""
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 5
}

// lastElement tells where the last element of a Forwarded field starts in s,
// behind the comma that ends the one before it.
//
// It reads from the right, because what stands on the left may be a stranger's:
// read from the left, an opening quote sent by the client would swallow the
// element that our own proxy appended. From the right, a proxy's element is
// understood whatever precedes it. That is exact: inside a quoted string every
// quote follows its backslash, and the one that opens it follows "=".
//
// ok is false if a quoted string does not begin.
func lastElement(s string) (start int, ok bool) {
	for i := len(s) - 1; i >= 0; i-- {
		switch s[i] {
		case ',':
			return i + 1, true
		case '"':
			if i = openingQuote(s, i); i < 0 {
				return 0, false
			}
		}
	}
	return 0, true
}

// openingQuote tells where the quoted string that ends at s[end] begins, or -1.
func openingQuote(s string, end int) int {
	for i := end - 1; i >= 0; i-- {
		if s[i] == '"' && (i == 0 || s[i-1] != '\\') {
			return i
		}
	}
	return -1
}

// parseElement reads the address in one element of a Forwarded field (RFC 7239
// section 4): pairs of name and value, of which "for" must be there once. More
// is forgiven than the grammar allows where it is common and cannot be mistaken:
// spaces around ";", and an address that should have been quoted but is not.
func parseElement(s string) (addr netip.Addr, ok bool) {
	found := false
	for more := true; more; {
		var name, value string
		s = trimOWS(s)
		if s == "" || s[0] == ';' { // an empty pair
			s, more = strings.CutPrefix(s, ";")
			continue
		}
		if name, s, ok = strings.Cut(s, "="); !ok || !isToken(name) {
			return netip.Addr{}, false
		}
		if strings.HasPrefix(s, `"`) {
			value, s, ok = unquote(s)
		} else {
			value, s, ok = bare(s)
		}
		if !ok {
			return netip.Addr{}, false
		}
		s = trimOWS(s)
		if more = s != ""; more {
			if s[0] != ';' {
				return netip.Addr{}, false
			}
			s = s[1:]
		}
		if !strings.EqualFold(name, "for") {
			continue
		}
		if found {
			return netip.Addr{}, false // two, and no telling which is meant
		}
		if addr, found = parseNode(value); !found {
			return netip.Addr{}, false
		}
	}
	return addr, found
}

// bare cuts an unquoted value off s.
func bare(s string) (value, rest string, ok bool) {
	end := 0
	for end < len(s) && s[end] > ' ' && s[end] < 0x7f && s[end] != ';' && s[end] != '"' && s[end] != '\\' {
		end++
	}
	return s[:end], s[end:], end > 0
}

// unquote cuts a quoted string (RFC 9110 section 5.6.4) off s, which starts
// with its quote.
func unquote(s string) (value, rest string, ok bool) {
	end := 1
	for end < len(s) && s[end] != '"' {
		if s[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(s) {
		return "", "", false
	}
	value, rest = s[1:end], s[end+1:]
	if strings.IndexByte(value, '\\') < 0 {
		return value, rest, true
	}
	b := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		if value[i] == '\\' {
			i++ // there is one: the loop above skipped it
		}
		b = append(b, value[i])
	}
	return string(b), rest, true
}

// trimOWS removes the optional whitespace of RFC 9110 section 5.6.3.
func trimOWS(s string) string { return strings.Trim(s, " \t") }

// isToken reports whether s is a token (RFC 9110 section 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		if !isAlnum(s[i]) && strings.IndexByte("!#$%&'*+-.^_`|~", s[i]) < 0 {
			return false
		}
	}
	return s != ""
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}
