package redistest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is what the sentinels of [StartSentinel] call their master.
const MasterName = "mymaster"

const (
	sentinelReplicas = 2
	sentinelCount    = 3
)

// A Sentinel is a master with two replicas and the three sentinels that watch
// them, of which two must agree. They take a master for dead that is silent for
// half a second, and have another one some two seconds later.
type Sentinel struct {
	t testing.TB
	// Servers are the master at the start and its replicas.
	Servers []*Server
	// Sentinels are the watchers. Frozen or killed ones are like any server.
	Sentinels []*Server
}

// SentinelOptions say what is not the same in every test. The zero value is good.
type SentinelOptions struct {
	// Args are further arguments of the servers.
	Args []string
	// SentinelArgs are further arguments of the sentinels. A password given with
	// --requirepass is the one that they ask each other for as well.
	SentinelArgs []string
}

// StartSentinel runs a [Sentinel] and returns when every sentinel knows every
// server and every other sentinel, and both replicas have the data of the master.
// All of them end with the test.
func StartSentinel(t testing.TB, o SentinelOptions) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t}
	args := append([]string{"--repl-diskless-sync-delay", "0"}, o.Args...)
	master := newServer(t, args)
	startAll(t, lastPort, master)
	s.Servers = []*Server{master}
	for range sentinelReplicas {
		replica := newServer(t, append([]string{"--replicaof", "127.0.0.1 " + strconv.Itoa(master.port), "--masterauth", master.pass}, args...))
		s.Servers = append(s.Servers, replica)
	}
	// A master that comes back becomes a replica.
	master.args = append([]string{"--masterauth", master.pass}, master.args...)
	startAll(t, lastPort, s.Servers[1:]...)

	for range sentinelCount {
		s.Sentinels = append(s.Sentinels, newServer(t, o.SentinelArgs))
	}
	err := errPortTaken
	for attempt := 0; attempt < startAttempts && errors.Is(err, errPortTaken); attempt++ {
		err = s.watch()
	}
	if err != nil {
		t.Fatalf("redistest: start the sentinels: %v\n%s", err, s.Sentinels[0].log())
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for _, sentinel := range s.Sentinels {
		client := sentinel.sentinelClient(t)
		if err := until(ctx, "a sentinel does not find everybody", func() bool { return watches(ctx, client) }); err != nil {
			t.Fatalf("redistest: %v\n%s", err, sentinel.log())
		}
	}
	return s
}

// watch starts the sentinels on ports that they are told of each other
// beforehand: it would take them seconds to find out.
func (s *Sentinel) watch() (err error) {
	ids := make([]string, len(s.Sentinels))
	for i, sentinel := range s.Sentinels {
		ids[i] = fmt.Sprintf("%08x%032x", rand.Uint32(), i+1) //nolint:gosec // not secret
		if sentinel.port, err = freePort(lastPort); err != nil {
			return err
		}
	}
	master := s.Servers[0]
	for i, sentinel := range s.Sentinels {
		conf := []string{
			"sentinel myid " + ids[i],
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", MasterName, master.port),
			"sentinel down-after-milliseconds " + MasterName + " 500",
			"sentinel failover-timeout " + MasterName + " 2000",
			"sentinel parallel-syncs " + MasterName + " 2",
		}
		if master.pass != "" {
			conf = append(conf, "sentinel auth-pass "+MasterName+" "+strconv.Quote(master.pass))
		}
		if sentinel.pass != "" {
			conf = append(conf, "sentinel sentinel-pass "+strconv.Quote(sentinel.pass))
		}
		for _, replica := range s.Servers[1:] {
			conf = append(conf, fmt.Sprintf("sentinel known-replica %s 127.0.0.1 %d", MasterName, replica.port))
		}
		for j, other := range s.Sentinels {
			if j != i {
				conf = append(conf, fmt.Sprintf("sentinel known-sentinel %s 127.0.0.1 %d %s", MasterName, other.port, ids[j]))
			}
		}
		sentinel.conf = filepath.Join(sentinel.dir, "sentinel.conf")
		if err := os.WriteFile(sentinel.conf, []byte(strings.Join(conf, "\n")+"\n"), 0o600); err != nil {
			return err
		}
	}
	errs := make([]error, len(s.Sentinels))
	var wg sync.WaitGroup
	for i, sentinel := range s.Sentinels {
		wg.Go(func() { errs[i] = sentinel.start() })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for i, sentinel := range s.Sentinels {
			if errs[i] == nil {
				sentinel.Kill()
			}
		}
		return err
	}
	return nil
}

// watches reports whether a sentinel could have a replica take over now.
func watches(ctx context.Context, client *redis.SentinelClient) bool {
	if err := client.CkQuorum(ctx, MasterName).Err(); err != nil {
		return false
	}
	master := client.Master(ctx, MasterName).Val()
	replicas := client.Replicas(ctx, MasterName).Val()
	if master["flags"] != "master" || master["num-other-sentinels"] != strconv.Itoa(sentinelCount-1) || len(replicas) != sentinelReplicas {
		return false
	}
	for _, r := range replicas {
		if r["flags"] != "slave" || r["master-link-status"] != "ok" {
			return false
		}
	}
	return true
}

// sentinelClient returns a new client of a sentinel, closed when t is over.
func (s *Server) sentinelClient(t testing.TB) *redis.SentinelClient {
	t.Helper()
	c := redis.NewSentinelClient(&redis.Options{Addr: s.Addr(), Password: s.pass, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Addrs returns the TCP addresses of the sentinels.
func (s *Sentinel) Addrs() []string {
	addrs := make([]string, len(s.Sentinels))
	for i, sentinel := range s.Sentinels {
		addrs[i] = sentinel.Addr()
	}
	return addrs
}

// Master returns the server that a sentinel names as the master now. Frozen
// sentinels must not be asked.
func (s *Sentinel) Master(t testing.TB, sentinel *Server) *Server {
	t.Helper()
	addr, err := sentinel.sentinelClient(t).GetMasterAddrByName(t.Context(), MasterName).Result()
	if err != nil {
		t.Fatalf("redistest: ask a sentinel: %v", err)
	}
	for _, server := range s.Servers {
		if addr[1] == strconv.Itoa(server.port) {
			return server
		}
	}
	t.Fatalf("redistest: a sentinel names %v, which is none of the servers", addr)
	return nil
}

// Failover has a replica take over from a master that is well, and returns at
// once, as SENTINEL FAILOVER does.
func (s *Sentinel) Failover(t testing.TB) {
	t.Helper()
	if err := s.Sentinels[0].sentinelClient(t).Failover(t.Context(), MasterName).Err(); err != nil {
		t.Fatalf("redistest: SENTINEL FAILOVER: %v", err)
	}
}
