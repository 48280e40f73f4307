package config

import (
	"os"
	"strings"
	"testing"
)

// refused is what notYet holds. The tests of this package are of what a file
// means once the gateway can do all of it, so they run with nothing refused.
var refused = notYet

func TestMain(m *testing.M) {
	notYet = nil
	os.Exit(m.Run())
}

// What the gateway cannot do yet is refused where it stands, never ignored.
func TestNotYet(t *testing.T) {
	samples := map[string]string{
		SlidingWindowLog:     "limits: {a: {per: ip, algorithm: sliding_window_log, limit: 5/minute}}",
		SlidingWindowCounter: "limits: {a: {per: ip, algorithm: sliding_window_counter, limit: 5/minute}}",
		LeakyBucket:          "limits: {a: {per: ip, algorithm: leaky_bucket, limit: 5/minute}}",
		"anchor: calendar":   "limits: {a: {per: ip, algorithm: fixed_window, limit: 5/day, anchor: calendar}}",
		"count_rejected":     "limits: {a: {per: ip, algorithm: fixed_window, limit: 5/day, count_rejected: true}}",
		"mode: shadow":       "limits: {a: {per: ip, algorithm: fixed_window, limit: 5/day, mode: shadow}}",
		"candidate":          "limits: {a: {per: ip, algorithm: fixed_window, limit: 5/day, candidate: {limit: 6/day}}}",
		"urls":               "store: {redis: {urls: [redis://a]}}",
		"usage_path":         "usage_path: /usage",
	}
	for _, what := range refused {
		sample, ok := samples[what]
		if !ok {
			t.Errorf("no sample of %q", what)
		}
		files := map[string]string{"routes.yaml": smallRoutes + sample + "\n"}
		if c, got := problems(t, files); c == nil || got != "" {
			t.Errorf("%s is wrong in itself: %s", what, got)
		}
		notYet = []string{what}
		c, got := problems(t, files)
		notYet = nil
		if c != nil || strings.Count(got, "\n") != 1 || !strings.Contains(got, what+" is not supported yet") {
			t.Errorf("%s is not refused: %s", what, got)
		}
	}
}
