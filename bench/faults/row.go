package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An expectation is what the breaker does in a row.
type expectation int

const (
	never expectation = iota // it stays closed, and every answer is the store's
	may                      // it depends: requests fail here and there
	must                     // it opens on every instance
)

// A row is one fault.
type row struct {
	name   string
	what   string // is done to Redis or to the way there; a clause for the document
	opens  expectation
	kinds  []string // of gateway_store_errors_total: at least one of them grows
	forget int      // how often Redis may forget what was spent; -1: any number of times
	// loses bounds the units, for each caller, that are forgotten because another
	// server takes over: what it had not been told, and what the old one admitted
	// when it had been replaced and did not know.
	loses int
	start func(x *experiment) fault
	// clients, if set, are more clients than the usual.
	clients func(x *experiment) []client
	// check, if set, looks closer at the end.
	check func(r *result, samples []sample, at span)
}

// A fault is how a row breaks its store and heals it.
type fault struct {
	store  string   // the section store: of routes.yaml
	ports  []string // of the servers, as the gateways see them
	wire   *wire    // nil if the gateways connect to Redis itself
	inject func()   // returns when the fault is in force
	heal   func()   // returns when the store is well again
	// itself: nobody heals it, heal only waits. The gateways may be back before.
	itself bool
}

// timing is how long the parts of a row last.
type timing struct {
	warm, calm, fault, after time.Duration
}

var (
	full  = timing{warm: 700 * time.Millisecond, calm: 3 * time.Second, fault: 4 * time.Second, after: 1500 * time.Millisecond}
	quick = timing{warm: 700 * time.Millisecond, calm: time.Second, fault: 1500 * time.Millisecond, after: 700 * time.Millisecond}
)

const (
	instances = 3
	// noticed bounds the wait for every instance to open its breaker.
	noticed = 3 * time.Second
	// returned bounds the wait for every instance to use the store again. It is
	// longer than what is promised, so that a broken promise is told in figures.
	returned = 10 * time.Second
)

// An experiment is one run of a row.
type experiment struct {
	*host
	program string
	timing  timing
	site    *site
}

// A result is what a row showed.
type result struct {
	Name  string `json:"name"`
	What  string `json:"what"`
	Opens bool   `json:"breaker_opened"` // on every instance

	// Statuses are of the answers during the fault, by route and status.
	Statuses map[string]map[string]int `json:"statuses"`
	// Calm, Fault, Control are latencies in ms: without the fault; from the fault
	// to the end; of requests past the gateways, from the fault to the end.
	Calm    spread3 `json:"calm_ms"`
	Fault   spread3 `json:"fault_ms"`
	Control spread3 `json:"control_ms"`
	// Open is what clients waited while the breaker was open, and OpenControl
	// what clients of the upstream itself did at the same time; ms.
	Open        spread3 `json:"open_ms"`
	OpenControl spread3 `json:"open_control_ms"`
	// OpenLittle is the part of the requests meanwhile to which the gateway, by
	// its own gateway_added_latency_seconds, added no more than a millisecond.
	OpenLittle float64 `json:"open_added_at_most_1ms"`

	Over     int            `json:"admitted_over_limit"`
	OverRule int            `json:"admitted_over_limit_at_most"` // -1: no bound
	Return   float64        `json:"return_s"`
	Away     float64        `json:"away_s,omitempty"` // from the fault to the return, where nobody heals it
	Errors   map[string]int `json:"store_errors"`

	Sent  int `json:"deny_requests"` // of the callers of the route closed, whose charges are counted
	OK    int `json:"deny_admitted"`
	Used  int `json:"deny_charged"` // to them in Redis at the end
	Calls int `json:"deny_calls"`   // script calls for them that reached Redis; -1: not counted

	Goroutines  [2]int   `json:"goroutines"` // before, at most
	Resident    [2]int64 `json:"resident_bytes"`
	Connections [2]int   `json:"connections"`
	Servers     int      `json:"servers"` // that they may lead to

	Repeated string   `json:"repeated,omitempty"` // why it was run twice
	Broken   []string `json:"broken,omitempty"`   // promises
	Note     string   `json:"note,omitempty"`
}

// spread3 are three quantiles.
type spread3 struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	N    int     `json:"n"`
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// latency returns the quantiles of the answers in [from, to) that keep wants.
func latency(samples []sample, from, to time.Time, keep func(*sample) bool) spread3 {
	var took []float64
	for i := range samples {
		s := &samples[i]
		if !s.at.Before(from) && s.at.Before(to) && keep(s) {
			took = append(took, millis(s.took))
		}
	}
	slices.Sort(took)
	return spread3{quantile(took, .5), quantile(took, .99), quantile(took, .999), len(took)}
}

func through(s *sample) bool { return s.route != control }
func past(s *sample) bool    { return s.route == control }

// run runs a row once.
func (r *row) run(ctx context.Context, program string, t timing) (*result, error) {
	x := &experiment{host: &host{ctx: ctx}, program: program, timing: t}
	var out *result
	err := x.host.run(func() { out = x.measure(r) })
	return out, err
}

// measure is one run: calm, fault, return.
func (x *experiment) measure(r *row) *result {
	f := r.start(x)
	x.site = newSite(x.host, x.program, instances, f.store, plans{})
	clients := x.site.clients(x.timing.warm + x.timing.calm + 500*time.Millisecond)
	if r.clients != nil {
		clients = append(clients, r.clients(x)...)
	}
	l := drive(x.ctx, clients)
	x.Cleanup(l.cancel)
	x.sleep(x.timing.warm)
	calmFrom := time.Now()
	x.sleep(x.timing.calm)
	before := x.site.look(f.ports...)

	out := &result{Name: r.name, What: r.what, Servers: len(f.ports)}
	failed := time.Now()
	f.inject()
	x.awaitOpen(r, out)
	x.sleep(100 * time.Millisecond) // for those who found out
	openFrom, opened := time.Now(), x.site.look()
	most := before
	if !f.itself {
		most = x.watch(x.timing.fault, before, f.ports)
	}
	healing, last := time.Now(), x.site.look()
	f.heal()
	healed := time.Now()
	shared := x.awaitShared(healed)
	out.Return = shared.Sub(healed).Seconds()
	if f.itself {
		out.Away = shared.Sub(failed).Seconds()
		healing = healed // what clients saw until then
	}
	most = most.max(x.watch(x.timing.after, before, f.ports))
	ended := time.Now()
	samples := l.stop()
	after := x.site.look(f.ports...)

	out.Statuses = statuses(samples, failed, healing)
	out.Calm = latency(samples, calmFrom, failed, through)
	out.Fault = latency(samples, failed, ended, through)
	out.Control = latency(samples, calmFrom, ended, past)
	if out.Opens && !f.itself {
		out.Open = latency(samples, openFrom, healing, through)
		out.OpenControl = latency(samples, openFrom, healing, past)
		out.OpenLittle = float64(last.addedLittle-opened.addedLittle) / float64(max(1, last.added-opened.added))
	}
	out.Errors = map[string]int{}
	for kind, n := range after.errors {
		if n -= before.errors[kind]; n > 0 {
			out.Errors[kind] = n
		}
	}
	most = most.max(after)
	out.Goroutines = [2]int{before.goroutines, most.goroutines}
	out.Resident = [2]int64{before.resident, most.resident}
	out.Connections = [2]int{before.connections, most.connections}
	x.charges(out, samples, f.wire)
	at := span{failed: failed, openFrom: openFrom, healing: healing, shared: shared}
	if f.itself {
		at.healing = openFrom // how long every breaker was open is not known
	}
	out.judge(r, samples, at)
	if r.check != nil {
		r.check(out, samples, at)
	}
	return out
}

// sleep waits, unless the run is interrupted.
func (x *experiment) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-x.ctx.Done():
		x.Fatalf("interrupted")
	}
}

// awaitOpen gives every instance the time to notice.
func (x *experiment) awaitOpen(r *row, out *result) {
	if r.opens != must {
		return
	}
	for deadline := time.Now().Add(noticed); time.Now().Before(deadline); {
		if x.site.open() == instances {
			out.Opens = true
			return
		}
		x.sleep(50 * time.Millisecond)
	}
}

// awaitShared waits until every instance uses the store, and returns when that
// was seen.
func (x *experiment) awaitShared(from time.Time) time.Time {
	for {
		open := x.site.open()
		now := time.Now()
		if open == 0 || now.Sub(from) > returned {
			return now
		}
		x.sleep(20 * time.Millisecond)
	}
}

// watch looks at the gateways for a while, and returns the most of everything.
func (x *experiment) watch(d time.Duration, most look, ports []string) look {
	for end := time.Now().Add(d); time.Until(end) > 0; {
		x.sleep(min(500*time.Millisecond, time.Until(end)))
		most = most.max(x.site.look(ports...))
	}
	return most
}

func (l look) max(m look) look {
	l.goroutines = max(l.goroutines, m.goroutines)
	l.resident = max(l.resident, m.resident)
	l.connections = max(l.connections, m.connections)
	return l
}

// deniers are the callers of the route closed.
var deniers = []string{"closed-0", "closed-1"}

// charges compares what the callers of the route closed have asked for with what
// they have paid: nothing of theirs is ever admitted without Redis.
func (x *experiment) charges(out *result, samples []sample, w *wire) {
	out.Calls = -1
	if w != nil {
		out.Calls = 0
	}
	for _, caller := range deniers {
		for i := range samples {
			if s := &samples[i]; s.caller == caller {
				out.Sent++
				if s.status == http.StatusOK {
					out.OK++
				}
			}
		}
		remaining := -1
		for range 20 { // each is a request like any other
			s, err := x.site.ask(0, "closed", caller)
			out.Sent++
			if err == nil && s.remaining >= 0 {
				remaining = s.remaining
				out.OK++
				break
			}
			x.sleep(50 * time.Millisecond)
		}
		if remaining < 0 {
			x.Fatalf("the charges of %s cannot be read", caller)
		}
		out.Used += wide - remaining
		if w != nil {
			out.Calls += w.askedBy(caller)
		}
	}
}

// statuses counts the answers of [from, to) by route.
func statuses(samples []sample, from, to time.Time) map[string]map[string]int {
	out := map[string]map[string]int{}
	for i := range samples {
		s := &samples[i]
		if s.route == control || s.at.Before(from) || !s.at.Before(to) {
			continue
		}
		if out[s.route] == nil {
			out[s.route] = map[string]int{}
		}
		status := "none"
		if s.status != 0 {
			status = strconv.Itoa(s.status)
		}
		out[s.route][status]++
	}
	return out
}

// port returns the port of an address.
func port(address string) string {
	_, p, err := net.SplitHostPort(address)
	if err != nil {
		panic("bug: " + err.Error())
	}
	return p
}

// storeAt is the section store: for one server, with the shipped defaults.
func storeAt(address string) string {
	return fmt.Sprintf(`store: {redis: {url: "redis://%s/0"}}`, address)
}

// kindsText lists what the errors counter showed.
func kindsText(errors map[string]int) string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(errors)) {
		out = append(out, fmt.Sprintf("%s %d", kind, errors[kind]))
	}
	return strings.Join(out, ", ")
}
