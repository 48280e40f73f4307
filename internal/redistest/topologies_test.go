package redistest

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// eventually waits for ok, which another process brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); !ok(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain: %s", startTimeout, what)
		}
	}
}

func TestSentinelsReplaceAMaster(t *testing.T) {
	for how, away := range map[string]func(t *testing.T, s *Sentinel){
		"killed":   func(_ *testing.T, s *Sentinel) { s.Servers[0].Kill() },
		"frozen":   func(_ *testing.T, s *Sentinel) { s.Servers[0].Freeze() },
		"asked to": func(t *testing.T, s *Sentinel) { s.Failover(t) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := StartSentinel(t, SentinelOptions{})
			if s.Master(t, s.Sentinels[2]) != s.Servers[0] {
				t.Fatal("the first server is not the master")
			}
			if err := s.Servers[0].Client(t).Set(t.Context(), "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a replica has the key", func() bool { return s.Servers[2].Client(t).Get(t.Context(), "k").Val() == "v" })
			away(t, s)
			begun := time.Now()
			for _, sentinel := range s.Sentinels {
				eventually(t, "another master", func() bool { return s.Master(t, sentinel) != s.Servers[0] })
			}
			t.Logf("another master after %s", time.Since(begun))
			if err := s.Master(t, s.Sentinels[0]).Client(t).Set(t.Context(), "k", "w", 0).Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSentinelsWithPasswords(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t, SentinelOptions{Args: []string{"--requirepass", "p@ss w%rd"}, SentinelArgs: []string{"--requirepass", "other"}})
	s.Failover(t)
	eventually(t, "another master", func() bool { return s.Master(t, s.Sentinels[1]) != s.Servers[0] })
}

func TestAReplicaOfAClusterTakesOver(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	c := StartClusterWithReplicas(t, 3)
	t.Logf("started within %s", time.Since(begun))
	if err := c.Client(t).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	lost := c.NodeOf(t, "k")
	lost.Kill()
	begun = time.Now()
	for i, node := range c.Nodes {
		if node == lost {
			eventually(t, "its replica serves the key", func() bool {
				return c.Replicas[i].Client(t).Set(t.Context(), "k", "w", 0).Err() == nil
			})
			t.Logf("taken over within %s", time.Since(begun))
		}
	}
}

func TestTLSServerWantsACertificate(t *testing.T) {
	t.Parallel()
	s := StartTLS(t)
	if err := s.Client(t).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	bare := s.TLS().config()
	bare.Certificates = nil
	for name, config := range map[string]*tls.Config{"no certificate": bare, "no TLS": nil} {
		c := redis.NewClient(&redis.Options{Addr: s.Addr(), TLSConfig: config, MaxRetries: -1})
		if err := c.Ping(t.Context()).Err(); err == nil {
			t.Errorf("%s: no error", name)
		}
		_ = c.Close()
	}
	s.Restart()
	if err := s.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestUsersWithAnyCharacters(t *testing.T) {
	t.Parallel()
	u := User{Name: "@:/#+%$\"'ü", Password: "@:/#+%$ \"quoted\" 'pässword' ", Rules: "~rl:* +set"}
	s := Start(t, "--aclfile", ACLFile(t, u))
	s.Restart()
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: u.Name, Password: u.Password})
	defer func() { _ = c.Close() }()
	if err := c.Set(t.Context(), "rl:k", "v", 0).Err(); err != nil {
		t.Error(err)
	}
	if err := c.Set(t.Context(), "k", "v", 0).Err(); !redis.IsPermissionError(err) {
		t.Errorf("another key: %v", err)
	}
}

func TestAnAppendOnlyServerKeepsItsData(t *testing.T) {
	t.Parallel()
	s := Start(t, "--appendonly", "yes", "--appendfsync", "always")
	if err := s.Client(t).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	if got := s.Client(t).Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("after a restart: %q", got)
	}
}
