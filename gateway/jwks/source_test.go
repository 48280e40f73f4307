package jwks_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway/jwks"
)

// A provider answers without a network, so that it can live in a bubble.
type provider struct {
	mu     sync.Mutex
	asked  []string // the URLs, in order
	tags   []string // the If-None-Match of each
	answer func(*http.Request) (*http.Response, error)
}

func (p *provider) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	p.asked = append(p.asked, r.URL.String())
	p.tags = append(p.tags, r.Header.Get("If-None-Match"))
	answer := p.answer
	p.mu.Unlock()
	return answer(r)
}

func (p *provider) serve(answer func(*http.Request) (*http.Response, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *provider) fetches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

func reply(status int, body string, fields ...string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		h := http.Header{}
		for _, f := range fields {
			name, value, _ := strings.Cut(f, ": ")
			h.Add(name, value)
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
}

// stall answers when the request is given up.
func stall(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func broken(*http.Request) (*http.Response, error) { return nil, errors.New("broken") }

var (
	keyA = jwk("a", &rsaKey.PublicKey, nil)
	keyB = jwk("b", &p256Key.PublicKey, nil)
)

const keysURL = "https://login.example.com/keys"

// start starts a Source and waits for its first fetch. It is closed with the test.
func start(t *testing.T, p *provider, o jwks.Options) *jwks.Source {
	t.Helper()
	if o.URL == "" && o.Issuer == "" {
		o.URL = keysURL
	}
	o.Transport = p
	s, err := jwks.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(s.Close)
	<-s.Tried()
	return s
}

func has(s *jwks.Set, kid string) bool { return s != nil && len(s.Find(kid)) == 1 }

func wantFetches(t *testing.T, p *provider, want int) {
	t.Helper()
	if got := p.fetches(); got != want {
		t.Errorf("the provider was asked %d times, want %d", got, want)
	}
}

// FIELD-REPORTS: random key ids make a gateway hammer the identity provider, or a
// real rotation is not noticed for all the false ones.
func TestRandomKidsCostTheProviderNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{answer: reply(200, set(keyA))}
		s := start(t, p, jwks.Options{})
		ctx := t.Context()
		began := time.Now()
		rotated := time.Time{}
		for i := range 60 * 100 { // a hundred tokens a second, for a minute
			if i == 3333 {
				p.serve(reply(200, set(keyA, keyB)))
				rotated = time.Now()
			}
			before := time.Now()
			set, _ := s.Missing(ctx)
			if d := time.Since(before); d > jwks.MaxWait {
				t.Fatalf("a token waited %v", d)
			}
			if !has(set, "a") {
				t.Fatal("a known key is gone")
			}
			if !rotated.IsZero() && has(set, "b") {
				if d := time.Since(rotated); d > jwks.CoolDown {
					t.Errorf("the new key was noticed after %v, want %v at most", d, jwks.CoolDown)
				}
				rotated = time.Time{}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !rotated.IsZero() {
			t.Error("the new key was never noticed")
		}
		if most := 2 + int(time.Since(began)/jwks.CoolDown); p.fetches() > most {
			t.Errorf("the provider was asked %d times, want %d at most", p.fetches(), most)
		}
	})
}

func TestAllWhoMissAKeyShareOneFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{answer: reply(200, set(keyA))}
		s := start(t, p, jwks.Options{})
		release := make(chan struct{})
		p.serve(func(r *http.Request) (*http.Response, error) {
			<-release
			return reply(200, set(keyA, keyB))(r)
		})
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if set, heard := s.Missing(t.Context()); !has(set, "b") || !heard {
					t.Error("the new key was not seen")
				}
			})
		}
		synctest.Wait()
		wantFetches(t, p, 2)
		time.Sleep(50 * time.Millisecond)
		close(release)
		all.Wait()
		wantFetches(t, p, 2)
	})
}

func TestAStalledProviderHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{answer: reply(200, set(keyA))}
		s := start(t, p, jwks.Options{})
		p.serve(stall)
		for n, want := range []time.Duration{100 * time.Millisecond, 0, 0} { // who comes later waits for the rest
			before := time.Now()
			got, heard := s.Missing(t.Context())
			if heard {
				t.Errorf("call %d: heard of a provider that has not answered", n)
			}
			if !has(got, "a") {
				t.Error("the known key is gone")
			}
			if d := time.Since(before); d != want {
				t.Errorf("call %d waited %v, want %v", n, d, want)
			}
		}
		left, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		time.Sleep(jwks.CoolDown)
		before := time.Now()
		s.Missing(left)
		if d := time.Since(before); d != 0 {
			t.Errorf("a caller that had left waited %v", d)
		}
		time.Sleep(time.Minute) // each stalled fetch ends by itself
		if err := s.State().Err; err == nil || !strings.Contains(err.Error(), "no answer in 5s") {
			t.Errorf("State says %v", err)
		}
		if !has(s.Keys(), "a") {
			t.Error("the known key is gone")
		}
	})
}

// Whether a key is unknown can only be said once the provider was heard: while it is
// slow or away, a good token of a new key looks like any other.
func TestAKeyIsUnknownOnlyOnceTheProviderWasHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{answer: reply(200, set(keyA))}
		s := start(t, p, jwks.Options{})
		want := func(when, kid string, want bool) {
			t.Helper()
			got, heard := s.Missing(t.Context())
			if heard != want || has(got, kid) != want {
				t.Errorf("%s: heard %t, key %s is there: %t; want both %t", when, heard, kid, has(got, kid), want)
			}
		}
		want("the provider answers", "a", true)
		time.Sleep(jwks.CoolDown)
		p.serve(func(r *http.Request) (*http.Response, error) {
			time.Sleep(300 * time.Millisecond)
			return reply(200, set(keyA, keyB))(r)
		})
		want("it takes its time", "b", false)
		want("it still does", "b", false)
		time.Sleep(jwks.CoolDown / 2)
		want("its answer is there", "b", true)
		time.Sleep(jwks.CoolDown)
		p.serve(reply(500, "later"))
		if _, heard := s.Missing(t.Context()); heard {
			t.Error("heard of a provider that answers with 500")
		}
		p.serve(reply(200, set(keyA)))
		time.Sleep(2 * time.Second) // it is asked again after a failure
		synctest.Wait()
		want("it answers again", "a", true)
	})
}

// The provider publishes a key before it signs with it, withdraws the old one later,
// and in the end puts another in its place under the same name.
func TestRotationIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{answer: reply(200, set(keyA))}
		var changes int
		s := start(t, p, jwks.Options{Hooks: jwks.Hooks{Changed: func(*jwks.Set) { changes++ }}})
		p.serve(reply(200, set(keyA, keyB)))
		time.Sleep(jwks.DefaultRefresh)
		synctest.Wait()
		both := s.Keys()
		if !has(both, "a") || !has(both, "b") {
			t.Fatal("the new key did not come with the refresh")
		}
		time.Sleep(jwks.DefaultRefresh)
		synctest.Wait()
		if s.Keys() != both {
			t.Error("the same keys are another set")
		}
		p.serve(reply(200, set(keyB)))
		time.Sleep(jwks.DefaultRefresh)
		synctest.Wait()
		if got := s.Keys(); has(got, "a") || !has(got, "b") {
			t.Error("the withdrawn key still holds")
		}
		p.serve(reply(200, set(jwk("b", &rsaKey.PublicKey, nil))))
		before := time.Now()
		s.Doubt()
		if d := time.Since(before); d != 0 {
			t.Errorf("Doubt waited %v", d)
		}
		synctest.Wait()
		if b := s.Keys().Find("b"); len(b) != 1 || !rsaKey.PublicKey.Equal(b[0].Public) {
			t.Error("the key of the same name was not replaced")
		}
		if changes != 4 {
			t.Errorf("%d changes told, want 4", changes)
		}
	})
}

func TestAProviderThatIsAway(t *testing.T) {
	for name, answer := range map[string]func(*http.Request) (*http.Response, error){
		"breaks off":    broken,
		"stalls":        stall,
		"not found":     reply(404, "not found"),
		"an error":      reply(500, set(keyB)),
		"HTML":          reply(200, "<html>", "Content-Type: text/html"),
		"huge":          reply(200, set(keyB)+strings.Repeat(" ", jwks.MaxBytes)),
		"an empty set":  reply(200, set()),
		"no usable key": reply(200, set("null")),
		"a redirect":    reply(302, "", "Location: https://elsewhere.example.com/keys"),
		"304 unasked":   reply(304, ""),
		"no content":    reply(204, ""),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &provider{answer: reply(200, set(keyA))}
				var told []string
				tell := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
				s := start(t, p, jwks.Options{
					Refresh: time.Hour, MaxStale: 3 * time.Hour,
					Hooks: jwks.Hooks{
						Away:   func(error) { tell("away") },
						Back:   func(d time.Duration) { tell("back") },
						TooOld: func(d time.Duration) { tell("too old after %v", d) },
					},
				})
				good := s.State().Fetched
				p.serve(answer)
				time.Sleep(3*time.Hour - time.Second)
				synctest.Wait()
				if !has(s.Keys(), "a") {
					t.Error("the last good set does not hold")
				}
				st := s.State()
				if st.Err == nil || st.Since.IsZero() || !st.Fetched.Equal(good) {
					t.Errorf("State says %+v", st)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if s.Keys() != nil || !s.State().TooOld {
					t.Error("keys that are too old still hold")
				}
				if n := p.fetches(); n < 100 || n > 200 { // once a minute, with jitter and the time it takes, for two hours
					t.Errorf("asked %d times while it is away", n)
				}
				p.serve(reply(200, set(keyA)))
				time.Sleep(time.Minute + 6*time.Second) // one may have stalled till now
				synctest.Wait()
				if !has(s.Keys(), "a") || s.State().Err != nil || s.State().TooOld {
					t.Error("it is back, and the keys are not")
				}
				if want := []string{"away", "too old after 3h0m0s", "back"}; !slices.Equal(told, want) {
					t.Errorf("told %q, want %q", told, want)
				}
			})
		})
	}
}

// However a fetch and the end of the keys fall together: the end is on time.
func TestAStalledFetchKeepsNoOldKey(t *testing.T) {
	for range 20 { // the times of fetches have jitter
		synctest.Test(t, func(t *testing.T) {
			p := &provider{answer: reply(200, set(keyA))}
			s := start(t, p, jwks.Options{Refresh: 10 * time.Second, MaxStale: 12 * time.Second})
			p.serve(stall)
			time.Sleep(12*time.Second - 1)
			synctest.Wait()
			if !has(s.Keys(), "a") {
				t.Error("the last good set does not hold")
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if s.Keys() != nil || !s.State().TooOld {
				t.Error("keys that are too old still hold")
			}
		})
	}
}

func TestAProviderThatIsAwayAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{answer: broken}
		s := start(t, p, jwks.Options{})
		if s.Keys() != nil || s.State().Err == nil || s.State().TooOld {
			t.Error("keys without a provider")
		}
		p.serve(reply(200, set(keyA)))
		time.Sleep(time.Second)
		synctest.Wait()
		if !has(s.Keys(), "a") {
			t.Error("a second later the keys are not there")
		}
	})
}

func TestTheProviderSaysHowLongItsAnswerIsGood(t *testing.T) {
	for name, c := range map[string]struct {
		fields []string
		next   time.Duration // when it is asked again, up to a tenth sooner
	}{
		"nothing":          {nil, 10 * time.Minute},
		"five minutes":     {[]string{"Cache-Control: public, max-age=300"}, 5 * time.Minute},
		"quoted":           {[]string{`Cache-Control: Max-Age="300"`}, 5 * time.Minute},
		"five, two old":    {[]string{"Cache-Control: max-age=300", "Age: 120"}, 3 * time.Minute},
		"two of them":      {[]string{"Cache-Control: max-age=300, max-age=500", "Cache-Control: max-age=540"}, 5 * time.Minute},
		"longer than ours": {[]string{"Cache-Control: max-age=86400"}, 10 * time.Minute},
		"beyond numbers":   {[]string{"Cache-Control: max-age=99999999999999999999"}, 10 * time.Minute},
		"a second":         {[]string{"Cache-Control: max-age=1"}, time.Minute},
		"none":             {[]string{"Cache-Control: no-store"}, time.Minute},
		"nonsense":         {[]string{"Cache-Control: max-age=-5, ,=,max-age=x"}, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &provider{answer: reply(200, set(keyA), c.fields...)}
				start(t, p, jwks.Options{})
				time.Sleep(c.next*9/10 - time.Second)
				synctest.Wait()
				wantFetches(t, p, 1)
				time.Sleep(c.next/10 + 2*time.Second)
				synctest.Wait()
				wantFetches(t, p, 2)
			})
		})
	}
}

func TestRetryAfterOfTheProviderHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{answer: reply(429, "", "Retry-After: 300")}
		start(t, p, jwks.Options{})
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		wantFetches(t, p, 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		wantFetches(t, p, 2)
	})
}

func TestWhatHasNotChangedIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outcomes []jwks.Outcome
		p := &provider{answer: func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("If-None-Match") == `"v1"` {
				return reply(304, "")(r)
			}
			return reply(200, set(keyA), `ETag: "v1"`)(r)
		}}
		s := start(t, p, jwks.Options{Hooks: jwks.Hooks{Fetched: func(o jwks.Outcome) { outcomes = append(outcomes, o) }}})
		first := s.Keys()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if s.Keys() != first {
			t.Error("not modified, and another set")
		}
		if age := time.Since(s.State().Fetched); age > 2*time.Minute {
			t.Errorf("not modified is a good answer; the last one is said to be %v old", age)
		}
		if want := []jwks.Outcome{jwks.Fetched, jwks.NotModified}; !slices.Equal(outcomes, want) {
			t.Errorf("outcomes %v, want %v", outcomes, want)
		}
		if want := []string{"", `"v1"`}; !slices.Equal(p.tags, want) {
			t.Errorf("asked with the tags %q, want %q", p.tags, want)
		}
	})
}

func TestDiscovery(t *testing.T) {
	const issuer = "https://login.example.com/tenant/"
	document := func(issuer, set string) string {
		return fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q,"more":[]}`, issuer, set)
	}
	for name, c := range map[string]struct {
		document, want string
	}{
		"good":                {document(issuer, keysURL), ""},
		"of another issuer":   {document("https://evil.example.com/", keysURL), "want exactly"},
		"without its slash":   {document(strings.TrimSuffix(issuer, "/"), keysURL), "but for the slash at its end"},
		"without a set":       {document(issuer, ""), "no jwks_uri"},
		"a set over http":     {document(issuer, "http://login.example.com/keys"), "http"},
		"a set that is local": {document(issuer, "file:///etc/passwd"), "its jwks_uri cannot be used: it is not https"},
		"a set on our own":    {document(issuer, "http://127.0.0.1:8500/keys"), "its jwks_uri cannot be used: it is http, and the issuer is https"},
		"the same, shouted":   {document(issuer, "HTTP://localhost/keys"), "its jwks_uri cannot be used: it is http, and the issuer is https"},
		"HTML":                {"<html>", "HTML"},
		"types mixed up":      {`{"issuer":7,"jwks_uri":[]}`, "not JSON of the form"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &provider{answer: func(r *http.Request) (*http.Response, error) {
					if r.URL.String() == issuer+".well-known/openid-configuration" {
						return reply(200, c.document)(r)
					}
					return reply(200, set(keyA))(r)
				}}
				s := start(t, p, jwks.Options{Issuer: issuer})
				err := s.State().Err
				if c.want == "" {
					if err != nil || !has(s.Keys(), "a") || s.State().From != keysURL {
						t.Fatalf("got %+v", s.State())
					}
					time.Sleep(50 * time.Minute)
					synctest.Wait()
					if n := p.fetches(); n > 9 {
						t.Errorf("asked %d times in 50 minutes; the document is good for an hour", n)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), c.want) || s.Keys() != nil {
					t.Errorf("got %v, want an error with %q", err, c.want)
				}
				for _, u := range p.asked {
					if !strings.HasPrefix(u, issuer) {
						t.Errorf("%s was asked", u)
					}
				}
			})
		})
	}
}

// An answer that says that nothing changed, to a question that named no version, is no
// redirect, and the log does not send anybody to look for one.
func TestWhatIsSaidOfA304(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &provider{answer: reply(304, "")}, jwks.Options{})
		if err := s.State().Err; err == nil || strings.Contains(err.Error(), "redirect") || !strings.Contains(err.Error(), "304") {
			t.Errorf("got %v", err)
		}
	})
}

func TestAProviderThatMovesItsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const issuer = "https://login.example.com"
		var at atomic.Value
		at.Store("https://login.example.com/old")
		p := &provider{}
		p.serve(func(r *http.Request) (*http.Response, error) {
			switch r.URL.String() {
			case issuer + "/.well-known/openid-configuration":
				return reply(200, fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, issuer, at.Load()))(r)
			case at.Load():
				return reply(200, set(keyA), `ETag: "same"`)(r)
			}
			return reply(404, "")(r)
		})
		s := start(t, p, jwks.Options{Issuer: issuer})
		at.Store("https://login.example.com/new")
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if st := s.State(); st.Err != nil || st.From != at.Load() {
			t.Errorf("State says %+v", st)
		}
		if tag := p.tags[len(p.tags)-1]; tag != "" {
			t.Errorf("the tag %s of one URL was sent to another", tag)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble ends only when every goroutine has
		p := &provider{answer: reply(200, set(keyA))}
		s := start(t, p, jwks.Options{Hooks: jwks.Hooks{Away: func(err error) { t.Errorf("away: %v", err) }}})
		p.serve(stall)
		s.Doubt()
		synctest.Wait()
		before := time.Now()
		s.Close()
		s.Close()
		if d := time.Since(before); d != 0 {
			t.Errorf("Close waited %v for a stalled fetch", d)
		}
		time.Sleep(time.Hour)
		n := p.fetches()
		if set, _ := s.Missing(t.Context()); !has(set, "a") || p.fetches() != n {
			t.Error("after Close the keys stay, and nobody is asked")
		}
	})
}

func TestNeverStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{answer: reply(200, set(keyA))}
		s, err := jwks.New(jwks.Options{URL: keysURL, Transport: p})
		if err != nil {
			t.Fatal(err)
		}
		s.Doubt()
		synctest.Wait()
		if set, _ := s.Missing(t.Context()); s.Keys() != nil || set != nil || p.fetches() != 0 {
			t.Error("somebody was asked before Start")
		}
		s.Close()
	})
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o    jwks.Options
		want string
	}{
		"http":      {jwks.Options{URL: "http://user:secret@login.example.com/keys?secret"}, "login.example.com/keys: it is http"},
		"no issuer": {jwks.Options{}, "not https"},
		"too often": {jwks.Options{URL: keysURL, Refresh: time.Second}, "refresh"},
		"too short": {jwks.Options{URL: keysURL, MaxStale: time.Minute}, "max_stale"},
	} {
		_, err := jwks.New(c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}
