package test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"bouncer/internal/redistest"
)

// A planTable is a running gateway on Redis and callers each of whom has a plan
// of their own, so that one change of plans.yaml is many.
type planTable struct {
	*weatherSite
	g     *gateway
	users []string
}

func newPlanTable(t *testing.T, users ...string) *planTable {
	return newPlanTableOn(t, redistest.Start(t), users...)
}

// newPlanTableOn is newPlanTable on a server that the test looks at.
func newPlanTableOn(t *testing.T, srv *redistest.Server, users ...string) *planTable {
	u := newUpstream(t, nil)
	p := &planTable{weatherSite: newWeatherSite(t, u, redisStore(srv.URL())), users: users}
	keys := "keys:\n"
	for _, user := range users {
		keys += keyEntry(user, "tenant: acme-"+user)
	}
	p.write("keys.yaml", keys)
	return p
}

// plans gives each user the limits that stand beside the name, and puts them
// into force.
func (p *planTable) plans(limits map[string]string) {
	p.t.Helper()
	plans, overrides := "", ""
	for _, user := range slices.Sorted(maps.Keys(limits)) {
		plans += "  of-" + user + ":\n    limits:\n"
		for limit := range strings.Lines(limits[user]) {
			plans += "      - {" + strings.TrimSpace(limit) + "}\n"
		}
		overrides += "  - {user: " + user + ", plan: of-" + user + "}\n"
	}
	p.inForce("default_plan: none\nplans:\n  none: {limits: []}\n" + plans + "overrides:\n" + overrides)
}

// inForce writes plans.yaml and returns when it is in force. It has to be
// another than before.
func (p *planTable) inForce(plans string) {
	p.t.Helper()
	if p.g == nil {
		p.write("plans.yaml", plans)
		p.g = p.start()
		return
	}
	before := p.hash() // first: the gateway may notice the file by itself
	p.write("plans.yaml", plans)
	p.g.reload()
	eventually(p.t, "the new plans are in force", func() bool { return p.hash() != before })
}

// hash is of the configuration in force.
func (p *planTable) hash() string {
	for series := range p.g.metrics() {
		if strings.HasPrefix(series, "gateway_config_info") {
			return series
		}
	}
	return ""
}

func (p *planTable) ask(user string) answer {
	p.t.Helper()
	return p.g.get("/api/weather", "X-API-Key", keyOf(user))
}

// spend asks n times and returns how often the answer was yes.
func (p *planTable) spend(user string, n int) (admitted int) {
	p.t.Helper()
	for range n {
		switch a := p.ask(user); a.status {
		case 200:
			admitted++
		case 429:
		default:
			p.t.Fatalf("%s: %d %s", user, a.status, a.body)
		}
	}
	return admitted
}

// wantSpend wants so many of n to be admitted.
func (p *planTable) wantSpend(user string, n, want int) {
	p.t.Helper()
	if got := p.spend(user, n); got != want {
		p.t.Errorf("%s: %d of %d admitted, want %d", user, got, n, want)
	}
}

func waitOf(t testing.TB, a answer) int {
	t.Helper()
	wait, err := strconv.Atoi(a.field("Retry-After"))
	if a.status != 429 || err != nil {
		t.Fatalf("%d, Retry-After %q; want 429 with one", a.status, a.field("Retry-After"))
	}
	return wait
}

// A larger limit helps at once: what was spent stays spent, and the difference
// can be.
func TestPlanChangeLarger(t *testing.T) {
	t.Parallel() // it mostly waits
	algorithms := []string{"fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"}
	p := newPlanTable(t, append(algorithms, "burst", "queue")...)
	limits := func(n, burst, queue int) map[string]string {
		m := map[string]string{
			"burst": fmt.Sprintf("name: l, algorithm: token_bucket, limit: 30/day, burst: %d", burst),
			"queue": fmt.Sprintf("name: l, algorithm: leaky_bucket, limit: 1/4s, queue: %d", queue),
		}
		for _, a := range algorithms {
			m[a] = fmt.Sprintf("name: l, algorithm: %s, limit: %d/day", a, n)
		}
		return m
	}
	p.plans(limits(5, 5, 0))
	for _, user := range append(algorithms, "burst") {
		p.wantSpend(user, 7, 5)
	}
	first := time.Now()
	p.wantSpend("queue", 1, 1)
	if wait := waitOf(t, p.ask("queue")); wait > 4 {
		t.Errorf("a queue without places: Retry-After %d", wait)
	}
	p.plans(limits(8, 8, 1))
	for _, user := range append(algorithms, "burst") {
		p.wantSpend(user, 5, 3)
	}
	p.wantSpend("queue", 1, 1)
	if took := time.Since(first); took < 3900*time.Millisecond {
		t.Errorf("the second of a queue went %v after the first; a drip takes 4 s", took)
	}
	p.g.decidedByItsStore()
}

// A smaller one denies whoever has spent that much, and nobody for longer than
// it would anybody.
func TestPlanChangeSmaller(t *testing.T) {
	t.Parallel() // it mostly waits
	windows := []string{"fixed_window", "sliding_window_log", "sliding_window_counter"}
	p := newPlanTable(t, append(windows, "token_bucket", "leaky_bucket", "back")...)
	limits := func(n, burst, queue, back int) map[string]string {
		m := map[string]string{
			"token_bucket": fmt.Sprintf("name: l, algorithm: token_bucket, limit: 10/minute, burst: %d", burst),
			"leaky_bucket": fmt.Sprintf("name: l, algorithm: leaky_bucket, limit: 1/second, queue: %d", queue),
			"back":         fmt.Sprintf("name: l, algorithm: fixed_window, limit: %d/hour", back),
		}
		for _, a := range windows {
			m[a] = fmt.Sprintf("name: l, algorithm: %s, limit: %d/5s", a, n)
		}
		return m
	}
	p.plans(limits(10, 8, 4, 10))
	p.wantSpend("token_bucket", 8, 8)
	before := p.ask("token_bucket")
	p.wantSpend("back", 6, 6)
	// Five in a queue of one a second, the last of whom waits for four.
	var queued sync.WaitGroup
	for range 5 {
		queued.Go(func() {
			if a, err := trySend("GET", p.g.url+"/api/weather", nil, "X-API-Key", keyOf("leaky_bucket")); err != nil || a.status != 200 {
				t.Errorf("in the queue: %d, %v", a.status, err)
			}
		})
	}
	eventually(t, "the queue is full", func() bool { return p.g.value(`gateway_in_flight{route="weather"}`) >= 3 })
	for _, user := range windows {
		p.wantSpend(user, 6, 6)
	}

	p.plans(limits(4, 2, 0, 4))
	if wait := waitOf(t, p.ask("leaky_bucket")); wait > 1 {
		t.Errorf("a queue whose places were taken away: Retry-After %d, want 1, as for one who has just gone", wait)
	}
	// One token takes six seconds. Eight were spent; of a burst of two, two are.
	wait := waitOf(t, before)
	if now := waitOf(t, p.ask("token_bucket")); now > 6 || wait > 6 {
		t.Errorf("a smaller burst: Retry-After %d, %d before; want at most 6", now, wait)
	}
	p.wantSpend("back", 2, 0)
	if a := p.ask("back"); remaining(t, a) != 0 {
		t.Errorf("lowered below what was spent: %d remaining", remaining(t, a))
	}
	var all sync.WaitGroup
	for _, user := range windows {
		a := p.ask(user)
		most := 5
		if user == "sliding_window_counter" {
			most = 10 // the end of the next window
		}
		if wait := waitOf(t, a); wait > most || remaining(t, a) != 0 {
			t.Errorf("%s: Retry-After %d, %d remaining; want at most %d and none", user, wait, remaining(t, a), most)
		}
		all.Go(func() {
			time.Sleep(time.Duration(waitOf(t, a)) * time.Second) // the promise under test is about time
			if a, err := trySend("GET", p.g.url+"/api/weather", nil, "X-API-Key", keyOf(user)); err != nil || a.status != 200 {
				t.Errorf("%s: after exactly Retry-After: %d, %v", user, a.status, err)
			}
		})
	}
	all.Wait()
	queued.Wait()
	p.plans(limits(4, 2, 0, 10))
	p.wantSpend("back", 6, 4) // never less than nothing
	p.g.decidedByItsStore()
}

// Another algorithm, window, calendar, subject or name starts that limit anew,
// and whoever changes it is told beforehand and afterwards.
func TestPlanChangeStartsAnew(t *testing.T) {
	t.Parallel() // it mostly waits
	fixed := func(more string) string { return "name: l, algorithm: fixed_window, " + more }
	changes := map[string][2]string{
		"algorithm": {fixed("limit: 3/day"), "name: l, algorithm: token_bucket, limit: 3/day"},
		"window":    {fixed("limit: 3/day"), fixed("limit: 3/week")},
		"anchor":    {fixed("limit: 3/day"), fixed("limit: 3/day, anchor: calendar")},
		"timezone":  {fixed("limit: 3/month, anchor: calendar"), fixed("limit: 3/month, anchor: calendar, timezone: Asia/Kolkata")},
		"weekstart": {fixed("limit: 3/week, anchor: calendar"), fixed("limit: 3/week, anchor: calendar, week_start: sunday")},
		"per":       {fixed("limit: 3/day"), fixed("limit: 3/day, per: tenant")},
		"name":      {fixed("limit: 3/day"), "name: l-2, algorithm: fixed_window, limit: 3/day"},
	}
	users := slices.Sorted(maps.Keys(changes))
	p := newPlanTable(t, users...)
	side := func(i int) map[string]string {
		m := map[string]string{}
		for user, both := range changes {
			m[user] = both[i]
		}
		return m
	}
	p.plans(side(0))
	old := p.plansFile()
	for _, user := range users {
		p.wantSpend(user, 4, 3)
	}
	before := len(p.g.all(reloadApplied))
	p.plans(side(1))
	told := "" // by that reload, or by one just before it: the files are watched as well
	for _, line := range p.g.all(reloadApplied)[before:] {
		told += fmt.Sprint(line["changes"])
	}
	check := p.command("check", "-against", old)
	for _, user := range users {
		p.wantSpend(user, 4, 3)
		if user == "name" {
			continue // one limit is gone and another has come
		}
		for from, text := range map[string]string{"the log of the reload": told, "gateway check -against": check.stdout + check.stderr} {
			if !startsAnew(text, "of-"+user) {
				t.Errorf("%s does not say that the limit of %s starts anew:\n%s", from, user, text)
			}
		}
	}
	p.g.decidedByItsStore()
}

// plansFile keeps a copy of plans.yaml as it is and returns its name.
func (p *planTable) plansFile() string {
	p.t.Helper()
	content := must(os.ReadFile(p.path("plans.yaml")))
	p.write("old-plans.yaml", string(content))
	return "old-plans.yaml"
}

// startsAnew reports whether a description of changes says so of a plan.
func startsAnew(text, plan string) bool {
	_, rest, found := strings.Cut(text, plan)
	if !found {
		return false
	}
	line, _, _ := strings.Cut(rest, "plans.of-")
	return strings.Contains(line, "(starts anew)")
}

// What has nothing to do with how one counts does not touch what was counted.
func TestPlanChangeThatKeepsTheCount(t *testing.T) {
	t.Parallel() // it mostly waits
	const live = "name: l, algorithm: fixed_window, limit: 5/day"
	users := []string{"gone", "mode", "candidate", "promoted", "rejected"}
	p := newPlanTable(t, users...)
	first := map[string]string{
		"gone":      live + "\nname: other, algorithm: fixed_window, limit: 100/day",
		"mode":      live + ", mode: shadow",
		"candidate": live + ", candidate: {limit: 3/day}",
		"promoted":  live + ", candidate: {limit: 7/day}",
		"rejected":  "name: l, algorithm: sliding_window_log, limit: 5/day",
	}
	p.plans(first)
	p.wantSpend("gone", 3, 3)
	p.wantSpend("mode", 9, 9) // it is only counted
	p.wantSpend("candidate", 4, 4)
	p.wantSpend("promoted", 6, 5)
	p.wantSpend("rejected", 7, 5)
	const counted = `gateway_ratelimit_decisions_total{limit="l",outcome="candidate_%s",plan="of-candidate",route="weather",source="redis"}`
	trial := func(outcome string) float64 { return p.g.value(fmt.Sprintf(counted, outcome)) }
	if yes, no := trial("allowed"), trial("denied"); yes != 3 || no != 1 {
		t.Errorf("the candidate allowed %v and denied %v, want 3 and 1", yes, no)
	}

	second := maps.Clone(first)
	second["gone"] = "name: other, algorithm: fixed_window, limit: 100/day"
	second["mode"] = live
	second["candidate"] = live + ", candidate: {limit: 4/day}"
	second["promoted"] = "name: l, algorithm: fixed_window, limit: 7/day"
	second["rejected"] = "name: l, algorithm: sliding_window_log, limit: 5/day, count_rejected: true"
	p.plans(second)
	p.wantSpend("gone", 9, 9)
	p.wantSpend("mode", 2, 0) // used up in shadow
	p.wantSpend("candidate", 2, 1)
	// It had counted three, so that one of the two found a place.
	if yes, no := trial("allowed"), trial("denied"); yes != 4 || no != 2 {
		t.Errorf("the candidate allowed %v and denied %v, want 4 and 2", yes, no)
	}
	p.wantSpend("promoted", 5, 2)
	before := waitOf(t, p.ask("rejected"))
	time.Sleep(2 * time.Second) // so that attempts which count can be told from others
	p.wantSpend("rejected", 4, 0)
	// The five newest attempts fill the log; the oldest of them has just been made.
	if after := waitOf(t, p.ask("rejected")); after < before-1 {
		t.Errorf("rejected attempts do not count: Retry-After %d, %d before", after, before)
	}

	third := maps.Clone(second)
	third["gone"], third["mode"], third["rejected"] = first["gone"], first["mode"], first["rejected"]
	p.plans(third)
	p.wantSpend("gone", 4, 2)
	p.wantSpend("mode", 3, 3)
	p.wantSpend("rejected", 1, 0)
	p.g.decidedByItsStore()
}

// The name of the plan is nothing to the count, and so neither is who has it.
func TestPlanChangeOfTheCaller(t *testing.T) {
	t.Parallel() // it mostly waits
	p := newPlanTable(t, "renamed", "moved", "toggled")
	const (
		free = "{name: per-day, algorithm: fixed_window, limit: 5/day}, {name: burst, algorithm: fixed_window, limit: 9/hour}"
		pro  = "{name: per-day, algorithm: fixed_window, limit: 12/day}, {name: per-week, algorithm: fixed_window, limit: 20/week}"
	)
	plans := func(name, moved, toggled string) string {
		return "default_plan: " + name + "\nplans:\n  " + name + ": {limits: [" + free + "]}\n  pro: {limits: [" + pro + "]}\n  same: {limits: [" + free + "]}\n" +
			"overrides:\n  - {user: moved, plan: " + moved + "}\n  - {user: toggled, plan: " + toggled + "}\n"
	}
	limits := func(user string) string { return p.ask(user).field("RateLimit") }
	p.inForce(plans("free", "free", "free"))
	p.wantSpend("renamed", 3, 3)
	p.wantSpend("moved", 5, 5)
	p.inForce(plans("basic", "pro", "basic"))
	p.wantSpend("renamed", 9, 2)
	// What was spent of per-day counts, per-week is new.
	if l := limits("moved"); !contains(l, `"per-day";r=6;`, `"per-week";r=19;`) {
		t.Errorf("moved to pro: %s", l)
	}
	p.inForce(plans("basic", "basic", "basic"))
	if l := limits("moved"); !contains(l, `"per-day";r=0;`, `"burst";r=4;`) {
		t.Errorf("moved back: %s; want what was spent before", l)
	}
	// To and fro, with a request in each: no second budget.
	admitted := 0
	for i := range 8 {
		admitted += p.spend("toggled", 2)
		p.inForce(plans("basic", "basic", []string{"same", "basic"}[i%2]))
	}
	if admitted != 5 {
		t.Errorf("%d admitted while the plan was toggled, want 5", admitted)
	}

	t.Run("by token", func(t *testing.T) {
		token := func(plan string) []string {
			return []string{"Authorization", "Bearer " + p.token("by-token", func(c jwt.MapClaims) { c["plan"] = plan })}
		}
		ask := func(plan string) answer { return p.g.get("/api/weather", token(plan)...) }
		for range 3 {
			if a := ask("basic"); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		// The new token has the larger plan, and the old one is still valid.
		for range 4 {
			if a := ask("pro"); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		if a := ask("basic"); a.status != 429 {
			t.Errorf("seven were spent, and the old token of a plan of five is answered %d", a.status)
		}
		for range 5 {
			if a := ask("pro"); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		for _, plan := range []string{"pro", "basic", "same"} {
			if a := ask(plan); a.status != 429 {
				t.Errorf("twelve were spent, and a token of plan %s is answered %d", plan, a.status)
			}
		}
	})
	p.g.decidedByItsStore()
}

// With Redis, a restart and one more instance change nothing.
func TestPlanChangeOfInstances(t *testing.T) {
	t.Parallel() // it mostly waits
	p := newPlanTable(t, "priya123")
	p.plans(map[string]string{"priya123": "name: l, algorithm: sliding_window_counter, limit: 6/day\nname: b, algorithm: token_bucket, limit: 9/day"})
	p.wantSpend("priya123", 2, 2)
	one := p.g
	p.g = p.start()
	p.wantSpend("priya123", 2, 2)
	one.stop()
	p.wantSpend("priya123", 1, 1)
	p.g.stop()
	p.g = p.start()
	p.wantSpend("priya123", 3, 1)
	p.g.decidedByItsStore()
}

// Whoever has tokens for two plans, and asks with one and the other in turn, has
// what the larger plan grants and no more: a request that the smaller one denies,
// denies and charges, or admits, forgets nothing of what was spent.
func TestTogglingPlansGivesNoSecondBudget(t *testing.T) {
	t.Parallel() // it mostly waits
	const large = 12
	both := func(shape string) [2]string { return [2]string{fmt.Sprintf(shape, large), fmt.Sprintf(shape, 4)} }
	limits := map[string][2]string{ // of the larger plan and of the smaller one
		"fixed":           both("algorithm: fixed_window, limit: %d/day"),
		"log":             both("algorithm: sliding_window_log, limit: %d/day"),
		"counter":         both("algorithm: sliding_window_counter, limit: %d/day"),
		"bucket":          both("algorithm: token_bucket, limit: %d/day"),
		"rejected":        both("algorithm: fixed_window, limit: %d/day, count_rejected: true"),
		"rejected-log":    both("algorithm: sliding_window_log, limit: %d/day, count_rejected: true"),
		"rejected-bucket": both("algorithm: token_bucket, limit: %d/day, count_rejected: true"),
		// The smaller one has a unit again each second, and so admits meanwhile.
		"refilled": {"algorithm: token_bucket, limit: 24/day, burst: 12", "algorithm: token_bucket, limit: 86400/day, burst: 4"},
	}
	p := newPlanTable(t)
	plans := "default_plan: none\nplans:\n  none: {limits: []}\n"
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		for i, size := range []string{"large", "small"} {
			plans += "  " + size + "-" + name + ": {limits: [{name: l, " + limits[name][i] + "}]}\n"
		}
	}
	p.inForce(plans)
	for name := range limits {
		t.Run(name, func(t *testing.T) {
			token := func(size string) string {
				return "Bearer " + p.token("user-"+name, func(c jwt.MapClaims) { c["plan"] = size + "-" + name })
			}
			largest, smallest := token("large"), token("small")
			ask := func(token string) answer { return send(t, "GET", p.g.url+"/api/weather", nil, "Authorization", token) }
			for i := range large {
				if a := ask(largest); a.status != 200 {
					t.Fatalf("request %d of %d: %d %s", i+1, large, a.status, a.body)
				}
			}
			for range 2 {
				a := ask(smallest)
				wait := waitOf(t, a)
				if name == "refilled" {
					time.Sleep(time.Duration(wait) * time.Second) // only a later request is admitted
					if a = ask(smallest); a.status != 200 {
						t.Errorf("the smaller plan after Retry-After %d: %d %s", wait, a.status, a.body)
					}
				}
				if a := ask(largest); a.status != 429 || remaining(t, a) != 0 {
					t.Fatalf("all was spent, then the smaller plan was asked, and the larger one has %d again: %d", remaining(t, a), a.status)
				}
			}
		})
	}
	p.g.decidedByItsStore()
}
