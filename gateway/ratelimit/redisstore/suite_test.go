package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/limittest"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// generous is a timeout for tests that are not about time: the machine may be
// busy.
const generous = 10 * time.Second

func TestSuite(t *testing.T) {
	srv := redistest.Start(t)
	limittest.Run(t, func(t testing.TB, clock *limittest.Clock) ratelimit.Store {
		client, err := redisstore.NewClient(redisstore.ClientOptions{
			Network: "unix", Address: srv.Socket(), Timeout: generous,
		})
		if err != nil {
			t.Fatal(err)
		}
		// Each part has a prefix of its own on the one server.
		prefix := "rl." + strings.Map(plain, t.Name())
		store, err := redisstore.NewVirtual(client, redisstore.Options{Timeout: generous, KeyPrefix: prefix}, clock.Now)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		return store
	})
}

func plain(r rune) rune {
	if r == '/' {
		return '.'
	}
	return r
}
