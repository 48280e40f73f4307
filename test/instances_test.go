package test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// instances waits until the gateway knows of so many, itself included.
func (g *gateway) instances(n int) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("the gateway knows of %d instances", n), func() bool {
		return g.value("gateway_instances") == float64(n)
	})
}

// sharesSite is a site whose one limit has no local cap: 30 an hour.
func sharesSite(t testing.TB, u *upstream, redisURL, timeout string) *site {
	s := awaySite(t, u, redisURL, timeout)
	s.write("plans.yaml", plansWith("      - {name: per-hour, algorithm: fixed_window, limit: 30/hour}\n"))
	s.write("keys.yaml", keysOf("first", "second"))
	return s
}

// wantShare has a caller spend what one instance grants while Redis is away.
func (g *gateway) wantShare(user string, share int) {
	g.t.Helper()
	for i := range share {
		if a := g.get("/capped", "X-API-Key", keyOf(user)); a.status != 200 {
			g.t.Fatalf("request %d of a share of %d: %d %s", i+1, share, a.status, a.body)
		}
	}
	a := g.get("/capped", "X-API-Key", keyOf(user))
	wantDeniedLocally(g.t, a, "per-hour")
	if got, want := a.field("RateLimit-Policy"), `"per-hour";q=30;w=3600`; got != want {
		g.t.Errorf("RateLimit-Policy %q, want %q", got, want)
	}
}

// Three gateways share a limit by thirds while Redis is away, also after Redis
// has come back and gone again, and by halves once one of them was killed while
// it was there.
func TestTheShareOfALimitFollowsTheLiveInstances(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	srv := redistest.Start(t)
	s := sharesSite(t, u, srv.URL(), "2s")
	var all []*gateway
	for n := 1; n <= 3; n++ {
		g := s.start()
		if got := g.value("gateway_instances"); got != float64(n) {
			t.Errorf("instance %d serves and knows of %v", n, got)
		}
		all = append(all, g)
	}
	for _, g := range all {
		g.instances(3)
	}

	srv.Kill()
	for _, g := range all {
		g.wantShare("first", 10)
	}
	srv.Restart()
	restarted := time.Now()
	for _, g := range all {
		g.shared()
	}
	rdb := srv.Client(t)
	eventually(t, "all are on the board again", func() bool {
		return rdb.ZCard(t.Context(), "rl:v1:{gateway}:instances").Val() == 3
	})
	if took := time.Since(restarted); took > withinThree {
		t.Errorf("it took %s until all were on the board again", took)
	}

	all[2].signal(syscall.SIGKILL)
	all[2].wait()
	for _, g := range all[:2] {
		g.instances(2)
	}
	srv.Kill()
	for _, g := range all[:2] {
		g.wantShare("second", 15)
	}
}

// A process is one instance, whatever it reloads, and it is gone when it stops.
func TestAGatewayIsOneInstanceOverReloads(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	s := sharesSite(t, u, srv.URL(), "1s")
	one, two := s.start(), s.start()
	one.instances(2)
	told := func() int64 {
		n, err := strconv.ParseInt(rdb.HGet(t.Context(), "rl:v1:{gateway}:board", "sequence").Val(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}

	before := told()
	s.write("plans.yaml", plansWith("      - {name: per-hour, algorithm: fixed_window, limit: 60/hour}\n"))
	one.reload()
	eventually(t, "the others are told that a plan has changed", func() bool { return told() > before+1000 })

	s.store(u, srv.URL(), "2s") // another store, with a board of its own
	one.reload()
	if names := rdb.ZRange(t.Context(), "rl:v1:{gateway}:instances", 0, -1).Val(); len(names) != 2 {
		t.Errorf("the board lists %v, want the two that there are", names)
	}
	one.instances(2)
	two.instances(2)

	var status struct {
		ConfigHash   string `json:"config_hash"`
		Instances    int
		InstanceList []struct {
			ID, Hostname, Version string
			Self                  bool
			Since                 time.Time
			StartedAt             time.Time `json:"started_at"`
			ConfigHash            string    `json:"config_hash"`
		} `json:"instance_list"`
	}
	eventually(t, "both are listed with the configuration in force", func() bool {
		status.InstanceList = nil
		if err := json.Unmarshal([]byte(send(t, "GET", one.admin+"/api/status", nil).body), &status); err != nil {
			t.Fatal(err)
		}
		same := 0
		for _, i := range status.InstanceList {
			if i.ConfigHash == status.ConfigHash {
				same++
			}
		}
		return same == 2
	})
	self := 0
	for _, i := range status.InstanceList {
		if i.ID == "" || i.Hostname == "" || i.Since.IsZero() || i.StartedAt.IsZero() {
			t.Errorf("too little is known of an instance: %+v", i)
		}
		if i.Self {
			self++
		}
	}
	if status.Instances != 2 || self != 1 {
		t.Errorf("%d instances, %d of them this one", status.Instances, self)
	}

	// A board that has just begun would not believe that one has gone.
	rdb.HSet(t.Context(), "rl:v1:{gateway}:board", "created", 1)
	two.stop()
	if n := rdb.ZCard(t.Context(), "rl:v1:{gateway}:instances").Val(); n != 1 {
		t.Errorf("the board lists %d when one has stopped, want the other", n)
	}
	one.instances(1)

	// In memory it is alone, as far as it knows.
	s.awayRoutes(u, "store: {memory: {max_keys: 1000}}")
	one.reload()
	one.instances(1)
	if n := rdb.Exists(t.Context(), "rl:v1:{gateway}:instances").Val(); n != 0 {
		t.Error("it is on the board of a Redis that it does not use")
	}
}
