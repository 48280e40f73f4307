package test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// portalKeys is the hash that the tests' portal writes keys to.
const portalKeys = "rl:v1:{keys}:portal"

// A portal adds and revokes keys in Redis, beside those of the key file: they work and
// end on every instance, with all that a key may say.
func TestAPortalKeepsKeysInRedis(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	u := newUpstream(t, nil)
	s := keysSite(t, u, redisStore(srv.URL()), ", redis: {hash: portal}", "off")
	filed := s.key("-user", "filed", "-plan", "pro")
	portal := srv.Client(t)
	put := func(key, value string) {
		t.Helper()
		if err := portal.HSet(t.Context(), portalKeys, fmt.Sprintf("%x", sha256.Sum256([]byte(key))), value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	gs := []*gateway{s.start(), s.start()}
	put("first", `{"id": "k-first", "user": "priya123", "tenant": "acme", "plan": "pro"}`)
	put("bound", `{"id": "k-bound", "routes": ["export"], "allow_ips": ["10.0.0.0/8"], "expires": "2077-06-30"}`)
	put("late", `{"id": "k-late", "expires": "2020-01-01"}`)
	put("malformed", `{"id": "k-malformed", "user": "secret-user", "plann": "pro"}`)
	put("planless", `{"id": "k-planless", "plan": "gone"}`)
	put("routeless", `{"id": "k-routeless", "routes": ["gone"]}`)
	put("no object", `["secret-user"]`)
	for i, g := range gs {
		for _, tt := range []struct {
			key, path, from string
			status          int
			reason          string
		}{
			{"first", "/weather", "192.0.2.1", 200, ""},
			{"bound", "/export", "10.0.0.1", 200, ""},
			{"bound", "/weather", "10.0.0.1", 403, ""},
			{"bound", "/export", "192.0.2.1", 401, "wrong_address"},
			{"late", "/weather", "192.0.2.1", 401, "expired"},
			{"malformed", "/weather", "192.0.2.1", 401, "unknown_key"},
			{"planless", "/weather", "192.0.2.1", 401, "unknown_key"},
			{"routeless", "/weather", "192.0.2.1", 401, "unknown_key"},
			{"no object", "/weather", "192.0.2.1", 401, "unknown_key"},
			{"nobody's", "/weather", "192.0.2.1", 401, "unknown_key"},
			{filed, "/weather", "192.0.2.1", 200, ""},
		} {
			a := g.get(tt.path, "X-API-Key", tt.key, "X-Forwarded-For", tt.from)
			line := g.requestLine(a.field("X-Request-Id"))
			if reason, _ := line["auth_error"].(string); a.status != tt.status || reason != tt.reason {
				t.Errorf("instance %d, key %q on %s: %d %q, want %d %q", i, tt.key, tt.path, a.status, reason, tt.status, tt.reason)
			}
			if tt.key == "first" && (line["user"] != "priya123" || line["tenant"] != "acme" || line["plan"] != "pro" || line["key_id"] != "k-first") {
				t.Errorf("the caller is %v", line)
			}
		}
		refused := g.all("a value in the hash of API keys is no key and opens nothing; correct it in Redis")
		if len(refused) != 4 || !contains(fmt.Sprint(refused), fmt.Sprintf("%x", sha256.Sum256([]byte("malformed")))[:8], `did you mean`, "no route", "no plan") ||
			strings.Contains(g.output(), "secret-user") {
			t.Errorf("told: %v", refused)
		}
	}

	// Whoever explains asks nobody for the key, and does not call it wrong.
	if r := s.command("explain", "/weather", "-key", "first"); r.code != 1 || !contains(r.stdout, "keys_unavailable", portalKeys+" in Redis are not looked at here") {
		t.Errorf("explain: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := s.command("explain", "/weather", "-key", filed); r.code != 0 {
		t.Errorf("explain a key of the file: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}

	if err := portal.HDel(t.Context(), portalKeys, fmt.Sprintf("%x", sha256.Sum256([]byte("first")))).Err(); err != nil {
		t.Fatal(err)
	}
	revoked := time.Now()
	for i, g := range gs {
		eventually(t, "the revoked key ends", func() bool { return g.get("/weather", "X-API-Key", "first").status == 401 })
		t.Logf("instance %d: the first 401 after %s", i+1, time.Since(revoked).Round(time.Millisecond))
	}
}

// While Redis is away, keys that are known hold, others get the 401 of any bad key,
// which is no failure of theirs, and those of the file never notice.
func TestKeysInRedisWhileItIsAway(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := keysSite(t, newUpstream(t, nil), redisStore(srv.URL()), ", redis: {hash: portal}", "3/hour")
	filed := s.key("-user", "filed")
	g := s.start()
	if err := srv.Client(t).HSet(t.Context(), portalKeys, fmt.Sprintf("%x", sha256.Sum256([]byte("first"))), `{"id": "k-first"}`).Err(); err != nil {
		t.Fatal(err)
	}
	if a := g.get("/weather", "X-API-Key", "first"); a.status != 200 {
		t.Fatalf("while Redis is there: %d", a.status)
	}
	wrong := g.get("/weather", "X-API-Key", "wrong")
	srv.Kill()
	for range 5 { // more than failure_limit
		a := g.get("/weather", "X-API-Key", "new")
		if a.status != 401 || strings.Replace(a.body, a.field("X-Request-Id"), "", 1) != strings.Replace(wrong.body, wrong.field("X-Request-Id"), "", 1) {
			t.Errorf("one that is not known: %d %s", a.status, a.body)
		}
		if line := g.requestLine(a.field("X-Request-Id")); line["auth_error"] != "keys_unavailable" {
			t.Errorf("the log says %v", line)
		}
		for _, key := range []string{"first", filed} {
			if a := g.get("/usage", "X-API-Key", key); a.status != 200 {
				t.Errorf("%s: %d", key, a.status)
			}
		}
	}
	if a := g.get("/usage", "X-API-Key", filed[:len(filed)-1]+"~"); a.status != 401 {
		t.Errorf("a mistyped key: %d", a.status)
	}
}

// Keys in Redis that cannot be looked up are not left to customers to find: the log says
// why and what to do, readiness names it, and both say when it is over.
func TestKeysInRedisThatCannotBeLookedUpAreTold(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := keysSite(t, newUpstream(t, nil), redisStore(srv.URL()), ", redis: {hash: portal}", "off")
	g := s.start()
	portal := srv.Client(t)
	do := func(args ...any) {
		t.Helper()
		if err := portal.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte("first")))
	tried := 0
	try := func(key string) int {
		tried++
		return g.get("/weather", "X-API-Key", key).status
	}
	const away, back = "API keys in Redis cannot be looked up; those that were used before hold for 10 minutes, all others of them are refused", "API keys in Redis can be looked up again"
	do("SET", portalKeys, "another kind of value")
	eventually(t, "it is told", func() bool { return try(fmt.Sprint("new ", tried)) == 401 && len(g.all(away)) > 0 })
	if told := g.all(away); len(told) != 1 || !contains(fmt.Sprint(told), "WRONGTYPE", portalKeys, "name another hash") {
		t.Errorf("told: %v", told)
	}
	if ready := send(t, "GET", g.admin+"/readyz", nil); !contains(ready.body, "api keys in redis") {
		t.Errorf("readiness: %s", ready.body)
	}
	do("DEL", portalKeys)
	do("HSET", portalKeys, digest, `{"id": "k-first"}`)
	eventually(t, "the key works", func() bool { return try("first") == 200 })
	if told := g.all(back); len(told) != 1 || len(g.all(away)) != 1 {
		t.Errorf("told: %v", told)
	}
	if ready := send(t, "GET", g.admin+"/readyz", nil); contains(ready.body, "api keys in redis") {
		t.Errorf("readiness: %s", ready.body)
	}
}
