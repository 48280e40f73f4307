package config

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v4"
)

// readUpstreams reads upstreams.
func (f *routesFile) readUpstreams(top *object) {
	f.upstreams = map[string]*Upstream{}
	v, ok := top.need("upstreams", "named upstreams with targets")
	if !ok {
		return
	}
	o, ok := v.object("named upstreams")
	if !ok {
		return
	}
	for _, v := range o.entries("an upstream") {
		name := v.key.Value
		u := &Upstream{
			Name: name, Pos: v.pos(), Balance: "least_requests",
			ConnectTimeout: time.Second, ResponseHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second,
		}
		f.upstreams[name] = u
		f.pools = append(f.pools, u)
		if o, ok := v.object("targets"); ok {
			u.read(o)
		}
	}
}

func (u *Upstream) read(o *object) {
	const wantedTargets = "URLs such as http://127.0.0.1:9001"
	if v, ok := o.need("targets", "a list of "+wantedTargets); ok {
		vs, texts, ok := v.words(wantedTargets, false)
		if ok && len(vs) == 0 {
			v.errorf("names no target; want at least one")
		}
		for i, s := range texts {
			if t, ok := vs[i].target(s); ok {
				u.Targets = append(u.Targets, t)
			}
		}
	}
	if v, ok := o.get("balance", "least_requests or round_robin"); ok {
		if v.n.Kind == yaml.MappingNode {
			v.errorf("balancing by hash is not supported yet; change it (wanted for now: least_requests or round_robin)")
		} else if s, ok := v.choice([]string{"least_requests", "round_robin"}, []string{"hash"}); ok {
			u.Balance = s
		}
	}
	if v, ok := o.get("timeout", "connect, response_header or idle"); ok {
		if t, ok := v.object("connect, response_header or idle"); ok {
			u.ConnectTimeout = t.duration("connect", u.ConnectTimeout, time.Millisecond, time.Hour)
			u.ResponseHeaderTimeout = t.duration("response_header", u.ResponseHeaderTimeout, time.Millisecond, day)
			u.IdleTimeout = t.duration("idle", u.IdleTimeout, time.Millisecond, day)
			t.done()
		}
	}
	const wanted = "targets, balance and timeout"
	o.later("tls", "https targets, checked against the system's certificates")
	o.later("health", wanted)
	o.later("retries", wanted)
	o.later("max_in_flight", wanted)
	o.later("circuit", wanted)
	o.done()
}

// target reads the URL of a target. The text of a bad one is not repeated: it
// may hold a password.
func (v value) target(s string) (*url.URL, bool) {
	const wanted = "want a URL such as http://127.0.0.1:9001 or https://api.example.com/base"
	scheme, _, hasScheme := strings.Cut(s, ":")
	switch scheme = strings.ToLower(scheme); {
	case scheme == "h2c" || scheme == "unix":
		v.errorf("targets with %s are not supported yet; remove it (wanted for now: http or https)", scheme)
		return nil, false
	case !hasScheme || !strings.Contains(s, "://"):
		v.errorf("not a URL; %s", wanted)
		return nil, false
	case scheme != "http" && scheme != "https":
		v.errorf("unknown scheme %s%s; %s", quote(scheme), suggest(scheme, []string{"http", "https"}), wanted)
		return nil, false
	}
	t, err := url.Parse(s)
	switch {
	case err != nil:
		v.errorf("not a URL; %s", wanted)
	case t.User != nil:
		v.errorf("a target holds no user name or password; %s", wanted)
	case t.RawQuery != "" || t.ForceQuery || t.Fragment != "" || strings.Contains(s, "#"):
		v.errorf("a target holds no query or fragment; %s", wanted)
	case !isHost(t.Hostname()):
		v.errorf("bad host, or none; %s", wanted)
	case !isPort(t):
		v.errorf("bad port; want a number from 1 to 65535")
	default:
		return t, true
	}
	return nil, false
}

// isPort reports whether the port of t is left out or may be dialled.
func isPort(t *url.URL) bool {
	port := t.Port()
	if port == "" {
		return !strings.HasSuffix(t.Host, ":")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
