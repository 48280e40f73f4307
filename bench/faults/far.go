package main

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"
)

// A far is one way to use a Redis that is 80 ms away.
type far struct {
	What  string  `json:"what"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Calls float64 `json:"redis_calls_per_request"`
	// Requests by who decided them: Redis and what stands before it, or nobody.
	Requests, Degraded int
	Missing            string   `json:"missing,omitempty"` // why it was not measured
	Broken             []string `json:"broken,omitempty"`
}

const (
	farAway    = 80 * time.Millisecond
	farTimeout = 300 * time.Millisecond
	// farLease is what a leased limit says beside its numbers.
	farLease = ", lease: {size: auto, ttl: 1s}"
)

const farRow = "far Redis"

// measureFar measures a Redis whose every reply takes 80 ms.
func measureFar(ctx context.Context, program string, t timing) (out []*far, err error) {
	for _, m := range []struct {
		what, caller, extra string
		status              int // of every answer
	}{
		{"a caller within the limit", "closed-0", "", http.StatusOK},
		{"a caller whose limit is used up", hot, "", http.StatusTooManyRequests},
		{"a caller within the limit, leased", "closed-0", farLease, http.StatusOK},
	} {
		x := &experiment{host: &host{ctx: ctx}, program: program, timing: t}
		f := &far{What: m.what}
		if err := x.run(func() { f.measure(x, m.caller, m.extra, m.status) }); err != nil {
			return nil, fmt.Errorf("%s: %w", m.what, err)
		}
		out = append(out, f)
	}
	return out, nil
}

func (f *far) measure(x *experiment, caller, extra string, status int) {
	if extra != "" {
		if why := x.refuses(extra); why != "" {
			f.Missing = why
			return
		}
	}
	n := x.network()
	store := fmt.Sprintf(`store: {redis: {url: "redis://%s/0", timeout: %s}}`, n.addr, farTimeout)
	x.site = newSite(x.host, x.program, 1, store, plans{extra: extra})
	n.set(trouble{delay: farAway})
	var clients []client
	for range 20 { // a hundred requests a second
		clients = append(clients, client{address: x.site.gateways[0].address, request: request("closed", caller), route: "closed", caller: caller, interval: 200 * time.Millisecond})
	}
	spread(clients)
	l := drive(x.ctx, clients)
	x.Cleanup(l.cancel)
	// The connections are made, the limit is used up, the lease has found its size.
	x.sleep(3 * time.Second)
	from, before := time.Now(), n.askedBy(caller)
	x.sleep(x.timing.calm)
	to, after := time.Now(), n.askedBy(caller)
	samples := l.stop()
	took := latency(samples, from, to, through)
	f.P50, f.P99, f.Requests = took.P50, took.P99, took.N
	f.Calls = float64(after-before) / float64(max(1, took.N))
	for i := range samples {
		s := &samples[i]
		if s.at.Before(from) || !s.at.Before(to) {
			continue
		}
		if s.degraded() {
			f.Degraded++
		} else if s.status != status {
			f.Broken = append(f.Broken, fmt.Sprintf("answers: %d %s; want %d", s.status, s.err, status))
			return
		}
	}
	if f.Degraded*100 > f.Requests {
		f.Broken = append(f.Broken, fmt.Sprintf("answers: %d of %d were made without the store, which was there", f.Degraded, f.Requests))
	}
}

// refuses asks the gateway whether its plans may have these fields; "" if so.
func (x *experiment) refuses(extra string) string {
	s := &site{h: x.host, dir: x.TempDir()}
	s.write("plans.yaml", fmt.Sprintf(plansYAML, localCap, wide, extra, localCap, narrow, extra))
	s.write("keys.yaml", "keys: []\n")
	s.write("routes.yaml", fmt.Sprintf(routesYAML, "127.0.0.1:0", "127.0.0.1:0", storeAt("127.0.0.1:6379"), "127.0.0.1:1"))
	text, err := exec.CommandContext(x.ctx, x.program, "check", "-routes", filepath.Join(s.dir, "routes.yaml"), "-plans", filepath.Join(s.dir, "plans.yaml")).CombinedOutput()
	if err == nil {
		return ""
	}
	return fmt.Sprintf("this gateway refuses `%s`: %s", extra[2:], firstLine(text))
}

func firstLine(text []byte) string {
	for i, b := range text {
		if b == '\n' {
			return string(text[:i])
		}
	}
	return string(text)
}
