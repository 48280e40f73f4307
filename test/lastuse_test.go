package test

import (
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// keyUses is where instances say when keys were last used.
const keyUses = "rl:v1:{gateway}:key-use"

// Keys that were used with success are in Redis when an instance has ended, also those
// from before a reload; wrong ones are not.
func TestLastUseOfKeysIsInRedis(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--aclfile", redistest.ACLFile(t, redistest.User{Name: "gate", Password: "secret", Rules: rights(t)}))
	s := keysSite(t, newUpstream(t, nil), `store: {redis: {url: "redis://`+srv.Addr()+`", username: gate, password: secret, timeout: 2s}}`, "", "off")
	used, later := s.key("-user", "a", "-id", "k-used"), s.key("-user", "b", "-id", "k-later")
	late := s.key("-user", "c", "-id", "k-idle")
	g := s.start()
	began := time.Now().Truncate(time.Second)
	get := func(key string, status int) {
		t.Helper()
		if a := g.get("/weather", "X-API-Key", key); a.status != status {
			t.Errorf("%d, want %d", a.status, status)
		}
	}
	get(used, 200)
	get(late[:len(late)-1]+"~", 401)
	s.key("-user", "d", "-id", "k-new")
	if !g.reload() {
		t.Fatal("not reloaded")
	}
	get(later, 200)
	g.stop()
	got := srv.Client(t).ZRangeWithScores(t.Context(), keyUses, 0, -1).Val()
	if len(got) != 2 {
		t.Fatalf("in Redis: %v\n%s", got, g.output())
	}
	for _, z := range got {
		if at := time.Unix(int64(z.Score), 0); z.Member != "k-used" && z.Member != "k-later" || at.Before(began) || at.After(time.Now()) {
			t.Errorf("%v at %s", z.Member, at)
		}
	}
}
