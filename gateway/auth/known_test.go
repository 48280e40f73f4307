package auth_test

import (
	"crypto"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"bouncer/gateway/auth"
)

// known looks with OnlyKnown and says what came of it.
func known(t testing.TB, a *auth.Authenticator, line string) string {
	t.Helper()
	p, err := a.Authenticate(request(line), auth.Check{OnlyKnown: true})
	switch {
	case err == nil:
		return "user " + p.User
	case errors.Is(err, auth.ErrNotKnown):
		return "not known"
	}
	return err.Error()
}

// Once an address has failed too often, only what was verified before
// passes, and looking so teaches nothing.
func TestOnlyKnown(t *testing.T) {
	clock := &now1{t: now}
	issuer := hs256()
	issuer.Cookie = "session"
	expiring := key("k-2", keyPlain)
	expiring.Expires = now.Add(time.Minute)
	a := newAuth(t, auth.Options{
		Issuers: []auth.Issuer{issuer}, APIKeys: true, Keys: []auth.Key{key("k-1", keyOne), expiring}, Now: clock.now,
	})
	bearerLine := "Authorization: Bearer " + token()
	lines := []string{bearerLine, "Cookie: session=" + token("sub", "in-cookie"), "X-API-Key: " + keyOne, "X-API-Key: " + keyPlain}
	for range 2 { // a look with OnlyKnown makes nothing known
		for _, line := range lines {
			if got := known(t, a, line); got != "not known" {
				t.Errorf("before its first use, %.20s: %s", line, got)
			}
		}
	}
	for _, bad := range []string{
		"X-API-Key: wrong", "X-API-Key: ", "Authorization: Bearer", "Authorization: Bearer x", "Cookie: session=x; session=y",
		"Authorization: Bearer " + token("exp", 1), "X-API-Key: " + strings.Repeat("x", 1<<16),
	} {
		_, _ = a.Authenticate(request(bad), auth.Check{}) // refused, which makes nothing known either
		if got := known(t, a, bad); got != "not known" {
			t.Errorf("bad, %.30s: %s", bad, got)
		}
	}
	if got := known(t, a, "Accept: */*"); got != auth.ErrNoCredentials.Error() {
		t.Errorf("nothing presented: %s", got)
	}
	for _, line := range lines {
		if got := reason(t, a, request(line)); !strings.HasPrefix(got, "user ") {
			t.Errorf("%.20s: %s", line, got)
		}
		if got := known(t, a, line); !strings.HasPrefix(got, "user ") {
			t.Errorf("after its first use, %.20s: %s", line, got)
		}
	}
	if got := known(t, a, "Cookie: session="+token()); got != "user priya123" {
		t.Errorf("the header's token in the cookie: %s", got)
	}

	clock.t = now.Add(2 * time.Hour) // the key's and the tokens' time is over
	for i, want := range []string{"not known", "not known", "user user-of-k-1", "not known"} {
		if got := known(t, a, lines[i]); got != want {
			t.Errorf("two hours later, %.20s: %s, want %s", lines[i], got, want)
		}
	}
}

// now1 is a clock that the test moves.
type now1 struct{ t time.Time }

func (c *now1) now() time.Time { return c.t }

// A token in the cache is honoured exactly while it is valid.
func TestCacheEndsWithTheToken(t *testing.T) {
	clock := &now1{t: now}
	issuer := hs256()
	issuer.Leeway = 30 * time.Second
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{issuer}, Now: clock.now})
	r := bearer(token("nbf", now.Add(10*time.Second).Unix(), "exp", now.Add(time.Minute).Unix()))
	for _, tt := range []struct {
		after time.Duration
		want  string
	}{
		{-21 * time.Second, "not_yet_valid"}, // and that is not remembered
		{-20 * time.Second, "user priya123"},
		{0, "user priya123"},
		{90*time.Second - 1, "user priya123"},
		{90 * time.Second, "expired"},
		{time.Hour, "expired"},
		{0, "user priya123"},
		{-21 * time.Second, "not_yet_valid"}, // a clock set back
	} {
		clock.t = now.Add(tt.after)
		if got := reason(t, a, r); got != tt.want {
			t.Errorf("at %v: %s, want %s", tt.after, got, tt.want)
		}
		// What verified is remembered for as long as it would verify again.
		wantKnown := strings.HasPrefix(tt.want, "user ")
		if _, err := a.Authenticate(r, auth.Check{OnlyKnown: true}); (err == nil) != wantKnown {
			t.Errorf("at %v, from the cache: %v", tt.after, err)
		}
	}
}

// The cache is bounded: the tokens used last stay.
func TestCacheIsBounded(t *testing.T) {
	for _, size := range []int{1, 10, 1100} {
		a := newAuth(t, auth.Options{Issuers: []auth.Issuer{hs256()}, TokenCacheSize: size})
		line := func(i int) string { return "Authorization: Bearer " + token("sub", fmt.Sprint("u", i)) }
		for i := range 2 * size {
			if got := reason(t, a, request(line(i))); got != fmt.Sprint("user u", i) {
				t.Fatal(got)
			}
		}
		remembered := 0
		for i := range 2 * size {
			if known(t, a, line(i)) != "not known" {
				remembered++
			}
		}
		if remembered == 0 || remembered > size+16 {
			t.Errorf("size %d: %d tokens remembered", size, remembered)
		}
		if got := known(t, a, line(2*size-1)); got == "not known" {
			t.Errorf("size %d: the token used last is forgotten", size)
		}
	}
}

// A reload that revokes a key ends it at once, one that changes its plan
// changes it at once, and what did not change stays known.
func TestRevokedKeyEndsWithTheReload(t *testing.T) {
	issuer := hs256()
	changed, renamed := key("k-1", keyOne), key("k-9", keyPlain)
	changed.Plan = "free"
	old := newAuth(t, auth.Options{
		Issuers: []auth.Issuer{issuer}, APIKeys: true,
		Keys: []auth.Key{key("k-1", keyOne), key("k-2", keyPlain), key("k-3", "to be revoked"), key("k-4", "never used")},
	})
	lines := []string{"X-API-Key: " + keyOne, "X-API-Key: " + keyPlain, "X-API-Key: to be revoked", "Authorization: Bearer " + token()}
	for _, line := range lines {
		reason(t, old, request(line))
	}
	next := newAuth(t, auth.Options{
		Issuers: []auth.Issuer{issuer}, APIKeys: true, Previous: old,
		Keys: []auth.Key{changed, renamed, key("k-4", "never used"), key("k-5", "new")},
	})
	for line, want := range map[string]string{
		lines[0]:                "user user-of-k-1", // another plan, the same key
		lines[1]:                "not known",        // the same key under another id
		lines[2]:                "not known",        // revoked
		lines[3]:                "user priya123",
		"X-API-Key: never used": "not known",
		"X-API-Key: new":        "not known",
	} {
		if got := known(t, next, line); got != want {
			t.Errorf("%.25s: %s, want %s", line, got, want)
		}
	}
	if p, err := next.Authenticate(request(lines[0]), auth.Check{}); err != nil || p.Plan != "free" {
		t.Errorf("the plan is %q, %v; want the new one", p.Plan, err)
	}
	if got := reason(t, next, request(lines[2])); got != "unknown_key" {
		t.Errorf("revoked: %s", got)
	}
	if got := reason(t, old, request(lines[2])); got != "user user-of-k-3" {
		t.Errorf("a request that keeps the old configuration: %s", got)
	}
	// A request under the old configuration makes a key known under the new one.
	reason(t, old, request("X-API-Key: never used"))
	if got := known(t, next, "X-API-Key: never used"); got != "user user-of-k-4" {
		t.Errorf("used under the old configuration: %s", got)
	}
	again := newAuth(t, auth.Options{APIKeys: true, Previous: newAuth(t, auth.Options{Previous: next}), Keys: []auth.Key{changed}})
	if got := known(t, again, lines[0]); got != "not known" {
		t.Errorf("after a configuration without keys: %s", got)
	}
}

// Verified tokens outlive a reload only if everything about issuers is as it was.
func TestReloadForgetsTokensOfChangedIssuers(t *testing.T) {
	base := func() auth.Issuer {
		i := hs256()
		i.Secrets = [][]byte{secretA, secretB}
		i.Audience = []string{"api"}
		return i
	}
	line := "Authorization: Bearer " + sign("HS256", secretA, nil, claims("aud", "api"))
	for name, change := range map[string]func(*auth.Options){
		"nothing":       func(*auth.Options) {},
		"a key":         func(o *auth.Options) { o.APIKeys = true },
		"secret":        func(o *auth.Options) { o.Issuers[0].Secrets = [][]byte{secretB} },
		"secrets order": func(o *auth.Options) { o.Issuers[0].Secrets = [][]byte{secretB, secretA} },
		"audience":      func(o *auth.Options) { o.Issuers[0].Audience = []string{"api", "x"} },
		"leeway":        func(o *auth.Options) { o.Issuers[0].Leeway = time.Second },
		"claims":        func(o *auth.Options) { o.Issuers[0].Claims.Plan = "" },
		"algorithms":    func(o *auth.Options) { o.Issuers[0].Algorithms = []string{"HS512"} },
		"cookie":        func(o *auth.Options) { o.Issuers[0].Cookie = "session" },
		"name":          func(o *auth.Options) { o.Issuers[0].Issuer = issuerB },
		"another issuer": func(o *auth.Options) {
			o.Issuers = append(o.Issuers, auth.Issuer{Issuer: issuerB, Algorithms: []string{"EdDSA"}, PublicKeys: []crypto.PublicKey{edKey.Public()}})
		},
		"size": func(o *auth.Options) { o.TokenCacheSize = 7 },
	} {
		old := newAuth(t, auth.Options{Issuers: []auth.Issuer{base()}})
		reason(t, old, request(line))
		o := auth.Options{Issuers: []auth.Issuer{base()}, Previous: old}
		change(&o)
		want := "not known"
		if name == "nothing" || name == "a key" {
			want = "user priya123"
		}
		if got := known(t, newAuth(t, o), line); got != want {
			t.Errorf("changed: %s: %s, want %s", name, got, want)
		}
	}
}

// Key expiry is an instant: before it the key works, from it on it does not.
func TestKeyExpiry(t *testing.T) {
	clock := &now1{}
	k := key("k-1", keyOne)
	k.Expires = now
	a := newAuth(t, auth.Options{APIKeys: true, Keys: []auth.Key{k}, Now: clock.now})
	for after, want := range map[time.Duration]string{-1: "user user-of-k-1", 0: "expired", 1: "expired"} {
		clock.t = now.Add(after)
		if got := reason(t, a, request("X-API-Key: "+keyOne)); got != want {
			t.Errorf("%v after its end: %s, want %s", after, got, want)
		}
	}
}

// Many callers at once, and reloads under them: for the race detector, and
// nobody gets another's identity.
func TestConcurrentUse(t *testing.T) {
	issuer := hs256()
	options := func(previous *auth.Authenticator) auth.Options {
		return auth.Options{Issuers: []auth.Issuer{issuer}, APIKeys: true, Keys: []auth.Key{key("k-1", keyOne), key("k-2", keyPlain)}, TokenCacheSize: 3, Previous: previous, Now: clock}
	}
	a := newAuth(t, options(nil))
	var wg sync.WaitGroup
	for i := range 8 {
		user := fmt.Sprint("u", i)
		tok, current := token("sub", user), a
		wg.Go(func() {
			for n := range 200 {
				if n%50 == 49 {
					next, err := auth.New(options(current))
					if err != nil {
						t.Error(err)
						return
					}
					current = next
				}
				if got := reason(t, current, bearer(tok)); got != "user "+user {
					t.Error(got)
				}
				if got := reason(t, current, request("X-API-Key: "+keyOne)); got != "user user-of-k-1" {
					t.Error(got)
				}
				current.Strip(bearer(tok).Header)
			}
		})
	}
	wg.Wait()
}

// What `gateway keys new` prints is accepted, its typos are told from wrong keys.
func TestNewKey(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		k, id, digest, err := auth.NewKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if seen[k] || seen[id] || !strings.HasPrefix(k, "bn_live_"+strings.TrimPrefix(id, "k-")+"_") || len(k) != 66 {
			t.Fatalf("key %q, id %q", k, id)
		}
		seen[k], seen[id] = true, true
		a := newAuth(t, auth.Options{APIKeys: true, Keys: []auth.Key{{ID: id, SHA256: digest}}})
		for _, line := range []string{"X-API-Key: ", "Authorization: ApiKey "} {
			if got := reason(t, a, request(line+k)); got != "user key:"+id {
				t.Fatalf("%s: %s", line, got)
			}
		}
		for i := len("bn_live_"); i < len(k); i++ {
			typo := k[:i] + string(rune(k[i])^1) + k[i+1:]
			if got := reason(t, a, request("X-API-Key: "+typo)); got != "checksum" {
				t.Fatalf("byte %d mistyped: %s", i, got)
			}
		}
		if got := reason(t, a, request("X-API-Key: "+k[:len(k)-1])); got != "checksum" {
			t.Fatalf("cut: %s", got)
		}
		other, _, _, _ := auth.NewKey(rand.Reader)
		if got := reason(t, a, request("X-API-Key: "+other)); got != "unknown_key" {
			t.Fatalf("a whole key that is not configured: %s", got)
		}
	}
	if _, _, _, err := auth.NewKey(strings.NewReader("too short")); err == nil {
		t.Error("a source of randomness that ends early is no error")
	}
	// Bits all zero and all one keep the length, too.
	for _, b := range []string{"\x00", "\xff"} {
		if k, _, _, err := auth.NewKey(strings.NewReader(strings.Repeat(b, 36))); err != nil || len(k) != 66 {
			t.Errorf("%q: %d bytes, %v", b, len(k), err)
		}
	}
}
