package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// watched returns a store on the master that sentinels at addresses name, closed
// when t is over.
func watched(t testing.TB, addresses []string, o redisstore.Options) *redisstore.Store {
	t.Helper()
	client, err := redisstore.NewSentinelClient(
		redisstore.SentinelOptions{Master: redistest.MasterName, Addresses: addresses},
		redisstore.ClientOptions{Timeout: o.Timeout},
	)
	if err != nil {
		t.Fatal(err)
	}
	return storeOn(t, client, o)
}

// wide is a limit that no test uses up.
func wide(t testing.TB) []ratelimit.Charge {
	t.Helper()
	return charges(newPolicy(t, ratelimit.Policy{
		Scope: "plan/wide", Algorithm: ratelimit.FixedWindow, Quota: 1_000_000, Window: time.Hour,
	}))
}

// untilOn asks until a server other than the given one counts.
func untilOn(t testing.TB, s *redistest.Sentinel, store *redisstore.Store, old *redistest.Server) {
	t.Helper()
	cs := wide(t)
	for deadline := time.Now().Add(generous); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, err := store.Take(t.Context(), cs, nil); err != nil {
			continue
		}
		for _, srv := range s.Servers {
			if srv != old && strings.Contains(srv.Client(t).Info(t.Context(), "commandstats").Val(), "cmdstat_evalsha") {
				return
			}
		}
	}
	t.Fatal("no other server counts")
}

// TestAnotherMasterIsFollowed: whichever way the old one went, calls reach the
// new one, with a sentinel frozen and in the time of a decision.
func TestAnotherMasterIsFollowed(t *testing.T) {
	for how, away := range map[string]func(t *testing.T, s *redistest.Sentinel){
		"killed":  func(_ *testing.T, s *redistest.Sentinel) { s.Servers[0].Kill() },
		"frozen":  func(_ *testing.T, s *redistest.Sentinel) { s.Servers[0].Freeze() },
		"demoted": func(t *testing.T, s *redistest.Sentinel) { s.Failover(t) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartSentinel(t, redistest.SentinelOptions{})
			const timeout = 200 * time.Millisecond
			store := watched(t, s.Addrs(), redisstore.Options{Timeout: timeout})
			untilTaken(t, store, wide(t))
			s.Sentinels[2].Freeze() // two are a majority yet
			away(t, s)
			for deadline := time.Now().Add(generous); s.Master(t, s.Sentinels[0]) == s.Servers[0]; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the sentinels choose no other master")
				}
				begun := time.Now()
				_, _ = store.Take(context.Background(), wide(t), nil)
				if took := time.Since(begun); took > timeout+slack {
					t.Fatalf("a call took %s", took)
				}
			}
			promoted := time.Now()
			untilOn(t, s, store, s.Servers[0])
			t.Logf("followed within %s", time.Since(promoted))
		})
	}
}

// TestTheMasterStaysWithoutSentinels: they are needed to find a master, not to
// use it.
func TestTheMasterStaysWithoutSentinels(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, redistest.SentinelOptions{})
	store := watched(t, s.Addrs(), redisstore.Options{Timeout: generous})
	mustTake(t, store, wide(t))
	for _, sentinel := range s.Sentinels {
		sentinel.Kill()
	}
	mustTake(t, store, wide(t))
	_ = wantKind(t, watched(t, s.Addrs(), redisstore.Options{Timeout: generous}), wide(t), redisstore.KindRefused)
}

// TestADemotedMasterIsNoticed: a master that is made a replica by hand answers
// READONLY, and nobody goes on using it once sentinels know better.
func TestADemotedMasterIsNoticed(t *testing.T) {
	t.Parallel()
	a, b := redistest.Start(t), redistest.Start(t)
	now := make(chan string, 1)
	now <- a.Addr()
	sentinel := fakeSentinel(t, func() (string, string) { at := <-now; now <- at; return at, "7" })
	store := watched(t, []string{sentinel}, redisstore.Options{Timeout: generous})
	mustTake(t, store, wide(t))
	host, port, _ := net.SplitHostPort(b.Addr())
	if err := a.Client(t).ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	_ = wantKind(t, store, wide(t), redisstore.KindReadOnly)
	<-now
	now <- b.Addr()
	if d := untilTaken(t, store, wide(t)); d.Remaining != 1_000_000-1 && d.Remaining != 1_000_000-2 {
		t.Errorf("remaining %d on the new master", d.Remaining)
	}
}

// TestOlderNewsIsNotBelieved: a sentinel that was cut off while another master
// was chosen still names the old one.
func TestOlderNewsIsNotBelieved(t *testing.T) {
	t.Parallel()
	a, b := redistest.Start(t), redistest.Start(t)
	stale := fakeSentinel(t, func() (string, string) { return a.Addr(), "3" })
	fresh := fakeSentinel(t, func() (string, string) { return b.Addr(), "4" })
	store := watched(t, []string{stale, fresh}, redisstore.Options{Timeout: generous})
	for range 20 {
		mustTake(t, store, wide(t))
	}
	if n := a.Client(t).DBSize(t.Context()).Val(); n != 0 {
		t.Error("the old master was charged")
	}
}

// fakeSentinel names the master that say returns, with its epoch.
func fakeSentinel(t *testing.T, say func() (address, epoch string)) (addr string) {
	return serve(t, func(c net.Conn) {
		r := redisCommands(c)
		for {
			command, err := r.next()
			if err != nil {
				return
			}
			at, epoch := say()
			host, port, _ := net.SplitHostPort(at)
			reply := "-ERR unknown command\r\n"
			switch {
			case len(command) > 1 && command[1] == "master":
				reply = array("config-epoch", epoch)
			case len(command) > 1 && command[1] == "get-master-addr-by-name":
				reply = array(host, port)
			}
			if _, err := c.Write([]byte(reply)); err != nil {
				return
			}
		}
	})
}

// array writes a list of texts, as a server does.
func array(texts ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(texts))
	for _, s := range texts {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(s), s)
	}
	return b.String()
}

// TestSentinelsThatCannotHelp: each way of learning nothing is an error at once,
// and within the time of the call where nobody answers.
func TestSentinelsThatCannotHelp(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, redistest.SentinelOptions{SentinelArgs: []string{"--requirepass", "secret of the sentinels"}})
	file := filepath.Join(t.TempDir(), "password")
	writeFile(t, file, "secret of the sentinels\n")
	frozen := redistest.Start(t)
	frozen.Freeze()
	for name, c := range map[string]struct {
		options redisstore.SentinelOptions
		kind    string
	}{
		"no password":    {redisstore.SentinelOptions{Master: redistest.MasterName, Addresses: s.Addrs()}, redisstore.KindAuth},
		"wrong password": {redisstore.SentinelOptions{Master: redistest.MasterName, Addresses: s.Addrs(), Password: "x"}, redisstore.KindAuth},
		"no such master": {redisstore.SentinelOptions{Master: "other", Addresses: s.Addrs(), PasswordFile: file}, redisstore.KindOther},
		"not a sentinel": {redisstore.SentinelOptions{Master: "m", Addresses: []string{s.Servers[0].Addr()}}, redisstore.KindOther},
		"frozen":         {redisstore.SentinelOptions{Master: "m", Addresses: []string{frozen.Addr()}}, redisstore.KindTimeout},
		"good":           {redisstore.SentinelOptions{Master: redistest.MasterName, Addresses: s.Addrs(), PasswordFile: file}, ""},
	} {
		client, err := redisstore.NewSentinelClient(c.options, redisstore.ClientOptions{Timeout: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		err = wantKind(t, storeOn(t, client, redisstore.Options{Timeout: 3 * time.Second}), wide(t), c.kind)
		t.Logf("%s: %v", name, err)
		if took := time.Since(begun); took > 3*time.Second+slack {
			t.Errorf("%s: %s", name, took)
		}
		if redisstore.Ambiguous(err) {
			t.Errorf("%s: taken for a charge that may have happened", name)
		}
		if err != nil && strings.Contains(err.Error(), "secret of") {
			t.Errorf("%s: the error shows a password", name)
		}
	}
	frozen.Thaw()
}

// TestClosedSentinelClientAsksNobody: no look comes after Close, and no goroutine
// stays.
func TestClosedSentinelClientAsksNobody(t *testing.T) {
	a := redistest.Start(t)
	before := runtime.NumGoroutine()
	asked := make(chan struct{}, 1000)
	sentinel := fakeSentinel(t, func() (string, string) { asked <- struct{}{}; return a.Addr(), "1" })
	client, err := redisstore.NewSentinelClient(
		redisstore.SentinelOptions{Master: "m", Addresses: []string{sentinel}}, redisstore.ClientOptions{Timeout: generous},
	)
	if err != nil {
		t.Fatal(err)
	}
	store, err := redisstore.New(client, redisstore.Options{Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	if len(asked) != 0 {
		t.Error("asked before it was used")
	}
	mustTake(t, store, wide(t))
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	_ = wantKind(t, store, wide(t), redisstore.KindClosed)
	for deadline := time.Now().Add(generous); runtime.NumGoroutine() > before+2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}

// TestSentinelOptionsSayWhatIsWrong: every mistake names its field.
func TestSentinelOptionsSayWhatIsWrong(t *testing.T) {
	there := []string{"127.0.0.1:1"}
	for _, c := range []struct {
		sentinels redisstore.SentinelOptions
		options   redisstore.ClientOptions
		want      string
	}{
		{redisstore.SentinelOptions{Addresses: there}, redisstore.ClientOptions{}, "master: want the name under which the sentinels watch it"},
		{redisstore.SentinelOptions{Master: "m"}, redisstore.ClientOptions{}, "addresses: want host:port of one or more sentinels"},
		{redisstore.SentinelOptions{Master: "m", Addresses: []string{"a"}}, redisstore.ClientOptions{}, `addresses: want host:port, got "a"`},
		{redisstore.SentinelOptions{Master: "m", Addresses: there}, redisstore.ClientOptions{Address: "a:1"}, `address: want it among the addresses, got "a:1"`},
		{redisstore.SentinelOptions{Master: "m", Addresses: there}, redisstore.ClientOptions{Network: "unix"}, `network: want tcp, which sentinels talk, got "unix"`},
		{redisstore.SentinelOptions{Master: "m", Addresses: there, Username: "u"}, redisstore.ClientOptions{}, "of the sentinels: username: want a password or a password file beside it"},
	} {
		_, err := redisstore.NewSentinelClient(c.sentinels, c.options)
		if want := "redis sentinel client: " + c.want; err == nil || err.Error() != want {
			t.Errorf("%+v:\n got %v\nwant %s", c.sentinels, err, want)
		}
	}
}
