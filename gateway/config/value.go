package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v4"
)

// value is a place in a document: a node, and the path that leads to it. The
// zero value stands for a field that is not there.
//
// The documents are read node by node, not decoded into structs, because only
// so every mistake has its own line and column, duplicate fields can name both
// lines, and one wrong field hides no other.
type value struct {
	d    *doc
	n    *yaml.Node // never an alias
	path string
	// key is the node of the field's name; nil for items of a list.
	key *yaml.Node
}

// given reports whether the field is there.
func (v value) given() bool { return v.n != nil }

// pos is where the value stands.
func (v value) pos() Pos {
	if v.n == nil {
		return Pos{}
	}
	return Pos{File: v.d.name, Line: v.n.Line, Column: v.n.Column}
}

// errorf reports a mistake at the value.
func (v value) errorf(format string, args ...any) {
	v.d.problem(v.n.Line, v.n.Column, v.path, false, format, args...)
}

// warnf reports a danger at the value.
func (v value) warnf(format string, args ...any) {
	v.d.problem(v.n.Line, v.n.Column, v.path, true, format, args...)
}

// keyErrorf reports a mistake at the name of the field.
func (v value) keyErrorf(format string, args ...any) { v.atKey().errorf(format, args...) }

// keyWarnf reports a danger at the name of the field.
func (v value) keyWarnf(message string) { v.atKey().warnf("%s", message) }

// atKey moves v to the name of the field.
func (v value) atKey() value {
	if v.key != nil {
		v.n = v.key
	}
	return v
}

// missing reports that a field of v is not there.
func (v value) missing(field, wanted string) {
	v.d.problem(v.n.Line, v.n.Column, join(v.path, field), false, "missing; want %s", wanted)
}

// kind says in words what the value is.
func (v value) kind() string {
	switch v.n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch v.n.Tag {
	case "!!null":
		return "nothing"
	case "!!bool":
		return v.n.Value
	case "!!int", "!!float":
		return "a number"
	case "!!str", "!!timestamp", "!!merge":
		return "a string"
	}
	return "the tag " + strconv.Quote(v.n.Tag)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// join appends a field to a path. A field that is no plain word is quoted, so
// that a problem stays on one line. Where the colon or the blank behind it is
// missing, the value is in the name, and is not repeated.
func join(path, field string) string {
	if i := strings.IndexAny(field, ":= "); i > 0 && confidential(field[:i]) {
		field = field[:i+1] + "…"
	}
	if len(field) > maxName || strings.ContainsFunc(field, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '.' }) {
		field = quote(field)
	}
	if path == "" {
		return field
	}
	return path + "." + field
}

// at follows aliases and charges the budget.
func (d *doc) at(n *yaml.Node, path string, key *yaml.Node) (value, bool) {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	d.budget--
	if d.budget < 0 {
		if !d.spent {
			d.spent = true
			d.problem(n.Line, n.Column, path, false, "aliases expand to far more than the file holds; write it out")
		}
		return value{}, false
	}
	return value{d: d, n: n, path: path, key: key}, true
}

// list returns the items of a list.
func (v value) list(wanted string) ([]value, bool) {
	if v.n.Kind != yaml.SequenceNode || v.n.Tag != "!!seq" {
		v.errorf("want %s, got %s", wanted, v.kind())
		return nil, false
	}
	items := make([]value, 0, len(v.n.Content))
	for i, n := range v.n.Content {
		item, ok := v.d.at(n, v.path+"["+strconv.Itoa(i)+"]", nil)
		if !ok {
			return nil, false
		}
		items = append(items, item)
	}
	return items, true
}

// object is a mapping whose fields are being read. A field that is asked for
// is known; done reports the others.
type object struct {
	value
	fields map[string]value
	names  []string // in file order, merged ones last
	known  []string
	// extensions lets fields pass that begin with x-: they hold anchors.
	extensions bool
}

// object returns the fields of a mapping. Merge keys are resolved: what is
// written out wins over what is merged, and an earlier merge over a later one.
func (v value) object(wanted string) (*object, bool) {
	o := &object{value: v, fields: map[string]value{}}
	if v.n.Kind != yaml.MappingNode || v.n.Tag != "!!map" {
		v.errorf("want %s, got %s", wanted, v.kind())
		return o, false
	}
	o.collect(v.n, map[*yaml.Node]bool{})
	return o, true
}

// collect adds the fields of mapping n. active holds the mappings that are
// being merged, so that one that merges itself is found.
func (o *object) collect(n *yaml.Node, active map[*yaml.Node]bool) {
	active[n] = true
	defer delete(active, n)
	var merges []*yaml.Node
	here := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		keyValue, ok := o.d.at(n.Content[i], o.path, nil)
		if !ok {
			return
		}
		key := keyValue.n
		if key.Tag == "!!merge" {
			merges = append(merges, n.Content[i+1])
			continue
		}
		if key.Kind != yaml.ScalarNode || isNull(key) {
			keyValue.errorf("a field's name must be a plain word, got %s", keyValue.kind())
			continue
		}
		name := key.Value
		path := join(o.path, name)
		if first, ok := here[name]; ok {
			o.d.problem(key.Line, key.Column, path, false,
				"given twice; the first one is at line %d, column %d", first.Line, first.Column)
			continue
		}
		here[name] = key
		if _, ok := o.fields[name]; ok {
			continue // written out, or merged earlier
		}
		field, ok := o.d.at(n.Content[i+1], path, key)
		if !ok {
			return
		}
		o.fields[name] = field
		o.names = append(o.names, name)
	}
	for _, m := range merges {
		o.merge(m, active, true)
	}
}

// merge adds what << names: a mapping, or a list of them.
func (o *object) merge(n *yaml.Node, active map[*yaml.Node]bool, list bool) {
	m, ok := o.d.at(n, join(o.path, "<<"), nil)
	switch {
	case !ok:
	case active[m.n]:
		m.errorf("merges itself")
	case m.n.Kind == yaml.MappingNode:
		o.collect(m.n, active)
	case m.n.Kind == yaml.SequenceNode && list:
		for _, item := range m.n.Content {
			o.merge(item, active, false)
		}
	default:
		m.errorf("want an alias of a mapping, or a list of them, got %s", m.kind())
	}
}

// get returns a field, which may be absent; one that is there but empty is
// reported, with what is wanted, and counts as absent.
func (o *object) get(name, wanted string) (value, bool) {
	o.known = append(o.known, name)
	v, ok := o.fields[name]
	if !ok {
		return value{}, false
	}
	if isNull(v.n) {
		v.keyErrorf("has no value; want %s, or leave it out", wanted)
		return value{}, false
	}
	return v, true
}

// need is get for a field that must be there.
func (o *object) need(name, wanted string) (value, bool) {
	if _, ok := o.fields[name]; !ok {
		o.known = append(o.known, name)
		o.missing(name, wanted)
		return value{}, false
	}
	return o.get(name, wanted)
}

// has reports whether a field is there, whatever it holds.
func (o *object) has(name string) bool {
	_, ok := o.fields[name]
	return ok
}

// later refuses a field that this version knows only by name.
func (o *object) later(name, wanted string) {
	o.known = append(o.known, name)
	v, ok := o.fields[name]
	if !ok {
		return
	}
	v.keyErrorf("not supported yet; remove it (wanted for now: %s)", wanted)
}

// entries returns the fields of a mapping whose names the operator chose, in
// file order, reporting those that are not [a-z0-9_-]+.
func (o *object) entries(what string) []value {
	var vs []value
	for _, name := range o.names {
		v := o.fields[name]
		if !isName(name) {
			v.keyErrorf("bad name of %s; want lower-case letters, digits, - and _", what)
		}
		if isNull(v.n) {
			v.keyErrorf("has no value; want %s, or leave it out", what)
			continue
		}
		vs = append(vs, v)
	}
	return vs
}

// done reports the fields that nobody asked for.
func (o *object) done() {
	for _, name := range o.names {
		if slices.Contains(o.known, name) || o.extensions && strings.HasPrefix(name, "x-") {
			continue
		}
		wanted := suggest(name, o.known)
		if i := strings.IndexAny(name, ":= "); i > 0 && slices.Contains(o.known, name[:i]) {
			wanted = "; want a colon and a blank behind " + name[:i]
		}
		if wanted == "" {
			wanted = "; want " + oneOf(slices.Compact(slices.Sorted(slices.Values(o.known))))
		}
		o.fields[name].keyErrorf("unknown field%s", wanted)
	}
}

// isName reports whether s may name a plan, route, limit or upstream.
func isName(s string) bool {
	return s != "" && len(s) <= maxName && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

// maxName bounds names: they stand in keys, labels and fields.
const maxName = 100

// name reads a name; empty if it is none.
func (v value) name(what string) string {
	s, ok := v.text("a name")
	if !ok {
		return ""
	}
	if !isName(s) {
		v.errorf("bad name %s of %s; want lower-case letters, digits, - and _, at most %d", quote(s), what, maxName)
		return ""
	}
	return s
}

// quote shows a value in a message, shortened.
func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strconv.Quote(strings.ToValidUTF8(s, "?"))
}

// oneOf lists alternatives: "a, b or c".
func oneOf(words []string) string {
	switch len(words) {
	case 0:
		return "nothing"
	case 1:
		return words[0]
	}
	return fmt.Sprintf("%s or %s", strings.Join(words[:len(words)-1], ", "), words[len(words)-1])
}

// suggest returns ` (did you mean "…"?)` for the candidate nearest to word, or
// nothing if none is near.
func suggest(word string, candidates []string) string {
	if len(word) > maxName {
		return ""
	}
	best, bestDistance := "", 1+max(1, len(word)/3)
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c), bestDistance); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// suggestKey is suggest over the names of a map. It does without where there
// are so many that a guess for each of many mistakes would take long.
func suggestKey[V any](word string, m map[string]V) string {
	if len(m) > 1000 {
		return ""
	}
	return suggest(word, slices.Sorted(maps.Keys(m)))
}

// distance is the number of letters to insert, delete, replace or swap with
// their neighbour to make b of a; any number >= limit stands for "too many".
func distance(a, b string, limit int) int {
	if abs(len(a)-len(b)) >= limit {
		return limit
	}
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}
