package simulate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A field is one thing that a line of JSON may say, and where.
type field struct {
	is    string
	paths []string // the first that is there; the exact name first, then dots descend
}

// known are the names that nginx (as its users write its JSON), Caddy, Traefik
// and this gateway use.
func known() []field {
	return []field{
		{"time", []string{"time", "ts", "timestamp", "@timestamp", "time_iso8601", "StartUTC", "msec", "time_local"}},
		{"ip", []string{"remote_addr", "remote_ip", "request.remote_ip", "client_ip", "ClientHost", "ip", "client"}},
		{"forwarded", []string{"x_forwarded_for", "http_x_forwarded_for", "request.headers.X-Forwarded-For", "request_X-Forwarded-For"}},
		{"request", []string{"request"}},
		{"method", []string{"method", "request_method", "request.method", "RequestMethod"}},
		{"uri", []string{"request_uri", "uri", "request.uri", "path", "url", "RequestPath"}},
		{"host", []string{"host", "http_host", "request.host", "RequestHost", "server_name"}},
		{"user", []string{"user", "user_id", "remote_user", "ClientUsername"}},
		{"tenant", []string{"tenant"}},
		{"key_id", []string{"key_id"}},
		{"key", []string{"key"}},
		{"plan", []string{"plan"}},
		{"duration", []string{"request_time", "duration", "duration_ms", "Duration"}},
	}
}

// parseFields reads "time=ts,ip=remote_addr": where a line of JSON says what.
func parseFields(s string) ([]field, error) {
	fields := known()
	if s == "" {
		return fields, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		is, path, ok := strings.Cut(strings.TrimSpace(part), "=")
		i := slices.IndexFunc(fields, func(f field) bool { return f.is == is })
		if !ok || path == "" || i < 0 {
			var names []string
			for _, f := range fields {
				names = append(names, f.is)
			}
			return nil, fmt.Errorf("%q: want NAME=FIELD with a name of %s", part, strings.Join(names, ", "))
		}
		fields[i].paths = []string{path}
	}
	return fields, nil
}

type rawJSON = json.RawMessage

// jsonLine reads one line of JSON: whatever object has a time, an address and a
// request.
func (p *lineReader) jsonLine(line []byte, r *record) error {
	clear(p.object)
	if err := json.Unmarshal(line, &p.object); err != nil {
		// nginx without escape=json writes \xE4, which is no JSON.
		fixed := bytes.ReplaceAll(line, []byte(`\x`), []byte(`\u00`))
		clear(p.object)
		if len(fixed) == len(line) || json.Unmarshal(fixed, &p.object) != nil {
			return errShape
		}
	}
	var v [13]string
	for i, f := range p.fields {
		v[i] = p.find(f.paths)
	}
	at, ip, forwarded, request, method, uri := v[0], v[1], v[2], v[3], v[4], v[5]
	if request == "" && method == "" && p.object["msg"] != nil {
		return errOther
	}
	switch {
	case at == "":
		return errNoTime
	case ip == "":
		return errNoAddress
	case request == "" && (method == "" || uri == ""):
		return errNoRequest
	}
	var err error
	if r.at, err = p.when([]byte(at)); err != nil {
		return err
	}
	if err := p.peer([]byte(ip), r); err != nil {
		return err
	}
	switch {
	case method != "" && uri != "":
		// nginx's $uri is decoded, and may hold a space.
		if err := p.ask([]byte(method), bytes.ReplaceAll([]byte(uri), []byte(" "), []byte("%20")), r); err != nil {
			return err
		}
	default:
		if err := p.request([]byte(request), r); err != nil {
			return err
		}
	}
	if forwarded != "-" {
		r.forwarded = p.text([]byte(forwarded))
	}
	r.host = p.text(some(v[6]))
	r.user, r.tenant, r.key, r.pln = p.text(some(v[7])), p.text(some(v[8])), p.text(some(v[9])), p.text(some(v[11]))
	p.who(v[10], r)
	r.took = p.span(p.fields[12].paths, v[12])
	if _, ok := p.object["StartUTC"]; ok {
		r.begins = true
	}
	if string(p.object["msg"]) == `"request"` && p.object["request_id"] != nil {
		// This gateway's own: its time is the arrival.
		r.begins = true
		r.sampled = p.object["sampled"] != nil
		switch string(p.object["denied_by"]) {
		case `"unauthorized"`, `"failure_limit"`, `"key_failure_limit"`:
			r.refused = true
		}
	}
	return nil
}

// some is a value; nginx writes "-" for none.
func some(s string) []byte {
	if s == "-" {
		return nil
	}
	return []byte(s)
}

// who reads a field that names a caller as key:ID or user:NAME, or a bare key id.
func (p *lineReader) who(s string, r *record) {
	if s == "" || s == "-" || r.user != "" || r.key != "" {
		return
	}
	if user, ok := strings.CutPrefix(s, "user:"); ok {
		r.user = p.text([]byte(user))
		return
	}
	r.key = p.text([]byte(strings.TrimPrefix(s, "key:")))
}

// find returns the first of the paths that is there, as a text.
func (p *lineReader) find(paths []string) string {
	for _, path := range paths {
		if raw, ok := p.object[path]; ok {
			if s := scalar(raw); s != "" {
				return s
			}
			continue
		}
		if head, tail, ok := strings.Cut(path, "."); ok {
			if raw, ok := p.object[head]; ok && len(raw) > 0 && raw[0] == '{' {
				if s := descend(raw, tail); s != "" {
					return s
				}
			}
		}
	}
	return ""
}

// descend looks a path up in an object inside of the line.
func descend(raw rawJSON, path string) string {
	var o map[string]rawJSON
	if json.Unmarshal(raw, &o) != nil {
		return ""
	}
	if v, ok := o[path]; ok {
		return scalar(v)
	}
	for i := range len(path) {
		if path[i] == '.' {
			if v, ok := o[path[:i]]; ok && len(v) > 0 && v[0] == '{' {
				return descend(v, path[i+1:])
			}
		}
	}
	return ""
}

// scalar is a text, a number or a list of texts; "" is anything else.
func scalar(raw rawJSON) string {
	if len(raw) == 0 {
		return ""
	}
	switch raw[0] {
	case '"':
		if bytes.IndexByte(raw, '\\') < 0 {
			return string(raw[1 : len(raw)-1])
		}
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return ""
		}
		return s
	case '[': // Caddy's fields: several lines of one are one list
		var list []string
		if json.Unmarshal(raw, &list) != nil {
			return ""
		}
		return strings.Join(list, ", ")
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return string(raw)
	}
	return ""
}

// span reads how long a request took. The unit is in the field's name, and is
// seconds where it is not: nginx and Caddy write these, Traefik nanoseconds.
func (p *lineReader) span(paths []string, s string) time.Duration {
	if s == "" || s == "-" {
		return 0
	}
	unit := time.Second
	for _, path := range paths {
		if p.object[path] == nil {
			continue
		}
		switch {
		case strings.HasSuffix(path, "_ms"):
			unit = time.Millisecond
		case strings.HasSuffix(path, "_us"):
			unit = time.Microsecond
		case strings.HasSuffix(path, "_ns"), path == "Duration":
			unit = time.Nanosecond
		}
		break
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		if f *= float64(unit); f >= 0 && f < float64(300*time.Hour) {
			return time.Duration(f).Round(time.Microsecond)
		}
		return 0
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return d
	}
	return 0
}
