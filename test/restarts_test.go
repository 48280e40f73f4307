package test

import (
	"testing"
)

// FIELD-REPORTS I09: instances that are restarted one after the other, as a deployment does, forget
// nothing of what was spent, and none of them counts for itself alone: of ten an
// hour there are ten, whoever is asked and whoever is away at the time.
func TestARollingRestartGivesNobodyAFreshBudget(t *testing.T) {
	t.Parallel()
	limits := map[string]string{
		"fixed":    "name: l, algorithm: fixed_window, limit: 10/hour",
		"calendar": "name: l, algorithm: fixed_window, limit: 10/month, anchor: calendar",
		"log":      "name: l, algorithm: sliding_window_log, limit: 10/hour",
		"counter":  "name: l, algorithm: sliding_window_counter, limit: 10/week",
		"bucket":   "name: l, algorithm: token_bucket, limit: 10/day",
	}
	var users []string
	for user := range limits {
		users = append(users, user)
	}
	p := newPlanTable(t, users...)
	p.plans(limits)
	instances := []*gateway{p.g, p.start(), p.start()}
	left := int64(10)
	spend := func(g *gateway) {
		t.Helper()
		left--
		p.g = g
		for _, user := range users {
			if a := p.ask(user); a.status != 200 || remaining(t, a) != left {
				t.Errorf("%s: %d with %s left, want 200 with %d", user, a.status, a.field("X-RateLimit-Remaining"), left)
			}
		}
	}
	for i := range 4 {
		spend(instances[i%3])
	}
	for i := range instances {
		instances[i].stop()
		spend(instances[(i+1)%3]) // one of those that are left
		instances[i] = p.start()
		spend(instances[i])
	}
	for i, g := range instances {
		p.g = g
		for _, user := range users {
			if a := p.ask(user); a.status != 429 {
				t.Errorf("%s: the eleventh, asked of instance %d: %d", user, i, a.status)
			}
		}
		g.decidedByItsStore()
	}
}
