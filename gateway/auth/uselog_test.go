package auth_test

import (
	"fmt"
	"testing"
	"time"

	"bouncer/gateway/auth"
)

// Only keys that were used with success are noted, by their id, once however often they
// were used, and with the time of the last; across a reload too.
func TestUsesOfKeysAreNoted(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	log := auth.NewUseLog()
	expired := key("k-late", keyPlain)
	expired.Expires = now
	o := auth.Options{APIKeys: true, Keys: []auth.Key{key("k-1", keyOne), expired}, UseLog: log, Now: func() time.Time { return now }}
	a := newAuth(t, o)
	want := func(what string, want map[string]time.Time) {
		t.Helper()
		if got := log.Drain(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	want("before", map[string]time.Time{})
	for range 3 {
		reason(t, a, request("X-API-Key: "+keyOne))
		reason(t, a, request("X-API-Key: "+keyPlain))
		reason(t, a, request("X-API-Key: nobody's"))
		now = now.Add(time.Second)
	}
	want("three seconds", map[string]time.Time{"k-1": now.Add(-time.Second)})
	now = now.Add(-time.Hour)
	reason(t, a, request("X-API-Key: "+keyOne))
	want("a clock that went back", map[string]time.Time{})
	now = now.Add(2 * time.Hour)
	reason(t, a, request("X-API-Key: "+keyOne))
	o.Previous = a
	a = newAuth(t, o)
	want("before the reload", map[string]time.Time{"k-1": now})
	reason(t, a, request("X-API-Key: "+keyOne))
	want("after it, in the same second", map[string]time.Time{})
	now = now.Add(time.Second)
	reason(t, a, request("X-API-Key: "+keyOne))
	want("after it", map[string]time.Time{"k-1": now})
}

// What does not fit into the log is noted by a later use.
func TestTheLogOfUsesIsBounded(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	log := auth.NewUseLog()
	o := auth.Options{APIKeys: true, UseLog: log, Now: func() time.Time { return now }}
	for i := range auth.MaxUses + 1 {
		o.Keys = append(o.Keys, key(fmt.Sprint("k-", i), fmt.Sprint("secret ", i)))
	}
	a := newAuth(t, o)
	for i := range o.Keys {
		reason(t, a, request(fmt.Sprint("X-API-Key: secret ", i)))
	}
	last := o.Keys[auth.MaxUses].ID
	if got := log.Drain(); len(got) != auth.MaxUses || !got[last].IsZero() {
		t.Errorf("%d noted, the last one at %v", len(got), got[last])
	}
	now = now.Add(time.Second)
	reason(t, a, request(fmt.Sprint("X-API-Key: secret ", auth.MaxUses)))
	if got := log.Drain(); len(got) != 1 || got[last] != now {
		t.Errorf("used again: %v", got)
	}
}

// A note costs no allocation, also when it is the first of its second.
func TestANoteDoesNotAllocate(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	a := newAuth(t, auth.Options{
		APIKeys: true, Keys: []auth.Key{key("k-1", keyOne)}, UseLog: auth.NewUseLog(),
		Now: func() time.Time { return now },
	})
	r := request("X-API-Key: " + keyOne)
	if n := testing.AllocsPerRun(100, func() {
		now = now.Add(time.Second)
		if _, err := a.Authenticate(r, auth.Check{}); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
