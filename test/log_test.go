package test

import (
	"fmt"
	"strings"
	"testing"
)

// loggedSite has a limit of three for one address, and the log as it is given.
func loggedSite(t testing.TB, u *upstream) (s *site, with func(log string)) {
	s = newSite(t)
	s.write("plans.yaml", "anonymous_plan: open\nplans: {open: {limits: []}}\n")
	with = func(log string) {
		s.write("routes.yaml", log+`
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
limits: {three: {per: ip, algorithm: fixed_window, limit: 3/hour}}
upstreams: {a: {targets: ["`+u.URL+`"]}, away: {targets: ["http://`+deadAddress(t)+`"]}}
routes:
  - {name: a, path: /a, upstream: a, auth: none}
  - {name: few, path: /few, upstream: a, auth: none, limits: [three]}
  - {name: away, path: /away, upstream: away, auth: none}
`)
	}
	return s, with
}

// The level of the process log is that of the file, after each reload, and the log says
// when it changes, into which direction it may be.
func TestTheLevelOfTheLogFollowsTheFile(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s, with := loggedSite(t, u)
	with("")
	g := s.start()
	changes := func() (said []string) {
		for _, line := range g.all("the level of the process log changed") {
			said = append(said, fmt.Sprint(line["from"], ">", line["to"]))
		}
		return said
	}
	reloads := 0
	to := func(level string) {
		t.Helper()
		with("log: {level: " + level + "}")
		reloads++
		eventually(t, "a reload to "+level, func() bool { return g.reloads("applied") >= reloads })
	}
	want := ""
	for _, step := range []struct{ level, change string }{
		{"error", "info>error"}, {"warn", "error>warn"}, {"debug", "warn>debug"}, {"info", "debug>info"}, {"error", "info>error"},
	} {
		to(step.level)
		want = strings.TrimSpace(want + " " + step.change)
		eventually(t, "a line about "+step.change, func() bool { return strings.Join(changes(), " ") == want })
	}
	// What is written at a level, and what is not: a reload is told of at info.
	before := len(g.all(reloadApplied))
	to("error, sample_allowed: 100%")
	g.requestLine(g.get("/a").field("X-Request-Id")) // the access log has no level
	if got := len(g.all(reloadApplied)); got != before {
		t.Errorf("a reload at level error was told of %d times, want none", got-before)
	}
}

// Of requests that were served a share is logged; those that were denied, refused or failed
// are all there. Whoever reads such a log is told.
func TestOnlyServedRequestsAreSampled(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s, with := loggedSite(t, u)
	with("log: {sample_allowed: 20%}")
	g := s.start()
	const n = 300
	var served, others []string
	for range n {
		served = append(served, g.get("/a").field("X-Request-Id"))
	}
	for range 20 {
		for _, path := range []string{"/few", "/nowhere", "/away"} {
			if a := g.get(path); a.status != 200 {
				others = append(others, a.field("X-Request-Id"))
			}
		}
	}
	g.stop()
	found := map[string]map[string]any{}
	for _, line := range g.all("request") {
		found[fmt.Sprint(line["request_id"])] = line
	}
	for _, id := range others {
		if line := found[id]; line == nil || line["sampled"] != nil {
			t.Errorf("of a request that was not served there is %v", line)
		}
	}
	if len(others) != 57 {
		t.Errorf("%d requests were not served, want 57", len(others))
	}
	kept := 0
	for _, id := range served {
		if line := found[id]; line != nil {
			kept++
			if line["sampled"] != 0.2 {
				t.Errorf("a sampled line says %v of it, want 0.2", line["sampled"])
			}
		}
	}
	if kept < n/20 || kept > n/2 {
		t.Errorf("%d of %d served requests are in the log, want about a fifth", kept, n)
	}
	s.write("access.log", g.output())
	if r := s.command("simulate", "-log", "access.log"); !strings.Contains(r.stdout+r.stderr, "the log is a sample") {
		t.Errorf("simulate does not say that the log is a sample:\n%s%s", r.stdout, r.stderr)
	}
}
