package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"bouncer/bench/internal/rig"
)

const callers = 100

// A setup is everything that runs while the measurement lasts.
type setup struct {
	dir       string
	processes []*rig.Process
	subjects  []*subject
	requests  [][]byte // one a caller, as bytes on the wire
}

// A subject is one program that is measured.
type subject struct {
	name    string
	address string
	process *rig.Process
	bar     float64 // what its CPU may be, as a ratio to the first subject; 0: none

	admin  string       // the gateway's admin address; empty for the floor
	source string       // who must have decided: memory or redis
	redis  *rig.Process // nil if it needs none
}

type cpu struct{ self, redis time.Duration }

func (x *subject) cpu() (cpu, error) {
	self, err := x.process.CPU()
	if err != nil || x.redis == nil {
		return cpu{self: self}, err
	}
	redis, err := x.redis.CPU()
	return cpu{self, redis}, err
}

// setUp starts everything. The setup is not nil if something has to be torn
// down, even beside an error.
func setUp(ctx context.Context, o options) (*setup, error) {
	dir, err := os.MkdirTemp("", "bouncer-bench-")
	if err != nil {
		return nil, err
	}
	s := &setup{dir: dir}
	upstream, err := s.start(ctx, "upstream", "", o.upstream, "-listen")
	if err != nil {
		return s, err
	}
	floor, err := s.start(ctx, "floor", "", o.floor, "-upstream", "http://"+upstream.address, "-listen")
	if err != nil {
		return s, err
	}
	floor.name = "(a) bare reverse proxy"
	pooled, err := s.start(ctx, "floor-pool", "", o.floor, "-pool", "-upstream", "http://"+upstream.address, "-listen")
	if err != nil {
		return s, err
	}
	pooled.name = "(a′) the same with a buffer pool"
	keys := s.makeKeys()
	redis, redisAddress, err := rig.StartRedis(ctx, dir)
	if err != nil {
		return s, err
	}
	s.processes = append(s.processes, redis)
	inMemory, err := s.startGateway(ctx, o, "memory", "{memory: {max_keys: 1000000}}", keys, upstream.address)
	if err != nil {
		return s, err
	}
	inMemory.name, inMemory.bar = "(b) gateway, memory", 1.3
	// With the default timeout of 50 ms a machine that is saturated, as this one
	// is on purpose, would now and then measure the fallback instead.
	inRedis, err := s.startGateway(ctx, o, "redis", fmt.Sprintf("{redis: {url: \"redis://%s/0\", timeout: 1s}}", redisAddress), keys, upstream.address)
	if err != nil {
		return s, err
	}
	inRedis.name, inRedis.bar, inRedis.redis = "(c) gateway, Redis", 1.7, redis
	s.subjects = []*subject{floor, pooled, inMemory, inRedis}
	return s, nil
}

// tearDown ends everything, the last one first.
func (s *setup) tearDown() {
	for _, p := range slices.Backward(s.processes) {
		p.Stop()
	}
	_ = os.RemoveAll(s.dir) // what is left in a temporary directory hurts nobody
}

// start runs a program whose last flag takes its address, and waits for it.
func (s *setup) start(ctx context.Context, name, readyPath, program string, args ...string) (*subject, error) {
	address, err := rig.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	p, err := rig.Start(name, s.dir, sameCores(), program, append(args, address)...)
	if err != nil {
		return nil, err
	}
	s.processes = append(s.processes, p)
	return &subject{address: address, process: p}, p.Ready(ctx, address, readyPath)
}

// sameCores gives every program the same number of threads that run Go code.
func sameCores() []string { return []string{"GOMAXPROCS=" + strconv.Itoa(runtime.GOMAXPROCS(0))} }

// makeKeys returns the text of a keys.yaml, and prepares one request for each key.
func (s *setup) makeKeys() string {
	var b strings.Builder
	b.WriteString("keys:\n")
	for i := range callers {
		key := "bn_bench_" + rand.Text()
		fmt.Fprintf(&b, "  - {id: k-%d, sha256: %x, user: caller-%d, plan: bench}\n", i, sha256.Sum256([]byte(key)), i)
		s.requests = append(s.requests, fmt.Appendf(nil,
			"GET /api/weather?city=Pune HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench\r\nAccept: application/json\r\nX-API-Key: %s\r\n\r\n", key))
	}
	return b.String()
}

// The edge limit and the plan's limit are high enough that nobody is denied.
const plansYAML = `default_plan: bench
plans:
  bench:
    limits:
      - {name: per-second, algorithm: token_bucket, limit: 1000000/second, burst: 1000000}
`

const routesYAML = `listen: {http: "%s", admin: "%s"}
store: %s
auth:
  api_keys: {file: keys.yaml, header: X-API-Key}
limits:
  edge-ip: {per: ip, algorithm: token_bucket, limit: 1000000/second, burst: 1000000}
edge: [edge-ip]
upstreams:
  weather: {targets: ["http://%s"]}
routes:
  - {name: weather, path: /api/weather, methods: [GET], upstream: weather}
`

func (s *setup) startGateway(ctx context.Context, o options, source, store, keys, upstream string) (*subject, error) {
	dir := filepath.Join(s.dir, source)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	address, err := rig.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	admin, err := rig.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"routes.yaml": fmt.Sprintf(routesYAML, address, admin, store, upstream),
		"plans.yaml":  plansYAML,
		"keys.yaml":   keys,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	p, err := rig.Start("gateway-"+source, s.dir, sameCores(), o.gateway, "run",
		"-routes", filepath.Join(dir, "routes.yaml"), "-plans", filepath.Join(dir, "plans.yaml"))
	if err != nil {
		return nil, err
	}
	s.processes = append(s.processes, p)
	return &subject{address: address, process: p, admin: admin, source: source}, p.Ready(ctx, admin, "/readyz")
}

// check makes sure that what was measured is what the name says: that the
// store decided. A few decisions that took longer than the store's timeout
// are the machine's doing; more than 1 % would be another measurement.
func (x *subject) check(ctx context.Context) error {
	if x.admin == "" {
		return nil
	}
	text, err := rig.Metrics(ctx, x.admin)
	if err != nil {
		return err
	}
	var all, right float64
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "gateway_ratelimit_decisions_total{") || !strings.Contains(line, `limit="per-second"`) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		if err != nil {
			return fmt.Errorf("read the metrics: %w in %q", err, line)
		}
		all += n
		if strings.Contains(line, fmt.Sprintf("source=%q", x.source)) {
			right += n
		}
	}
	if all == 0 || right < 0.99*all {
		return fmt.Errorf("%.0f of %.0f decisions were made by %s, want at least 99 %%", right, all, x.source)
	}
	return nil
}
