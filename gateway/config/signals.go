package config

import (
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// This file is what the gateway tells of itself: log and traces.

// Log is what is written on standard output.
type Log struct {
	// Level is the least level of the process log: debug, info (default), warn or error.
	Level string
	// SampleAllowed is the share of the lines that is written of requests that were let in
	// and went well; default all. All others have their line.
	SampleAllowed Share
}

// Traces is where spans go, as OpenTelemetry has them.
type Traces struct {
	Endpoint string // http or https, with a path; nothing secret is in it
	Sample   Share  // of the requests whose trace begins here; default 1 %
	// HeadersFile holds what goes with each delivery; absolute, empty: nothing.
	HeadersFile string
	Headers     Secret // its content, lines of "Name: value"; see Fields
	TLS         *TLS   // nil: as the system trusts
}

// Share is a part of a whole, in millionths.
type Share int

// All is the whole.
const All Share = 1_000_000

// String is the share as the files have it.
func (s Share) String() string { return strconv.FormatFloat(float64(s)/1e4, 'f', -1, 64) + "%" }

// Part is the share as a number from 0 to 1.
func (s Share) Part() float64 { return float64(s) / float64(All) }

const wantedShare = "a share such as 10%, 0.25% or 0.1, from 0 to all of it"

var sharePattern = regexp.MustCompile(`^([0-9]{1,3}(?:[.][0-9]{1,4})?) ?%$|^([01](?:[.][0-9]{1,6})?)$`)

// share reads a share, as a percentage or as a number from 0 to 1.
func (v value) share(fallback Share) Share {
	s, _, ok := v.scalar(wantedShare)
	if !ok {
		return fallback
	}
	m := sharePattern.FindStringSubmatch(s)
	if m != nil {
		text, decimals := m[1], 4
		if text == "" {
			text, decimals = m[2], 6
		}
		whole, frac, _ := strings.Cut(text, ".")
		n, _ := strconv.Atoi(whole + frac + strings.Repeat("0", decimals-len(frac)))
		if n <= int(All) {
			return Share(n)
		}
	}
	v.errorf("%s is not a share; want %s", quote(s), wantedShare)
	return fallback
}

// logLevels are the levels of the process log, the most talkative first.
var logLevels = []string{"debug", "info", "warn", "error"}

// readLog reads log.
func readLog(top *object) Log {
	l := Log{Level: "info", SampleAllowed: All}
	const wanted = "level or sample_allowed"
	v, ok := top.get("log", wanted)
	if !ok {
		return l
	}
	o, ok := v.object(wanted)
	if !ok {
		return l
	}
	if v, ok := o.get("level", oneOf(logLevels)); ok {
		if s, ok := v.choice(logLevels); ok {
			l.Level = s
		}
	}
	if v, ok := o.get("sample_allowed", wantedShare); ok {
		l.SampleAllowed = v.share(l.SampleAllowed)
	}
	o.done()
	return l
}

const (
	wantedTraces   = "endpoint, sample, headers_file or tls"
	wantedEndpoint = "where a collector takes OTLP over HTTP, such as https://otel.example.com/v1/traces; empty for no traces"
	defaultSample  = All / 100
	tracesPath     = "/v1/traces"
)

// readTraces reads traces; nil if there are none or anything was wrong. No message repeats
// the endpoint: somebody may have put a password into it.
func readTraces(top *object) *Traces {
	v, ok := top.get("traces", wantedTraces)
	if !ok {
		return nil
	}
	o, ok := v.object(wantedTraces)
	if !ok {
		return nil
	}
	t := &Traces{Sample: defaultSample}
	none, local, good := false, false, false
	at, ok := o.need("endpoint", wantedEndpoint)
	if ok {
		var s string
		if s, ok = at.text(wantedEndpoint); ok {
			if none = s == ""; !none {
				t.Endpoint, local, good = at.collector(s)
			}
		}
	}
	if v, ok := o.get("sample", wantedShare); ok {
		t.Sample = v.share(t.Sample)
	}
	if v, ok := o.get("headers_file", wantedHeaders); ok {
		t.Headers, t.HeadersFile = v.headersFile()
		if good && !local && strings.HasPrefix(t.Endpoint, "http:") {
			v.keyWarnf("what is in the file goes over the network in the clear; want an endpoint that begins with https://")
		}
	}
	if v, ok := o.get("tls", "ca_file, cert_file, key_file or server_name"); ok {
		t.TLS = readTLS(v)
		if good && strings.HasPrefix(t.Endpoint, "http:") {
			v.keyErrorf("is for an endpoint that is spoken to by https; want https://, or no tls")
		}
	}
	o.done()
	if none || !good {
		return nil
	}
	return t
}

// collector reads the URL of a collector, and says whether that is on this machine.
func (v value) collector(s string) (endpoint string, local, ok bool) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "" || u.Scheme != "http" && u.Scheme != "https":
		v.errorf("not a URL with http:// or https://; want %s", wantedEndpoint)
	case u.User != nil:
		v.errorf("a user or a password stands in it; want an Authorization field in headers_file")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
		v.errorf("a query or a fragment stands in it; want %s", wantedEndpoint)
	case !isHost(u.Hostname()) || !isPort(u):
		v.errorf("bad host or port; want %s", wantedEndpoint)
	default:
		if u.Path == "" || u.Path == "/" {
			u.Path = tracesPath
		}
		ip, err := netip.ParseAddr(u.Hostname())
		return u.String(), err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(u.Hostname(), "localhost"), true
	}
	return "", false, false
}

const (
	wantedHeaders = `a file with what goes with each delivery, lines such as "Authorization: Bearer …"`
	maxHeaders    = 20
)

// headersFile reads the file that v names. No message repeats a line of it.
func (v value) headersFile() (Secret, string) {
	path, s, ok := v.secretText("lines of Name: value")
	if !ok {
		return nil, ""
	}
	names := map[string]bool{}
	n := 0
	for line := range strings.Lines(s) {
		n++
		name, value, ok := headerLine(line)
		switch {
		case !ok:
			continue
		case !isToken(name) || value == "" || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r >= 0x7f }):
			v.errorf("line %d of %s is no field; want Name: value, in printable ASCII", n, path)
			return nil, ""
		case names[strings.ToLower(name)]:
			v.errorf("line %d of %s has a name that an earlier one has too; want each once", n, path)
			return nil, ""
		case ownTraceFields[strings.ToLower(name)]:
			v.errorf("line %d of %s sets a field that deliveries have anyway; remove it", n, path)
			return nil, ""
		}
		names[strings.ToLower(name)] = true
	}
	if len(names) == 0 || len(names) > maxHeaders {
		v.errorf("%s has %d fields; want 1 to %d, a line each: Name: value", path, len(names), maxHeaders)
		return nil, ""
	}
	return Secret(s), absolute(path)
}

// ownTraceFields are set by whoever delivers.
var ownTraceFields = map[string]bool{
	"host": true, "content-type": true, "content-length": true, "content-encoding": true, "transfer-encoding": true, "connection": true,
}

// headerLine reads a line of a headers_file; false for a blank one and a comment.
func headerLine(line string) (name, value string, ok bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return "", "", false
	}
	name, value, _ = strings.Cut(line, ":")
	return name, strings.TrimSpace(value), true
}

// Fields are the fields that go with each delivery, by name; they are secret.
func (t *Traces) Fields() map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(string(t.Headers)) {
		if name, value, ok := headerLine(line); ok {
			fields[name] = value
		}
	}
	return fields
}

// node writes traces.
func (t *Traces) node() mapping {
	m := newMapping(false)
	m.text("endpoint", t.Endpoint)
	m.text("sample", t.Sample.String())
	m.text("headers_file", t.HeadersFile)
	if t.TLS != nil {
		m.node("tls", t.TLS.node())
	}
	return m
}

func (l Log) node() mapping {
	m := newMapping(true)
	m.text("level", l.Level)
	m.text("sample_allowed", l.SampleAllowed.String())
	return m
}

// describeSignals are the single values of log and traces.
func describeSignals(both func(string, func(*Config) string) setting) []setting {
	traces := func(of func(*Traces) string) func(*Config) string {
		return func(c *Config) string {
			if c.Traces == nil {
				return ""
			}
			return of(c.Traces)
		}
	}
	inTLS := func(of func(*TLS) string) func(*Config) string {
		return traces(func(t *Traces) string {
			if t.TLS == nil {
				return ""
			}
			return of(t.TLS)
		})
	}
	return []setting{
		both("log.level", func(c *Config) string { return c.Log.Level }),
		both("log.sample_allowed", func(c *Config) string { return c.Log.SampleAllowed.String() }),
		both("traces.endpoint", traces(func(t *Traces) string { return t.Endpoint })),
		both("traces.sample", traces(func(t *Traces) string { return t.Sample.String() })),
		both("traces.headers_file", traces(func(t *Traces) string { return t.HeadersFile })),
		both("traces.tls.ca_file", inTLS(func(t *TLS) string { return t.CAFile })),
		both("traces.tls.cert_file", inTLS(func(t *TLS) string { return t.CertFile })),
		both("traces.tls.key_file", inTLS(func(t *TLS) string { return t.KeyFile })),
		both("traces.tls.server_name", inTLS(func(t *TLS) string { return t.ServerName })),
	}
}

// logSchema describes log.
func logSchema() schema {
	return fields(map[string]schema{
		"level": words(logLevels...).or("info").says("The least level of what happens to the process that is logged. Requests are not asked for theirs."),
		"sample_allowed": shareSchema().or("100%").says("The share of the lines that is written of requests that were let in and went well (below 400). " +
			"Denials, refusals and errors always have theirs."),
	}).says("The log on standard output.")
}

// tracesSchema describes traces.
func tracesSchema() schema {
	return fields(map[string]schema{
		"endpoint":     schema{"anyOf": []schema{written(`^(https?://[^@?#\s]+)?$`, wantedEndpoint), def("variable")}}.says("Where a collector takes OTLP over HTTP; without a path " + tracesPath + ". Empty: no traces."),
		"sample":       shareSchema().or(defaultSample.String()).says("The share of the requests of which a trace is made. One that a trusted proxy has begun is continued as that says."),
		"headers_file": def("text").says("File of fields that go with each delivery, a line each: Name: value. For the collector's credentials."),
		"tls":          tlsSchema().says("TLS to the collector."),
	}, "endpoint").with("if", schema{"properties": map[string]any{"endpoint": schema{"pattern": "^http:"}}, "required": []string{"endpoint"}}).
		with("then", schema{"properties": map[string]any{"tls": false}}).
		says("Traces by OpenTelemetry. Left out: none are made.")
}

func shareSchema() schema {
	return anyOf(schema{"type": "number", "minimum": 0, "maximum": 1}, written(`^((100|[0-9]{1,2}([.][0-9]{1,4})?|100[.]0{1,4}) ?%|0([.][0-9]{1,6})?|1([.]0{1,6})?)$`, wantedShare))
}
