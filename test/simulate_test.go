package test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// simulate exits by what it found, so that a pipeline can stop a change of plans.
func TestSimulateExitsByWhatItFound(t *testing.T) {
	s := openSite(t, newUpstream(t, nil))
	plan := func(n string) string {
		return "anonymous_plan: anonymous\nplans: {anonymous: {limits: [{name: per-minute, per: ip, algorithm: fixed_window, limit: " + n + "/minute}]}}\n"
	}
	s.write("plans.yaml", plan("5"))
	s.write("less.yaml", plan("4"))
	s.write("more.yaml", plan("6"))
	s.write("access.log", strings.Repeat(`203.0.113.7 - - [02/Nov/2026:08:58:00 +0000] "GET /api/weather HTTP/1.1" 200 2 "-" "-"`+"\n", 6))
	for _, c := range []struct {
		args string
		code int
	}{
		{"-log access.log", 1}, // the sixth
		{"-log access.log -plans more.yaml", 0},
		{"-log access.log -plans less.yaml -against plans.yaml", 1},
		{"-log access.log -plans plans.yaml -against plans.yaml", 0}, // no more than today
		{"-log absent.log", 1},
		{"-log access.log -plans absent.yaml", 1},
		{"-log access.log -format elsewhere", 2},
		{"-log access.log -fields tim=x", 2},
		{"-log access.log -assume-plan none", 2},
		{"-log access.log -top -1", 2},
	} {
		if r := s.command(append([]string{"simulate"}, strings.Fields(c.args)...)...); r.code != c.code || (r.code == 2) != contains(r.stderr, "gateway simulate -h") {
			t.Errorf("gateway simulate %s: exit %d, want %d\n%s%s", c.args, r.code, c.code, r.stdout, r.stderr)
		}
	}
	r := s.command("simulate", "access.log", "-json", "-html", "page.html")
	var result struct {
		Requests, Denied int
		Limits           []struct {
			Limit      string
			SmallestOK int `json:"smallest_ok"`
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &result); err != nil || result.Requests != 6 || result.Denied != 1 || len(result.Limits) != 1 || result.Limits[0].SmallestOK != 6 {
		t.Errorf("%v: %s%s", err, r.stdout, r.stderr)
	}
	if page, err := os.ReadFile(s.path("page.html")); err != nil || !contains(string(page), "<svg", "per-minute") || r.stderr != "" {
		t.Errorf("the page: %v; on stderr %q", err, r.stderr)
	}
}
