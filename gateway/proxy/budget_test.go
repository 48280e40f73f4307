package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway/httperr"
	"bouncer/gateway/scope"
)

func TestBudgetOfRetries(t *testing.T) {
	b := &newRetries(&Retries{Attempts: 1, Budget: 0.1}).budget
	spent := func() (n int) {
		for b.spend() {
			n++
		}
		return n
	}
	earn := func(n int) {
		for range n {
			b.earn()
		}
	}
	if n := spent(); n != 3 {
		t.Errorf("%d at the beginning, want 3", n)
	}
	earn(9)
	if n := spent(); n != 0 {
		t.Errorf("%d after nine requests, want none", n)
	}
	earn(1)
	if n := spent(); n != 1 {
		t.Errorf("%d after ten requests, want one", n)
	}
	earn(1_000_000)
	if n := spent(); n != 100 {
		t.Errorf("%d after a million requests, want 100: what a thousand earn", n)
	}
	for _, o := range []Retries{{0, 0.1}, {11, 0.1}, {1, 0}, {1, 1.01}} {
		if _, err := New(Options{Name: "a", Targets: []Target{{URL: &url.URL{Scheme: "http", Host: "a"}}}, Retries: &o}); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// sick returns an upstream whose targets answer 503 to all requests, over connections
// that exist in memory alone, and a function that tells when requests came.
func sick(t *testing.T, o Options, targets int) (*Upstream, func() []time.Duration) {
	began := time.Now()
	arrived := make(chan time.Duration, 1000)
	o.Name = "weather"
	for range targets {
		o.Targets = append(o.Targets, Target{URL: &url.URL{Scheme: "http", Host: "a"}})
	}
	u, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range u.targets {
		target.transport.Load().DialContext = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				for in := make([]byte, 4096); ; {
					if _, err := there.Read(in); err != nil {
						return
					}
					arrived <- time.Since(began)
					if _, err := io.WriteString(there, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 1\r\n\r\nx"); err != nil {
						return
					}
				}
			}()
			return here, nil
		}
	}
	t.Cleanup(u.Close)
	return u, func() (all []time.Duration) {
		began = time.Now()
		for len(arrived) > 0 {
			all = append(all, <-arrived)
		}
		return all
	}
}

// Each pause is some 25 to 50 ms, doubled each time and bounded, and comes when there
// is no target that was not tried.
func TestPausesBetweenAttempts(t *testing.T) {
	for _, targets := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			u, arrivals := sick(t, Options{Retries: &Retries{Attempts: 10, Budget: 1}}, targets)
			for range 100 {
				u.retries.budget.earn()
			}
			w, s := httptest.NewRecorder(), &scope.Request{}
			if e := u.Forward(w, httptest.NewRequest("GET", "/", nil), s, Forward{}); e != nil || w.Code != 503 || w.Body.String() != "x" {
				t.Errorf("%v %d %q, want the last answer", e, w.Code, w.Body)
			}
			all := arrivals()
			if len(all) != 11 || s.UpstreamAttempts != 11 || s.UpstreamStatus != 503 || s.UpstreamDuration != all[10] {
				t.Fatalf("%d attempts and %+v, want 11", len(all), s)
			}
			most := 50 * time.Millisecond
			for i := 1; i <= 10; i++ {
				d := all[i] - all[i-1]
				if i%targets != 0 {
					if d != 0 {
						t.Errorf("attempt %d at another target waited %v", i, d)
					}
					continue
				}
				if d < most/2 || d > most {
					t.Errorf("before attempt %d: %v, want %v to %v", i, d, most/2, most)
				}
				most = min(2*most, maxPause)
			}
			for _, target := range u.targets {
				if n := target.inFlight.Load(); n != 0 {
					t.Errorf("%d in flight afterwards", n)
				}
			}
			u.Close()
		})
	}
}

// Without a budget that is left, or time, the answer is what there is.
func TestRetriesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := map[string]int{}
		u, arrivals := sick(t, Options{
			Retries: &Retries{Attempts: 1, Budget: 0.1},
			Hooks:   Hooks{Retry: func(_, outcome string) { told[outcome]++ }},
		}, 1)
		for range 100 {
			w := httptest.NewRecorder()
			if e := u.Forward(w, httptest.NewRequest("GET", "/", nil), &scope.Request{}, Forward{}); e != nil || w.Code != 503 {
				t.Fatalf("%v %d", e, w.Code)
			}
		}
		if n := len(arrivals()); n != 113 || told[RetryDone] != 13 || told[RetryBudget] != 87 {
			t.Errorf("%d attempts at 100 requests, told %v; want a tenth more, and the three there are", n, told)
		}

		for range 1000 {
			u.retries.budget.earn()
		}
		s := &scope.Request{}
		e := u.Forward(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), s, Forward{Timeout: 10 * time.Millisecond})
		if n := len(arrivals()); n != 1 || e == nil || e.Status != http.StatusGatewayTimeout || s.UpstreamErr == nil {
			t.Errorf("beyond the route's time: %d attempts, %+v", n, e)
		}
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, leave)
		e = u.Forward(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil), s, Forward{})
		if n := len(arrivals()); n != 1 || e == nil || e.Status != httperr.StatusClientClosedRequest || !errors.Is(s.UpstreamErr, ErrClient) {
			t.Errorf("a client that left: %d attempts, %+v", n, e)
		}
		if n := u.targets[0].inFlight.Load(); n != 0 {
			t.Errorf("%d in flight afterwards", n)
		}
		u.Close()
	})
}
