package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// pathShape checks a path pattern of chi and returns its shape: the pattern
// with the names of its parameters taken out, so that two patterns that match
// the same requests have the same shape.
//
// A pattern is a path in which {name} stands for one segment or part of one,
// {name:regexp} for what matches, and a final /* for the rest, also an empty one.
func pathShape(p string) (string, error) {
	switch {
	case !strings.HasPrefix(p, "/"):
		return "", errors.New("a path begins with /")
	case len(p) > 2048:
		return "", errors.New("longer than 2048 bytes")
	case strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return "", errors.New("white space does not stand in a path; write it as %20")
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
			case name == "" || strings.ContainsAny(name, "/{}*?"):
				return "", fmt.Errorf("bad name of a parameter in %s; want {name} or {name:regexp}", quote(p[i:end+1]))
			case slices.Contains(names, name):
				return "", fmt.Errorf("parameter %s is used twice; want another name", quote(name))
			case hasPattern:
				if _, err := regexp.Compile("^" + pattern + "$"); err != nil {
					return "", fmt.Errorf("the regexp of parameter %s is not valid: %s", quote(name), regexpError(err))
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
			shape.WriteByte(c)
			i++
		}
		afterParameter = false
	}
	return shape.String(), nil
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
