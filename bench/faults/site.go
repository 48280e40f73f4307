package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bouncer/bench/internal/rig"
)

// The limits of the site. Windows of an hour that begin with the first request
// give nothing back during a run.
const (
	// wide is the limit of the callers who are never over it. What is left of it
	// tells how much was charged.
	wide = 1_000_000
	// narrow is the limit of the caller who always asks for more.
	narrow = 50
	// localCap is what the local cap admits, per caller and instance.
	localCap = 20
	// poolSize is how many connections an instance may have to one Redis: 16 for
	// each processor, at least 32, as redisstore has it.
	poolSize = 32
	// defaultTimeout is store.redis.timeout as shipped.
	defaultTimeout = 50 * time.Millisecond
)

// hot is the caller whose limit is narrow, and late another one, who only comes
// when the fault is there.
const hot, late = "hot", "hot-late"

// The fail modes, one route each. The third caller of a row is the one who is
// over the limit.
var modes = []struct{ route, mode string }{
	{"capped", "local_cap"}, {"closed", "deny"}, {"open", "allow"},
}

func keyOf(user string) string { return "the-key-of-" + user }

const routesYAML = `listen: {http: "%s", admin: "%s"}
%s
auth: {api_keys: {file: keys.yaml}}
upstreams:
  weather: {targets: ["http://%s"]}
routes:
  - {name: capped, path: /capped, upstream: weather, on_store_failure: local_cap}
  - {name: closed, path: /closed, upstream: weather, on_store_failure: deny}
  - {name: open,   path: /open,   upstream: weather, on_store_failure: allow}
`

// plansYAML is what all but one program run with: %s is added to the limits.
const plansYAML = `default_plan: wide
plans:
  wide:
    local_cap: %d/hour
    limits: [{name: per-hour, algorithm: fixed_window, limit: %d/hour%s}]
  narrow:
    local_cap: %d/hour
    limits: [{name: per-hour, algorithm: fixed_window, limit: %d/hour%s}]
`

// A site is some gateways in front of one upstream.
type site struct {
	h        *host
	dir      string
	upstream string // address
	gateways []*gateway
}

// A gateway is one instance.
type gateway struct {
	process        *rig.Process
	address, admin string
}

// plans says what the plans of a site are.
type plans struct {
	narrow int    // the limit per hour of the plan narrow; 0: as above
	extra  string // more fields of each limit, beginning with a comma
}

// newSite starts n instances of program whose routes.yaml has this store. They
// end with h.
func newSite(h *host, program string, n int, store string, p plans) *site {
	s := &site{h: h, dir: h.TempDir()}
	s.startUpstream()
	if p.narrow == 0 {
		p.narrow = narrow
	}
	s.write("plans.yaml", fmt.Sprintf(plansYAML, localCap, wide, p.extra, localCap, p.narrow, p.extra))
	var keys strings.Builder
	keys.WriteString("keys:\n")
	for _, user := range users() {
		plan := "wide"
		if strings.HasPrefix(user, hot) {
			plan = "narrow"
		}
		fmt.Fprintf(&keys, "  - {id: k-%s, user: %s, plan: %s, sha256: %x}\n", user, user, plan, sha256.Sum256([]byte(keyOf(user))))
	}
	s.write("keys.yaml", keys.String())
	for i := range n {
		s.startGateway(program, i, store)
	}
	for _, g := range s.gateways {
		h.must(g.process.Ready(h.ctx, g.admin, "/readyz"), "start a gateway")
	}
	return s
}

// users are all callers that a site knows.
func users() []string {
	out := []string{hot, late, "victim"}
	for _, m := range modes {
		out = append(out, m.route+"-0", m.route+"-1")
	}
	for i := range 64 { // one for each round of a durability run
		out = append(out, hot+strconv.Itoa(i))
	}
	return out
}

func (s *site) write(name, text string) {
	s.h.must(os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600), "write "+name)
}

// startUpstream serves a short text to everybody, from this process.
func (s *site) startUpstream() {
	l, err := (&net.ListenConfig{}).Listen(s.h.ctx, "tcp", "127.0.0.1:0")
	s.h.must(err, "listen for the upstream")
	body := []byte("{\"city\":\"Pune\"}\n")
	srv := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }),
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() { _ = srv.Serve(l) }() // ends with Close
	s.h.Cleanup(func() { _ = srv.Close() })
	s.upstream = l.Addr().String()
}

func (s *site) startGateway(program string, i int, store string) {
	g := &gateway{}
	var err error
	g.address, err = rig.FreeAddress(s.h.ctx)
	s.h.must(err, "find an address")
	g.admin, err = rig.FreeAddress(s.h.ctx)
	s.h.must(err, "find an address")
	routes := "routes-" + strconv.Itoa(i) + ".yaml"
	s.write(routes, fmt.Sprintf(routesYAML, g.address, g.admin, store, s.upstream))
	g.process, err = rig.Start("gateway-"+strconv.Itoa(i), s.dir, nil, program, "run",
		"-routes", filepath.Join(s.dir, routes), "-plans", filepath.Join(s.dir, "plans.yaml"))
	s.h.must(err, "start a gateway")
	s.h.Cleanup(g.process.Stop)
	s.gateways = append(s.gateways, g)
}

// request is a GET as bytes on the wire.
func request(path, user string) []byte {
	return fmt.Appendf(nil, "GET /%s HTTP/1.1\r\nHost: api.example.com\r\nX-API-Key: %s\r\n\r\n", path, keyOf(user))
}

// clients are the steady load of a row: on each instance and route four
// connections with ten requests a second each, evenly spread in time. On the
// route capped two of them are the caller who is over the limit. Two more ask
// the upstream itself, for comparison.
// The late caller begins after so long.
func (s *site) clients(lateness time.Duration) []client {
	const each, interval = 4, 100 * time.Millisecond
	var out []client
	for i, g := range s.gateways {
		for _, m := range modes {
			for k := range each {
				caller := m.route + "-" + strconv.Itoa(k%2)
				if m.route == "capped" && k >= 2 {
					caller = hot
				}
				out = append(out, client{address: g.address, request: request(m.route, caller), instance: i, route: m.route, caller: caller, interval: interval})
			}
		}
	}
	spread(out)
	for i, g := range s.gateways {
		for k := range 2 {
			out = append(out, client{
				address: g.address, request: request("capped", late), instance: i, route: "capped", caller: late,
				interval: interval, offset: lateness + time.Duration(2*i+k)*interval/6,
			})
		}
	}
	return append(out, s.control()...)
}

// spread gives each client another moment to begin at.
func spread(clients []client) {
	for i := range clients {
		clients[i].offset = clients[i].interval * time.Duration(i) / time.Duration(len(clients))
	}
}

// control asks the upstream, past the gateways.
func (s *site) control() []client {
	var out []client
	for i := range 2 {
		out = append(out, client{
			address: s.upstream, request: request("control", hot), route: control,
			interval: 20 * time.Millisecond, offset: time.Duration(i) * 10 * time.Millisecond,
		})
	}
	return out
}

// control is the route of the samples that went past the gateways.
const control = "control"

// look is what the gateways' metrics and the kernel say at one moment, over all
// instances.
type look struct {
	open        int            // instances that decide without the store
	errors      map[string]int // gateway_store_errors_total by kind
	goroutines  int            // the most of any instance
	resident    int64          // the most of any instance, bytes
	connections int            // to the store, of all instances together
	// Requests so far by gateway_added_latency_seconds, and those of them that it
	// added at most openBar to.
	added, addedLittle int
}

// look reads the metrics. ports are those of the store.
func (s *site) look(ports ...string) look {
	l := look{errors: map[string]int{}}
	for _, g := range s.gateways {
		text, err := g.metrics(s.h.ctx)
		s.h.must(err, "read the metrics")
		open := false
		for line := range bytes.Lines(text) {
			series, value, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
			if !ok || strings.HasPrefix(series, "#") {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				continue
			}
			switch {
			case strings.HasPrefix(series, "gateway_fallback_active{"):
				open = open || n > 0
			case strings.HasPrefix(series, "gateway_store_errors_total{"):
				_, kind, _ := strings.Cut(series, `kind="`)
				kind, _, _ = strings.Cut(kind, `"`)
				l.errors[kind] += int(n)
			case strings.HasPrefix(series, "gateway_added_latency_seconds_count{"):
				l.added += int(n)
			case strings.HasPrefix(series, "gateway_added_latency_seconds_bucket{") && strings.Contains(series, `le="0.001"`):
				l.addedLittle += int(n)
			case series == "go_goroutines":
				l.goroutines = max(l.goroutines, int(n))
			}
		}
		if open {
			l.open++
		}
		resident, _, err := g.process.Memory()
		s.h.must(err, "read the memory")
		l.resident = max(l.resident, resident)
	}
	l.connections = established(ports)
	return l
}

// open reports how many instances decide without the store.
func (s *site) open() int { return s.look().open }

func (g *gateway) metrics(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.admin+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/metrics answers %s", resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// established counts the connections of this machine to these ports.
func established(ports []string) (n int) {
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil || len(ports) == 0 {
		return 0
	}
	want := map[string]bool{}
	for _, p := range ports {
		if port, err := strconv.Atoi(p); err == nil {
			want[fmt.Sprintf("%04X", port)] = true
		}
	}
	for line := range bytes.Lines(text) {
		// sl  local_address  rem_address  st …; 01 is ESTABLISHED.
		f := strings.Fields(string(line))
		if len(f) < 4 || f[3] != "01" {
			continue
		}
		if _, port, ok := strings.Cut(f[2], ":"); ok && want[port] {
			n++
		}
	}
	return n
}

// ask sends one request on a connection of its own.
func (s *site) ask(instance int, route, caller string) (sample, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(s.h.ctx, "tcp", s.gateways[instance].address)
	if err != nil {
		return sample{}, err
	}
	defer func() { _ = conn.Close() }()
	out := sample{instance: instance, route: route, caller: caller, at: time.Now(), remaining: -1, retryAfter: -1}
	if err := errors.Join(conn.SetDeadline(time.Now().Add(5*time.Second)), write(conn, request(route, caller))); err != nil {
		return out, err
	}
	err = out.read(newReader(conn))
	out.took = time.Since(out.at)
	return out, err
}
