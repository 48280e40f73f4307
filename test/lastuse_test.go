package test

import (
	"encoding/json"
	"fmt"
	"strings"
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
	list := s.command("keys", "list")
	if lines := strings.Split(list.stdout, "\n"); list.code != 0 || list.stderr != "" || len(lines) < 5 ||
		!contains(lines[0], "LAST USE") || !contains(lines[1], began.UTC().Format("2006-01-02 ")) || !contains(lines[3], "never") {
		t.Errorf("list: exit %d, %s\n%s", list.code, list.stderr, list.stdout)
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(s.command("keys", "list", "-json").stdout), &rows); err != nil || len(rows) != 4 || rows[2]["last_used"] != nil {
		t.Errorf("list -json: %v, %v", rows, err)
	} else if at, err := time.Parse(time.RFC3339, fmt.Sprint(rows[0]["last_used"])); err != nil || at.Before(began) {
		t.Errorf("list -json: %v, %v", rows[0], err)
	}
	got := srv.Client(t).ZRangeWithScores(t.Context(), keyUses, 0, -1).Val()
	if len(got) != 2 {
		t.Fatalf("in Redis: %v\n%s", got, g.output())
	}
	for _, z := range got {
		if at := time.Unix(int64(z.Score), 0); z.Member != "k-used" && z.Member != "k-later" || at.Before(began) || at.After(time.Now()) {
			t.Errorf("%v at %s", z.Member, at)
		}
	}
	srv.Kill()
	list = s.command("keys", "list")
	if list.code != 0 || !contains(list.stdout, "LAST USE", "-\n") || !contains(list.stderr, "when keys were last used is not known") || strings.Contains(list.stdout, "never") {
		t.Errorf("list without Redis: exit %d, %s\n%s", list.code, list.stderr, list.stdout)
	}
}
