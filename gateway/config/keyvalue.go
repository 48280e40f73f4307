package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// ReadKeyValue reads a key that is kept elsewhere than in a key file, under its digest:
// a JSON object with the fields of a key file but sha256, under the same rules. That it
// names a plan and routes which exist is checked by [Config.KeyFits].
func ReadKeyValue(digest [32]byte, value []byte) (Key, error) {
	object := bytes.TrimSpace(value)
	if !json.Valid(object) || object[0] != '{' {
		return Key{}, errors.New("is no JSON object; want one such as {\"id\": \"k-7f3a\", \"user\": \"priya123\"}")
	}
	// The rules are those of the key file, so it is read as one. JSON is YAML, and what
	// is given twice there is found, which is not so with encoding/json.
	text := fmt.Appendf(nil, `{"keys":[{"sha256":"%x",`, digest)
	text = append(append(text, object[1:]...), "]}"...)
	decls, report := parseKeys("", text)
	if es := report.Errors(); len(es) > 0 {
		return Key{}, fmt.Errorf("%s: %s", es[0].Path, es[0].Message)
	}
	if len(decls) != 1 || decls[0].SHA256 != digest {
		return Key{}, errors.New("is not one key")
	}
	return decls[0].Key, nil
}

// KeyFits returns nil if the plan and the routes that k names exist.
func (c *Config) KeyFits(k Key) error {
	plans, routes := map[string]bool{"": true}, map[string]bool{}
	for _, p := range c.Plans {
		plans[p.Name] = true
	}
	if !plans[k.Plan] {
		return fmt.Errorf("plan: no plan %s in plans.yaml%s", quote(k.Plan), suggestKey(k.Plan, plans))
	}
	for _, r := range c.Routes {
		routes[r.Name] = true
	}
	for _, name := range k.Routes {
		if !routes[name] {
			return fmt.Errorf("routes: no route %s in routes.yaml%s", quote(name), suggestKey(name, routes))
		}
	}
	return nil
}
