package redisstore_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// far returns the address of srv, so far away that what is sent to it takes delay.
func far(t *testing.T, srv *redistest.Server, delay time.Duration) string {
	t.Helper()
	return serve(t, func(c net.Conn) {
		there, err := net.Dial("tcp", srv.Addr()) //nolint:noctx // a test
		if err != nil {
			return
		}
		var back sync.WaitGroup
		back.Go(func() {
			_, _ = io.Copy(c, there)
			_ = c.Close()
		})
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			if err != nil {
				break
			}
			time.Sleep(delay) // it is the distance
			if _, err := there.Write(b[:n]); err != nil {
				break
			}
		}
		_ = there.Close()
		back.Wait()
	})
}

// A decision fits into the time, a new connection and a decision do not.
func TestARedisThatIsTooFarForANewConnectionIsUsed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	const timeout = 400 * time.Millisecond
	store := open(t, redisstore.ClientOptions{Address: far(t, srv, 6*timeout/10), Timeout: timeout}, redisstore.Options{Timeout: timeout})
	cs := charges(perDay(t))
	if _, err := store.Take(t.Context(), cs, nil); redisstore.Kind(err) != redisstore.KindTimeout {
		t.Fatalf("with a new connection: %v; want no time for it", err)
	}
	soon(t, "a decision finds a connection that is ready", func() bool {
		_, err := store.Take(t.Context(), cs, nil)
		return err == nil
	})
	// Several at once need as many, and get them.
	soon(t, "three decisions at once find theirs", func() bool {
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() {
				_, err := store.Take(t.Context(), cs, nil)
				errs <- err
			}()
		}
		well := true
		for range cap(errs) {
			if err := <-errs; err != nil {
				well = false
			}
		}
		return well
	})
}

// So is a cluster, whose slots have to be learned first, by nobody but a probe: who
// is away from the start is asked nothing else.
func TestAClusterThatIsTooFarForANewConnectionIsUsed(t *testing.T) {
	t.Parallel()
	const timeout = 400 * time.Millisecond
	c := redistest.StartCluster(t, 1)
	at := far(t, c.Nodes[0], 6*timeout/10)
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Nodes[0].Client(t).ConfigSet(t.Context(), "cluster-announce-port", port).Err(); err != nil {
		t.Fatal(err)
	}
	client, err := redisstore.NewClusterClient([]string{at}, redisstore.ClientOptions{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	store := storeOn(t, client, redisstore.Options{Timeout: timeout})
	if err := store.Probe(t.Context()); redisstore.Kind(err) != redisstore.KindTimeout {
		t.Fatalf("with a new connection: %v; want no time for it", err)
	}
	soon(t, "a probe finds a connection that is ready", func() bool { return store.Probe(t.Context()) == nil })
	if spread := store.Nodes().Spread(); len(spread) != 1 {
		t.Errorf("a partition on each node: %q; want one", spread)
	}
}
