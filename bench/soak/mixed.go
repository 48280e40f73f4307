package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"bouncer/bench/internal/rig"
)

const (
	// One round has every fault once, and ends in quiet.
	mixedRound  = time.Minute
	mixedRounds = 20
	// Until tables, pools and the heap have their usual size.
	mixedWarm = 4
	// Of each: callers with a key, and addresses of callers without.
	mixedKeys      = 200
	mixedAddresses = 5000

	mixedMore       = 20
	mixedMoreMemory = 16 << 20
)

// mixed is twenty minutes of everything at once: callers within their plan and beyond
// it, strangers from thousands of addresses, bodies, failures of the upstream, a stream
// and a WebSocket that stay open, two dashboards looked at, a configuration every two
// seconds and a broken one every minute, Redis frozen, killed and back, the upstream
// standing still. What the process has at the end of each round is compared: the first
// rounds after the warm-up with the last.
func mixed(ctx context.Context, o options, r *report) error {
	round := max(time.Duration(float64(mixedRound)*o.scale), 6*time.Second)
	ctx, end := context.WithCancel(ctx)
	defer end()
	m := &mixture{round: round}
	s, err := m.start(ctx, o)
	if err != nil {
		return err
	}
	defer m.stop()
	defer end()

	streams, stop := context.WithCancel(ctx)
	defer stop()
	var counts struct{ events, echoes int }
	var open sync.WaitGroup
	ends := make([]error, 4)
	open.Go(func() { ends[0] = s.follow(streams, &counts.events) })
	open.Go(func() { ends[1] = s.talk(streams, &counts.echoes) })
	for i := range 2 {
		open.Go(func() { ends[2+i] = s.watch(streams) })
	}
	reloads := 0
	open.Go(func() {
		for pause(streams, 2*time.Second) == nil {
			reloads++
			_ = m.configure(reloads) // a full disk shows in what follows
		}
	})
	statuses, failed := map[int]int{}, error(nil)
	open.Go(func() { statuses, failed = m.load(streams) })

	var sizes []size
	for n := range mixedWarm + mixedRounds {
		if err := m.faults(ctx); err != nil {
			return err
		}
		now, err := s.look(ctx)
		if err != nil {
			return err
		}
		sizes = append(sizes, now)
		fmt.Fprintf(os.Stderr, "  round %d of %d: %s, %d goroutines, %d files\n", n+1, mixedWarm+mixedRounds, mib(now.memory), now.goroutines, now.files)
	}
	rejected, err := s.metric(ctx, `gateway_config_reloads_total{outcome="rejected"}`)
	if err != nil {
		return err
	}
	applied, err := s.metric(ctx, `gateway_config_reloads_total{outcome="applied"}`)
	if err != nil {
		return err
	}
	stop()
	open.Wait()
	cut := errors.Join(ends...)

	requests := 0
	for _, n := range statuses {
		requests += n
	}
	length := (mixedWarm + mixedRounds) * round
	r.add("mixed", fmt.Sprintf("failures of %d requests in %s: %d denied, %d answered with a failure of the upstream", requests, length, statuses[429], statuses[500]+statuses[502]+statuses[503]+statuses[504]),
		word(failed, "none"), "none", failed == nil)
	r.add("mixed", fmt.Sprintf("a stream of %d events, a WebSocket of %d echoes and two dashboards", counts.events, counts.echoes), word(cut, "whole"), "whole", cut == nil)
	r.add("mixed", fmt.Sprintf("configurations in force, of %d; and %.0f refused, of %d", reloads, rejected, mixedWarm+mixedRounds), fmt.Sprintf("%.0f", applied), fmt.Sprint(reloads*8/10),
		applied >= float64(reloads*8/10) && rejected > 0)
	first, last := sizes[mixedWarm:mixedWarm+mixedRounds/3], sizes[len(sizes)-mixedRounds/3:]
	for _, x := range []struct {
		what string
		of   func(size) int64
		more int64
		text func(int64) string
	}{
		{"goroutines", func(s size) int64 { return s.goroutines }, mixedMore, count},
		{"open files", func(s size) int64 { return s.files }, mixedMore, count},
		{"resident memory", func(s size) int64 { return s.memory }, mixedMoreMemory, mib},
	} {
		before, after := middle(first, x.of), middle(last, x.of)
		r.add("mixed", fmt.Sprintf("%s in the last third of %d rounds (in the first: %s)", x.what, mixedRounds, x.text(before)), x.text(after), x.text(before+x.more), after <= before+x.more)
	}
	return nil
}

// middle is the median of one figure of some sizes.
func middle(sizes []size, of func(size) int64) int64 {
	var all []int64
	for _, s := range sizes {
		all = append(all, of(s))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// A mixture is a site with a Redis, and what is done to both.
type mixture struct {
	*site
	round time.Duration
	redis *rig.Process
	port  string
	still atomic.Bool // the upstream stands still
	good  sync.Mutex  // held while a broken configuration is there
}

func (m *mixture) start(ctx context.Context, o options) (*site, error) {
	address, err := rig.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	if _, m.port, err = net.SplitHostPort(address); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bouncer-soak-redis-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := m.startRedis(ctx, dir); err != nil {
		return nil, err
	}
	m.site, err = startSite(ctx, o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.answer(ctx, w, r) }), func(s *site) error {
		m.site = s
		return m.configure(0)
	})
	if err != nil {
		m.redis.Stop()
		return nil, err
	}
	return m.site, nil
}

func (m *mixture) stop() {
	m.site.stop()
	_ = m.redis.Signal(syscall.SIGCONT)
	m.redis.Stop()
}

func (m *mixture) startRedis(ctx context.Context, dir string) error {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return fmt.Errorf("%w; type: sudo apt-get install -y redis-server", err)
	}
	m.redis, err = rig.Start("redis", dir, nil, program, "--bind", "127.0.0.1", "--port", m.port, "--dir", dir, "--save", "", "--appendonly", "no")
	if err != nil {
		return err
	}
	return m.redis.Ready(ctx, "127.0.0.1:"+m.port, "")
}

// answer is the upstream.
func (m *mixture) answer(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/events":
		events(ctx, w, r)
	case "/socket":
		echo(ctx, w, r)
	case "/fail":
		w.WriteHeader(http.StatusInternalServerError)
	case "/body":
		_, _ = io.Copy(io.Discard, r.Body) // what is wrong with it shows in the answer's status
		quick(w)
	default:
		for m.still.Load() && r.Context().Err() == nil && pause(ctx, 20*time.Millisecond) == nil {
		}
		quick(w)
	}
}

// configure writes the configuration; each n makes another one.
func (m *mixture) configure(n int) error {
	m.good.Lock()
	defer m.good.Unlock()
	var keys []byte
	for i := range mixedKeys {
		plan := "wide"
		if i%20 == 0 {
			plan = "narrow" // always beyond it
		}
		keys = fmt.Appendf(keys, "  - {id: k-%d, sha256: %x, user: user-%d, plan: %s}\n", i, sha256.Sum256([]byte(mixedKey(i))), i, plan)
	}
	return m.write(map[string]string{
		"keys.yaml": "keys:\n" + string(keys),
		"plans.yaml": fmt.Sprintf(`anonymous_plan: strangers
default_plan: wide
plans:
  wide: {limits: [{name: per-minute, algorithm: token_bucket, limit: %d/minute, burst: 10000}]}
  narrow: {limits: [{name: per-minute, algorithm: sliding_window_counter, limit: 10/minute}]}
  strangers: {limits: [{name: per-minute, per: ip, algorithm: token_bucket, limit: 60/minute, burst: 20}]}
`, 1_000_000+n),
		"routes.yaml": fmt.Sprintf(`listen: {http: %q, admin: %q}
client_ip: {trusted_proxies: [127.0.0.1/32]}
store: {redis: {url: "redis://127.0.0.1:%s/0"}}
auth: {api_keys: {file: keys.yaml}}
limits: {edge-ip: {per: ip, algorithm: token_bucket, limit: 1000000/minute}}
edge: [edge-ip]
upstreams: {all: {targets: ["http://%s"], timeout: {response_header: 1s}}}
routes:
  - {name: keyed, path: /keyed, upstream: all, rewrite: {match: "^/keyed$", replace: "/quick"}}
  - {name: all, path: "/*", upstream: all, auth: optional}
  - {name: events, path: /events, upstream: all, auth: none, cost: 0}
  - {name: socket, path: /socket, upstream: all, auth: none, cost: 0}
`, m.address, m.admin, m.port, m.target),
	})
}

func mixedKey(i int) string { return fmt.Sprintf("a-key-of-the-soak-%d", i) }

// dice are throws for one request: which it is decides, so that a run can be repeated.
func dice(connection, i int) func(n int) int {
	throw := rand.New(rand.NewPCG(uint64(connection), uint64(i))) //nolint:gosec // dice, not secrets
	return throw.IntN
}

// load is all the callers, on connections that do not live for long.
func (m *mixture) load(ctx context.Context) (statuses map[int]int, failed error) {
	statuses = map[int]int{}
	body := make([]byte, 16<<10)
	for ctx.Err() == nil {
		got, err := rig.Run(ctx, rig.Load{
			Address: m.address, Connections: 16, Duration: 3 * time.Second,
			Next: func(connection, i int) []byte {
				time.Sleep(4 * time.Millisecond)
				n := dice(connection, i)
				address := n(mixedAddresses)
				from := fmt.Sprintf("Host: api.example.com\r\nX-Forwarded-For: 10.1.%d.%d\r\n", address>>8, address&255)
				switch pick := n(100); {
				case pick < 60:
					return fmt.Appendf(nil, "GET /keyed HTTP/1.1\r\n%sX-API-Key: %s\r\n\r\n", from, mixedKey(n(mixedKeys)))
				case pick < 80:
					return fmt.Appendf(nil, "GET /anything/%d HTTP/1.1\r\n%s\r\n", n(1<<30), from)
				case pick < 85:
					return fmt.Appendf(nil, "GET /fail HTTP/1.1\r\n%s\r\n", from)
				case pick < 90:
					return fmt.Appendf(nil, "GET /keyed HTTP/1.1\r\n%sX-API-Key: wrong-%d\r\n\r\n", from, n(1<<30))
				case pick < 95:
					return append(fmt.Appendf(nil, "POST /body HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n", from, len(body)), body...)
				default:
					return fmt.Appendf(nil, "GET /keyed HTTP/1.1\r\n%sX-API-Key: %s\r\n\r\n", from, mixedKey(0)) // the noisy one
				}
			},
			Accept: func(status int) bool {
				switch status {
				case 200, 401, 429, 500, 502, 503, 504:
					return true
				}
				return false
			},
		})
		if err != nil {
			if ctx.Err() == nil {
				failed = errors.Join(failed, err)
			}
			return statuses, failed
		}
		for status, n := range got.Statuses {
			statuses[status] += n
		}
	}
	return statuses, nil
}

// faults is one round: each fault once, and then quiet until it ends.
func (m *mixture) faults(ctx context.Context) error {
	began := time.Now()
	step := m.round / 12
	dir, err := os.MkdirTemp("", "bouncer-soak-redis-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, fault := range []func() error{
		func() error { // a configuration with a mistake
			m.good.Lock()
			defer m.good.Unlock()
			if err := m.write(map[string]string{"plans.yaml": "plans: nothing\n"}); err != nil {
				return err
			}
			return pause(ctx, time.Second)
		},
		func() error { return m.redis.Signal(syscall.SIGSTOP) },
		func() error { return m.redis.Signal(syscall.SIGCONT) },
		func() error { m.still.Store(true); return nil },
		func() error { m.still.Store(false); return nil },
		func() error { m.redis.Stop(); return nil },
		func() error { return m.startRedis(ctx, dir) },
	} {
		if err := fault(); err != nil {
			return err
		}
		if err := pause(ctx, step); err != nil {
			return err
		}
	}
	return pause(ctx, m.round-time.Since(began))
}

// watch looks at the dashboard's events until ctx ends.
func (s *site) watch(ctx context.Context) error {
	resp, err := rig.Get(ctx, s.admin, "/api/live")
	if err != nil {
		return fmt.Errorf("the dashboard: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	n, err := io.Copy(io.Discard, resp.Body)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the dashboard was cut after %d bytes: %w", n, errors.Join(err, errShort))
}
