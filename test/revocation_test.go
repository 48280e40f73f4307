package test

import (
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// A keyWatch uses one key at one gateway all the time, and notes when its answers
// change. Only requests that began after an event say anything about it.
type keyWatch struct {
	mu      sync.Mutex
	answers []keyAnswer
}

type keyAnswer struct {
	began  time.Time
	status int
	policy string // RateLimit-Policy
}

// watchKey asks as fast as one client can until the test ends, with four clients at
// a time.
func watchKey(t *testing.T, g *gateway, key string) *keyWatch {
	w := &keyWatch{}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond): // some 200 a second together
				}
				began := time.Now()
				a, err := trySend(http.MethodGet, g.url+"/weather", nil, "X-API-Key", key)
				if err != nil {
					t.Error(err)
					return
				}
				w.mu.Lock()
				w.answers = append(w.answers, keyAnswer{began, a.status, a.field("RateLimit-Policy")})
				w.mu.Unlock()
			}
		})
	}
	t.Cleanup(func() { close(stop); clients.Wait() })
	return w
}

// changed waits until the answers are as wanted, and stay so for twenty requests
// that began after the first one. It returns how long after the event that began.
func (w *keyWatch) changed(t *testing.T, what string, event time.Time, wanted func(keyAnswer) bool) time.Duration {
	t.Helper()
	var first time.Time
	eventually(t, what, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		first = time.Time{}
		later := 0
		for _, a := range w.answers {
			switch {
			case a.began.Before(event):
			case wanted(a) && first.IsZero():
				first = a.began
			case first.IsZero() || !a.began.After(first.Add(100*time.Millisecond)):
				// One that began just before the first may be noted after it.
			case !wanted(a):
				t.Fatalf("%s: %s after the first such answer came a %d, %s", what, a.began.Sub(first), a.status, a.policy)
			default:
				later++
			}
		}
		return later >= 20
	})
	return first.Sub(event)
}

// E16: a key that is revoked ends on every instance, under load and for good; one that
// is put back works again, and another plan is in force as soon.
func TestE16RevokedKeyEndsOnEveryInstance(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := keysSite(t, newUpstream(t, nil), redisStore(srv.URL()), "", "off")
	key := s.key("-id", "k-leaked", "-user", "priya123", "-plan", "pro")
	s.key("-id", "k-other", "-user", "other")
	before, err := os.ReadFile(s.path("keys.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var watches []*keyWatch
	for range 2 {
		watches = append(watches, watchKey(t, s.start(), key))
	}
	step := func(what string, change func(), wanted func(keyAnswer) bool) {
		t.Helper()
		change()
		event := time.Now()
		for i, w := range watches {
			t.Logf("instance %d: %s after %s", i+1, what, w.changed(t, what, event, wanted).Round(time.Millisecond))
		}
	}
	has := func(status int, q string) func(keyAnswer) bool {
		return func(a keyAnswer) bool { return a.status == status && strings.Contains(a.policy, q) }
	}
	step("the key works", func() {}, has(200, "q=1000000;"))
	step("the first 401", func() {
		if r := s.command("keys", "revoke", "k-leaked"); r.code != 0 {
			t.Error(r.stderr)
		}
	}, has(401, ""))
	step("the key is back", func() { s.write("keys.yaml", string(before)) }, has(200, "q=1000000;"))
	step("the smaller plan", func() {
		s.write("keys.yaml", strings.Replace(string(before), "plan: pro", "plan: free", 1))
	}, func(a keyAnswer) bool { return a.status == 429 && strings.Contains(a.policy, "q=10;") })
	step("revoked on the smaller plan", func() { s.write("keys.yaml", "keys: []\n") }, has(401, ""))
}
