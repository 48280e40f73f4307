package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"bouncer/bench/internal/rig"
)

// A site is a gateway in front of an upstream of ours.
type site struct {
	process        *rig.Process
	address, admin string
	dir            string
	target         string
	upstream       *http.Server
}

// newSite serves h behind a gateway. Its limits are real ones, and so high that
// none denies.
func newSite(ctx context.Context, o options, h http.Handler) (*site, error) {
	return startSite(ctx, o, h, func(s *site) error { return s.configure(0) })
}

// startSite serves h behind a gateway of a configuration of one's own.
func startSite(ctx context.Context, o options, h http.Handler, configure func(*site) error) (*site, error) {
	s := &site{}
	ok := false
	defer func() {
		if !ok {
			s.stop()
		}
	}()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.target = l.Addr().String()
	s.upstream = &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.upstream.Serve(l) }()
	if s.dir, err = os.MkdirTemp("", "bouncer-soak-"); err != nil {
		return nil, err
	}
	if s.address, err = rig.FreeAddress(ctx); err != nil {
		return nil, err
	}
	if s.admin, err = rig.FreeAddress(ctx); err != nil {
		return nil, err
	}
	if err := configure(s); err != nil {
		return nil, err
	}
	s.process, err = rig.Start("gateway", s.dir, nil, o.gateway, "run", "-routes", s.path("routes.yaml"), "-plans", s.path("plans.yaml"))
	if err != nil {
		return nil, err
	}
	if err := s.process.Ready(ctx, s.admin, "/readyz"); err != nil {
		return nil, err
	}
	ok = true
	return s, nil
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// configure writes the configuration; each n makes another one.
func (s *site) configure(n int) error {
	return s.write(map[string]string{
		"plans.yaml": fmt.Sprintf("anonymous_plan: all\nplans: {all: {limits: [{name: day, per: ip, algorithm: fixed_window, limit: %d/day}]}}\n", 1_000_000_000+n),
		"routes.yaml": fmt.Sprintf(`listen: {http: %q, admin: %q}
limits: {edge-ip: {per: ip, algorithm: token_bucket, limit: 1000000000/minute}}
edge: [edge-ip]
upstreams: {all: {targets: ["http://%s"]}}
routes: [{name: all, path: "/*", upstream: all, auth: none}]
`, s.address, s.admin, s.target),
	})
}

// write puts files in place.
func (s *site) write(files map[string]string) error {
	for name, content := range files {
		// In one step, so that the gateway never reads half of it.
		if err := os.WriteFile(s.path(name+".new"), []byte(content), 0o600); err != nil {
			return err
		}
		if err := os.Rename(s.path(name+".new"), s.path(name)); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) stop() {
	if s.process != nil {
		s.process.Stop()
	}
	if s.upstream != nil {
		_ = s.upstream.Close()
	}
	_ = os.RemoveAll(s.dir)
}

// metric is the value of a series of the gateway, 0 if it has none.
func (s *site) metric(ctx context.Context, series string) (float64, error) {
	value, _, err := rig.Metric(ctx, s.admin, series)
	return value, err
}

// raiseFiles makes room for n open files in this process and those it starts,
// the gateway among them, and returns how many there is room for. Beyond the
// hard limit only a privileged process comes; others take what they may have.
func raiseFiles(n int) (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("ask how many files may be open: %w", err)
	}
	want := uint64(n) //nolint:gosec // a count, above 0
	more := syscall.Rlimit{Cur: max(limit.Cur, want), Max: max(limit.Max, want)}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more) == nil {
		return n, nil
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("make room for %d open files: %w", limit.Max, err)
	}
	return int(min(want, limit.Max)), nil //nolint:gosec // at most n
}

// pause waits, unless ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// paced is a load that does not saturate the machine: each connection rests
// between its requests, so that what is measured is an answer, not a queue.
func (s *site) paced(connections int, rest, length time.Duration) rig.Load {
	request := []byte("GET /quick HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	return rig.Load{
		Address: s.address, Connections: connections, Duration: length,
		Next: func(int, int) []byte { time.Sleep(rest); return request },
	}
}

// quick answers a small request.
func quick(w http.ResponseWriter) {
	const body = `{"ok":true}`
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = io.WriteString(w, body) // a client that left needs no answer
}

var errShort = errors.New("not what was sent")
