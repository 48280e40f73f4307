package config

import (
	"fmt"
	"strings"
)

// expand replaces ${NAME} and ${NAME:-default} by the environment, and $${ by
// ${. The default stands in for an unset or empty variable. What comes from
// the environment is not expanded again.
func expand(s string, lookup func(string) (string, bool)) (string, error) {
	if !strings.Contains(s, "${") {
		return s, nil
	}
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1])
			b.WriteString("${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		inner, rest, ok := strings.Cut(s[i+2:], "}")
		if !ok {
			return "", fmt.Errorf("${ without }; write $${ for a literal ${")
		}
		name, fallback, hasFallback := strings.Cut(inner, ":-")
		switch v, set := lookup(name); {
		case !isVariable(name):
			// What stands there could be part of a password: it is not repeated.
			return "", fmt.Errorf("bad variable name in ${…}; want ${NAME} or ${NAME:-default}, or $${ for a literal ${")
		case strings.Contains(fallback, "${"):
			return "", fmt.Errorf("the default of ${%s:-…} holds another ${; want plain text", name)
		case v != "":
			b.WriteString(v)
		case hasFallback:
			b.WriteString(fallback)
		case !set:
			return "", fmt.Errorf("environment variable %s is not set; set it, or write ${%s:-default}", name, name)
		}
		s = rest
	}
}

// fromEnvironment reports whether a part of the value is taken from the environment,
// which is where secrets are: what came of it is shown nowhere.
func (v value) fromEnvironment() bool {
	return !v.d.raw && v.n.Tag == "!!str" && strings.Contains(strings.ReplaceAll(v.n.Value, "$${", ""), "${")
}

// isVariable reports whether s can name a variable: [A-Za-z_][A-Za-z0-9_]*.
func isVariable(s string) bool {
	for i, r := range s {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
