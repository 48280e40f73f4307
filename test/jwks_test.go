package test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// accepted waits until the gateway takes a token.
func (g *gateway) accepted(what string, fields []string) {
	g.t.Helper()
	eventually(g.t, what, func() bool { return g.get("/", fields...).status == 200 })
}

// degraded says what /readyz says of a part; empty if it is well.
func (g *gateway) degraded(part string) string {
	g.t.Helper()
	a := send(g.t, "GET", g.admin+"/readyz", nil)
	if a.status != 200 {
		g.t.Fatalf("/readyz: %d %s", a.status, a.body)
	}
	if !strings.Contains(a.body, part) {
		return ""
	}
	return a.body
}

// E02 Key rotation not noticed: a provider publishes a new key beside the old one,
// signs with it, and withdraws the old one; then it puts other material under the
// same kid. Nothing is restarted.
func TestE02KeyRotationIsNoticed(t *testing.T) {
	t.Parallel()
	old, fresh := newSigner("old"), newSigner("new")
	p := newIdentityProvider(t, old)
	g := providerSite(t, "off", p.byURL("")).start()
	g.accepted("the first key", p.token(old, "before"))
	began, before := time.Now(), p.fetched()

	p.publish(old, fresh)
	g.accepted("the new key", p.token(fresh, "first"))
	remembered := p.token(old, "remembered")
	if a := g.get("/", remembered...); a.status != 200 {
		t.Errorf("the old key, which is published yet: %d", a.status)
	}

	p.publish(fresh)
	eventually(t, "the withdrawn key is refused, also for a token that was accepted before", func() bool {
		if a := g.get("/", p.token(fresh, "meanwhile")...); a.status != 200 {
			t.Errorf("the new key: %d", a.status)
		}
		_ = g.get("/", p.token(newSigner("nobody's"), "x")...) // what makes the gateway ask
		return g.get("/", remembered...).status == 401
	})

	same := newSigner("new")
	p.publish(same)
	remembered = p.token(fresh, "remembered")
	if a := g.get("/", remembered...); a.status != 200 {
		t.Errorf("the key that is replaced, before that is known: %d", a.status)
	}
	g.accepted("other material under the same kid", p.token(same, "second"))
	if a := g.get("/", remembered...); a.status != 401 {
		t.Errorf("the material that was replaced: %d", a.status)
	}
	p.askedSparingly(before, began)
}

// E01 Random kid makes the gateway hammer the identity provider: while thousands of
// tokens name keys that nobody has, the key is rotated. The provider is asked once in
// ten seconds at most, the new key is found, and nobody who is known is refused, not
// even behind the address that the flood comes from.
func TestE01RandomKidsNeitherHammerTheProviderNorHideARotation(t *testing.T) {
	t.Parallel()
	old, fresh := newSigner("old"), newSigner("new")
	p := newIdentityProvider(t, old)
	g := providerSite(t, "300/minute", p.byURL("")).start()
	from := func(ip string, fields []string) []string { return append(slices.Clip(fields), "X-Forwarded-For", ip) }
	known := from("198.51.100.1", p.token(old, "known"))
	g.accepted("the key", known)
	began, before := time.Now(), p.fetched()

	const senders, each = 4, 500
	forged := p.token(newSigner("k"), "guess")
	text := strings.TrimPrefix(forged[1], "Bearer ")
	_, rest, _ := strings.Cut(text, ".")
	var wg sync.WaitGroup
	halfway := make(chan struct{})
	for n := range senders {
		wg.Go(func() {
			for i := range each {
				if n == 0 && i == each/4 {
					close(halfway)
				}
				header := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"alg":"ES256","kid":"random-%d-%d"}`, n, i))
				a, err := trySend("GET", g.url+"/", nil, "Authorization", "Bearer "+header+"."+rest, "X-Forwarded-For", "198.51.100.1")
				if err != nil || a.status != 401 && a.status != 429 {
					t.Errorf("a random kid: %d, %v", a.status, err)
					return
				}
			}
		})
	}
	<-halfway
	p.publish(old, fresh)
	flooded := make(chan struct{})
	go func() { wg.Wait(); close(flooded) }()
	for over := false; !over; {
		select {
		case <-flooded:
			over = true
		default:
		}
		if a := g.get("/", known...); a.status != 200 {
			t.Fatalf("who is known is refused: %d", a.status)
		}
	}
	// From elsewhere, where nobody has failed.
	tries := 0
	eventually(t, "the new key", func() bool {
		tries++
		return g.get("/", from(fmt.Sprintf("203.0.113.%d", tries/100%250), p.token(fresh, "new"))...).status == 200
	})
	if a := g.get("/", known...); a.status != 200 {
		t.Errorf("who is known, with the key of before, in the new set: %d", a.status)
	}
	p.askedSparingly(before, began)
}

// E08 two issuers publish the same kid: one's keys never verify what claims to be
// the other's; an audience is one of the list, and a slash at the end of iss counts.
func TestE08KeysAreLookedUpByIssuerAndKid(t *testing.T) {
	t.Parallel()
	keyA, keyB := newSigner("1"), newSigner("1")
	a, b := newIdentityProvider(t, keyA), newIdentityProvider(t, keyB)
	g := providerSite(t, "off", a.byURL(""), b.entry("")).start() // b's keys by discovery
	for name, tt := range map[string]struct {
		fields []string
		want   int
	}{
		"A's":                             {a.token(keyA, "u"), 200},
		"B's":                             {b.token(keyB, "u"), 200},
		"B's token that claims to be A's": {a.token(keyB, "u"), 401},
		"A's token that claims to be B's": {b.token(keyA, "u"), 401},
		"iss with a slash more":           {a.token(keyA, "u", "iss", a.URL+"/"), 401},
		"iss missing":                     {a.token(keyA, "u", "iss", nil), 401},
		"aud in a list":                   {a.token(keyA, "u", "aud", []string{"x", "api"}), 200},
		"aud an empty list":               {a.token(keyA, "u", "aud", []string{}), 401},
		"aud missing":                     {a.token(keyA, "u", "aud", nil), 401},
		"aud in capitals":                 {a.token(keyA, "u", "aud", "API"), 401},
	} {
		if got := g.get("/", tt.fields...); got.status != tt.want {
			t.Errorf("%s: %d, want %d", name, got.status, tt.want)
		}
	}
}

// A provider that is away when the gateway starts keeps it from nothing: it serves,
// says what is wrong where operators look, locks nobody out for having tried, and
// takes tokens once the keys come. The password of the URL is nowhere to be read.
func TestAProviderThatIsAwayAtTheStartComesLater(t *testing.T) {
	t.Parallel()
	key := newSigner("1")
	p := newIdentityProvider(t, key)
	p.login = "gateway:hunter2"
	p.goAway(true)
	s := providerSite(t, "5/minute", p.entry(`, jwks_url: "`+strings.Replace(p.URL, "://", "://gateway:hunter2@", 1)+`/keys.json?tenant=hunter2"`))
	g := s.start()
	const (
		away = "the keys of an issuer cannot be fetched, and none are known: its tokens are refused until they can be"
		back = "the keys of an issuer can be fetched again"
	)
	if got := g.degraded("issuer " + p.URL); !strings.Contains(got, "never fetched") {
		t.Errorf("/readyz says %q", got)
	}
	good := p.token(key, "priya")
	for range 12 { // more than failure_limit
		if a := g.get("/", good...); a.status != 401 {
			t.Fatalf("without keys: %d, want 401", a.status)
		}
	}
	if line := g.requestLine(g.get("/", good...).field("X-Request-Id")); line["auth_error"] != "keys_unavailable" {
		t.Errorf("the access log says %v", line["auth_error"])
	}
	if r := s.command("doctor"); r.code != 1 || !strings.Contains(r.stdout+r.stderr, "issuer "+p.URL) {
		t.Errorf("doctor: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := s.command("explain", "/", "-token", strings.TrimPrefix(good[1], "Bearer ")); r.code != 1 || !strings.Contains(r.stdout, "keys could not be fetched: issuer "+p.URL) {
		t.Errorf("explain: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	p.goAway(false)
	g.accepted("once the keys are there", good)
	if got := g.degraded("issuer "); got != "" {
		t.Errorf("/readyz says %s", got)
	}
	eventually(t, "the log says that they are there", func() bool { return g.logged(back) != nil })
	if n := len(g.all(away)); n != 1 {
		t.Errorf("%d lines say that it is away", n)
	}
	if line := g.logged("keys of an issuer are left out; the others are used"); line == nil || line["issuer"] != p.URL {
		t.Errorf("of the odd key it says %v", line)
	}
	m := g.metrics()
	if got := m[`gateway_jwks_keys{issuer="`+p.URL+`"}`]; got != "1" {
		t.Errorf("gateway_jwks_keys is %q", got)
	}
	for _, series := range []string{
		`gateway_jwks_fetches_total{issuer="` + p.URL + `",outcome="failed"}`, `gateway_jwks_fetches_total{issuer="` + p.URL + `",outcome="fetched"}`,
		`gateway_jwks_last_success_timestamp_seconds{issuer="` + p.URL + `"}`,
	} {
		if m[series] == "" || m[series] == "0" {
			t.Errorf("%s is %q", series, m[series])
		}
	}
	if r := s.command("doctor"); !strings.Contains(r.stdout+r.stderr, "1 key for ES256") {
		t.Errorf("doctor: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := s.command("explain", "/", "-token", strings.TrimPrefix(good[1], "Bearer ")); r.code != 0 || !strings.Contains(r.stdout, "priya") {
		t.Errorf("explain: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	// check asks nobody.
	before := p.fetched()
	printed := s.command("check", "-print")
	if got := p.fetched(); got != before || printed.code != 0 {
		t.Errorf("check: exit %d, %d fetches\n%s", printed.code, got-before, printed.stderr)
	}
	doctor := s.command("doctor")
	for where, text := range map[string]string{
		"the log": g.output(), "/readyz": send(t, "GET", g.admin+"/readyz", nil).body, "the metrics": send(t, "GET", g.admin+"/metrics", nil).body,
		"check -print": printed.stdout + printed.stderr, "doctor": doctor.stdout + doctor.stderr,
	} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s has the password of jwks_url", where)
		}
	}
}

// A provider signs with a new key, and cannot be asked for it just then: its callers
// are refused, but nobody is locked out for it, and they pass once it answers.
func TestE02ANewKeyThatCannotBeFetchedYetLocksNobodyOut(t *testing.T) {
	t.Parallel()
	old, fresh := newSigner("old"), newSigner("new")
	p := newIdentityProvider(t, old)
	g := providerSite(t, "5/minute", p.byURL("")).start()
	g.accepted("the old key", p.token(old, "priya"))
	p.publish(old, fresh)
	p.goAway(true)
	good := p.token(fresh, "priya")
	for range 12 { // more than failure_limit
		if a := g.get("/", good...); a.status != 401 {
			t.Fatalf("a key that cannot be fetched: %d, want 401", a.status)
		}
	}
	if line := g.requestLine(g.get("/", good...).field("X-Request-Id")); line["auth_error"] != "keys_unavailable" {
		t.Errorf("the access log says %v", line["auth_error"])
	}
	if a := g.get("/", p.token(old, "noa")...); a.status != 200 {
		t.Errorf("the old key, from the same address: %d", a.status)
	}
	p.goAway(false)
	g.accepted("the new key, once it could be fetched", good)
}

// A provider that goes away leaves its keys in force, over reloads too, until they
// are max_stale old; then no token is trusted, also none that was accepted before.
func TestKeysHoldWhileTheProviderIsAwayUntilMaxStale(t *testing.T) {
	t.Parallel()
	key := newSigner("1")
	p := newIdentityProvider(t, key)
	s := newSite(t)
	u := newUpstream(t, nil)
	s.write("plans.yaml", "default_plan: all\nplans: {all: {limits: []}}\n")
	routes := providerRoutes(u, "5/minute", p.byURL(", refresh: 10s, max_stale: 20s"))
	s.write("routes.yaml", routes)
	g := s.start()
	remembered := p.token(key, "remembered")
	g.accepted("the key", remembered)
	began := time.Now()
	p.goAway(true)
	goroutines := g.value("go_goroutines")

	// A reload of something else fetches nothing and forgets nothing.
	before := p.fetched()
	for n := range 3 {
		s.write("routes.yaml", routes+fmt.Sprintf("  - {name: more-%d, path: /more, upstream: api}\n", n))
		if !g.reload() {
			t.Fatal("the reload is refused")
		}
		if a := g.get("/", p.token(key, fmt.Sprint("new after reload ", n))...); a.status != 200 {
			t.Fatalf("after a reload: %d", a.status)
		}
	}
	if got := p.fetched(); got != before {
		t.Errorf("%d fetches for reloads", got-before)
	}
	// Nor does one of how long keys hold: that is changed while the provider is away.
	s.write("routes.yaml", providerRoutes(u, "5/minute", p.byURL(", refresh: 10s, max_stale: 25s")))
	if !g.reload() {
		t.Fatal("the reload is refused")
	}
	if a := g.get("/", p.token(key, "new after max_stale was raised")...); a.status != 200 {
		t.Errorf("after max_stale was raised: %d", a.status)
	}
	const tooOld = "the keys of an issuer are too old to be trusted (max_stale), and its tokens are refused until they can be fetched again"
	for deadline := began.Add(90 * time.Second); g.logged(tooOld) == nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the keys are never too old")
		}
	}
	for range 12 { // more than failure_limit: nobody is locked out
		if a := g.get("/", remembered...); a.status != 401 {
			t.Fatalf("past max_stale: %d, want 401", a.status)
		}
	}
	if got := g.degraded("issuer " + p.URL); !strings.Contains(got, "max_stale") {
		t.Errorf("/readyz says %q", got)
	}
	if got := g.metrics()[`gateway_jwks_keys{issuer="`+p.URL+`"}`]; got != "0" {
		t.Errorf("gateway_jwks_keys is %q", got)
	}
	p.goAway(false)
	g.accepted("once the provider is back", remembered)
	if n := len(g.all(tooOld)); n != 1 {
		t.Errorf("%d lines say that the keys are too old", n)
	}

	// An issuer that is configured no longer is asked no longer.
	other := newIdentityProvider(t, key)
	s.write("routes.yaml", providerRoutes(u, "5/minute", other.byURL("")))
	if !g.reload() {
		t.Fatal("the reload is refused")
	}
	if a := g.get("/", other.token(key, "x")...); a.status != 200 {
		t.Errorf("the new issuer, whose keys the reload waits for: %d", a.status)
	}
	if a := g.get("/", remembered...); a.status != 401 {
		t.Errorf("the issuer that is gone: %d", a.status)
	}
	eventually(t, "nothing runs for the issuer that is gone", func() bool { return g.value("go_goroutines") <= goroutines+2 })
	if _, there := g.metrics()[`gateway_jwks_keys{issuer="`+p.URL+`"}`]; there {
		t.Error("the issuer that is gone has metrics")
	}
	g.stop()
}

// A file of keys that is edited is in force within a second, and ends the tokens of
// the keys that are taken out of it, at once.
func TestAChangedKeySetFileIsInForce(t *testing.T) {
	t.Parallel()
	old, fresh := newSigner("old"), newSigner("new")
	p := newIdentityProvider(t, old)
	s := providerSite(t, "off", p.entry(", jwks_file: keys.json"))
	set := func(published ...signer) {
		p.publish(published...)
		s.write("keys.json", send(t, "GET", p.URL+"/keys.json", nil).body)
	}
	set(old)
	g := s.start()
	kept, ended := p.token(old, "kept"), p.token(old, "ended")
	g.accepted("the key of the file", kept)
	g.accepted("the key of the file", ended)
	set(old, fresh)
	g.accepted("a key that is added", p.token(fresh, "new"))
	if a := g.get("/", kept...); a.status != 200 {
		t.Errorf("the key that is there as before: %d", a.status)
	}
	set(fresh)
	eventually(t, "the key that is taken out is refused", func() bool { return g.get("/", ended...).status == 401 })
}
