package telemetry

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"syscall"
	"testing"
	"time"

	"bouncer/gateway/pulse"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/scope"
)

func sampled(t testing.TB, l Labels) (*Telemetry, *Sampler) {
	t.Helper()
	tm := New(Options{Out: io.Discard})
	t.Cleanup(func() { shut(t, tm) })
	s := tm.NewSampler()
	tm.Configure(l)
	return tm, s
}

func ended(tm *Telemetry, route string, change func(*scope.Request)) {
	r, s := sample()
	s.Route = route
	if change != nil {
		change(s)
	}
	tm.Request(r, s)
}

func routeOf(p *pulse.Sample, name string) (c pulse.RouteCounts) {
	for _, r := range p.Routes {
		if r.Route == name {
			c = r
		}
	}
	return c
}

// Denied, failed, refused and allowed are told apart by who said so, and not by the
// code alone.
func TestASampleTellsOutcomesApart(t *testing.T) {
	t.Parallel()
	tm, sampler := sampled(t, Labels{Routes: []string{"weather"}})
	answer := func(status, upstream int, storeErr error) {
		ended(tm, "weather", func(s *scope.Request) {
			s.Status, s.UpstreamStatus, s.StoreErr = status, upstream, storeErr
			if upstream != 0 {
				s.UpstreamAttempts = 1
			}
		})
	}
	answer(200, 200, nil)
	answer(304, 304, nil)
	answer(429, 0, nil)              // by a limit
	answer(429, 429, nil)            // the upstream's own
	answer(503, 0, io.ErrNoProgress) // no limit can be checked
	answer(503, 0, nil)              // no room
	answer(503, 503, io.EOF)         // the upstream's, though the store was away
	answer(502, 0, nil)              //
	answer(404, 404, nil)            // the upstream's own
	answer(401, 0, nil)              //
	answer(499, 0, nil)              // left
	c := routeOf(sampler.Read(), "weather")
	if c.Allowed != 4 || c.Denied != 2 || c.Failed != 3 || c.Refused != 1 || c.Left != 1 {
		t.Errorf("%+v, want 4 allowed, 2 denied, 3 failed, 1 refused, 1 left", c)
	}
	if got := sampler.Read(); len(got.Routes) != 0 {
		t.Errorf("nothing has happened since, and it says %+v", got.Routes)
	}
}

func TestASampleIsWhatWasCountedSinceTheLast(t *testing.T) {
	t.Parallel()
	labels := Labels{
		Routes: []string{"weather", "hangs"}, Limits: []Limit{{"weather", "free", "per-minute"}}, Sources: []string{"redis"},
		Targets: []Target{{"api", "a:80"}}, Upstreams: []string{"api"},
	}
	tm, sampler := sampled(t, labels)
	sampler.Read()
	for range 3 {
		tm.Decided("weather", "free", "per-minute", "redis", Enforced, true, 5, 10)
		ended(tm, "weather", nil)
	}
	tm.Decided("weather", "free", "per-minute", "redis", Enforced, false, 0, 10)
	tm.Decided("weather", "free", "per-minute", "deny_cache", Candidate, false, 0, 10)
	flight := tm.InFlight("hangs")
	tm.UpstreamDone("api", "a:80", 200, nil)
	tm.UpstreamDone("api", "a:80", 0, io.EOF)
	tm.UpstreamTook("api", 30*time.Millisecond)
	tm.UpstreamTook("nobody", time.Second)
	tm.UpstreamRefused("api", "no_room")
	tm.UpstreamRetry("api", "done")
	tm.StoreTook(2 * time.Millisecond)
	tm.StoreFailed("timeout")
	tm.Overflow()
	p := sampler.Read()
	hangs := p
	for range idleEvery {
		if routeOf(hangs, "hangs").InFlight == 0 {
			hangs = sampler.Read()
		}
	}
	if c := routeOf(p, "weather"); c.Allowed != 3 || c.Total == nil || c.Total.Count() != 3 {
		t.Errorf("route %+v", c)
	}
	if c := routeOf(hangs, "hangs"); c.InFlight != 1 {
		t.Errorf("a request hangs, and it says %+v", c)
	}
	if len(p.Limits) != 1 || p.Limits[0].Allowed != 3 || p.Limits[0].Denied != 1 || p.Limits[0].CandidateDenied != 1 || p.Limits[0].Sources[1] != 4 || p.Limits[0].Sources[4] != 1 {
		t.Errorf("limits %+v", p.Limits)
	}
	if len(p.Targets) != 1 || p.Targets[0].Classes[1] != 1 || p.Targets[0].Errors != 1 {
		t.Errorf("targets %+v", p.Targets)
	}
	if u := p.Upstreams; len(u) != 1 || u[0].Refused != 1 || u[0].Retries != 1 || u[0].Took.Count() != 1 || math.Abs(u[0].Took.Quantile(.5)-.03) > .003 {
		t.Errorf("upstreams %+v", u)
	}
	if p.Store.Count() != 1 || math.Abs(p.Store.Quantile(.5)-.002) > .0002 || p.StoreErrors["timeout"] != 1 || p.Overflow != 1 || p.Added.Count() != 3 {
		t.Errorf("store %v s, errors %v, overflow %v, added %v", p.Store.Quantile(.5), p.StoreErrors, p.Overflow, p.Added.Count())
	}
	flight.Done()
}

// A reload that takes a route away, and one that brings it back, make no step.
func TestSamplesSurviveReloads(t *testing.T) {
	t.Parallel()
	with := Labels{
		Routes: []string{"weather", "files"}, Limits: []Limit{{"weather", "free", "per-minute"}}, Sources: []string{"redis"},
		Targets: []Target{{"api", "a:80"}}, Upstreams: []string{"api"},
	}
	tm, sampler := sampled(t, with)
	count := func(n int) {
		for range n {
			tm.Decided("weather", "free", "per-minute", "redis", Enforced, false, 0, 10)
			tm.UpstreamDone("api", "a:80", 200, nil)
			tm.UpstreamRefused("api", "no_room")
			ended(tm, "weather", nil)
		}
	}
	count(100)
	sampler.Read()
	tm.Configure(Labels{Routes: []string{"files"}})
	count(2) // they count under other, and came before
	if p := sampler.Read(); routeOf(p, "weather").Route != "" || routeOf(p, "other").Allowed != 2 {
		t.Errorf("without the route: %+v", p.Routes)
	}
	tm.Configure(with)
	count(7)
	p := sampler.Read()
	if c := routeOf(p, "weather"); c.Allowed != 7 || c.Total.Count() != 7 {
		t.Errorf("the route is back: %+v", c)
	}
	if len(p.Limits) != 1 || p.Limits[0].Denied != 7 || len(p.Targets) != 1 || p.Targets[0].Classes[1] != 7 || len(p.Upstreams) != 1 || p.Upstreams[0].Refused != 7 {
		t.Errorf("with it: %+v %+v %+v", p.Limits, p.Targets, p.Upstreams)
	}
	if len(sampler.routes) != 4 || len(sampler.decisions) != 2 || len(sampler.targets) != 2 || len(sampler.upstreams) != 1 {
		t.Errorf("it holds %d routes, %d limits, %d targets, %d upstreams: those that are gone too", len(sampler.routes), len(sampler.decisions), len(sampler.targets), len(sampler.upstreams))
	}
	for i := range 50 { // names come and go
		name := fmt.Sprint("r", i)
		tm.Configure(Labels{Routes: []string{name}})
		ended(tm, name, nil)
		sampler.Read()
	}
	if len(sampler.routes) > 4 || len(sampler.byName) > 4 || len(tm.made) > 0 {
		t.Errorf("after fifty reloads it holds %d routes and %d names", len(sampler.routes), len(sampler.byName))
	}
}

// A histogram that begins anew, or takes to coarser buckets, makes nothing up.
func TestSampledLatenciesAreThoseOfTheHistograms(t *testing.T) {
	t.Parallel()
	tm, sampler := sampled(t, Labels{})
	total := pulse.Latencies{}
	observed := 0
	for round := range 40 {
		for i := range 50 {
			// Over so many doublings that the buckets have to be made coarser.
			tm.StoreTook(time.Duration(float64(time.Microsecond) * math.Exp2(float64((round*50+i)%240)/10)))
			observed++
		}
		p := sampler.Read()
		for _, n := range p.Store {
			if n > 1000 {
				t.Fatalf("a bin counts %d of 50", n)
			}
		}
		total.Add(&p.Store)
	}
	if n := total.Count(); n > uint64(observed) || n < uint64(observed)*8/10 {
		t.Errorf("%d were sampled of %d", n, observed)
	}
}

func TestBucketsOfAnySchemaAreSpreadWithoutLoss(t *testing.T) {
	t.Parallel()
	for schema := int32(-4); schema <= 8; schema++ {
		var last pulse.Latencies
		for count := range int64(40) {
			var now pulse.Latencies
			spread(&now, schema, 0, count)
			if now.Count() != uint64(count) {
				t.Fatalf("schema %d: %d are spread as %d", schema, count, now.Count())
			}
			if d := now.Less(&last); d.Count() > 1 {
				t.Fatalf("schema %d: the step from %d shrinks a bin", schema, count-1)
			}
			last = now
		}
	}
}

// What nobody uses costs next to nothing, and the latencies of so many routes at once
// are read in turn.
func TestASampleIsBounded(t *testing.T) {
	t.Parallel()
	var labels Labels
	for i := range 1000 {
		labels.Routes = append(labels.Routes, fmt.Sprint("r", i))
	}
	tm, sampler := sampled(t, labels)
	sampler.Read()
	for i, name := range labels.Routes {
		for range 1 + i%3 {
			ended(tm, name, nil)
		}
	}
	read, rounds := uint64(0), 0
	for ; rounds < 10; rounds++ {
		p := sampler.Read()
		n := 0
		for _, r := range p.Routes {
			if r.Total != nil {
				n++
				read += r.Total.Count()
			}
		}
		if n > maxRead {
			t.Fatalf("the latencies of %d routes were read at once", n)
		}
		if n == 0 {
			break
		}
	}
	if read != 1999 || rounds != 4 {
		t.Errorf("%d latencies in %d rounds, want 1999 in 4", read, rounds)
	}
}

func TestSourcesAreThoseOfLimits(t *testing.T) {
	t.Parallel()
	if pulse.Sources != sourceLabels {
		t.Errorf("%v, and the metrics have %v", pulse.Sources, sourceLabels)
	}
	if pulse.Sources[4] != string(ratelimit.SourceDenyCache) {
		t.Errorf("%s stands where the deny cache does", pulse.Sources[4])
	}
}

// threadTime is what the calling thread has had of a CPU: machines are busy.
func threadTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(1, &used); err != nil {
		b.Skip("this system does not say what a thread takes")
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func BenchmarkSample(b *testing.B) {
	for _, test := range []struct{ routes, moving int }{{10, 10}, {10_000, 0}, {10_000, 10}, {10_000, 10_000}} {
		b.Run(fmt.Sprintf("%d routes, %d move", test.routes, test.moving), func(b *testing.B) {
			var l Labels
			for i := range test.routes {
				l.Routes = append(l.Routes, fmt.Sprint("r", i))
			}
			tm, sampler := sampled(b, l)
			for _, name := range l.Routes {
				ended(tm, name, nil)
			}
			for range 50 {
				sampler.Read()
			}
			r, s := sample()
			b.ReportAllocs()
			spent := time.Duration(0)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for b.Loop() {
				b.StopTimer()
				for _, name := range l.Routes[:test.moving] {
					s.Route = name
					tm.Request(r, s)
				}
				b.StartTimer()
				before := threadTime(b)
				sampler.Read()
				spent += threadTime(b) - before
			}
			b.ReportMetric(float64(spent.Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}
