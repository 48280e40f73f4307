package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// maxKeyUse bounds each list of what a key is for: it is looked through with
// every request of the key.
const maxKeyUse = 100

// readKeyUse reads what a key is for: routes, allow_ips and scopes.
func (k *keyDecl) readKeyUse(o *object) {
	if v, ok := o.get("routes", "a list of names of routes"); ok {
		vs, names := v.keyUse("names of routes", "the key would be good for no route")
		for i, s := range names {
			k.Routes = append(k.Routes, s)
			k.routes = append(k.routes, ref{s, vs[i]})
		}
	}
	if v, ok := o.get("allow_ips", "a list of networks such as 10.0.0.0/8"); ok {
		vs, texts := v.keyUse("networks such as 10.0.0.0/8", "nobody could use the key")
		for i, s := range texts {
			p, err := ParseAllowIP(s)
			if err != nil {
				vs[i].errorf("%v", err)
				continue
			}
			k.AllowIPs = append(k.AllowIPs, p)
		}
	}
	if v, ok := o.get("scopes", "a list of words"); ok {
		vs, words := v.keyUse("scopes", "it means the same as no list")
		for i, s := range words {
			if !IsScope(s) {
				vs[i].errorf("%s is not a scope; want printable ASCII without blanks, quotes and backslashes, at most %d", quote(s), maxName)
				continue
			}
			k.Scopes = append(k.Scopes, s)
		}
	}
}

// keyUse reads a list that must not be empty; none says what an empty one would mean.
func (v value) keyUse(wanted, none string) ([]value, []string) {
	vs, words, ok := v.words(wanted, false)
	switch {
	case ok && len(words) == 0:
		v.errorf("is empty, so that %s; want %s, or leave it out", none, wanted)
	case len(words) > maxKeyUse:
		v.errorf("has %d entries; want at most %d", len(words), maxKeyUse)
		return nil, nil
	}
	return vs, words
}

// ParseAllowIP reads an address, or a network of addresses, that may use a key.
func ParseAllowIP(s string) (netip.Prefix, error) {
	p, ok := parseNetwork(s)
	if !ok {
		return p, fmt.Errorf("%s is not a network; want one such as 10.0.0.0/8 or 2001:db8::/32, or an address", quote(s))
	}
	return p, nil
}

// IsScope reports whether s may be a scope: a scope-token of RFC 6749 section 3.3,
// of at most 100 bytes.
func IsScope(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// KnownRoute returns nil if the routes file at path has a route of this name; else
// the error says what it has. It wraps fs.ErrNotExist if there is no such file.
func KnownRoute(path, name string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("look for route %s: %w", quote(name), err)
	}
	s := newSource(nil)
	root, ok := s.open(path, wantedRoutes)
	if !ok {
		return s.report.Err()
	}
	f := readRoutes(root)
	if f == nil {
		return errors.New(path + " has no routes")
	}
	if names := f.routeNames(); !names[name] {
		return fmt.Errorf("no route %s in %s%s", quote(name), path, suggestKey(name, names))
	}
	return nil
}

// routeNames are the names of all routes, whatever else is wrong with them.
func (f *routesFile) routeNames() map[string]bool {
	names := map[string]bool{}
	for _, r := range f.routes {
		names[r.Name] = true
	}
	return names
}

// checkKeyRoutes finds keys that are for routes which do not exist. Where the name
// of a route could not be read, it may be the one that is meant.
func (f *routesFile) checkKeyRoutes() {
	names := f.routeNames()
	if names[""] || len(f.routes) == 0 {
		return
	}
	for _, k := range f.auth.keys {
		for _, r := range k.routes {
			if !names[r.name] {
				r.at.errorf("no route %s in %s%s", quote(r.name), f.root.d.name, suggestKey(r.name, names))
			}
		}
	}
}

// allowed are the networks of a key, as text.
func (k Key) allowed() []string {
	var texts []string
	for _, p := range k.AllowIPs {
		texts = append(texts, p.String())
	}
	return texts
}

// bracketed shows a list on one line; nothing for none.
func bracketed(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return "[" + strings.Join(words, ", ") + "]"
}
