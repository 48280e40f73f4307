package config

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"bouncer/gateway/rewrite"
)

// This file reads what a route changes in requests and answers, and how much of
// them it takes.

// readReshaping reads the fields of a route that are about what is forwarded, not
// about whether it is.
func (r *routeDecl) readReshaping(o *object) {
	r.MaxBody = AnySize
	if v, ok := o.get("max_body", wantedSize); ok {
		r.MaxBody, _ = v.size()
	}
	if v, ok := o.get("timeout", "a duration such as 30s"); ok {
		r.Timeout, _ = v.duration(time.Millisecond, day)
	}
	if v, ok := o.get("websocket", wantedWebSocket); ok {
		r.WebSocket = v.webSocket()
	}
	if v, ok := o.get("strip_prefix", "a path such as /api"); ok {
		r.readStripPrefix(v)
	}
	if v, ok := o.get("rewrite", "match and replace"); ok {
		r.Rewrite = v.rewrite()
		r.warnNeverRewritten(v)
		if o.has("strip_prefix") {
			v.keyErrorf("stands beside strip_prefix, and the two say different things of one path; want one of them")
		}
	}
	if v, ok := o.get("request_headers", "set, add or remove"); ok {
		r.RequestHeaders = v.changes(true)
	}
	if v, ok := o.get("response_headers", "set, add or remove"); ok {
		r.ResponseHeaders = v.changes(false)
	}
	if v, ok := o.get("cors", "origins"); ok {
		r.CORS = v.cors()
	}
}

// readStripPrefix reads strip_prefix: what all paths of the route begin with.
func (r *routeDecl) readStripPrefix(v value) {
	s, ok := v.word("a path such as /api")
	if !ok {
		return
	}
	if _, err := rewrite.StripPrefix(s); err != nil {
		v.errorf("%s: %v", quote(s), err)
		return
	}
	if r.Path != "" && r.Path != s && !strings.HasPrefix(r.Path, s+"/") {
		v.errorf("the route's path, %s, does not begin with %s and a whole segment; want what all its paths begin with", quote(r.Path), quote(s))
		return
	}
	r.StripPrefix = s
}

// warnNeverRewritten warns of a match that the one path of the route does not have.
func (r *routeDecl) warnNeverRewritten(v value) {
	if r.Rewrite == nil || r.Path == "" || strings.ContainsAny(r.Path, "{*%") {
		return
	}
	p, err := rewrite.Replace(r.Rewrite.Match, r.Rewrite.Replace)
	if err != nil {
		return // it was reported
	}
	u := &url.URL{Path: r.Path}
	if to, ok := p.Of(u); ok && to == u {
		v.warnf("match does not match %s, the only path of the route, so that nothing is rewritten", quote(r.Path))
	}
}

// rewrite reads match and replace; nil if anything was wrong.
func (v value) rewrite() *Rewrite {
	o, ok := v.object("match and replace")
	if !ok {
		return nil
	}
	w := &Rewrite{}
	matchAt, matched := o.need("match", "a regular expression of whole paths, such as /v1/(.*)")
	if matched {
		w.Match, matched = matchAt.word("a regular expression of whole paths, such as /v1/(.*)")
	}
	replaceAt, replaced := o.need("replace", "a path such as /v2/$1")
	if replaced {
		w.Replace, replaced = replaceAt.word("a path such as /v2/$1")
	}
	o.done()
	if !matched || !replaced {
		return nil
	}
	if _, err := rewrite.Replace(w.Match, w.Replace); err != nil {
		what, rest, _ := strings.Cut(err.Error(), ": ")
		at := replaceAt
		if what == "match" {
			at = matchAt
		}
		at.errorf("%s", rest)
		return nil
	}
	return w
}

// maxChanges bounds what one route sets and adds.
const maxChanges = 100

// changes reads set, add and remove; nil if there are none.
func (v value) changes(ofRequest bool) *rewrite.Changes {
	o, ok := v.object("set, add or remove")
	if !ok {
		return nil
	}
	c := &rewrite.Changes{}
	var removed []value
	if v, ok := o.get("remove", "a list of header names"); ok {
		vs, names, _ := v.words("header names", false)
		for i, name := range names {
			if vs[i].checkField(name, false) {
				c.Remove, removed = append(c.Remove, name), append(removed, vs[i])
			}
		}
	}
	if v, ok := o.get("set", "header names and their values"); ok {
		c.Set = v.headerFields(ofRequest, false)
	}
	if v, ok := o.get("add", "header names and their values"); ok {
		c.Add = v.headerFields(false, true)
	}
	for i, name := range c.Remove {
		if slices.ContainsFunc(c.Set, func(f rewrite.Field) bool { return strings.EqualFold(f.Name, name) }) {
			removed[i].warnf("%s is removed first and then set, so that removing it has no effect; leave one of the two out", quote(name))
		}
	}
	o.done()
	if len(c.Set)+len(c.Add) > maxChanges {
		v.errorf("%d fields; want at most %d", len(c.Set)+len(c.Add), maxChanges)
	}
	return c
}

// checkField reports a field that no route can change.
func (v value) checkField(name string, host bool) bool {
	err := rewrite.CheckName(name)
	if err == nil && strings.EqualFold(name, "Host") && !host {
		err = fmt.Errorf("can only be set, in request_headers; want set: {Host: \"{host}\"} to keep the client's")
	}
	if err != nil {
		v.errorf("%s %v", quote(name), err)
	}
	return err == nil
}

// headerFields reads names and values, in file order.
func (v value) headerFields(host, lists bool) []rewrite.Field {
	o, ok := v.object("header names and their values")
	if !ok {
		return nil
	}
	var fs []rewrite.Field
	spelled := map[string]string{}
	for _, name := range o.names {
		at := o.fields[name]
		if !at.atKey().checkField(name, host) {
			continue
		}
		if first, twice := spelled[strings.ToLower(name)]; twice {
			at.keyErrorf("is %s again: case makes no difference in the names of headers", quote(first))
			continue
		}
		spelled[strings.ToLower(name)] = name
		const wanted = "a value"
		if isNull(at.n) {
			at.keyErrorf("has no value; want one, or the name under remove")
			continue
		}
		vs, texts := []value{at}, []string{""}
		if lists {
			vs, texts, ok = at.words(wanted+"s", true)
		} else {
			texts[0], ok = at.word(wanted)
		}
		if !ok {
			continue
		}
		for i, text := range texts {
			field := rewrite.Field{Name: name, Value: text, Secret: vs[i].fromEnvironment()}
			check := rewrite.CheckValue
			if strings.EqualFold(name, "Host") {
				check = rewrite.CheckHost
			}
			if err := check(text); err != nil && shownValue(field) == masked {
				vs[i].errorf("holds a { that begins no placeholder, or a character that cannot stand there; want {{ for a brace")
				continue
			} else if err != nil {
				vs[i].errorf("%v", err)
				continue
			}
			fs = append(fs, field)
		}
	}
	return fs
}

// cors reads cors; nil if anything was wrong.
func (v value) cors() *CORS {
	o, ok := v.object("origins")
	if !ok {
		return nil
	}
	c := &CORS{}
	any := false
	var at []value // of the origins
	if v, ok := o.need("origins", `a list of origins such as https://app.example.com, or ["*"]`); ok {
		vs, origins, ok := v.words(`origins such as https://app.example.com, or "*"`, false)
		if ok && len(vs) == 0 {
			v.errorf("names no origin, so that no browser would be let in; leave cors out for that")
		}
		for i, s := range origins {
			switch {
			case s == "*":
				any = true
			case !isOrigin(s):
				vs[i].errorf(`%s is not an origin; want %s`, quote(s), wantedOrigin(s))
				continue
			}
			c.Origins, at = append(c.Origins, s), append(at, vs[i])
		}
	}
	if v, ok := o.get("methods", "a list of methods such as [GET, POST]"); ok {
		c.Methods, _ = readMethods(v)
	}
	list := func(name, what string) (names []string) {
		v, ok := o.get(name, "a list of "+what)
		if !ok {
			return nil
		}
		vs, ss, _ := v.words(what, false)
		for i, s := range ss {
			if s != "*" && !isToken(s) {
				vs[i].errorf("%s is not the name of a header; want letters, digits and -, or \"*\"", quote(s))
				continue
			}
			names = append(names, s)
		}
		return names
	}
	c.Headers, c.Expose = list("headers", "header names"), list("expose", "header names")
	if v, ok := o.get("credentials", "true or false"); ok {
		if c.Credentials, _ = v.boolean(); c.Credentials && any {
			v.errorf(`beside the origin "*" it would let every site act in a caller's name, and browsers refuse it; want the origins by name`)
		}
	}
	c.MaxAge = o.duration("max_age", 0, 0, day)
	o.done()
	for i, s := range c.Origins {
		if suffix := anybodys(s); c.Credentials && suffix != "" {
			at[i].warnf("anybody can have a host under %s, and its pages would act in a caller's name; name the hosts that are yours", suffix)
		}
		if any && s != "*" {
			at[i].warnf(`has no effect beside "*", which lets in all of them; remove one of the two`)
		}
	}
	return c
}

// anybodys returns the name under which an origin lets in hosts that anybody can have,
// or "": one of the public suffix list, such as com or github.io.
func anybodys(origin string) string {
	_, host, wild := strings.Cut(origin, "://*.")
	if !wild {
		return ""
	}
	host, _, _ = cutPort(host)
	suffix, icann := publicsuffix.PublicSuffix(host)
	if suffix != host || !icann && !strings.Contains(suffix, ".") { // a name of one's own network
		return ""
	}
	return suffix
}

// wantedOrigin says what is wanted in place of s, which is no origin.
func wantedOrigin(s string) string {
	const form = `a scheme and a host without a path, such as https://app.example.com or https://*.example.com, or "*"`
	if s == "null" {
		return "the origins of pages: null is that of pages without one, which may be anybody's"
	}
	written := strings.TrimSuffix(strings.ToLower(s), "/")
	for scheme, port := range map[string]string{"https://": ":443", "http://": ":80"} {
		if strings.HasPrefix(written, scheme) {
			written = strings.TrimSuffix(written, port)
		}
	}
	if written != s && isOrigin(written) {
		return fmt.Sprintf("it as browsers write it: in lower case, without a path and without the port that the scheme has anyway (did you mean %q?)", written)
	}
	return form
}

// isOrigin reports whether s is an origin as browsers send it (RFC 6454 section
// 6.1), in lower case and without a default port; one "*" may stand for what is in
// front of a dot.
func isOrigin(s string) bool {
	u, err := url.Parse(strings.Replace(s, "://*.", "://any.", 1))
	if err != nil || u.Scheme == "" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return false
	}
	port := u.Port()
	return originPattern.MatchString(s) && isHost(u.Hostname()) &&
		!(u.Scheme == "https" && port == "443") && !(u.Scheme == "http" && port == "80")
}

var originPattern = regexp.MustCompile(`^[a-z][a-z0-9+.-]*://([*][.])?([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$`)

const wantedSize = "a size such as 10MiB, in bytes or with KB, MB, GB, KiB, MiB or GiB"

// sizeUnits are the units of sizes, the largest first.
var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}}

var sizePattern = regexp.MustCompile(`^(?:(0|[1-9][0-9]{0,14})|(0|[1-9][0-9]{0,8})(GiB|MiB|KiB|GB|MB|KB))$`)

// size reads a number of bytes.
func (v value) size() (Size, bool) {
	s, _, ok := v.scalar(wantedSize)
	if !ok {
		return AnySize, false
	}
	m := sizePattern.FindStringSubmatch(s)
	if m == nil || v.n.Tag == "!!float" {
		guess := ""
		tight := strings.ReplaceAll(s, " ", "")
		for _, u := range sizeUnits {
			for _, spelling := range []string{u.name, u.name[:1], u.name[:1] + "b", strings.ToLower(u.name)} {
				if n, ok := strings.CutSuffix(tight, spelling); ok && guess == "" && decimal.MatchString(n) {
					guess = fmt.Sprintf(" (did you mean %q?)", n+u.name)
				}
			}
		}
		v.errorf("%s is not a size; want %s%s", quote(s), wantedSize, guess)
		return AnySize, false
	}
	n, _ := strconv.ParseInt(m[1]+m[2], 10, 64) // one of them is empty
	for _, u := range sizeUnits {
		if u.name == m[3] {
			n *= u.bytes
		}
	}
	return Size(n), true
}

// String is the size as the files have it, or "none".
func (s Size) String() string {
	if s < 0 {
		return "none"
	}
	n := int64(s)
	for _, u := range sizeUnits {
		if n > 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// describeReshaping tells what is changed otherwise than before.
func describeReshaping(d *differ, what string, a, b *Route) {
	d.change(what+" strip_prefix", a.StripPrefix, b.StripPrefix)
	from, to := orNew(a.Rewrite), orNew(b.Rewrite)
	d.change(what+" rewrite.match", from.Match, to.Match)
	d.change(what+" rewrite.replace", from.Replace, to.Replace)
	describeChanges(d, what+" request_headers", a.RequestHeaders, b.RequestHeaders)
	describeChanges(d, what+" response_headers", a.ResponseHeaders, b.ResponseHeaders)
	d.change(what+" cors", a.CORS.text(), b.CORS.text())
	d.change(what+" max_body", a.MaxBody.String(), b.MaxBody.String())
	d.change(what+" timeout", orNone(a.Timeout), orNone(b.Timeout))
	d.change(what+" websocket", a.WebSocket.text(), b.WebSocket.text())
}

func describeChanges(d *differ, what string, a, b *rewrite.Changes) {
	from, to := orNew(a), orNew(b)
	d.change(what+".remove", strings.Join(from.Remove, ", "), strings.Join(to.Remove, ", "))
	describeFields(d, what+".set", from.Set, to.Set)
	describeFields(d, what+".add", from.Add, to.Add)
}

// describeFields tells of other fields. What is not shown is only said to be another.
func describeFields(d *differ, what string, a, b []rewrite.Field) {
	if fieldsKey(a) == fieldsKey(b) {
		return
	}
	from, to := fieldsText(a), fieldsText(b)
	if from == to {
		d.say("%s: a value that is not shown changed", what)
	}
	d.change(what, from, to)
}

// orNew is what p points to, or the zero value.
func orNew[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// orNone is a duration that may be none.
func orNone(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return formatDuration(d)
}

// fieldsKey is the same for the same fields, wherever their values came from.
func fieldsKey(fs []rewrite.Field) string {
	var b strings.Builder
	for _, f := range fs {
		b.WriteString(" " + f.Name + ": " + f.Value)
	}
	return b.String()
}

func fieldsText(fs []rewrite.Field) string {
	var texts []string
	for _, f := range fs {
		texts = append(texts, f.Name+": "+shownValue(f))
	}
	return strings.Join(texts, ", ")
}

// shownValue is the value of a field, masked if it may be a secret: an upstream is
// often shown one. What consists of placeholders is none, unless it came from the
// environment.
func shownValue(f rewrite.Field) string {
	switch {
	case f.Secret:
		return masked
	case confidential(f.Name) || confidentialHeader.MatchString(f.Name):
		if !onlyPlaceholders.MatchString(f.Value) {
			return masked
		}
	}
	return f.Value
}

var onlyPlaceholders = regexp.MustCompile(`^([{][a-z_]+[}])+$`)

// text is cors in one line; empty if there is none.
func (c *CORS) text() string {
	if c == nil {
		return ""
	}
	parts := []string{"origins " + strings.Join(c.Origins, " ")}
	for _, part := range []struct {
		what  string
		words []string
	}{{"methods", c.Methods}, {"headers", c.Headers}, {"expose", c.Expose}} {
		if len(part.words) > 0 {
			parts = append(parts, part.what+" "+strings.Join(part.words, " "))
		}
	}
	if c.Credentials {
		parts = append(parts, "credentials")
	}
	if c.MaxAge > 0 {
		parts = append(parts, "max_age "+formatDuration(c.MaxAge))
	}
	return strings.Join(parts, ", ")
}

// reshaping adds what a route changes to its node.
func (m mapping) reshaping(r *Route) {
	m.text("strip_prefix", r.StripPrefix)
	if r.Rewrite != nil {
		n := newMapping(true)
		n.text("match", r.Rewrite.Match)
		n.text("replace", r.Rewrite.Replace)
		m.node("rewrite", n.n)
	}
	m.changes("request_headers", r.RequestHeaders)
	m.changes("response_headers", r.ResponseHeaders)
	if c := r.CORS; c != nil {
		n := newMapping(true)
		n.list("origins", c.Origins)
		n.list("methods", c.Methods)
		n.list("headers", c.Headers)
		n.list("expose", c.Expose)
		n.boolean("credentials", c.Credentials)
		if c.MaxAge > 0 {
			n.duration("max_age", c.MaxAge)
		}
		m.node("cors", n.n)
	}
	if r.MaxBody != AnySize {
		m.text("max_body", r.MaxBody.String())
	}
	if r.Timeout > 0 {
		m.duration("timeout", r.Timeout)
	}
	m.webSocket(r.WebSocket)
}

func (m mapping) changes(name string, c *rewrite.Changes) {
	if c == nil {
		return
	}
	n := newMapping(true)
	if len(c.Set) > 0 {
		set := newMapping(true)
		for _, f := range c.Set {
			set.text(f.Name, shownValue(f))
		}
		n.node("set", set.n)
	}
	if len(c.Add) > 0 {
		values := map[string][]string{}
		for _, f := range c.Add {
			values[f.Name] = append(values[f.Name], shownValue(f))
		}
		add := newMapping(true)
		for _, name := range slices.Sorted(maps.Keys(values)) {
			add.list(name, values[name])
		}
		n.node("add", add.n)
	}
	n.list("remove", c.Remove)
	m.node(name, n.n)
}
