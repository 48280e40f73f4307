package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// ReadKeyValue reads a key that is kept elsewhere than in a key file, under its digest:
// a JSON object with the fields of a key file but sha256, under the same rules. That it
// names a plan and routes which exist is checked by [Config.KeyFits].
func ReadKeyValue(digest [32]byte, value []byte) (Key, error) {
	object := bytes.TrimSpace(value)
	if !json.Valid(object) || object[0] != '{' {
		return Key{}, errors.New("is no JSON object; want one such as {\"id\": \"k-7f3a\", \"user\": \"priya123\"}")
	}
	plain, err := plainObject(object)
	if err != nil {
		return Key{}, err
	}
	// The rules are those of the key file, so it is read as one.
	text := fmt.Appendf(nil, `{"keys":[{"sha256":"%x",`, digest)
	text = append(append(text, plain[1:]...), "]}"...)
	decls, report := parseKeys("", text)
	if es := report.Errors(); len(es) > 0 {
		return Key{}, fmt.Errorf("%s: %s", strings.TrimPrefix(es[0].Path, "keys[0]."), es[0].Message)
	}
	if len(decls) != 1 || decls[0].SHA256 != digest {
		return Key{}, errors.New("is not one key")
	}
	return decls[0].Key, nil
}

// plainObject writes a JSON object anew for a reader of YAML, who does not know that two
// escapes may be one character, and takes a number for a name. It refuses what
// encoding/json passes over: a member that is there twice, and half a character.
func plainObject(object []byte) ([]byte, error) {
	var out bytes.Buffer
	write := json.NewEncoder(&out)
	write.SetEscapeHTML(false)
	text := func(s string) {
		_ = write.Encode(s)         // a buffer takes all
		out.Truncate(out.Len() - 1) // the line end
	}
	in := json.NewDecoder(bytes.NewReader(object))
	in.UseNumber()
	seen := map[string]bool{"sha256": true}
	member, depth, isName := "", 0, false
	for {
		token, err := in.Token()
		if errors.Is(err, io.EOF) {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, errors.New("is no JSON object")
		}
		if s, ok := token.(string); ok && depth == 1 && !isName {
			switch {
			case s == "sha256":
				return nil, errors.New("sha256: does not belong here: it is the name of the field in the hash")
			case seen[s]:
				return nil, fmt.Errorf("%s: given twice", quote(s))
			}
			seen[s], member, isName = true, s, true
			text(s)
			out.WriteByte(':')
			continue
		}
		switch v := token.(type) {
		case json.Delim:
			if v == '}' || v == ']' {
				depth--
			}
			out.WriteString(v.String())
			if v == '{' || v == '[' {
				depth++
				if depth > 2 || v == '{' && depth > 1 {
					return nil, fmt.Errorf("%s: want text in quotes, or a list of it", quote(member))
				}
				continue
			}
		case string:
			if strings.ContainsRune(v, utf8.RuneError) {
				return nil, fmt.Errorf("%s: holds a character that is broken (U+FFFD)", quote(member))
			}
			text(v)
		case nil:
			out.WriteString("null")
		default:
			return nil, fmt.Errorf("%s: want text in quotes, got a number or a truth value", quote(member))
		}
		if depth == 1 {
			isName = false
		}
		if in.More() {
			out.WriteByte(',')
		}
	}
}

// KeyFits returns nil if the plan and the routes that k names exist, and its id is not
// that of another key of the key file: overrides, and whoever reads X-Auth-Key-Id, would
// take the one for the other.
func (c *Config) KeyFits(k Key) error {
	if c.Auth.APIKeys != nil {
		for _, filed := range c.Auth.APIKeys.Keys {
			if filed.ID == k.ID && filed.SHA256 != k.SHA256 {
				return fmt.Errorf("id: %s is a key of the key file; want another id", quote(k.ID))
			}
		}
	}
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
