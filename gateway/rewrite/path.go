package rewrite

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// A Path says which path an upstream gets for that of a request.
type Path struct {
	segments int            // how many go from the front; 0 if match is set
	match    *regexp.Regexp // of the whole path
	template string         // for match, as regexp.Expand wants it
}

// StripPrefix takes a prefix of whole segments, such as "/api/v1", from the front
// of paths. It is for a route whose paths all begin with it: that many segments
// go, however a client escaped them.
func StripPrefix(prefix string) (*Path, error) {
	if whole := strings.TrimRight(prefix, "/"); whole != prefix && strings.HasPrefix(whole, "/") {
		return nil, errors.New("want no slash at the end, which is that of what stays: " + whole)
	}
	if !strings.HasPrefix(prefix, "/") || strings.HasSuffix(prefix, "/") || strings.Contains(prefix, "//") ||
		strings.ContainsAny(prefix, "{}*%?#") {
		return nil, errors.New("want whole segments in letters, such as /api/v1")
	}
	return &Path{segments: strings.Count(prefix, "/")}, nil
}

// Replace gives paths that match as a whole another form. match is a regular
// expression of package regexp, anchored at both ends; in replacement $1 to $9 are
// what its groups matched, and $$ is a dollar. Other paths stay as they are.
//
// What is matched is the path in its normal form (RFC 3986 section 6.2.2): escapes
// in capitals, none of letters, digits and -._~, and no empty segments; so that no
// spelling gets round the expression. A slash that came escaped is "%2F".
func Replace(match, replacement string) (*Path, error) {
	re, err := regexp.Compile("^(?:" + match + ")$")
	if err != nil {
		// The error quotes what was compiled, with what stands around it here.
		if _, own := regexp.Compile(match); own != nil {
			err = own
		}
		return nil, fmt.Errorf("match: %w", err)
	}
	template, err := expansion(replacement, re.NumSubexp())
	if err != nil {
		return nil, fmt.Errorf("replace: %w", err)
	}
	return &Path{match: re, template: template}, nil
}

// expansion returns replacement as regexp.Expand wants it.
func expansion(replacement string, groups int) (string, error) {
	if replacement == "" || replacement[0] != '/' && replacement[0] != '$' {
		return "", errors.New("want a path that begins with / or with a group such as $1")
	}
	var b strings.Builder
	for i := 0; i < len(replacement); i++ {
		c := replacement[i]
		switch {
		case c == '$':
			i++
			switch {
			case i < len(replacement) && replacement[i] == '$':
				b.WriteString("$$")
			case i < len(replacement) && '1' <= replacement[i] && replacement[i] <= '9':
				if n := int(replacement[i] - '0'); n > groups {
					return "", fmt.Errorf("there is no group $%d: match has %d; want groups in ( )", n, groups)
				}
				b.WriteString("${" + replacement[i:i+1] + "}")
			default:
				return "", errors.New("want $1 to $9 for what a group matched, or $$ for a dollar")
			}
		case c == '%':
			if _, ok := Unescape(replacement[i:]); !ok {
				return "", errors.New("% without two hexadecimal digits; want %25 for a percent sign")
			}
			b.WriteByte(c)
		case !inPath(c):
			return "", fmt.Errorf("%q cannot stand in a path; want it escaped, as in %%20, and no query", string(rune(c)))
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}

// Of returns where a request for u goes: a copy with the path changed, or u itself
// where nothing changes. It is not ok where the path would come out with a dot
// segment, such as "/a/../b", or holds an escape that is none.
func (p *Path) Of(u *url.URL) (to *url.URL, ok bool) {
	raw := u.RawPath
	if raw == "" {
		raw = u.EscapedPath()
	}
	var changed string
	if p.match == nil {
		changed = strip(raw, p.segments)
	} else {
		normal := normalize(raw)
		groups := p.match.FindStringSubmatchIndex(normal)
		if groups == nil {
			return u, true
		}
		changed = MergeSlashes("/" + string(p.match.ExpandString(nil, p.template, normal, groups)))
		if hasDotSegment(changed) {
			return nil, false
		}
	}
	path, err := url.PathUnescape(changed)
	if err != nil {
		return nil, false
	}
	out := *u
	out.Path, out.RawPath, out.Opaque = path, "", ""
	if out.EscapedPath() != changed {
		out.RawPath = changed
	}
	return &out, true
}

// strip returns raw without its first n segments, and without empty ones there.
func strip(raw string, n int) string {
	for range n {
		raw = strings.TrimLeft(raw, "/")
		i := strings.IndexByte(raw, '/')
		if i < 0 {
			return "/"
		}
		raw = raw[i:]
	}
	return "/" + strings.TrimLeft(raw, "/")
}

// normalize returns the normal form of an escaped path.
func normalize(raw string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(raw))
	escape := func(c byte) {
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '%' {
			if u, ok := Unescape(raw[i:]); ok {
				c = u
				i += 2
				if unreserved(c) {
					b.WriteByte(c)
				} else {
					escape(c)
				}
				continue
			}
		}
		switch {
		case c == '/' && i > 0 && raw[i-1] == '/':
		case inPath(c):
			b.WriteByte(c)
		default:
			escape(c)
		}
	}
	return b.String()
}

// MergeSlashes drops the empty segments of a path, but for one at the end.
func MergeSlashes(path string) string {
	if !strings.Contains(path, "//") {
		return path
	}
	b := make([]byte, 0, len(path))
	for i := range len(path) {
		if path[i] != '/' || i == 0 || path[i-1] != '/' {
			b = append(b, path[i])
		}
	}
	return string(b)
}

// hasDotSegment reports whether an escaped path in normal form holds a segment "."
// or "..", also in front of an escaped slash or a parameter.
func hasDotSegment(path string) bool {
	path = strings.NewReplacer("%2F", "/", "%2f", "/", "%2E", ".", "%2e", ".").Replace(path)
	for segment := range strings.SplitSeq(path, "/") {
		if segment, _, _ = strings.Cut(segment, ";"); segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// unreserved reports whether c means the same escaped or not (RFC 3986 section 2.3).
func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// inPath reports whether c can stand in a path as it is (RFC 3986 section 3.3).
func inPath(c byte) bool {
	return unreserved(c) || strings.IndexByte("/!$&'()*+,;=:@", c) >= 0
}

// Unescape returns the byte that the escape "%XX" at the beginning of s stands for (RFC
// 3986 section 2.1). It is not ok where s begins with none.
func Unescape(s string) (byte, bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	n, err := strconv.ParseUint(s[1:3], 16, 8)
	return byte(n), err == nil
}
