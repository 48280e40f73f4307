package test

import (
	"encoding/json"
	"testing"
)

// check -against tells what a change of the plans does to those who have them,
// before it is done: which number moves, and which limit starts anew.
func TestCheckTellsWhatStartsAnew(t *testing.T) {
	s := openSite(t, newUpstream(t, nil))
	const plans = "anonymous_plan: anonymous\nplans:\n  anonymous:\n    limits:\n"
	s.write("old.yaml", plans+"      - {name: per-minute, per: ip, algorithm: fixed_window, limit: 100/minute}\n"+
		"      - {name: per-day, per: ip, algorithm: fixed_window, limit: 1000/day}\n")
	s.write("plans.yaml", plans+"      - {name: per-minute, per: ip, algorithm: token_bucket, limit: 100/minute}\n"+
		"      - {name: per-day, per: ip, algorithm: fixed_window, limit: 2000/day}\n")
	r := s.command("check", "-against", "old.yaml")
	want := "change: plan anonymous: per-minute: fixed_window 100/minute → token_bucket 100/minute (starts anew)\n" +
		"change: plan anonymous: per-day: 1000/day → 2000/day\n" +
		"ok: 1 plan, 2 routes, 2 limits\n"
	if r.code != 0 || r.stdout != want {
		t.Errorf("exit code %d, want 0; got\n%swant\n%s%s", r.code, r.stdout, want, r.stderr)
	}
	r = s.command("check", "-json", "-against", "old.yaml")
	if r.code != 0 || !contains(r.stdout, `"changes": [`, "(starts anew)", `"ok": true`) {
		t.Errorf("exit code %d, want 0:\n%s", r.code, r.stdout)
	}
	// A file to compare with that cannot be read is a finding, not a change.
	r = s.command("check", "-against", "absent.yaml")
	if r.code != 1 || r.stdout != "" || !contains(r.stderr, "absent.yaml", "no such file") {
		t.Errorf("exit code %d, want 1:\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// schema prints what an editor can read, for the file that was asked for.
func TestSchemaIsForEditors(t *testing.T) {
	s := newSite(t)
	for file, field := range map[string]string{"routes": "upstreams", "plans": "overrides"} {
		r := s.command("schema", file)
		var schema struct {
			Schema     string `json:"$schema"`
			Properties map[string]any
		}
		if err := json.Unmarshal([]byte(r.stdout), &schema); err != nil || r.code != 0 || r.stderr != "" {
			t.Fatalf("schema %s: exit code %d, %v\n%s", file, r.code, err, r.stderr)
		}
		if schema.Schema != "https://json-schema.org/draft/2020-12/schema" || schema.Properties[field] == nil {
			t.Errorf("schema %s: %s with %d fields", file, schema.Schema, len(schema.Properties))
		}
	}
	for _, args := range [][]string{{"schema"}, {"schema", "keys"}, {"schema", "plans", "routes"}} {
		if r := s.command(args...); r.code != 2 || r.stdout != "" || !contains(r.stderr, "routes and plans") {
			t.Errorf("%q: exit code %d, want 2\n%s%s", args, r.code, r.stdout, r.stderr)
		}
	}
}
