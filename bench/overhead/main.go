// Command overhead measures what it costs the gateway to say what it does: the share of
// its CPU that goes into metrics, lists of heavy hitters, what the dashboard keeps and
// the access log, while somebody looks at the dashboard.
//
// It takes the gateway's own CPU profile under load and counts the samples that have a
// function of those in their stack. A share is a ratio within one run, so what else the
// machine does hardly matters to it. Bars hold for admitted requests, which is what
// a gateway does all day; denied ones and a crowd of addresses are told beside them.
//
//	make bench-overhead BENCHFLAGS='-time 30s'
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"bouncer/bench/internal/rig"
)

type options struct {
	gateway, upstream string
	time              time.Duration
	connections       int
	json              bool
	write             string
}

func main() {
	var o options
	flag.StringVar(&o.gateway, "gateway", "bin/gateway", "the gateway's program")
	flag.StringVar(&o.upstream, "upstream", "bin/upstream", "the upstream's program")
	flag.DurationVar(&o.time, "time", 30*time.Second, "how long each load is driven; whole seconds")
	flag.IntVar(&o.connections, "connections", 64, "keep-alive connections")
	flag.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flag.StringVar(&o.write, "write", "", "Markdown `file` whose overhead section is replaced")
	flag.Parse()
	rig.Main("overhead", func(ctx context.Context) error { return run(ctx, o) })
}

// parts are what is looked for in a stack. Each sample that has one counts once.
var parts = []struct {
	name  string
	focus string // a regular expression on names of functions
}{
	{"metrics", `bouncer/gateway/telemetry\.|prometheus/client_golang`},
	{"heavy hitters", `bouncer/gateway/topk\.`},
	{"what the dashboard keeps", `bouncer/gateway/(pulse|callers|denials|admin)\.|bouncer/gateway\.\(\*(overview|sampler)\)`},
	{"access log", logFocus},
}

const (
	logFocus = `telemetry\.append|telemetry\.\(\*lineWriter\)`
	counting = `bouncer/gateway/(telemetry|topk)\.|prometheus/client_golang`
	all      = `bouncer/gateway/(telemetry|topk|pulse|callers|denials|admin)\.|prometheus/client_golang`

	barCounting = 3.0  // percent, for metrics and heavy hitters
	barAll      = 10.0 // percent, for all of it, with the whole access log
)

// loads are what is driven, in this order.
var loads = []struct {
	name    string
	request func(s *site, connection, i int) []byte
	barred  bool
}{
	{"admitted: 100 callers with keys, Redis", func(s *site, c, i int) []byte { return s.admitted[(c*31+i)%len(s.admitted)] }, true},
	{"denied: 100 callers far beyond their limit", func(s *site, c, i int) []byte { return s.denied[(c*31+i)%len(s.denied)] }, false},
	{"a crowd: 60,000 addresses, half of whose requests are denied", func(_ *site, c, i int) []byte {
		n := (c*7919 + i/2) % 60_000
		return fmt.Appendf(nil, "GET /open HTTP/1.1\r\nHost: api.example.com\r\nX-Forwarded-For: 10.2.%d.%d\r\n\r\n", n>>8, n&255)
	}, false},
}

type report struct {
	Machine string   `json:"machine"`
	Date    string   `json:"date"`
	Command string   `json:"command"`
	Loads   []result `json:"loads"`
}

type result struct {
	Load     string             `json:"load"`
	Requests int                `json:"requests"`
	Samples  string             `json:"cpu_in_samples"`
	Percent  map[string]float64 `json:"percent"`          // of each part
	Counting float64            `json:"counting_percent"` // metrics and heavy hitters together
	All      float64            `json:"all_percent"`      // of all parts together
	Missed   bool               `json:"missed"`
	Barred   bool               `json:"has_a_bar"`
}

func run(ctx context.Context, o options) error {
	if o.time < time.Second || o.time%time.Second != 0 {
		return fmt.Errorf("-time: want whole seconds, got %v", o.time)
	}
	s, err := setUp(ctx, o)
	if s != nil {
		defer s.tearDown()
	}
	if err != nil {
		return err
	}
	r := &report{
		Machine: rig.Machine(), Date: time.Now().Format(time.DateOnly),
		Command: fmt.Sprintf("make bench-overhead BENCHFLAGS='-time %v -connections %d'", o.time, o.connections),
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan error, 1)
	go func() { watched <- s.watch(watching) }()
	var missed error
	for _, l := range loads {
		fmt.Fprintf(os.Stderr, "%s …\n", l.name)
		profile := make(chan error, 1)
		file := filepath.Join(s.dir, "cpu.prof")
		go func() {
			if err := pause(ctx, time.Second); err != nil { // connections, code and tables are warm then
				profile <- err
				return
			}
			profile <- s.profile(ctx, file, o.time)
		}()
		got, err := rig.Run(ctx, rig.Load{
			Address: s.address, Connections: o.connections, Duration: o.time + 2*time.Second,
			Next:   func(c, i int) []byte { return l.request(s, c, i) },
			Accept: func(status int) bool { return status == 200 || status == 429 },
		})
		if err := errors.Join(err, <-profile); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		x, err := measure(ctx, file)
		if err != nil {
			return err
		}
		x.Load, x.Requests, x.Barred = l.name, got.Requests, l.barred
		if x.Missed = l.barred && (x.All > barAll || x.Counting > barCounting); x.Missed {
			missed = fmt.Errorf("%s: %.1f %% for metrics and heavy hitters and %.1f %% in all; the bars are %.0f and %.0f", l.name, x.Counting, x.All, barCounting, barAll)
		}
		r.Loads = append(r.Loads, x)
	}
	select {
	case err := <-watched:
		return fmt.Errorf("the dashboard's events ended: %w", err)
	default:
	}
	return errors.Join(rig.Output{Write: o.write, Section: "overhead", JSON: o.json}.Show(r), missed)
}

// measure reads a profile with Go's own tool.
func measure(ctx context.Context, file string) (result, error) {
	x := result{Percent: map[string]float64{}}
	var err error
	for _, p := range parts {
		ignore := ""
		if p.name == "metrics" {
			ignore = logFocus + `|bouncer/gateway/(topk|pulse|callers|denials|admin)\.`
		}
		if x.Percent[p.name], x.Samples, err = share(ctx, file, p.focus, ignore); err != nil {
			return x, err
		}
	}
	if x.All, _, err = share(ctx, file, all, ""); err != nil {
		return x, err
	}
	x.Counting, _, err = share(ctx, file, counting, logFocus+`|bouncer/gateway/(pulse|callers|denials|admin)\.`)
	return x, err
}

// What `go tool pprof -top` says of the samples that it shows.
var accounting = regexp.MustCompile(`accounting for \S+, ([\d.]+)% of (\S+) total`)

// share is how many percent of a profile have a stack that matches focus and not ignore.
func share(ctx context.Context, file, focus, ignore string) (percent float64, total string, err error) {
	args := []string{"tool", "pprof", "-top", "-nodecount=100000", "-nodefraction=0", "-edgefraction=0", "-focus=" + focus}
	if ignore != "" {
		args = append(args, "-ignore="+ignore)
	}
	out, err := exec.CommandContext(ctx, "go", append(args, file)...).CombinedOutput()
	if err != nil {
		return 0, "", fmt.Errorf("go tool pprof: %w: %s", err, out)
	}
	if m := accounting.FindSubmatch(out); m != nil {
		percent, err = strconv.ParseFloat(string(m[1]), 64)
		return percent, string(m[2]), err
	}
	if strings.Contains(string(out), "matched no samples") || strings.Contains(string(out), "Showing nodes accounting for 0") {
		return 0, "", nil
	}
	return 0, "", fmt.Errorf("go tool pprof says nothing of a share:\n%s", out)
}

// Markdown is the report as a section of a document.
func (r *report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s: %s.\n\n    %s\n\n| load | requests |", r.Date, r.Machine, r.Command)
	for _, p := range parts {
		b.WriteString(" " + p.name + " |")
	}
	b.WriteString(" metrics and heavy hitters | all |\n| --- | --: |" + strings.Repeat(" --: |", len(parts)+2) + "\n")
	for _, x := range r.Loads {
		fmt.Fprintf(&b, "| %s | %d |", x.Load, x.Requests)
		for _, p := range parts {
			fmt.Fprintf(&b, " %.1f %% |", x.Percent[p.name])
		}
		fmt.Fprintf(&b, " %.1f %% | %.1f %% |\n", x.Counting, x.All)
	}
	for _, x := range r.Loads {
		if !x.Barred {
			continue
		}
		verdict := "within the bars"
		if x.Missed {
			verdict = "**above the bars**"
		}
		fmt.Fprintf(&b, "\nAdmitted: metrics and heavy hitters %.1f %%, and with the access log and the dashboard %.1f %% of the gateway's CPU, %s of %.0f %% and %.0f %%.\n", x.Counting, x.All, verdict, barCounting, barAll)
	}
	return b.String()
}

// A site is a gateway with all that it needs.
type site struct {
	dir              string
	processes        []*rig.Process
	address, admin   string
	token            string
	admitted, denied [][]byte
}

const callers = 100

const plansYAML = `default_plan: wide
anonymous_plan: strangers
plans:
  wide: {limits: [{name: per-second, algorithm: token_bucket, limit: 1000000/second, burst: 1000000}]}
  narrow: {limits: [{name: per-day, algorithm: fixed_window, limit: 1/day}]}
  strangers: {limits: [{name: per-day, per: ip, algorithm: fixed_window, limit: 20/day}]}
`

const routesYAML = `listen: {http: %q, admin: %q}
admin: {token_file: admin-token}
client_ip: {trusted_proxies: [127.0.0.1/32]}
store: {redis: {url: "redis://%s/0", timeout: 1s}}
auth: {api_keys: {file: keys.yaml}}
limits: {edge-ip: {per: ip, algorithm: token_bucket, limit: 1000000/second, burst: 1000000}}
edge: [edge-ip]
upstreams: {weather: {targets: ["http://%s"]}}
routes:
  - {name: weather, path: /api/weather, methods: [GET], upstream: weather}
  - {name: open, path: /open, methods: [GET], upstream: weather, auth: none}
`

func setUp(ctx context.Context, o options) (s *site, err error) {
	s = &site{token: rand.Text()}
	if s.dir, err = os.MkdirTemp("", "bouncer-overhead-"); err != nil {
		return nil, err
	}
	upstream, err := rig.FreeAddress(ctx)
	if err != nil {
		return s, err
	}
	if err := s.start(ctx, "upstream", upstream, "", o.upstream, "-listen", upstream); err != nil {
		return s, err
	}
	redis, redisAddress, err := rig.StartRedis(ctx, s.dir)
	if err != nil {
		return s, err
	}
	s.processes = append(s.processes, redis)
	if s.address, err = rig.FreeAddress(ctx); err != nil {
		return s, err
	}
	if s.admin, err = rig.FreeAddress(ctx); err != nil {
		return s, err
	}
	var keys strings.Builder
	keys.WriteString("keys:\n")
	for i := range 2 * callers {
		key, plan, into := rand.Text(), "wide", &s.admitted
		if i >= callers {
			plan, into = "narrow", &s.denied
		}
		fmt.Fprintf(&keys, "  - {id: k-%d, sha256: %x, user: caller-%d, plan: %s}\n", i, sha256.Sum256([]byte(key)), i, plan)
		*into = append(*into, fmt.Appendf(nil, "GET /api/weather?city=Pune HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench\r\nX-API-Key: %s\r\n\r\n", key))
	}
	for name, text := range map[string]string{
		"keys.yaml": keys.String(), "plans.yaml": plansYAML, "admin-token": s.token,
		"routes.yaml": fmt.Sprintf(routesYAML, s.address, s.admin, redisAddress, upstream),
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			return s, err
		}
	}
	return s, s.start(ctx, "gateway", s.admin, "/readyz", o.gateway, "run",
		"-routes", filepath.Join(s.dir, "routes.yaml"), "-plans", filepath.Join(s.dir, "plans.yaml"))
}

func (s *site) start(ctx context.Context, name, address, readyPath, program string, args ...string) error {
	p, err := rig.Start(name, s.dir, nil, program, args...)
	if err != nil {
		return err
	}
	s.processes = append(s.processes, p)
	return p.Ready(ctx, address, readyPath)
}

// tearDown ends everything.
func (s *site) tearDown() {
	for _, p := range s.processes {
		p.Stop()
	}
	_ = os.RemoveAll(s.dir) // what is left in a temporary directory hurts nobody
}

// profile writes the gateway's CPU profile of a while to a file.
func (s *site) profile(ctx context.Context, file string, d time.Duration) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", s.admin, int(d.Seconds())), http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the profile: %s: %s", resp.Status, body)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, body, 0o600)
}

// watch looks at the dashboard's events until ctx ends.
func (s *site) watch(ctx context.Context) error {
	resp, err := rig.Get(ctx, s.admin, "/api/live")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
