package test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// A denied caller that does not stop costs Redis nothing: it is told what it was
// told, with the time that is left, until that is over.
func TestAnAttackOnASpentLimitCostsRedisAHandfulOfCalls(t *testing.T) {
	const requests, clients = 2000, 16
	srv := redistest.Start(t)
	p := newPlanTableOn(t, srv, "attacker", "counted")
	p.plans(map[string]string{
		"attacker": "name: day, algorithm: fixed_window, limit: 3/day\nname: minute, algorithm: token_bucket, limit: 600/minute, burst: 50",
		"counted":  "name: day, algorithm: fixed_window, limit: 3/day, count_rejected: true",
	})
	for _, source := range []string{"allowed", "denied"} {
		if v, ok := p.g.metrics()[`gateway_ratelimit_decisions_total{limit="day",outcome="`+source+`",plan="of-attacker",route="weather",source="deny_cache"}`]; !ok || v != "0" {
			t.Errorf("%s by the deny cache stands at %q before anything happened", source, v)
		}
	}
	p.wantSpend("attacker", 4, 3)
	p.wantSpend("counted", 4, 3)
	first := p.ask("attacker")
	told, at := waitOf(t, first), time.Now()

	calls := watchRedis(t, srv.Addr(), "{user:attacker}")
	var left atomic.Int64
	left.Store(requests)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				before := time.Now()
				a, err := trySend("GET", p.g.url+"/api/weather", nil, "X-API-Key", keyOf("attacker"))
				after := time.Now()
				if err != nil || a.status != 429 {
					t.Errorf("%d %s, %v; want 429", a.status, a.body, err)
					return
				}
				// Whole seconds, rounded up, of what the first one said.
				most, least := told-int(before.Sub(at)/time.Second), told-int(after.Sub(at)/time.Second)-2
				if wait := waitOf(t, a); wait > most || wait < least {
					t.Errorf("Retry-After %d, %s after %d", wait, after.Sub(at), told)
				}
			}
		})
	}
	all.Wait()
	if n := len(calls()); n > 5 {
		t.Errorf("%d requests of a denied caller cost Redis %d calls", requests, n)
	}
	// What was refilled meanwhile is told as well.
	if limits := p.ask("attacker").field("RateLimit"); !contains(limits, `"day";r=0;t=`, `"minute";r=`) {
		t.Errorf("RateLimit: %s", limits)
	}
	if n := p.g.sum("gateway_deny_cache_entries"); n != 1 {
		t.Errorf("gateway_deny_cache_entries %v, want 1", n)
	}
	if n := p.g.sum("gateway_ratelimit_decisions_total", `limit="day"`, `outcome="denied"`, `source="deny_cache"`); n < requests {
		t.Errorf("%v denials were told again, want %d or more", n, requests)
	}

	// To ask is to be charged.
	calls = watchRedis(t, srv.Addr(), "{user:counted}")
	p.wantSpend("counted", 20, 0)
	if n := len(calls()); n != 20 {
		t.Errorf("20 rejected attempts that count cost Redis %d calls", n)
	}
}

// Whoever waits as told is admitted, and whoever does not wait is admitted no
// later.
func TestADenialEndsWhenItSaid(t *testing.T) {
	t.Parallel() // it mostly waits
	p := newPlanTable(t, "patient", "impatient")
	const limit = "name: l, algorithm: fixed_window, limit: 1/5s"
	p.plans(map[string]string{"patient": limit, "impatient": limit})

	p.wantSpend("patient", 1, 1)
	waitOf(t, p.ask("patient")) // by Redis
	time.Sleep(1200 * time.Millisecond)
	time.Sleep(time.Duration(waitOf(t, p.ask("patient"))) * time.Second) // told again
	if a := p.ask("patient"); a.status != 200 {
		t.Errorf("waited as told: %d, Retry-After %s", a.status, a.field("Retry-After"))
	}

	before := time.Now()
	p.wantSpend("impatient", 1, 1)
	eventually(t, "the next window", func() bool { return p.ask("impatient").status == 200 })
	if since := time.Since(before); since < 5*time.Second {
		t.Errorf("the next window opened after %s", since)
	}
}

func TestARaisedPlanHelpsWhoWasDeniedAtOnce(t *testing.T) {
	t.Parallel() // it mostly waits for a server to start
	p := newPlanTable(t, "priya")
	plan := func(n int) map[string]string {
		return map[string]string{"priya": fmt.Sprintf("name: l, algorithm: fixed_window, limit: %d/day", n)}
	}
	p.plans(plan(2))
	p.wantSpend("priya", 5, 2)
	p.plans(plan(4))
	p.wantSpend("priya", 5, 2)
}

// What Redis denied until then stays denied while it is away; nobody else is
// denied for it.
func TestADenialHoldsWhileRedisIsAway(t *testing.T) {
	t.Parallel() // it mostly waits
	srv := redistest.Start(t)
	p := newPlanTableOn(t, srv, "spent", "fresh")
	const limit = "name: l, algorithm: fixed_window, limit: 2/day"
	p.plans(map[string]string{"spent": limit, "fresh": limit})
	p.wantSpend("spent", 3, 2)
	srv.Kill()
	p.wantSpend("fresh", 3, 2) // by its local cap, which is the whole number
	p.wantSpend("spent", 3, 0)
	line := p.g.requestLine(p.ask("spent").field("X-Request-Id"))
	if line["source"] != "deny_cache" || line["denied_by"] != "l" {
		t.Errorf("the access log says %v", line)
	}
}

// What changes on one instance is given up on the others: here a plan, which one
// of them has loaded and the other not yet.
func TestAPlanThatAnotherInstanceLoadsGivesUpDenials(t *testing.T) {
	t.Parallel() // it mostly waits
	srv := redistest.Start(t)
	one, two := newPlanTableOn(t, srv, "priya"), newPlanTableOn(t, srv, "priya")
	plan := func(n int) map[string]string {
		return map[string]string{"priya": fmt.Sprintf("name: l, algorithm: fixed_window, limit: %d/day", n)}
	}
	one.plans(plan(2))
	two.plans(plan(2))
	one.wantSpend("priya", 4, 2)
	held := func() float64 { return one.g.sum("gateway_deny_cache_entries") }
	if n := held(); n != 1 {
		t.Fatalf("%v denials are held, want 1", n)
	}
	two.plans(plan(4))
	eventually(t, "the denial is given up", func() bool { return held() == 0 })
	two.wantSpend("priya", 4, 2)
	one.wantSpend("priya", 2, 0) // its own plan is as it was
}
