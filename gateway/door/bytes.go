package door

// The classes of bytes that RFC 9110 and RFC 3986 name, as tables: a head is
// looked at byte by byte.
var tokenByte, valueByte, hostByte = classes()

func classes() (token, value, host [256]bool) {
	for c := '0'; c <= 'z'; c++ {
		if c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' {
			token[c], host[c] = true, true
		}
	}
	for _, c := range "!#$%&'*+-.^_`|~" { // RFC 9110 section 5.6.2
		token[c] = true
	}
	for _, c := range "-._~!$&'()*+,;=" { // RFC 3986 section 3.2.2, but for percent signs
		host[c] = true
	}
	for c := range value { // RFC 9110 section 5.5
		value[c] = c >= ' ' && c != 0x7f || c == '\t'
	}
	return token, value, host
}

func isToken(b []byte) bool {
	for _, c := range b {
		if !tokenByte[c] {
			return false
		}
	}
	return len(b) > 0
}

func isValue(b []byte) bool {
	for _, c := range b {
		if !valueByte[c] {
			return false
		}
	}
	return true
}

// is reports whether b is s, which is in lower case, whatever the case of b.
func is(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != s[i] {
			return false
		}
	}
	return true
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// hexDigit returns the value of c, or -1.
func hexDigit(c byte) int {
	switch {
	case digit(c):
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
