package redisstore_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// hosts is what names resolve to in this package's tests: 127.0.0.1 unless set.
// It is in force before any test runs, since every dial reads the resolver.
var hosts = &names{of: map[string][4]byte{}}

func init() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: hosts.dial}
}

// names is a server of the domain name system that each question reaches through
// a pipe.
type names struct {
	mu sync.Mutex
	of map[string][4]byte
}

func (n *names) set(name string, address [4]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.of[name+"."] = address
}

func (n *names) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer func() { _ = server.Close() }()
		for {
			// On a stream each message has its length before it, RFC 1035, 4.2.2.
			head := make([]byte, 2)
			if _, err := io.ReadFull(server, head); err != nil {
				return
			}
			question := make([]byte, binary.BigEndian.Uint16(head))
			if _, err := io.ReadFull(server, question); err != nil {
				return
			}
			answer := n.answer(question)
			if _, err := server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
				return
			}
		}
	}()
	return client, nil
}

// answer answers one question for an address of version 4, and any other with
// nothing.
func (n *names) answer(q []byte) []byte {
	name, end := "", 12 // after the header
	for q[end] != 0 {
		name += string(q[end+1:end+1+int(q[end])]) + "."
		end += 1 + int(q[end])
	}
	kind := binary.BigEndian.Uint16(q[end+1:])
	end += 5
	a := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...)
	if kind != 1 {
		return a
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	address, ok := n.of[name]
	if !ok {
		address = [4]byte{127, 0, 0, 1}
	}
	a[7] = 1                                                    // one answer,
	a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4) // of the name asked for, good for an hour,
	return append(a, address[0], address[1], address[2], address[3])
}

// TestANameIsResolvedForEachConnection: a name that begins to mean another server
// is followed when connections to the old one end, as they do where it dies or
// becomes a replica.
func TestANameIsResolvedForEachConnection(t *testing.T) {
	const name = "redis.test"
	old, now := redistest.Start(t), redistest.Start(t)
	_, port, _ := net.SplitHostPort(old.Addr())
	// The same port of another loopback address leads to the other server.
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", port))
	if err != nil {
		t.Skipf("there is no second loopback address: %v", err)
	}
	passOn(t, l, now.Addr())
	hosts.set(name, [4]byte{127, 0, 0, 1})
	store := open(t, redisstore.ClientOptions{Address: net.JoinHostPort(name, port)}, redisstore.Options{Timeout: generous})
	cs := wide(t)
	mustTake(t, store, cs)
	if n := old.Client(t).DBSize(t.Context()).Val(); n != 1 {
		t.Fatalf("%d keys in the first server", n)
	}
	hosts.set(name, [4]byte{127, 0, 0, 2})
	mustTake(t, store, cs) // on the connection that there is
	other, otherPort, _ := net.SplitHostPort(now.Addr())
	if err := old.Client(t).ReplicaOf(t.Context(), other, otherPort).Err(); err != nil {
		t.Fatal(err)
	}
	_ = wantKind(t, store, cs, redisstore.KindReadOnly)
	mustTake(t, store, cs) // on a new connection, to the server that the name means now
	if n := now.Client(t).DBSize(t.Context()).Val(); n != 1 {
		t.Errorf("%d keys in the second server", n)
	}
}

// passOn connects whoever comes to l with the server at addr.
func passOn(t *testing.T, l net.Listener, addr string) {
	t.Helper()
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", addr)
			if err != nil {
				_ = c.Close()
				return
			}
			both := func() { _, _ = c.Close(), up.Close() }
			context.AfterFunc(t.Context(), both)
			go func() { _, _ = io.Copy(up, c); both() }()
			go func() { _, _ = io.Copy(c, up); both() }()
		}
	})
}

// TestAProbeGetsPastBrokenConnections: through TLS nobody sees beforehand that a
// restarted server has closed a connection. One probe finds the server back, not
// one for each connection.
func TestAProbeGetsPastBrokenConnections(t *testing.T) {
	srv := redistest.StartTLS(t)
	store := open(t, redisstore.ClientOptions{Address: srv.Addr(), TLS: srv.ClientTLS()}, redisstore.Options{Timeout: generous})
	const many = 16
	srv.Freeze() // so that nobody gives a connection back before all have one
	var wg sync.WaitGroup
	for range many {
		wg.Go(func() {
			if _, err := store.Take(t.Context(), wide(t), nil); err != nil {
				t.Error(err)
			}
		})
	}
	// The connections are made while the server stands still: the kernel accepts
	// them. It answers all of them when it goes on.
	srv.Thaw()
	wg.Wait()
	srv.Restart()
	if err := store.Probe(t.Context()); err != nil {
		t.Errorf("a probe of a server that is back: %v", err)
	}
	mustTake(t, store, wide(t))
}
