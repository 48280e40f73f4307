package rewrite

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
