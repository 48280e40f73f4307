package simulate

import (
	"bytes"
	"strconv"
	"time"
)

// combined reads the common and the combined format, as nginx and Apache write
// it, with the columns that are often added behind it (a forwarded-for field in
// quotes, the request time in seconds), and Traefik's.
//
//	192.0.2.1 - bob [02/Nov/2026:08:58:00 +0000] "GET / HTTP/1.1" 200 2 "-" "curl" "10.9.9.9" 0.041
//	192.0.2.1 - - [02/Nov/2026:08:58:00 +0000] "GET / HTTP/1.1" 200 2 "-" "-" 4 "api@file" "http://10.0.0.1:80" 3ms
func (p *lineReader) combined(line []byte, r *record) error {
	i := bytes.IndexByte(line, ' ')
	if i <= 0 {
		return errShape
	}
	ip, rest := line[:i], line[i+1:]
	open := bytes.Index(rest, []byte(" ["))
	if open < 0 {
		return errShape
	}
	// "- bob": nobody has asked identd for thirty years, and what it says is no
	// identity.
	if _, user, ok := bytes.Cut(rest[:open], []byte(" ")); ok && string(user) != "-" && string(user) != `""` {
		r.user = p.text(user)
	}
	rest = rest[open+2:]
	end := bytes.IndexByte(rest, ']')
	if end < 0 {
		return errShape
	}
	var err error
	if r.at, err = p.when(rest[:end]); err != nil {
		return err
	}
	if err := p.peer(ip, r); err != nil {
		return err
	}
	asked, rest, ok := quoted(trimSpace(rest[end+1:]))
	if !ok {
		return errShape
	}
	if err := p.request(asked, r); err != nil {
		return err
	}
	p.columns(rest, r)
	return nil
}

// columns reads what stands behind the request: status, bytes, referrer, agent
// and what was added.
func (p *lineReader) columns(rest []byte, r *record) {
	quotes, counted, timed := 0, false, false
	for n := 0; len(rest) > 0 && n < 64; n++ {
		if rest = trimSpace(rest); len(rest) == 0 {
			return
		}
		if rest[0] == '"' {
			v, after, ok := quoted(rest)
			if !ok {
				return
			}
			rest = after
			if quotes++; quotes == 3 && !counted {
				r.forwarded = p.forwardedFor(v)
			}
			continue
		}
		v := rest
		if i := bytes.IndexByte(rest, ' '); i >= 0 {
			v, rest = rest[:i], rest[i:]
		} else {
			rest = nil
		}
		if quotes < 2 || timed {
			continue
		}
		if ms, ok := bytes.CutSuffix(v, []byte("ms")); ok && counted { // Traefik, which logs the arrival
			if n, err := strconv.ParseInt(string(ms), 10, 32); err == nil {
				r.took, r.begins, timed = time.Duration(n)*time.Millisecond, true, true
			}
			continue
		}
		if isNumber(v) && bytes.IndexByte(v, '.') < 0 {
			counted = counted || quotes == 2 // Traefik's count of requests
			continue
		}
		if i := bytes.IndexByte(v, '='); i >= 0 { // rt=0.041
			v = v[i+1:]
		}
		if r.took, timed = seconds(string(v)); timed {
			continue
		}
	}
}

// forwardedFor is a forwarded-for column; "-" is none.
func (p *lineReader) forwardedFor(v []byte) string {
	if len(v) == 0 || string(v) == "-" {
		return ""
	}
	return p.text(unescape(v))
}

// envoy reads Envoy's default text. It has no column for the peer, but Envoy has
// appended it to X-Forwarded-For: the last entry is the peer, and the others
// are what it sent.
//
//	[2026-11-02T08:58:00.310Z] "POST /api HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "curl" "cc21d9b0" "api.example.test" "tcp://10.0.2.1:80"
func (p *lineReader) envoy(line []byte, r *record) error {
	if line[0] != '[' {
		return errShape
	}
	end := bytes.IndexByte(line, ']')
	if end < 0 {
		return errShape
	}
	var err error
	if r.at, err = p.when(line[1:end]); err != nil {
		return err
	}
	r.begins = true // %START_TIME%
	asked, rest, ok := quoted(trimSpace(line[end+1:]))
	if !ok {
		return errShape
	}
	if err := p.request(asked, r); err != nil {
		return err
	}
	var took []byte
	for n := 0; ; n++ { // code, flags, received, sent, duration, upstream's time
		rest = trimSpace(rest)
		if len(rest) == 0 || n > 16 {
			return errShape
		}
		if rest[0] == '"' {
			break
		}
		i := bytes.IndexByte(rest, ' ')
		if i < 0 {
			return errShape
		}
		if n == 4 {
			took = rest[:i]
		}
		rest = rest[i:]
	}
	if ms, err := strconv.ParseInt(string(took), 10, 32); err == nil {
		r.took = time.Duration(ms) * time.Millisecond
	}
	chain, rest, ok := quoted(rest)
	if !ok {
		return errShape
	}
	for range 2 { // agent, request id
		if _, rest, ok = quoted(trimSpace(rest)); !ok {
			return errShape
		}
	}
	if host, _, ok := quoted(trimSpace(rest)); ok && string(host) != "-" {
		r.host = p.text(host)
	}
	peer := chain
	if i := bytes.LastIndexByte(chain, ','); i >= 0 {
		peer = trimSpace(chain[i+1:])
		r.forwarded = p.forwardedFor(trimSpace(chain[:i]))
	}
	if string(peer) == "-" {
		r.remote = "@" // nobody knows
		return nil
	}
	return p.peer(peer, r)
}

// quoted cuts a text in double quotes off the front of b. A backslash escapes
// what is behind it.
func quoted(b []byte) (v, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '"' {
		return nil, b, false
	}
	end := bytes.IndexByte(b[1:], '"') + 1
	if end > 0 && bytes.IndexByte(b[1:end], '\\') < 0 {
		return b[1:end], b[end+1:], true
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return b[1:i], b[i+1:], true
		}
	}
	return nil, b, false
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && isSpace(b[0]) {
		b = b[1:]
	}
	for len(b) > 0 && isSpace(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

func isNumber(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && c != '.' {
			return false
		}
	}
	return len(b) > 0
}

// seconds reads a span in seconds, such as nginx's $request_time.
func seconds(s string) (time.Duration, bool) {
	if s == "" || len(s) > 32 || !isNumber([]byte(s)) {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f < 0 || f > 1e6 {
		return 0, false
	}
	return time.Duration(f * float64(time.Second)).Round(time.Microsecond), true
}
