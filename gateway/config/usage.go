package config

import "strings"

const wantedUsage = "a path such as /usage, or off"

// readUsagePath reads where callers see their own limits; empty if nowhere.
func readUsagePath(top *object) (string, value) {
	v, ok := top.get("usage_path", wantedUsage)
	if !ok {
		return "", value{}
	}
	s, _, ok := v.scalar(wantedUsage)
	switch {
	case !ok || s == "off" || v.n.Tag == "!!bool" && strings.EqualFold(s, "false"):
		return "", v
	case v.n.Tag != "!!str":
		v.errorf("want %s, got %s", wantedUsage, v.kind())
		return "", v
	case s == "":
		v.errorf("empty; want %s", wantedUsage)
		return "", v
	case strings.ContainsAny(s, "{}*%"):
		v.errorf("%s: one fixed path is asked for, without parameters, * and %%; want one such as /usage", quote(s))
		return "", v
	}
	if _, err := pathShape(s); err != nil {
		v.errorf("%s: %v; want %s", quote(s), err, wantedUsage)
		return "", v
	}
	return s, v
}

// checkUsagePath finds a route on the usage path. One with a parameter or a *
// that matches it too is none: the fixed path is the more specific one.
func (f *routesFile) checkUsagePath() {
	if f.usage == "" {
		return
	}
	for _, r := range f.routes {
		if r.Path == f.usage {
			f.usageAt.errorf("%s is the path of route %s at %s already; want another path",
				quote(f.usage), quote(r.Name), r.pathAt.pos())
			return
		}
	}
}
