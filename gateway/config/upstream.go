package config

import (
	"math"
	"net/url"
	"regexp"
	"slices"
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
			SlowStart: defaultSlowStart,
		}
		f.upstreams[name] = u
		f.pools = append(f.pools, u)
		if o, ok := v.object("targets"); ok {
			u.read(o)
		}
	}
}

func (u *Upstream) read(o *object) {
	if v, ok := o.need("targets", "a list of "+wantedTargets); ok {
		u.Targets = v.targets()
	}
	if v, ok := o.get("balance", wantedBalance); ok {
		u.readBalance(v)
	}
	if v, ok := o.get("timeout", "connect, response_header or idle"); ok {
		if t, ok := v.object("connect, response_header or idle"); ok {
			u.ConnectTimeout = t.duration("connect", u.ConnectTimeout, time.Millisecond, time.Hour)
			u.ResponseHeaderTimeout = t.duration("response_header", u.ResponseHeaderTimeout, time.Millisecond, day)
			u.IdleTimeout = t.duration("idle", u.IdleTimeout, time.Millisecond, day)
			t.done()
		}
	}
	if v, ok := o.get("tls", "ca_file, cert_file, key_file or server_name"); ok {
		u.TLS = readTLS(v)
		if len(u.Targets) > 0 && !slices.ContainsFunc(u.Targets, func(t Target) bool { return t.URL.Scheme == "https" }) {
			v.keyErrorf("is for https targets, and there are none; want https:// in front of those that speak TLS, or no tls")
		}
	}
	if v, ok := o.get("max_in_flight", "a number of requests"); ok {
		n, _ := v.integer(1, math.MaxInt32)
		u.MaxInFlight = int(n)
	}
	if v, ok := o.get("circuit", "errors, window or open"); ok {
		u.Circuit = v.circuit()
	}
	if v, ok := o.get("retries", "attempts or budget"); ok {
		u.Retries = v.retries()
	}
	if v, ok := o.get("health", wantedHealth); ok {
		u.Health = v.health()
	}
	u.SlowStart = o.duration("slow_start", u.SlowStart, time.Millisecond, time.Hour)
	o.done()
}

const (
	wantedTargets = "URLs such as http://127.0.0.1:9001"
	wantedBalance = "least_requests, round_robin or hash: {by: user}"
	wantedHash    = "what requests of one target have in common, such as {by: user}"
	// maxWeight bounds how long a round of turns is.
	maxWeight = 1000
)

// readBalance reads balance: a word, or hash with what it goes by.
func (u *Upstream) readBalance(v value) {
	if v.n.Kind != yaml.MappingNode {
		switch s, ok := v.word(wantedBalance); {
		case !ok:
		case s == "least_requests" || s == "round_robin":
			u.Balance = s
		case s == "hash":
			v.errorf("hash needs what it goes by; want {hash: {by: user}}")
		default:
			v.errorf("want %s, got %s%s", wantedBalance, quote(s), suggest(s, []string{"least_requests", "round_robin"}))
		}
		return
	}
	o, _ := v.object(wantedBalance)
	if v, ok := o.need("hash", wantedHash); ok {
		if h, ok := v.object(wantedHash); ok {
			if v, ok := h.need("by", wantedBy); ok {
				if s, ok := v.word(wantedBy); ok {
					if d, ok := v.dimension(s, hashDimensions); ok {
						u.Balance, u.HashBy = "hash", &d
					}
				}
			}
			h.done()
		}
	}
	o.done()
}

const wantedBy = "ip, user, api_key, tenant or header:NAME"

// hashDimensions are what a hash may go by, besides header:NAME. By route or global
// would be no balance at all.
var hashDimensions = []string{string(PerIP), string(PerUser), string(PerAPIKey), string(PerTenant)}

// targets reads a list of URLs, each alone or with a weight.
func (v value) targets() (targets []Target) {
	items, ok := v.list("a list of " + wantedTargets)
	if ok && len(items) == 0 {
		v.errorf("names no target; want at least one")
	}
	first := map[string]value{}
	for _, item := range items {
		t, at := Target{Weight: 1}, item
		if item.n.Kind == yaml.MappingNode {
			o, _ := item.object("url and weight")
			if v, ok := o.get("weight", "a number from 1 to 1000"); ok {
				if n, ok := v.integer(1, maxWeight); ok {
					t.Weight = int(n)
				}
			}
			at, ok = o.need("url", "a URL such as http://127.0.0.1:9001")
			o.done()
			if !ok {
				continue
			}
		}
		s, ok := at.word(wantedTargets)
		if !ok {
			continue
		}
		if f, twice := first[s]; twice {
			at.errorf("given twice; the first one is at line %d, column %d", f.n.Line, f.n.Column)
			continue
		}
		first[s] = at
		if t.URL, ok = at.target(s); ok {
			targets = append(targets, t)
		}
	}
	return targets
}

// circuit reads circuit; nil if it is no mapping.
func (v value) circuit() *Circuit {
	o, ok := v.object("errors, window or open")
	if !ok {
		return nil
	}
	c := &Circuit{Errors: 50}
	if v, ok := o.get("errors", wantedPercent); ok {
		c.Errors = v.percent()
	}
	c.Window = o.duration("window", 10*time.Second, time.Second, time.Hour)
	c.Open = o.duration("open", 5*time.Second, 100*time.Millisecond, time.Hour)
	o.done()
	return c
}

// retries reads retries; nil if it is no mapping.
func (v value) retries() *Retries {
	o, ok := v.object("attempts or budget")
	if !ok {
		return nil
	}
	r := &Retries{Attempts: 2, Budget: 10}
	if v, ok := o.get("attempts", "a number from 1 to 10"); ok {
		n, _ := v.integer(1, maxRetries)
		r.Attempts = int(n)
	}
	if v, ok := o.get("budget", wantedPercent); ok {
		r.Budget = v.percent()
	}
	o.done()
	return r
}

const (
	wantedHealth     = "path, interval, timeout, healthy or unhealthy"
	wantedHealthPath = "a path that says whether a target is well, such as /healthz"
	healthInterval   = 2 * time.Second
	healthTimeout    = time.Second
	defaultHealthy   = 2
	defaultUnhealthy = 3
	maxChecks        = 100 // in a row
	defaultSlowStart = 10 * time.Second
)

var healthPath = regexp.MustCompile(`^/[!-"$-~]*$`)

// health reads health; nil if it is no mapping.
func (v value) health() *Health {
	o, ok := v.object(wantedHealth)
	if !ok {
		return nil
	}
	h := &Health{Healthy: defaultHealthy, Unhealthy: defaultUnhealthy}
	if v, ok := o.need("path", wantedHealthPath); ok {
		if s, ok := v.word(wantedHealthPath); ok {
			if _, err := url.ParseRequestURI(s); err != nil || !healthPath.MatchString(s) {
				v.errorf("%s is no path; want %s", quote(s), wantedHealthPath)
			}
			h.Path = s
		}
	}
	h.Interval = o.duration("interval", healthInterval, 100*time.Millisecond, time.Hour)
	h.Timeout = min(healthTimeout, h.Interval)
	if v, ok := o.get("timeout", "a duration such as 1s"); ok {
		if d, ok := v.duration(time.Millisecond, time.Hour); ok {
			if d > h.Interval {
				v.errorf("%s is longer than the %s between two checks; want that at most", formatDuration(d), formatDuration(h.Interval))
			}
			h.Timeout = d
		}
	}
	for name, n := range map[string]*int{"healthy": &h.Healthy, "unhealthy": &h.Unhealthy} {
		if v, ok := o.get(name, "a number of checks in a row"); ok {
			if got, ok := v.integer(1, maxChecks); ok {
				*n = int(got)
			}
		}
	}
	o.done()
	return h
}

// maxRetries bounds the attempts after the first.
const maxRetries = 10

const wantedPercent = "a share such as 50%, from 1% to 100%"

var percentPattern = regexp.MustCompile(`^([1-9][0-9]?|100) ?%$`)

// percent reads a share; 0 if it is none.
func (v value) percent() Percent {
	s, _, ok := v.scalar(wantedPercent)
	if !ok {
		return 0
	}
	m := percentPattern.FindStringSubmatch(s)
	if m == nil {
		v.errorf("%s is not a share; want %s", quote(s), wantedPercent)
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return Percent(n)
}

// target reads the URL of a target. The text of a bad one is not repeated: it
// may hold a password.
func (v value) target(s string) (*url.URL, bool) {
	const wanted = "want a URL such as http://127.0.0.1:9001, https://api.example.com/base, h2c://127.0.0.1:50051 or unix:///run/api.sock"
	scheme, rest, hasScheme := strings.Cut(s, ":")
	schemes := []string{"http", "https", "h2c", "unix"}
	switch scheme = strings.ToLower(scheme); {
	case scheme == "unix":
		// As in listen, where no two slashes stand in front of the path.
		path := "/" + strings.TrimLeft(rest, "/")
		if !strings.HasPrefix(rest, "/") || strings.HasPrefix(rest, "//") && !strings.HasPrefix(rest, "///") || len(path) < 2 || len(path) > maxSocketPath {
			v.errorf("a socket is named by its whole path of at most %d bytes; want unix:///run/api.sock", maxSocketPath)
			return nil, false
		}
		return &url.URL{Scheme: "unix", Path: path}, true
	case !hasScheme || !strings.Contains(s, "://"):
		v.errorf("not a URL; %s", wanted)
		return nil, false
	case !slices.Contains(schemes, scheme):
		v.errorf("unknown scheme %s%s; %s", quote(scheme), suggest(scheme, schemes), wanted)
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
