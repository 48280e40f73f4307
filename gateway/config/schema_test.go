package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	yaml "go.yaml.in/yaml/v4"
)

// schemas are the schemas of both files by the file's name, ready to validate.
func schemas(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	all := map[string]*jsonschema.Schema{}
	for name, text := range map[string][]byte{"routes.yaml": SchemaRoutes(), "plans.yaml": SchemaPlans()} {
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource(name, doc); err != nil {
			t.Fatal(err)
		}
		if all[name], err = c.Compile(name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return all
}

// plain is what an editor sees of a document: aliases and merges resolved.
func plain(v value) any {
	switch v.n.Kind {
	case yaml.MappingNode:
		o, _ := v.object("a mapping")
		m := map[string]any{}
		for name, field := range o.fields {
			m[name] = plain(field)
		}
		return m
	case yaml.SequenceNode:
		items, _ := v.list("a list")
		list := []any{}
		for _, item := range items {
			list = append(list, plain(item))
		}
		return list
	}
	var x any
	switch v.n.Tag {
	case "!!int", "!!float", "!!bool", "!!null":
		if err := v.n.Decode(&x); err == nil {
			return x
		}
	}
	return v.n.Value
}

// document parses a file as an editor does; false if it is not YAML.
func document(name, text string) (any, bool) {
	d := &doc{src: newSource(env(nil)), name: name, data: []byte(text)}
	root, ok := d.parse("anything")
	if !ok {
		return nil, false
	}
	return plain(root), true
}

// marks are the paths, as problems have them, at which an editor would mark a
// document.
func marks(s *jsonschema.Schema, doc any) []string {
	err := s.Validate(doc)
	if err == nil {
		return nil
	}
	var paths []string
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		path, at := "", doc
		for _, part := range e.InstanceLocation {
			switch c := at.(type) {
			case []any:
				i, _ := strconv.Atoi(part)
				path, at = path+"["+part+"]", c[i]
			case map[string]any:
				path, at = join(path, part), c[part]
			default:
				path = join(path, part) // a field's name
			}
		}
		if k, ok := e.ErrorKind.(*kind.PropertyNames); ok {
			// The place of a bad name is not told, only the name.
			paths = append(paths, "*."+join("", k.Property))
			return
		}
		if len(e.Causes) == 0 {
			paths = append(paths, path)
		}
		for _, c := range e.Causes {
			walk(c)
		}
	}
	invalid, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return []string{err.Error()}
	}
	walk(invalid)
	return paths
}

// around reports whether a mark is at a path, at what holds it, or in it. A mark
// that begins with * is at a name, in whatever mapping it stands.
func around(mark, path string) bool {
	if name, ok := strings.CutPrefix(mark, "*"); ok {
		return strings.HasSuffix(path, name)
	}
	parent := path[:max(strings.LastIndexAny(path, ".["), 0)]
	return mark == path || mark == parent || strings.HasPrefix(mark, path+".") || strings.HasPrefix(mark, path+"[")
}

// beyond matches what no schema can find: it needs a second place, another file,
// the environment or arithmetic.
var beyond = regexp.MustCompile(strings.Join([]string{
	// Names that stand for something elsewhere, or stand there too.
	`^no (plan|upstream|limit|listener) `, `given twice; the first`, `is given twice`, `two limits of this plan`, `both meet on one request`, `would be charged twice`,
	`is an edge limit already`, `is the address of`, `has the address of`, `can be reached from other machines`, `is the path of route`, `two routes are named`, `but no auth is configured`,
	// Other files.
	`^read `, `^no such file`, `is empty; want`, `with which no request could carry it`, `is (a|inside of a) file; want a directory`, `holds? (no|PEM|a private key|an RSA key|an EC key|a key that|the same secret)`, `does not fit the certificate`, `has \d+ bytes`, `the secret in \S+ is not `, `there is no listen.https`, `for which the admin listener has none`, `holds the certificate of`, `no key of (public_key|jwks)_file fits`, ` cannot be used: `,
	// The environment.
	`\$\{`, `environment variable`, `"a, b: \{c" is not the name of a header`,
	// Arithmetic.
	`ever pay`, `leave no time at all`, `is too (long|short)`, `too long a duration`, `too large to be counted`, `not a plain decimal`, `has another window`,
	`is no whole number of microseconds`, `a block of \d+`, `a log keeps an entry`, `not a whole number of seconds`, `the window ".*" is longer`, `between two checks`, `is less than refresh`, `, got "(1e6|9{20}|1\d+)"`,
	`make \d+, and \d+ are sent`, `requests cannot be`, `nothing can be`, `the time between must be`, `more than \d+ requests`, `the test sends`, `is past: the clock`,
	// What stands, or does not, in another place.
	`expect nothing`, `two tests have this name`, `missing; want a method and a path`, `unknown timezone`, `is no time of day`, `is no date`, `white space; want a name`, `is not the name of a header`,
	// What the parser of an editor says itself.
	`a field's name must be`, `want an alias of a mapping`, `merges itself`,
	// What a text means.
	`^routes\[\d+\].path`, `^usage_path: "/`, `is not a host name`, `bad (host|port|database number)`, `options in the url`, `written %25`, `absolute`, `stand in one cluster`, `has only database 0`,
	`another user name or password`, `a user name without a password`, `header of its own`, `not known before authentication`, `must not be queued at the edge`,
	`not about who is calling`, `only a limit of N/week`, `has white space around it`, `does not begin with`, `error parsing regexp`, `there is no group`, `case makes no difference`,
	`is no host`, `is where its discovery document is`, `is for a provider that is spoken to by https`, `sets a field that deliveries have`, `makes no host`, `is there already, as`, `a character that cannot stand there`,
}, "|"))

// TestTheSchemaRefusesWhatTheCheckerDoes goes through all archives: where the
// checker finds a mistake of shape, an editor marks that place; and where it
// finds none, an editor marks nothing.
func TestTheSchemaRefusesWhatTheCheckerDoes(t *testing.T) {
	all := schemas(t)
	archives, err := filepath.Glob("testdata/busted/*.txtar")
	if err != nil || len(archives) < 60 {
		t.Fatalf("%d archives, %v", len(archives), err)
	}
	for _, path := range archives {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]string{}
		for _, f := range a.Files {
			files[f.Name] = string(f.Data)
		}
		for name, s := range all {
			text, given := files[name]
			doc, ok := document(name, text)
			if !given || !ok {
				continue
			}
			found := marks(s, doc)
			mistakes := 0
			for line := range strings.Lines(files["want"]) {
				place, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
				if !strings.HasPrefix(place, name+":") || strings.HasPrefix(rest, "warning: ") {
					continue
				}
				mistakes++
				at, message, _ := strings.Cut(rest, ": ")
				if !beyond.MatchString(rest) && !beyond.MatchString(message) && !slices.ContainsFunc(found, func(m string) bool { return around(m, at) }) {
					t.Errorf("%s: no editor would mark %s, only %q", filepath.Base(path), strings.TrimSpace(line), found)
				}
			}
			if mistakes == 0 && len(found) > 0 {
				t.Errorf("%s: an editor would mark %q in %s, in which the checker finds no mistake", filepath.Base(path), found, name)
			}
		}
	}
}

// TestTheSchemaTakesWhatTheCheckerDoes holds the schemas to files that load.
func TestTheSchemaTakesWhatTheCheckerDoes(t *testing.T) {
	all := schemas(t)
	n := 0
	for _, dir := range []string{"testdata/good", "../..", "../../examples/*", "../../deploy/compose/config"} {
		for name, s := range all {
			paths, err := filepath.Glob(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				n++
				data, err := ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				doc, ok := document(path, string(data))
				if !ok {
					t.Fatalf("%s does not parse", path)
				}
				if found := marks(s, doc); len(found) > 0 {
					t.Errorf("%s: an editor would mark %q: %v", path, found, s.Validate(doc))
				}
			}
		}
	}
	if n < 8 {
		t.Errorf("only %d files", n)
	}
}

// TestTheSchemaTakesEverySpelling holds the schema to the forms that a value may have.
func TestTheSchemaTakesEverySpelling(t *testing.T) {
	routes := schemas(t)["routes.yaml"]
	for _, c := range []struct {
		change string
		good   bool
	}{
		{"shutdown_timeout: 1h30m", true}, {"shutdown_timeout: .5s", true}, {"shutdown_timeout: ${T:-5s}", true}, {"shutdown_timeout: 0s", true},
		{"shutdown_timeout: 30", false}, {"shutdown_timeout: '30'", false}, {"shutdown_timeout: -1s", false}, {"shutdown_timeout: 60S", false}, {"shutdown_timeout: 60 s", false},
		{"auth: {failure_limit: off}", true}, {"auth: {failure_limit: false}", true}, {"auth: {failure_limit: 5/15m}", true},
		{"auth: {failure_limit: 0/minute}", false}, {"auth: {failure_limit: true}", false},
		{"usage_path: off", true}, {"usage_path: false", true}, {"usage_path: /usage/mine", true}, {"usage_path: usage", false},
		{"forward_credentials: yes", true}, {"forward_credentials: On", true}, {"forward_credentials: 1", false},
		{"client_headers: {legacy: off}", true}, {"client_headers: {legacy: true}", true}, {"client_headers: {ietf: true}", false},
		{"client_headers: {ietf: draft-12}", true}, {"client_headers: {ietf: both}", true}, {"client_headers: {ietf: draft-13}", false},
		{`client_ip: {ipv6_prefix: "${BITS}"}`, true}, {"client_ip: {ipv6_prefix: '64'}", false}, {"client_ip: {proxy_protocol: off}", true}, {"client_ip: {proxy_protocol: true, trusted_proxies: [10.0.0.0/8]}", true}, {"client_ip: {proxy_protocol: v2}", false},
		{"store: {redis: {url: ''}}", true}, {"store: {redis: {url: REDISS://a}}", true}, {"store: {redis: {url: unix:///a}}", true}, {"store: {redis: {url: http://a}}", false},
		{"limits: {42: {per: ip, algorithm: fixed_window, limit: 0/day}}", true},
		{"limits: {a: {per: 'header:X-Account', algorithm: fixed_window, limit: 1/day}}", true},
		{"limits: {a: {per: [ip, ip], algorithm: fixed_window, limit: 1/day}}", false},
		{"limits: {a: {per: ip, algorithm: token_bucket, limit: 1000000000000000/day}}", false},
		{`limits: {a: {per: ip, algorithm: token_bucket, limit: 1/day, lease: {size: "${N}"}}}`, true},
		{`limits: {a: {per: ip, algorithm: fixed_window, limit: 1/day, anchor: calendar, timezone: "${ZONE}"}}`, true},
		{"x-mine: {anything: [1]}", true}, {"y-mine: 1", false},
	} {
		text := smallRoutes + c.change + "\n"
		doc, ok := document("routes.yaml", text)
		if !ok {
			t.Fatal(c.change)
		}
		found := marks(routes, doc)
		if c.good != (len(found) == 0) {
			t.Errorf("%s: an editor would mark %q, and it is %t that it is good", c.change, found, c.good)
		}
		// The table itself: the checker is of the same opinion.
		dir := smallDir(t, map[string]string{"routes.yaml": text})
		if _, r := load(dir, map[string]string{"BITS": "56", "N": "1", "ZONE": "UTC"}); c.good != (len(r.Errors()) == 0) {
			t.Errorf("%s: the checker says %v", c.change, r.Err())
		}
	}
}

// TestTheSchemaTakesEverySpellingOfATest holds schema and checker to one opinion
// of how what is sent, and what must come of it, is written.
func TestTheSchemaTakesEverySpellingOfATest(t *testing.T) {
	plans := schemas(t)["plans.yaml"]
	for _, c := range []struct {
		step string
		good bool
	}{
		{`send: 30, status: 429`, true}, {`send: "30", status: 429`, true}, {`send: 30 at once, status: 429`, true},
		{`send: "30  at   once", status: 429`, true}, {`send: " 30 at once ", status: 429`, true},
		{`send: 1 every 500ms for 2m, status: 429`, true}, {`send: "1  every 500ms  for 1m30s", status: 429`, true}, {`send: "2 every .5s for 1d", status: 429`, true},
		{`send: 0, status: 429`, false}, {`send: 030 at once, status: 429`, false}, {`send: 30 at  twice, status: 429`, false}, {`send: 30at once, status: 429`, false},
		{`send: 1 every 500 for 2m, status: 429`, false}, {`send: 1 every 500ms, status: 429`, false}, {`send: 1 for 2m every 1s, status: 429`, false}, {`send: 1 every -1s for 2m, status: 429`, false},
		{`send: 30, allowed: 20`, true}, {`send: 30, allowed: "20"`, true}, {`send: 30, allowed: "<=20"`, true}, {`send: 30, allowed: "<=  20"`, true}, {`send: 30, allowed: " > 3 "`, true},
		{`send: 30, allowed: 20..25`, true}, {`send: 30, allowed: "20 .. 25"`, true}, {`send: 30, allowed: " 20..  25 "`, true},
		{`send: 30, allowed: "=< 20"`, false}, {`send: 30, allowed: "< 20..25"`, false}, {`send: 30, allowed: "20...25"`, false}, {`send: 30, allowed: "20.."`, false}, {`send: 30, allowed: "020"`, false}, {`send: 30, allowed: "2 0"`, false},
		{`send: 30, longest_wait: 1s`, true}, {`send: 30, longest_wait: "<= 1s"`, true}, {`send: 30, longest_wait: ">500ms"`, true}, {`send: 30, longest_wait: "1s..2s"`, true},
		{`send: 30, longest_wait: "1s .. 2s"`, true}, {`send: 30, longest_wait: " 1.5s ..2m30s "`, true}, {`send: 30, delay: ".5s"`, true}, {`send: 30, retry_after: none`, true}, {`send: 30, retry_after: "1s  ..  2s"`, true},
		{`send: 30, longest_wait: 1`, false}, {`send: 30, longest_wait: "1..2s"`, false}, {`send: 30, longest_wait: "1s..2"`, false}, {`send: 30, longest_wait: "<= 1 s"`, false}, {`send: 30, longest_wait: "1s-2s"`, false}, {`send: 30, delay: none`, false},
		{`send: 30, remaining: {a: "0 .. 3"}`, true}, {`send: 30, remaining: {a: "< = 3"}`, false},
		{`send: 1, status: 429, request: "GET  /x"`, true}, {`send: 1, status: 429, request: " GET /x "`, true}, {`send: 1, status: 429, request: /x`, true}, {`send: 1, status: 429, request: "get /x"`, false}, {`send: 1, status: 429, request: "GET /x HTTP/1.1"`, false},
	} {
		text := "default_plan: a\nplans: {a: {limits: [{name: a, algorithm: fixed_window, limit: 5/day}]}}\n" +
			"tests:\n  - {name: t, request: /open, steps: [{" + c.step + "}]}\n"
		doc, ok := document("plans.yaml", text)
		if !ok {
			t.Fatal(c.step)
		}
		if found := marks(plans, doc); c.good != (len(found) == 0) {
			t.Errorf("%s: an editor would mark %q, and it is %t that it is good", c.step, found, c.good)
		}
		_, r := load(smallDir(t, map[string]string{"plans.yaml": text}), nil)
		if c.good != (len(r.Errors()) == 0) {
			t.Errorf("%s: the checker says %v", c.step, r.Err())
		}
	}
}

// stranger is a field that nobody knows.
const stranger = "qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq"

// skeleton writes a document with every mapping that a schema describes, each
// with the fields that extra gives for its path. properties receives the fields
// of each by path.
func skeleton(s map[string]any, path string, extra func(path string) []string, properties map[string][]string) any {
	if fields, ok := s["properties"].(map[string]any); ok && s["additionalProperties"] == false {
		m := map[string]any{}
		properties[path] = slices.Sorted(maps.Keys(fields))
		for _, name := range extra(path) {
			m[name] = 1
		}
		if fields["send"] != nil {
			m["send"] = 1 // a step that only moves the clock has no more
		}
		for name, f := range fields {
			if sub := skeleton(f.(map[string]any), join(path, name), extra, properties); sub != nil {
				m[name] = sub
			}
		}
		return m
	}
	if entry, ok := s["additionalProperties"].(map[string]any); ok {
		if sub := skeleton(entry, join(path, "one"), extra, properties); sub != nil {
			return map[string]any{"one": sub}
		}
	}
	if item, ok := s["items"].(map[string]any); ok {
		if sub := skeleton(item, path+"[0]", extra, properties); sub != nil {
			return []any{sub}
		}
	}
	return nil
}

// refused matches what the checker says of a field that it knows only to refuse.
var refused = regexp.MustCompile(`not supported yet|move it to the plan|waits in the queue of its limit`)

// TestTheSchemaHasEveryFieldAndNoOther asks the checker which fields it knows:
// beside one that it does not know, it names all others.
func TestTheSchemaHasEveryFieldAndNoOther(t *testing.T) {
	for name, text := range map[string][]byte{"routes.yaml": SchemaRoutes(), "plans.yaml": SchemaPlans()} {
		var s map[string]any
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		described := map[string][]string{}
		check := func(extra func(path string) []string) map[string]string {
			clear(described)
			text, err := yaml.Marshal(skeleton(s, "", extra, described))
			if err != nil {
				t.Fatal(err)
			}
			d := &doc{src: newSource(env(nil)), name: name, data: text}
			root, ok := d.parse("anything")
			if !ok {
				t.Fatalf("%s", text)
			}
			if name == "routes.yaml" {
				readRoutes(root)
			} else {
				readPlans(root)
			}
			said := map[string]string{}
			for _, p := range d.src.report.Problems {
				said[p.Path] += p.Message + "\n"
			}
			return said
		}
		said := check(func(string) []string { return []string{stranger} })
		if len(described) < 5 {
			t.Fatalf("%s: only %d mappings", name, len(described))
		}
		hidden := map[string][]string{}
		for path, fields := range described {
			_, list, ok := strings.Cut(said[join(path, stranger)], "unknown field; want ")
			if !ok {
				t.Errorf("%s: the checker has no mapping at %q", name, path)
				continue
			}
			known := strings.FieldsFunc(strings.ReplaceAll(strings.TrimSpace(list), " or ", ", "), func(r rune) bool { return r == ',' || r == ' ' })
			for _, f := range fields {
				if !slices.Contains(known, f) {
					t.Errorf("%s: the checker knows no field %s", name, join(path, f))
				}
			}
			for _, f := range known {
				if !slices.Contains(fields, f) {
					hidden[path] = append(hidden[path], f)
				}
			}
		}
		said = check(func(path string) []string { return hidden[path] })
		for path, fields := range hidden {
			for _, f := range fields {
				if !refused.MatchString(said[join(path, f)]) {
					t.Errorf("%s: the schema has no %s, of which the checker says %q", name, join(path, f), said[join(path, f)])
				}
			}
		}
	}
}

// TestTheSchemaExplainsEveryField wants a description of each field, and that
// what it says holds by default is what holds.
func TestTheSchemaExplainsEveryField(t *testing.T) {
	var walk func(path string, s map[string]any)
	walk = func(path string, s map[string]any) {
		if s == nil {
			return
		}
		for name, f := range asMap(s["properties"]) {
			field, at := f.(map[string]any), join(path, name)
			says, _ := field["description"].(string)
			if len(says) < 5 || !strings.HasSuffix(says, ".") {
				t.Errorf("%s: described as %q", at, says)
			}
			walk(at, field)
		}
		for _, k := range []string{"additionalProperties", "items"} {
			if sub := asMap(s[k]); sub != nil {
				walk(path+"[]", sub)
			}
		}
	}
	for _, text := range [][]byte{SchemaRoutes(), SchemaPlans()} {
		var s map[string]any
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		walk("", s)
	}
}

// TestTheDefaultsOfTheSchemaHold writes all defaults out and expects the same
// configuration as without them.
func TestTheDefaultsOfTheSchemaHold(t *testing.T) {
	var s map[string]any
	if err := json.Unmarshal(SchemaRoutes(), &s); err != nil {
		t.Fatal(err)
	}
	var fill func(s, into map[string]any)
	fill = func(s, into map[string]any) {
		for name, f := range asMap(s["properties"]) {
			field := f.(map[string]any)
			if fallback, ok := field["default"]; ok && into[name] == nil {
				if n, ok := fallback.(float64); ok {
					fallback = int64(n)
				}
				into[name] = fallback
			}
			switch at := into[name].(type) {
			case map[string]any:
				if entry := asMap(field["additionalProperties"]); entry != nil {
					for _, e := range at {
						fill(entry, e.(map[string]any))
					}
				}
				fill(field, at)
			case []any:
				for _, item := range at {
					if m, ok := item.(map[string]any); ok {
						fill(asMap(field["items"]), m)
					}
				}
			}
		}
	}
	const bare = `listen: {http: ":8080"}
admin: {}
client_ip: {}
client_headers: {}
store: {memory: {}, redis: {url: "redis://127.0.0.1"}}
auth: {api_keys: {file: keys.yaml}, jwt: [{issuer: a, audience: b, algorithms: [HS256], secret_file: secret, claims: {}}]}
upstreams: {api: {targets: ["http://127.0.0.1:9001"], timeout: {}}}
routes: [{name: open, path: /open, upstream: api, cost: 0}]
`
	doc, _ := document("routes.yaml", bare)
	fill(s, doc.(map[string]any))
	full, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(full), "key_prefix: rl") {
		t.Fatalf("nothing was filled in:\n%s", full)
	}
	printed := func(routes string) string {
		dir := smallDir(t, map[string]string{"routes.yaml": routes, "plans.yaml": "default_plan: a\nplans: {a: {limits: []}}\n", "keys.yaml": "keys: []\n", "secret": strings.Repeat("s", 40)})
		c, r := load(dir, nil)
		if c == nil {
			t.Fatalf("%v\n%s", r.Err(), routes)
		}
		// The name of a field that is written out is in its canonical form.
		return strings.ReplaceAll(strings.ReplaceAll(string(Print(c)), dir, ""), "X-Api-Key", "X-API-Key")
	}
	if d := cmp.Diff(printed(bare), printed(string(full))); d != "" {
		t.Errorf("without the defaults -, with them +:\n%s", d)
	}
}

// asMap is x as a mapping; nil if it is none.
func asMap(x any) map[string]any {
	m, _ := x.(map[string]any)
	return m
}
