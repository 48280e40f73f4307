package proxy

import (
	"fmt"
	"net/url"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"
)

// A target that a reload adds begins slowly, and those that were there go on as they are.
func TestANewTargetBeginsSlowly(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastRequests, Hash} {
		synctest.Test(t, func(t *testing.T) {
			n := newPiped(t)
			for _, host := range []string{"a", "b", "c"} {
				n.serve(host, say("well"))
			}
			o := Options{Balance: balance, SlowStart: 30 * time.Second}
			first := n.upstream(o, "http://a", "http://b")
			// At the start of the process, none does.
			if got := gets(t, first, "a", "b"); got[0] < 20 || got[1] < 20 {
				t.Fatalf("%s: %v", balance, got)
			}
			o.Previous = first
			u := n.upstream(o, "http://b", "http://c", "http://a")
			share := func() int { return shares(u.balancer)[1] }
			for _, c := range []struct{ after, low, high int }{{0, 5, 100}, {15, 100, 230}, {16, 240, 360}} {
				pass(time.Duration(c.after) * time.Second)
				if got := share(); got < c.low || got > c.high {
					t.Errorf("%s: %ds later it gets %d of 900, want %d to %d", balance, c.after, got, c.low, c.high)
				}
			}
			if u.ward.troubled.Load() != 0 {
				t.Error("it is still looked at")
			}
			// A further one takes nothing of what is known.
			o.Previous = u
			if again := n.upstream(o, "http://a", "http://b", "http://c"); again.ward.troubled.Load() != 0 {
				t.Error("one that was there is taken to be new")
			}
			// Where none was there before, nobody is there to take the rest.
			if none := n.upstream(o, "http://a/x", "http://b/x"); none.ward.troubled.Load() != 0 {
				t.Error("all are to begin slowly")
			}
		})
	}
}

// However many reloads there are, one keeps none of those before it.
func TestWhatWasBeforeIsForgotten(t *testing.T) {
	n := newPiped(t)
	var first weak.Pointer[Upstream]
	var u *Upstream
	for range 3 {
		o := Options{Name: "weather", Previous: u, Health: &every2s, dial: n.dial}
		o.Targets = []Target{{URL: &url.URL{Scheme: "http", Host: "a"}}}
		next, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if u == nil {
			first = weak.Make(next)
		} else {
			u.Close()
		}
		u = next
	}
	defer u.Close()
	for range 5 {
		runtime.GC()
	}
	if first.Value() != nil {
		t.Error("the first one is still held")
	}
}

// What is known of a target is known after a reload that is about something else.
func TestATargetsConditionOutlivesAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPiped(t)
		a := n.patient("a")
		b, c := n.patient("b"), n.patient("c")
		b.status.Store(500)
		n.kill(c.pipedServer, true)
		var told atomic.Int32
		o := Options{Balance: RoundRobin, Health: &every2s, Hooks: Hooks{Target: func(string, string, bool, error) { told.Add(1) }}}
		first := n.upstream(o, "http://a", "http://b", "http://c")
		first.Start()
		synctest.Wait()
		if told.Load() != 2 {
			t.Fatalf("told of %d, want 2", told.Load())
		}
		pass(time.Minute)
		o.Previous, o.MaxInFlight = first, 10
		second := n.upstream(o, "http://a", "http://b", "http://c")
		first.Close()
		a.status.Store(500) // for one check, which is the first of this one only
		second.Start()
		defer second.Close()
		if got, want := fmt.Sprint(second.LeftOut()), fmt.Sprint(first.LeftOut()); got != want || len(second.LeftOut()) != 2 {
			t.Errorf("left out %v, and before %v", got, want)
		}
		synctest.Wait()
		a.status.Store(200)
		if told.Load() != 2 || len(second.LeftOut()) != 2 {
			t.Errorf("told of %d, left out %v", told.Load(), second.LeftOut())
		}
		// One that passes has to pass twice, as before.
		b.status.Store(200)
		pass(3 * every2s.Interval)
		synctest.Wait()
		if out := second.LeftOut(); len(out) != 1 || out[0].Target != "c" || told.Load() != 3 {
			t.Errorf("left out %v, told of %d", out, told.Load())
		}
		// Without checks nobody would say when it is well again.
		o.Previous, o.Health = second, nil
		third := n.upstream(o, "http://a", "http://b", "http://c")
		second.Close()
		if out := third.LeftOut(); len(out) != 0 {
			t.Errorf("left out without checks: %v", out)
		}
	})
}
