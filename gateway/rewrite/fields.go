package rewrite

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"bouncer/gateway/scope"
)

// Changes are changes to header fields, as a route has them. Names are in any case.
type Changes struct {
	// Remove are fields that go, first of all.
	Remove []string
	// Set are fields with the only value they are to have, Add are values beside
	// those that are there. Values are templates; see [NewFields]. A value that
	// comes out empty sets and adds nothing; what was set so is gone.
	Set, Add []Field
}

// A Field is a header field with its value. Secret says that the value is to be
// shown nowhere; it changes nothing else.
type Field struct {
	Name, Value string
	Secret      bool
}

// Fields are changes to header fields, compiled. nil changes nothing.
type Fields struct {
	remove   []string
	set, add []compiled
}

type compiled struct {
	name  string // canonical
	value template
}

// A template is a value with placeholders: texts[0], values[0], texts[1] and so on.
type template struct {
	texts  []string
	values []func(*http.Request, *scope.Request) string
}

// placeholders are what may stand between braces in a value.
var placeholders = map[string]func(*http.Request, *scope.Request) string{
	"host":       func(r *http.Request, _ *scope.Request) string { return r.Host },
	"method":     func(r *http.Request, _ *scope.Request) string { return r.Method },
	"path":       func(r *http.Request, _ *scope.Request) string { return r.URL.EscapedPath() },
	"query":      func(r *http.Request, _ *scope.Request) string { return r.URL.RawQuery },
	"request_id": func(_ *http.Request, s *scope.Request) string { return s.ID },
	"route":      func(_ *http.Request, s *scope.Request) string { return s.Route },
	"user":       func(_ *http.Request, s *scope.Request) string { return s.User },
	"tenant":     func(_ *http.Request, s *scope.Request) string { return s.Tenant },
	"plan":       func(_ *http.Request, s *scope.Request) string { return s.Plan },
	"key_id":     func(_ *http.Request, s *scope.Request) string { return s.KeyID },
	"client_ip": func(_ *http.Request, s *scope.Request) string {
		if !s.ClientIP.IsValid() {
			return ""
		}
		return s.ClientIP.String()
	},
}

// Placeholders returns the names that may stand between braces in a value, sorted:
// host, method, path (as it came) and query are the client's; request_id, route,
// user, tenant, plan, key_id and client_ip are what the gateway found out.
func Placeholders() []string { return slices.Sorted(maps.Keys(placeholders)) }

// NewFields compiles changes. A value may hold placeholders, such as {user} or
// {host}; {{ is a brace. What the gateway or a connection sets for itself cannot be
// changed: CheckName says which names that are.
func NewFields(c Changes) (*Fields, error) {
	f := &Fields{}
	for _, name := range c.Remove {
		if err := CheckName(name); err != nil {
			return nil, fmt.Errorf("remove: %q: %w", name, err)
		}
		f.remove = append(f.remove, textproto.CanonicalMIMEHeaderKey(name))
	}
	for _, part := range []struct {
		what string
		in   []Field
		out  *[]compiled
	}{{"set", c.Set, &f.set}, {"add", c.Add, &f.add}} {
		for _, field := range part.in {
			err := CheckName(field.Name)
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", part.what, field.Name, err)
			}
			t, err := parse(field.Value)
			if err == nil && strings.EqualFold(field.Name, "Host") {
				err = CheckHost(field.Value)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", part.what, field.Name, err)
			}
			*part.out = append(*part.out, compiled{textproto.CanonicalMIMEHeaderKey(field.Name), t})
		}
	}
	return f, nil
}

// CheckValue reports what is wrong with a value as [NewFields] would.
func CheckValue(value string) error {
	_, err := parse(value)
	return err
}

func parse(value string) (t template, err error) {
	var text strings.Builder
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c < ' ' && c != '\t' || c == 0x7f:
			return t, errors.New("holds a control character, which cannot stand in a field")
		case c == '{' && strings.HasPrefix(value[i:], "{{"):
			text.WriteByte('{')
			i++
		case c == '{':
			name, _, closed := strings.Cut(value[i+1:], "}")
			of := placeholders[name]
			if !closed {
				return t, errors.New("holds a { without a }; want {{ for a brace")
			}
			if of == nil {
				return t, fmt.Errorf("{%s} is no placeholder; want one of {%s}, or {{ for a brace",
					bounded(name), strings.Join(Placeholders(), "}, {"))
			}
			t.texts, t.values = append(t.texts, text.String()), append(t.values, of)
			text.Reset()
			i += len(name) + 1
		default:
			text.WriteByte(c)
		}
	}
	t.texts = append(t.texts, text.String())
	return t, nil
}

// bounded is a name that is too odd to be repeated whole.
func bounded(name string) string {
	const most = 40
	if len(name) > most {
		return strings.ToValidUTF8(name[:most], "") + "…"
	}
	return name
}

func (t *template) of(r *http.Request, s *scope.Request) string {
	if len(t.values) == 0 {
		return t.texts[0]
	}
	var b strings.Builder
	for i, value := range t.values {
		b.WriteString(t.texts[i])
		b.WriteString(value(r, s))
	}
	b.WriteString(t.texts[len(t.values)])
	return strings.Trim(b.String(), " \t")
}

// Apply changes h for a request r of which s is known. The values of fields that
// stay are not written to, so h may share them. It does not look at Host, which is
// no field of an [http.Header]; see [Fields.Host].
func (f *Fields) Apply(h http.Header, r *http.Request, s *scope.Request) {
	if f == nil {
		return
	}
	for _, name := range f.remove {
		delete(h, name)
	}
	for i := range f.set {
		c := &f.set[i]
		if c.name == "Host" {
			continue
		}
		if v := c.value.of(r, s); v != "" {
			h[c.name] = []string{v}
		} else {
			delete(h, c.name)
		}
	}
	for i := range f.add {
		c := &f.add[i]
		if v := c.value.of(r, s); v != "" {
			h[c.name] = append(slices.Clip(h[c.name]), v)
		}
	}
}

// Host returns what the Host field is set to, or "" if it is not.
func (f *Fields) Host(r *http.Request, s *scope.Request) string {
	if f == nil {
		return ""
	}
	for i := range f.set {
		if f.set[i].name == "Host" {
			return f.set[i].value.of(r, s)
		}
	}
	return ""
}

// Replaces reports whether a field of a request is one that is removed or set here,
// or one that a server could take for it: then what the client sent is dropped, in
// the header and in the trailers. See [SameName].
func (f *Fields) Replaces(name string) bool {
	if f == nil {
		return false
	}
	for _, removed := range f.remove {
		if SameName(name, removed) {
			return true
		}
	}
	for i := range f.set {
		if SameName(name, f.set[i].name) {
			return true
		}
	}
	return false
}

// CheckName reports why a field cannot be changed by a route: it is no field name,
// belongs to the connection or to the framing of the message (RFC 9110 section
// 7.6.1), or is one that the gateway sets in its own name.
func CheckName(name string) error {
	for i := range len(name) {
		if c := name[i]; !unreserved(c) && strings.IndexByte("!#$%&'*+^`|", c) < 0 {
			return errors.New("is not the name of a field; want letters, digits and -")
		}
	}
	if name == "" {
		return errors.New("is not the name of a field; want letters, digits and -")
	}
	is := func(fixed string) bool {
		prefix, any := strings.CutSuffix(fixed, "*")
		return SameName(name, fixed) || any && len(name) >= len(prefix) && SameName(name[:len(prefix)], prefix)
	}
	switch {
	case slices.ContainsFunc(framing, is):
		return errors.New("is about a connection or the framing of a message, which no route can change; remove it")
	case slices.ContainsFunc(own, is):
		return errors.New("is what the gateway says in its own name; remove it")
	}
	return nil
}

// Fields that no route can change, in lower case; * at the end is anything.
var (
	framing = []string{
		"connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization",
		"te", "trailer", "transfer-encoding", "upgrade", "content-length", "expect",
	}
	own = []string{
		"via", "forwarded", "traceparent", "tracestate", "x-request-id", "x-auth-user", "x-auth-tenant", "x-auth-plan", "x-auth-key-id",
		"x-forwarded", "x-forwarded-*", "x-real-*", "true-client-ip", "proxy",
		"retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
	}
)

// FixedNames returns the fields that no route can change, as [CheckName] has it: in
// lower case, - for every byte that is no letter or digit, * at the end for anything.
func FixedNames() []string { return slices.Concat(framing, own) }
