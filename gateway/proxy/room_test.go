package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway/httperr"
	"bouncer/gateway/scope"
)

// roomy returns an upstream of which only the room is used.
func roomy(t *testing.T, o Options) *Upstream {
	t.Helper()
	o.Name, o.Targets = "weather", []Target{{URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}}
	u, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

func enter(t *testing.T, u *Upstream) *Place {
	t.Helper()
	p, refused := u.Enter(t.Context())
	if refused != nil {
		t.Fatalf("refused: %v", refused)
	}
	return &p
}

func wantNoRoom(t *testing.T, u *Upstream, reason string, wait time.Duration) {
	t.Helper()
	p, refused := u.Enter(t.Context())
	if refused == nil || refused.Status != http.StatusServiceUnavailable || refused.Reason != reason || refused.RetryAfter != wait {
		t.Errorf("%+v, want a 503 for %s, to come again in %v", refused, reason, wait)
		p.Leave()
	}
}

func TestOnlySoManyAreInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int32
		u := roomy(t, Options{MaxInFlight: 2, Hooks: Hooks{NoRoom: func(_, reason string) {
			if reason == "no_room" {
				told.Add(1)
			}
		}}})
		a, b := enter(t, u), enter(t, u)
		began := time.Now()
		wantNoRoom(t, u, "no_room", time.Second)
		if waited := time.Since(began); waited != maxWait {
			t.Errorf("waited %v, want %v", waited, maxWait)
		}
		// Who leaves lets the next one in, at once.
		time.AfterFunc(maxWait/2, func() { a.Leave(); a.Leave() })
		began = time.Now()
		c := enter(t, u)
		if waited := time.Since(began); waited != maxWait/2 {
			t.Errorf("waited %v, want %v", waited, maxWait/2)
		}
		// No more wait than there are places.
		answers := make(chan *httperr.Error, 3)
		for range 3 {
			go func() {
				_, refused := u.Enter(t.Context())
				answers <- refused
			}()
		}
		synctest.Wait()
		if len(answers) != 1 {
			t.Errorf("%d of 3 are answered at once, want one", len(answers))
		}
		for range 3 {
			if refused := <-answers; refused == nil {
				t.Error("one got in")
			}
		}
		// Who gives up while waiting is nobody's failure.
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(maxWait/2, cancel)
		if _, refused := u.Enter(ctx); refused == nil || refused.Status != httperr.StatusClientClosedRequest {
			t.Errorf("a client that left: %+v", refused)
		}
		b.Leave()
		c.Leave()
		enter(t, u).Leave()
		if n := told.Load(); n != 4 {
			t.Errorf("told of %d, want 4", n)
		}
	})
}

func TestAnUpstreamThatFailsIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var states []bool
		u := roomy(t, Options{
			Circuit: &Circuit{Errors: 0.5, Window: 10 * time.Second, Open: 5 * time.Second},
			Hooks:   Hooks{Circuit: func(_ string, open bool) { states = append(states, open) }},
		})
		outcomes := func(n int, err error) {
			for range n {
				p := enter(t, u)
				p.tell(err)
				p.Leave()
			}
		}
		broken := errors.New("broken")
		outcomes(19, broken) // too few to say anything
		time.Sleep(11 * time.Second)
		outcomes(11, nil) // the failures have left the window
		outcomes(10, broken)
		outcomes(100, &clientError{"send", context.Canceled}) // says nothing
		if len(states) != 0 {
			t.Fatalf("open at 10 failures of 21: %v", states)
		}
		// Many under way do not hide that all that come back fail.
		var slow []*Place
		for range 100 {
			slow = append(slow, enter(t, u))
		}
		outcomes(1, broken)
		wantNoRoom(t, u, "circuit_open", 5*time.Second)
		for _, p := range slow {
			p.tell(nil)
			p.Leave()
		}
		wantNoRoom(t, u, "circuit_open", 5*time.Second)

		// A few try, and one that fails is enough.
		time.Sleep(5*time.Second + time.Millisecond)
		a, b := enter(t, u), enter(t, u)
		enter(t, u).Leave() // gave up: its place is another's
		c := enter(t, u)
		wantNoRoom(t, u, "circuit_open", 5*time.Second)
		a.tell(nil)
		b.tell(errServerError)
		c.tell(nil)
		wantNoRoom(t, u, "circuit_open", 5*time.Second)
		time.Sleep(5*time.Second + time.Millisecond)
		outcomes(3, nil)
		outcomes(50, nil)
		if len(states) != 2 || !states[0] || states[1] {
			t.Errorf("told %v, want open and closed, once each", states)
		}
	})
}

// Clients that send their bodies slowly do not keep a circuit from being closed again:
// others try in their place. What becomes of their requests is heard all the same.
func TestASlowBodyGivesItsTrialBack(t *testing.T) {
	const open = 2 * time.Second
	for name, decide := range map[string]func(t *testing.T, u *Upstream, slow []*Place) (closed bool){
		"others close it": func(t *testing.T, u *Upstream, slow []*Place) bool {
			for range trials {
				p, b := enter(t, u), &upload{ended: true}
				p.onTrial(b)
				time.Sleep(2 * trialBody) // whoever has sent its body is waited for
				p.tell(nil)
				b.leave()
			}
			return true
		},
		"another opens it": func(t *testing.T, u *Upstream, slow []*Place) bool {
			enter(t, u).tell(errServerError)
			return false
		},
		"a slow one opens it in the end": func(t *testing.T, u *Upstream, slow []*Place) bool {
			slow[0].tell(errServerError)
			return false
		},
		"where all are slow they close it": func(t *testing.T, u *Upstream, slow []*Place) bool {
			for _, p := range slow {
				p.tell(nil)
			}
			return true
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			u := roomy(t, Options{Circuit: &Circuit{Errors: 0.5, Window: 10 * time.Second, Open: open}})
			for range minRequests {
				enter(t, u).tell(errServerError)
			}
			time.Sleep(open + time.Millisecond)
			var slow []*Place
			for range trials {
				p, b := enter(t, u), &upload{}
				p.onTrial(b)
				slow = append(slow, p)
			}
			time.Sleep(trialBody - time.Millisecond)
			wantNoRoom(t, u, "circuit_open", open)
			time.Sleep(2 * time.Millisecond)
			closed := decide(t, u, slow)
			for _, p := range slow {
				p.Leave() // a client that leaves says nothing, and its trial is another's
			}
			if !closed {
				wantNoRoom(t, u, "circuit_open", open)
				return
			}
			for range 2 * trials {
				if p, refused := u.Enter(t.Context()); refused != nil {
					t.Errorf("%s: it is not closed", name)
				} else {
					defer p.Leave()
				}
			}
		})
	}
}

// A panic on the way or a client that leaves holds no place, and the circuit is told
// of answers, not of ends: a stream of hours says at its beginning that all is well.
func TestAnAnswerIsToldToTheCircuitWhenItBegins(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer upstream.Close()
	to, _ := url.Parse(upstream.URL)
	u, err := New(Options{Name: "weather", Targets: []Target{{URL: to}}})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for path, want := range map[string]error{"/good": nil, "/bad": errServerError} {
		told := 0
		p := &Place{done: func(err error) {
			told++
			if !errors.Is(err, want) {
				t.Errorf("%s: told %v, want %v", path, err, want)
			}
		}}
		if e := u.Forward(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil), &scope.Request{}, Forward{Place: p}); e != nil {
			t.Fatal(e)
		}
		if told != 1 {
			t.Errorf("%s: told %d times", path, told)
		}
		if p.Leave(); told != 1 {
			t.Errorf("%s: told again", path)
		}
	}
}
