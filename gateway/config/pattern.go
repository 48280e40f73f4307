package config

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// pathShape checks a path pattern of chi and returns its shape: the pattern
// with the names of its parameters taken out, so that two patterns that match
// the same requests have the same shape.
//
// A pattern is a path in which {name} stands for one segment or part of one,
// {name:regexp} for what matches, and a final /* for the rest, also an empty one.
//
// Routes are matched on the plain form of a path: decoded but for encoded
// slashes, which stay as the client spelled them, and without empty segments;
// a dot segment, a backslash or a control character is refused before. What no
// such path can match is an error, since its route would never be used and a
// wider one, with other limits, would be.
func pathShape(p string) (string, error) { return shapeOf(p, false) }

// shapeOf is pathShape; decoded says that p is what a pattern meant, with its
// escapes decoded.
func shapeOf(p string, decoded bool) (string, error) {
	switch {
	case !strings.HasPrefix(p, "/"):
		return "", errors.New("a path begins with /")
	case len(p) > 2048:
		return "", errors.New("longer than 2048 bytes")
	case strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", errors.New("requests with a control character in their path are refused, so that none matches")
	}
	var shape strings.Builder
	var names []string
	afterParameter := false
	for i := 0; i < len(p); {
		switch c := p[i]; c {
		case '*':
			if i != len(p)-1 || p[i-1] != '/' {
				return "", errors.New("* stands only at the end, after /; use {name} for one segment")
			}
			shape.WriteByte('*')
			i++
		case '{':
			if afterParameter {
				return "", errors.New("nothing stands between two parameters, so that nobody can say where one ends")
			}
			end, err := closingBrace(p, i)
			if err != nil {
				return "", err
			}
			name, pattern, hasPattern := strings.Cut(p[i+1:end], ":")
			switch {
			case name == "" || strings.ContainsAny(name, "/{}*? "):
				return "", fmt.Errorf("bad name of a parameter in %s; want {name} or {name:regexp}", quote(p[i:end+1]))
			case slices.Contains(names, name):
				return "", fmt.Errorf("parameter %s is used twice; want another name", quote(name))
			case hasPattern:
				if err := checkRegexp(pattern, delimiter(p, end+1)); err != nil {
					return "", fmt.Errorf("the regexp of parameter %s %w", quote(name), err)
				}
			}
			names = append(names, name)
			shape.WriteByte('{')
			if hasPattern {
				shape.WriteString(":" + pattern)
			}
			shape.WriteByte('}')
			i = end + 1
			afterParameter = true
			continue
		case '}':
			return "", errors.New("} without {")
		case '?', '#':
			return "", fmt.Errorf("%c does not stand in a path; a route matches no query and no fragment", c)
		default:
			if err := checkPlain(p, i, decoded); err != nil {
				return "", err
			}
			shape.WriteByte(c)
			i++
		}
		afterParameter = false
	}
	return shape.String(), nil
}

// checkPlain checks one character outside of parameters: it must be what
// stands in the plain form of a path.
func checkPlain(p string, i int, decoded bool) error {
	switch {
	case p[i] == '%' && isEscape(p[i:]) && decoded:
		return fmt.Errorf("%s as text, a %% before two hex digits, cannot be written in a pattern; use a parameter", p[i:i+3])
	case p[i] == '%' && isEscape(p[i:]):
		return escapeError(p, i)
	case p[i] == '\\':
		return errors.New("requests with a backslash in their path are refused, so that none matches")
	case p[i] == '/' && i > 0 && p[i-1] == '/':
		return errors.New("empty segments are dropped before a route is looked for, so that no request matches //; want /")
	case p[i] == '.' && p[i-1] == '/' && dotSegment(p[i:]):
		return errors.New("requests with a segment . or .. are refused, so that none matches; want the path without it")
	case p[i] == ' ' && (p[i-1] == '/' || i+1 == len(p) || p[i+1] == '/'):
		return errors.New("a segment begins or ends with white space, which is more often a slip than meant; " +
			"remove it, or use a parameter")
	}
	return nil
}

// dotSegment reports whether s begins with a whole segment . or .., also one
// with path parameters (";").
func dotSegment(s string) bool {
	s = strings.TrimPrefix(s[1:], ".")
	return s == "" || s[0] == '/' || s[0] == ';'
}

// isEscape reports whether s begins with a percent-escape.
func isEscape(s string) bool {
	return len(s) > 2 && s[0] == '%' && isHex(s[1]) && isHex(s[2])
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// escapeError says what to write in place of the escape at i.
func escapeError(p string, i int) error {
	s, bad := decodePattern(p)
	switch {
	case strings.EqualFold(bad, "%2F"):
		return errors.New("an encoded slash cannot be written in a pattern; use a parameter")
	case bad != "":
		return fmt.Errorf("what %s stands for cannot be written in a pattern; use a parameter", bad)
	}
	if _, err := shapeOf(s, true); err != nil {
		return err
	}
	if strings.ContainsFunc(s, isControl) {
		return fmt.Errorf("what %s stands for cannot be written in a pattern; use a parameter", p[i:i+3])
	}
	return fmt.Errorf("a route is matched on the decoded path, so write the character itself in place of %s (did you mean %s?)",
		p[i:i+3], quote(s))
}

// decodePattern decodes the escapes of a pattern outside of its parameters. bad
// is the first that means something else in a pattern once it is decoded.
func decodePattern(p string) (s, bad string) {
	var b strings.Builder
	for i := 0; i < len(p); {
		n := 1
		switch {
		case p[i] == '{':
			if end, err := closingBrace(p, i); err == nil {
				n = end + 1 - i
			}
			b.WriteString(p[i : i+n])
		case isEscape(p[i:]):
			n = 3
			c := unhex(p[i+1])<<4 | unhex(p[i+2])
			if strings.IndexByte("/{}*?#", c) >= 0 {
				return "", p[i : i+3]
			}
			b.WriteByte(c)
		default:
			b.WriteByte(p[i])
		}
		i += n
	}
	return b.String(), ""
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}

// delimiter is the character that ends a parameter whose brace closes before i.
func delimiter(p string, i int) rune {
	if i < len(p) {
		r, _ := utf8.DecodeRuneInString(p[i:])
		return r
	}
	return '/'
}

// checkRegexp checks the regexp of a parameter that ends before delimiter. Its
// error completes "the regexp of parameter …".
func checkRegexp(pattern string, delimiter rune) error {
	if pattern == "" {
		return errors.New("is empty; want {name} or {name:regexp}")
	}
	if strings.TrimSpace(pattern) != pattern {
		return errors.New("begins or ends with white space; remove it, or write [ ] if it is meant")
	}
	// As chi has it.
	whole := "^" + pattern + "$"
	if _, err := regexp.Compile(whole); err != nil {
		return fmt.Errorf("is not valid: %s", regexpError(err))
	}
	re, err := syntax.Parse(whole, syntax.Perl)
	if err != nil {
		return fmt.Errorf("is not valid: %s", regexpError(err))
	}
	if e := literalEscape(re); strings.EqualFold(e, "%2F") {
		return fmt.Errorf("matches %s only, but an encoded slash is %%2F or %%2f, as the client likes; write %%2[Ff]", e)
	} else if e != "" {
		return fmt.Errorf("matches %s as text, but a route is matched on the decoded path; write the character itself", e)
	}
	never := func(r rune) bool {
		return r < ' ' || r == 0x7f || r == '\\' || r == delimiter
	}
	if !canMatch(re, never) {
		return fmt.Errorf("matches nothing that can stand there: no %c, where the parameter ends, and no backslash or control character",
			delimiter)
	}
	return nil
}

// literalEscape returns a percent-escape that re asks for character by
// character; an encoded slash only if it has to be in one spelling.
func literalEscape(re *syntax.Regexp) string {
	if re.Op == syntax.OpLiteral {
		s := string(re.Rune)
		for i := range len(s) {
			if !isEscape(s[i:]) {
				continue
			}
			if e := s[i : i+3]; !strings.EqualFold(e, "%2F") || re.Flags&syntax.FoldCase == 0 {
				return e
			}
		}
	}
	for _, sub := range re.Sub {
		if e := literalEscape(sub); e != "" {
			return e
		}
	}
	return ""
}

// canMatch reports whether re may match a text that has none of the never
// characters, which are few.
func canMatch(re *syntax.Regexp, never func(rune) bool) bool {
	can := func(sub *syntax.Regexp) bool { return canMatch(sub, never) }
	cannot := func(sub *syntax.Regexp) bool { return !can(sub) }
	switch re.Op {
	case syntax.OpNoMatch:
		return false
	case syntax.OpLiteral:
		return !slices.ContainsFunc(re.Rune, never)
	case syntax.OpCharClass:
		for i := 0; i < len(re.Rune); i += 2 {
			for r := re.Rune[i]; r <= re.Rune[i+1]; r++ {
				if !never(r) {
					return true
				}
			}
		}
		return false
	case syntax.OpCapture, syntax.OpPlus:
		return can(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min == 0 || can(re.Sub[0])
	case syntax.OpConcat:
		return !slices.ContainsFunc(re.Sub, cannot)
	case syntax.OpAlternate:
		return slices.ContainsFunc(re.Sub, can)
	}
	return true // any character, or none
}

// closingBrace returns where the brace that opens at i closes.
func closingBrace(p string, i int) (int, error) {
	depth := 0
	for j := i; j < len(p); j++ {
		switch p[j] {
		case '{':
			depth++
		case '}':
			depth--
			if depth == 0 {
				return j, nil
			}
		}
	}
	return 0, errors.New("{ without }")
}

// regexpError is what regexp says, without the whole expression.
func regexpError(err error) string {
	return strings.TrimPrefix(err.Error(), "error parsing regexp: ")
}
