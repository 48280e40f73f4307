package keyuse_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/auth/keyuse"
	"bouncer/internal/redistest"
)

// A recorder is a Redis that says yes, or fails from one command on.
type recorder struct {
	commands [][]any
	failAt   int // 1 is the first; 0: none
}

// Process implements keyuse.Client.
func (r *recorder) Process(ctx context.Context, cmd redis.Cmder) error {
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("a command without a deadline")
	}
	r.commands = append(r.commands, slices.Clone(cmd.Args()))
	if len(r.commands) == r.failAt {
		return errors.New("away")
	}
	return nil
}

// A batch is written in pieces, and stops at the first that fails.
func TestABatchIsWrittenInPieces(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	uses := map[string]time.Time{}
	if err := keyuse.Write(t.Context(), &recorder{failAt: 1}, "used", time.Second, uses, now); err != nil {
		t.Errorf("nothing to write: %v", err)
	}
	for i := range 2500 {
		uses[fmt.Sprint("k-", i)] = now
	}
	r := &recorder{}
	if err := keyuse.Write(t.Context(), r, "used", time.Second, uses, now); err != nil {
		t.Fatal(err)
	}
	ids := map[any]bool{}
	for _, c := range r.commands[:3] {
		if c[0] != "zadd" || c[1] != "used" || c[2] != "gt" || len(c) > 3+2*1000 {
			t.Fatalf("%v of %d", c[:3], len(c))
		}
		for i := 3; i < len(c); i += 2 {
			ids[c[i+1]] = c[i] == now.Unix()
		}
	}
	if len(ids) != 2500 || len(r.commands) != 6 {
		t.Errorf("%d ids in %d commands", len(ids), len(r.commands))
	}
	r = &recorder{failAt: 2}
	if err := keyuse.Write(t.Context(), r, "used", time.Second, uses, now); err == nil || len(r.commands) != 2 {
		t.Errorf("%v after %d commands", err, len(r.commands))
	}
}

// What is written is read again: the latest time, until it is forgotten. What is in Redis
// otherwise does not matter.
func TestLastUsesInRedis(t *testing.T) {
	srv := redistest.Start(t)
	client := srv.Client(t)
	key := keyuse.Key("rl")
	now := time.Unix(1_800_000_000, 0).UTC()
	write := func(at time.Time, uses map[string]time.Time) {
		t.Helper()
		if err := keyuse.Write(t.Context(), client, key, time.Second, uses, at); err != nil {
			t.Fatal(err)
		}
	}
	read := func(ids ...string) string {
		t.Helper()
		got, err := keyuse.Read(t.Context(), client, key, time.Second, ids)
		if err != nil {
			return "error"
		}
		return fmt.Sprint(got)
	}
	write(now, map[string]time.Time{"k-1": now, "k-2": now.Add(-time.Hour), "other": now})
	write(now, map[string]time.Time{"k-1": now.Add(-time.Minute), "k-2": now})
	if got, want := read("k-1", "k-2", "k-none"), fmt.Sprint(map[string]time.Time{"k-1": now, "k-2": now}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if ttl := client.PTTL(t.Context(), key).Val(); ttl <= keyuse.Keep-time.Hour || ttl > keyuse.Keep {
		t.Errorf("it ends after %s", ttl)
	}
	later := now.Add(keyuse.Keep)
	write(later, map[string]time.Time{"k-2": later})
	if got, want := read("k-1", "k-2"), fmt.Sprint(map[string]time.Time{"k-2": later}); got != want {
		t.Errorf("400 days later: %s, want %s", got, want)
	}
	if n := client.ZCard(t.Context(), key).Val(); n != 1 {
		t.Errorf("400 days later: %d ids", n)
	}
	ids := make([]string, 2500)
	for i := range ids {
		ids[i] = fmt.Sprint("k-", i)
	}
	if got, err := keyuse.Read(t.Context(), client, key, time.Second, ids); err != nil || len(got) != 1 {
		t.Errorf("of many: %v, %v", got, err)
	}
	for _, odd := range []redis.Z{{Member: "k-1", Score: -5}, {Member: "k-3", Score: 1e300}} {
		client.ZAdd(t.Context(), key, odd)
	}
	if got, want := read("k-1", "k-3"), "map[]"; got != want {
		t.Errorf("odd scores: %s", got)
	}
	client.Set(t.Context(), key, "x", 0)
	if got := read("k-1"); got != "error" {
		t.Errorf("a foreign value: %s", got)
	}
}

// The ids used longest ago go when there are too many.
func TestIDsInRedisAreBounded(t *testing.T) {
	srv := redistest.Start(t)
	client := srv.Client(t)
	now := time.Unix(1_800_000_000, 0)
	uses := map[string]time.Time{"k-old": now.Add(-time.Hour)}
	for i := range keyuse.MaxIDs {
		uses[fmt.Sprint("k-", i)] = now
	}
	if err := keyuse.Write(t.Context(), client, "used", 5*time.Second, uses, now); err != nil {
		t.Fatal(err)
	}
	got, err := keyuse.Read(t.Context(), client, "used", time.Second, []string{"k-old", "k-1"})
	if n := client.ZCard(t.Context(), "used").Val(); err != nil || n != keyuse.MaxIDs || len(got) != 1 || got["k-1"].IsZero() {
		t.Errorf("%d ids, %v, %v", n, got, err)
	}
}
