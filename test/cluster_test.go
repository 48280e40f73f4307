package test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/internal/redistest"
)

// clusterStore is the store section for a cluster. The time is generous, so that
// no busy machine has a request decided without it.
func clusterStore(c *redistest.Cluster) string {
	urls := make([]string, len(c.Nodes))
	for i, node := range c.Nodes {
		urls[i] = `"` + node.URL()[:len(node.URL())-len("/0")] + `"`
	}
	return "store: {redis: {urls: [" + strings.Join(urls, ", ") + "], timeout: 5s}}"
}

// userOn returns the name of a user whose counts one node has.
func userOn(t testing.TB, c *redistest.Cluster, node *redistest.Server, prefix string) string {
	t.Helper()
	for i := range 1000 {
		user := fmt.Sprintf("%s-%d", prefix, i)
		if c.NodeOf(t, "rl:v1:{user:"+user+"}") == node {
			return user
		}
	}
	t.Fatalf("no user %s-… lives on %s", prefix, node.Addr())
	return ""
}

// clusterSite is a site with the keys that keyOf makes and a route for each of
// awayPaths.
func clusterSite(t testing.TB, u *upstream, c *redistest.Cluster, plans, keys string) *site {
	s := newSite(t)
	s.write("keys.yaml", "keys:\n"+keys)
	s.write("plans.yaml", plans)
	s.awayRoutes(u, clusterStore(c))
	return s
}

// storeTimeout gives the store less time than a busy machine is given elsewhere,
// where a test has to wait until that is over.
func (s *site) storeTimeout(timeout string) {
	s.t.Helper()
	s.write("routes.yaml", strings.Replace(string(must(os.ReadFile(s.path("routes.yaml")))), "timeout: 5s", "timeout: "+timeout, 1))
}

// Priya notices nothing of how many servers count for her.
func TestPriyasStoryOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, clusterStore(c))
	// The gateway is told of the first node only by another.
	user := userOn(t, c, c.Nodes[0], "priya")
	s.write("keys.yaml", "keys:\n"+keyEntry(user, "tenant: acme"))
	s.write("routes.yaml", strings.Replace(string(must(os.ReadFile(s.path("routes.yaml")))), `"redis://`+c.Nodes[0].Addr()+`", `, "", 1))
	g := s.start()
	story(t, g, u, "X-API-Key", keyOf(user))
	g.decidedByItsStore()
}

// The last of a limit go to exactly as many as there are, whichever of three
// limits on different nodes it is, and the other two count those and no others.
func TestTheLastOfOneOfThreeLimitsOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	u := newUpstream(t, nil)
	const spendable, others = 25, 10_000
	names := []string{"mine", "team", "all"}
	plans, keys := "default_plan: tight-mine\nplans:\n", ""
	for _, tight := range names {
		plans += "  tight-" + tight + ":\n    limits:\n"
		for i, name := range names {
			quota := others
			if name == tight {
				quota = spendable
			}
			plans += fmt.Sprintf("      - {name: %s-of-%s, per: %s, algorithm: fixed_window, limit: %d/day}\n",
				name, tight, []string{"user", "tenant", "global"}[i], quota)
		}
		user := userOn(t, c, c.Nodes[0], "user-"+tight)
		keys += keyEntry(user, "tenant: t-"+tight+", plan: tight-"+tight)
	}
	s := clusterSite(t, u, c, plans, keys)
	gateways := []*gateway{s.launch(), s.launch(), s.launch()}
	for _, g := range gateways {
		g.serving()
	}
	rdb := c.Client(t)
	for _, tight := range names {
		t.Run(tight, func(t *testing.T) {
			user := userOn(t, c, c.Nodes[0], "user-"+tight)
			buckets := map[string]string{
				"mine": "{user:" + user + "}", "team": "{tenant:t-" + tight + "}", "all": "{global}",
			}
			before := u.count()
			var mu sync.Mutex
			statuses := map[int]int{}
			var rush sync.WaitGroup
			for i := range 60 {
				rush.Go(func() {
					a, err := trySend("GET", gateways[i%3].url+"/closed", nil, "X-API-Key", keyOf(user))
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					statuses[a.status]++
				})
			}
			rush.Wait()
			if statuses[200] != spendable || statuses[429] != 60-spendable {
				t.Errorf("answers %v, want %d × 200 and %d × 429", statuses, spendable, 60-spendable)
			}
			if reached := u.count() - before; reached != spendable {
				t.Errorf("%d requests reached the upstream", reached)
			}
			for name, bucket := range buckets {
				key := "rl:v1:" + bucket + ":plan/" + name + "-of-" + tight + ":fw/86400"
				if used := unitsIn(t, rdb, key); used != spendable {
					t.Errorf("%s: %d used, want %d", key, used, spendable)
				}
			}
		})
	}
	for _, g := range gateways {
		g.decidedByItsStore()
		if n := g.sum("gateway_store_errors_total"); n != 0 {
			t.Errorf("%v errors of a store that was there all the time", n)
		}
	}
	for _, node := range c.Nodes {
		everyKeyEnds(t, node)
	}
}

// unitsIn reads how many units a key holds, of whatever algorithm but queues.
func unitsIn(t testing.TB, rdb redis.UniversalClient, key string) int64 {
	t.Helper()
	if strings.Contains(key, ":sl/") {
		n, err := rdb.LLen(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	value, err := rdb.Get(t.Context(), key).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return 0
	case err != nil || len(value) < 16:
		t.Fatalf("%s: %q, %v", key, value, err)
	}
	units := float64At(value)
	if strings.Contains(key, ":tb/") {
		// What has drained since is less than a unit.
		units = math.Ceil(units / float64At(value[8:]))
	}
	return int64(units)
}

// A denial by one limit leaves those on other nodes where they were, in Redis
// and not only in what the client is told.
func TestADenialOnOneNodeChargesNothingOnTheOthers(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	u := newUpstream(t, nil)
	algorithms := map[string]string{
		"fixed_window": "fw", "sliding_window_log": "sl", "sliding_window_counter": "sc", "token_bucket": "tb",
	}
	subjects := []string{"user", "tenant", "global"}
	type one struct{ algorithm, tight, user string }
	var cases []one
	plans, keys := "", ""
	for algorithm, tag := range algorithms {
		for i, tight := range subjects {
			user := userOn(t, c, c.Nodes[i], tag+"-"+tight)
			cases = append(cases, one{algorithm, tight, user})
			plans += "  " + tag + "-" + tight + ":\n    limits:\n"
			for _, per := range subjects {
				quota := 1000
				if per == tight {
					quota = 3
				}
				plans += fmt.Sprintf("      - {name: %s-%s-%s, per: %s, algorithm: %s, limit: %d/day}\n", tag, tight, per, per, algorithm, quota)
			}
			keys += keyEntry(user, "tenant: t-"+user+", plan: "+tag+"-"+tight)
		}
	}
	s := clusterSite(t, u, c, "default_plan: fw-user\nplans:\n"+plans, keys)
	g := s.start()
	rdb := c.Client(t)
	for _, o := range cases {
		t.Run(o.algorithm+" "+o.tight, func(t *testing.T) {
			tag := algorithms[o.algorithm]
			for i := range 8 {
				a := send(t, "GET", g.url+"/closed", nil, "X-API-Key", keyOf(o.user))
				if want := map[bool]int{true: 200, false: 429}[i < 3]; a.status != want {
					t.Fatalf("request %d: %d, want %d: %s", i+1, a.status, want, a.body)
				}
				for _, per := range subjects {
					left := 1000 - min(i+1, 3)
					if per == o.tight {
						left = 3 - min(i+1, 3)
					}
					if want := fmt.Sprintf(`"%s-%s-%s";r=%d;`, tag, o.tight, per, left); !contains(a.field("RateLimit"), want) {
						t.Fatalf("request %d: RateLimit %s, want %s", i+1, a.field("RateLimit"), want)
					}
				}
			}
			for per, bucket := range map[string]string{
				"user": "{user:" + o.user + "}", "tenant": "{tenant:t-" + o.user + "}", "global": "{global}",
			} {
				key := fmt.Sprintf("rl:v1:%s:plan/%s-%s-%s:%s/86400", bucket, tag, o.tight, per, tag)
				if units := unitsIn(t, rdb, key); units != 3 {
					t.Errorf("%s: %d units, want 3", key, units)
				}
			}
		})
	}
	g.decidedByItsStore()
	for _, node := range c.Nodes {
		everyKeyEnds(t, node)
	}
}

// The local cap is more than any test here asks for while a node is away.
const clusterPlans = `
default_plan: free
plans:
  free:
    local_cap: 10000/hour
    limits:
      - {name: per-hour, algorithm: fixed_window, limit: 1000000/hour}
`

// wantShared checks that an answer was decided in Redis.
func wantShared(t testing.TB, a answer) {
	t.Helper()
	if a.status != 200 || !contains(a.field("RateLimit-Policy"), `"per-hour";q=1000000;`) {
		t.Fatalf("%d, RateLimit-Policy %q, %s; want a decision of Redis", a.status, a.field("RateLimit-Policy"), a.body)
	}
}

// wantAway checks the three answers of a caller whose counts cannot be reached.
func (g *gateway) wantAway(user string) {
	g.t.Helper()
	wantRefused(g.t, g.get("/closed", "X-API-Key", keyOf(user)))
	if a := g.get("/capped", "X-API-Key", keyOf(user)); a.status != 200 || !isLocal(a) {
		g.t.Errorf("a local_cap route: %d, RateLimit-Policy %q", a.status, a.field("RateLimit-Policy"))
	}
	a := g.get("/open", "X-API-Key", keyOf(user))
	if a.status != 200 {
		g.t.Errorf("an allow route: %d", a.status)
	}
	noLimitFields(g.t, a)
}

// A clusterOfThree is a gateway on a cluster and a caller on each of its nodes:
// the one that is probed, and two others.
type clusterOfThree struct {
	c                        *redistest.Cluster
	probed, spare            *redistest.Server
	onProbed, onSpare, other string
	g                        *gateway
}

func newClusterOfThree(t *testing.T, timeout string) *clusterOfThree {
	c := redistest.StartCluster(t, 3)
	n := &clusterOfThree{c: c, probed: c.NodeOf(t, "rl:v1:{probe}")}
	for _, node := range c.Nodes {
		switch {
		case node == n.probed:
			n.onProbed = userOn(t, c, node, "probed")
		case n.spare == nil:
			n.spare, n.onSpare = node, userOn(t, c, node, "spare")
		default:
			n.other = userOn(t, c, node, "other")
		}
	}
	keys := ""
	for _, user := range n.users() {
		keys += keyEntry(user, "plan: free")
	}
	s := clusterSite(t, newUpstream(t, nil), c, clusterPlans, keys)
	s.storeTimeout(timeout)
	n.g = s.start()
	return n
}

func (n *clusterOfThree) users() []string { return []string{n.onProbed, n.onSpare, n.other} }

func (n *clusterOfThree) ask(user string) answer {
	return n.g.get("/closed", "X-API-Key", keyOf(user))
}

// nodeAway and the two others are what the log says of one node.
const (
	nodeAway = "a node of the limit store is away; for the callers whose counts it has, each route now does what its on_store_failure says, until the node answers again or another has taken over"
	nodeBack = "a node of the limit store is back; the limits of its callers are shared again"
	nodeOver = "another node has taken over from the one that was away; the limits of its callers are shared again"
)

// kill ends a node and has the gateway notice.
func (n *clusterOfThree) kill(t *testing.T, node *redistest.Server, user string) {
	t.Helper()
	for _, user := range n.users() {
		wantShared(t, n.ask(user))
	}
	node.Kill()
	for range 5 {
		wantRefused(t, n.ask(user))
	}
	eventually(t, "five failures in a row open the breaker of the node", func() bool { return len(n.g.all(nodeAway)) > 0 })
}

// everybodyIsShared waits until all callers are counted in Redis.
func (n *clusterOfThree) everybodyIsShared(t *testing.T) {
	t.Helper()
	for _, user := range n.users() {
		eventually(t, "the callers of the node are counted again", func() bool { return n.ask(user).status == 200 })
	}
	n.g.shared()
	for _, user := range n.users() {
		wantShared(t, n.g.get("/capped", "X-API-Key", keyOf(user)))
	}
}

// One node dies, and with it the counts of some callers. They get what their
// route says, without anybody being asked; the others are counted on, however few
// they are. When the node is back, so is everything.
func TestANodeOfTheClusterDies(t *testing.T) {
	for name, which := range map[string]func(n *clusterOfThree) (*redistest.Server, string, []string){
		"that is probed first": func(n *clusterOfThree) (*redistest.Server, string, []string) {
			return n.probed, n.onProbed, []string{n.onSpare, n.other}
		},
		"another": func(n *clusterOfThree) (*redistest.Server, string, []string) {
			return n.spare, n.onSpare, []string{n.onProbed, n.other}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newClusterOfThree(t, "5s")
			dead, user, others := which(n)
			n.kill(t, dead, user)
			n.g.away()
			n.g.ready(true)
			if a := send(t, "GET", n.g.admin+"/readyz", nil); !contains(a.body, dead.Addr()) {
				t.Errorf("/readyz does not name %s: %s", dead.Addr(), a.body)
			}
			failed := n.g.sum("gateway_store_errors_total")
			// Through some probes of the dead node, which must close nothing.
			for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
				n.g.wantAway(user)
				for _, other := range others {
					wantShared(t, n.ask(other))
				}
				if n.g.fallback() != 3 {
					t.Fatal("the node is away, and gateway_fallback_active is 0")
				}
			}
			// The probes, and what instances tell each other.
			if more := n.g.sum("gateway_store_errors_total") - failed; more > 20 {
				t.Errorf("%v errors more of a node that is known to be away", more)
			}
			dead.Restart()
			n.everybodyIsShared(t)
			lines := n.g.all(nodeAway)
			if len(lines) != 1 || lines[0]["node"] != dead.Addr() || lines[0]["away"] != "1 of 3 nodes" {
				t.Errorf("lines that say that a node is away: %v", lines)
			}
			if lines := n.g.all(nodeBack); len(lines) != 1 || lines[0]["node"] != dead.Addr() {
				t.Errorf("lines that say that a node is back: %v", lines)
			}
			n.g.stop()
		})
	}
}

// A master comes back without its nodes.conf: it knows of no slots, and no node has
// those that it had. Its callers get what their route says, which is said once; the
// others are counted on. When the slots are given to another node, all are.
func TestAMasterOfTheClusterForgetsItsSlots(t *testing.T) {
	t.Parallel()
	n := newClusterOfThree(t, "5s")
	for _, user := range n.users() {
		wantShared(t, n.ask(user))
	}
	at := slices.Index(n.c.Nodes, n.spare)
	spare := n.spare.Client(t)
	if err := errors.Join(spare.FlushAll(t.Context()).Err(), spare.ClusterResetHard(t.Context()).Err()); err != nil {
		t.Fatal(err) // a master with keys does not forget its slots
	}
	const nobodys = "slots of the cluster have no node; for the callers whose counts are there, each route now does what its on_store_failure says, until a node has them"
	eventually(t, "the slots without a node are noticed", func() bool { _ = n.ask(n.onSpare); return len(n.g.all(nobodys)) > 0 })
	n.g.wantAway(n.onSpare)
	for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
		wantRefused(t, n.ask(n.onSpare))
		wantShared(t, n.ask(n.onProbed))
		wantShared(t, n.ask(n.other))
	}
	first, last := at*16384/3, (at+1)*16384/3-1
	for _, node := range n.c.Nodes {
		if node != n.spare {
			if err := node.Client(t).ClusterDelSlotsRange(t.Context(), first, last).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := n.probed.Client(t).ClusterAddSlotsRange(t.Context(), first, last).Err(); err != nil {
		t.Fatal(err)
	}
	// The nodes tell each other, and until then one that has not heard may be asked.
	eventually(t, "all nodes know who has the slots", func() bool {
		for range 10 {
			if a := n.g.get("/capped", "X-API-Key", keyOf(n.onSpare)); a.status != 200 || isLocal(a) {
				return false
			}
		}
		return true
	})
	n.everybodyIsShared(t)
	// While the nodes tell each other, a map of one that has not heard yet may give the
	// slots back to the master that lost them, for a moment. That is said, too.
	stale := 0
	for _, l := range n.g.all("another node has taken over from the one that was away, and is away itself; the callers are as before") {
		if l["node"] == "unassigned slots" && l["by"] == n.spare.Addr() {
			stale++
		}
	}
	if lines := n.g.all(nobodys); len(lines) != 1+stale || lines[0]["node"] != "unassigned slots" || lines[0]["kind"] != "clusterdown" {
		t.Errorf("lines that say that slots have no node: %v, and %d that say that a map was stale", lines, stale)
	}
	if lines := n.g.all("the slots of the cluster that had no node have one again; the limits of their callers are shared again"); len(lines) != 1 || lines[0]["by"] != nil && lines[0]["by"] != n.probed.Addr() {
		t.Errorf("lines that say that they have one again: %v", lines)
	}
	if lines := slices.Concat(n.g.all(nodeOver), n.g.all(nodeBack)); len(lines) != 0 {
		t.Errorf("a node is said to be back: %v", lines)
	}
	n.g.stop()
}

// A master dies under load and its replica takes over. At no moment do the callers
// of the others notice, and when the store is said to be in use again, it is.
func TestATakeoverConcernsOnlyTheCallersOfTheLostMaster(t *testing.T) {
	t.Parallel()
	c := redistest.StartClusterWithReplicas(t, 3)
	users := make([]string, len(c.Nodes))
	keys := ""
	for i, node := range c.Nodes {
		users[i] = userOn(t, c, node, fmt.Sprintf("user%d", i))
		keys += keyEntry(users[i], "plan: free")
	}
	s := clusterSite(t, newUpstream(t, nil), c, clusterPlans, keys)
	s.storeTimeout("2s")
	n := &clusterOfThree{g: s.start()}
	for _, user := range users {
		wantShared(t, n.ask(user))
	}
	c.Nodes[1].Kill()
	for active, away := 0.0, false; !away || active > 0; active = n.g.fallback() {
		away = away || active > 0
		_ = n.ask(users[1]) // 503 until the replica has taken over
		wantShared(t, n.ask(users[0]))
		wantShared(t, n.ask(users[2]))
	}
	for range 20 {
		for _, user := range users {
			wantShared(t, n.ask(user))
		}
	}
	if lines := n.g.all(nodeAway); len(lines) != 1 || lines[0]["node"] != c.Nodes[1].Addr() {
		t.Errorf("lines that say that a node is away: %v", lines)
	}
	eventually(t, "the log says who has taken over", func() bool { return len(n.g.all(nodeOver)) == 1 })
	if line := n.g.logged(nodeOver); line["node"] != c.Nodes[1].Addr() || line["by"] != c.Replicas[1].Addr() {
		t.Errorf("%v; want %s in place of %s", line, c.Replicas[1].Addr(), c.Nodes[1].Addr())
	}
	n.g.stop()
}

// What could not be given back is seen: one node has charged, the other does not
// answer, and when its time is over the first is gone as well.
func TestALostRefundOnAClusterIsCounted(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	u := newUpstream(t, nil)
	// What instances tell each other lives on the first node, and goes on.
	user, tenant := userOn(t, c, c.Nodes[1], "user"), ""
	for i := 0; tenant == ""; i++ {
		if name := fmt.Sprintf("tenant-%d", i); c.NodeOf(t, "rl:v1:{tenant:"+name+"}") == c.Nodes[2] {
			tenant = name
		}
	}
	s := clusterSite(t, u, c, "default_plan: free\nplans:\n  free:\n    limits:\n"+
		"      - {name: mine, algorithm: fixed_window, limit: 9/day}\n"+
		"      - {name: team, per: tenant, algorithm: fixed_window, limit: 9/day}\n",
		keyEntry(user, "tenant: "+tenant))
	s.storeTimeout("1s")
	g := s.start()
	mine := c.Nodes[1].Client(t)
	key := "rl:v1:{user:" + user + "}:plan/mine:fw/86400"
	ask := func() answer { return send(t, "GET", g.url+"/closed", nil, "X-API-Key", keyOf(user)) }
	if a := ask(); a.status != 200 || unitsIn(t, mine, key) != 1 {
		t.Fatalf("%d, %d units of %s", a.status, unitsIn(t, mine, key), key)
	}
	c.Nodes[2].Freeze()
	answered := make(chan answer, 1)
	go func() {
		a, err := trySend("GET", g.url+"/closed", nil, "X-API-Key", keyOf(user))
		if err != nil {
			t.Error(err)
		}
		answered <- a
	}()
	eventually(t, "one node has charged", func() bool { return unitsIn(t, mine, key) == 2 })
	c.Nodes[1].Kill()
	wantRefused(t, <-answered)
	eventually(t, "two errors are counted: no decision, and nothing given back", func() bool {
		return g.sum("gateway_store_errors_total") == 2
	})
	c.Nodes[2].Thaw()
}

// A node that hangs holds up the callers whose counts it has, each for the
// store's time, and they then get what their route says. Nobody else notices.
func TestAFrozenNodeConcernsOnlyItsCallers(t *testing.T) {
	t.Parallel() // it mostly waits
	n := newClusterOfThree(t, "2s")
	for _, user := range n.users() {
		wantShared(t, n.ask(user))
	}
	n.spare.Freeze()
	answers := make([]answer, len(awayPaths))
	var held sync.WaitGroup
	for i, path := range awayPaths {
		held.Go(func() {
			var err error
			if answers[i], err = trySend("GET", n.g.url+path, nil, "X-API-Key", keyOf(n.onSpare)); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		})
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		held.Wait()
	}()
	// Meanwhile the others are served.
	for i, waiting := 0, true; waiting || i < 10; i++ {
		wantShared(t, n.ask(n.other))
		wantShared(t, n.ask(n.onProbed))
		select {
		case <-served:
			waiting = false
		case <-time.After(20 * time.Millisecond):
		}
	}
	for i, a := range answers {
		switch path := awayPaths[i]; path {
		case "/closed":
			wantRefused(t, a)
		case "/capped":
			if a.status != 200 || !isLocal(a) {
				t.Errorf("%s: %d, RateLimit-Policy %q; want 200 by the local cap", path, a.status, a.field("RateLimit-Policy"))
			}
		case "/open":
			if a.status != 200 {
				t.Errorf("%s: %d, want 200", path, a.status)
			}
			noLimitFields(t, a)
		}
	}
	wantShared(t, n.ask(n.other))
	wantShared(t, n.ask(n.onProbed))
	if lines := n.g.all(nodeAway); len(lines) != 0 || n.g.fallback() != 0 {
		t.Errorf("three decisions failed, and the node is said to be away: %v", lines)
	}
	n.spare.Thaw()
	eventually(t, "the callers of the node are counted again", func() bool { return n.ask(n.onSpare).status == 200 })
	wantShared(t, n.ask(n.onSpare))
	n.g.stop()
}

// Where the queue is on one node and the caller's own limit on another, a denial
// by the own limit is answered at once, and the place in the queue is not given
// back; one by the queue gives back what the own limit was charged.
func TestAQueueOnAnotherNodeKeepsThePlacesOfTheDenied(t *testing.T) {
	t.Parallel() // it mostly waits for servers to start
	c := redistest.StartCluster(t, 3)
	u := newUpstream(t, nil)
	queue := c.NodeOf(t, "rl:v1:{global}")
	var users []string
	for i, node := range c.Nodes {
		if node != queue {
			users = append(users, userOn(t, c, node, fmt.Sprintf("user%d", i)))
		}
	}
	spent, waiting := users[0], users[1]
	// With count_rejected the nodes are asked for each denial.
	//
	// A drip takes longer than any test: what is taken stays taken, and a request
	// that waited for its turn would not be answered in time.
	s := clusterSite(t, u, c, `
default_plan: many
plans:
  one:  {limits: [{name: mine, algorithm: fixed_window, limit: 1/day, count_rejected: true}]}
  many: {limits: [{name: mine, algorithm: fixed_window, limit: 9/day}]}
`, keyEntry(spent, "plan: one")+keyEntry(waiting, "plan: many"))
	s.write("routes.yaml", string(must(os.ReadFile(s.path("routes.yaml"))))+`
  - {name: queued, path: /queued, upstream: weather, on_store_failure: deny, limits: [geo]}
limits:
  geo: {per: global, algorithm: leaky_bucket, limit: 1/hour, queue: 2}
`)
	g := s.start()
	rdb := c.Client(t)
	ask := func(user string) answer { return send(t, "GET", g.url+"/queued", nil, "X-API-Key", keyOf(user)) }
	used := func(user string) int64 { return unitsIn(t, rdb, "rl:v1:{user:"+user+"}:plan/mine:fw/86400") }
	violated := func(a answer) string { return fmt.Sprint(a.problem(t)["violated-policies"]) }

	// It goes at once, and leaves two places. Each denial takes one of them.
	if a := ask(spent); a.status != 200 {
		t.Fatalf("the first: %d %s", a.status, a.body)
	}
	for i := range 2 {
		a := ask(spent)
		if a.status != 429 || violated(a) != "[mine]" {
			t.Fatalf("denial %d: %d, violated %s; want 429 by mine alone", i+1, a.status, violated(a))
		}
		if n := used(spent); n != 1 {
			t.Errorf("denial %d: mine has %d units, want 1", i+1, n)
		}
	}
	a := ask(waiting)
	if a.status != 429 || violated(a) != "[geo]" {
		t.Fatalf("a queue full of places of the denied: %d, violated %s; want 429 by geo", a.status, violated(a))
	}
	// The first place is free an hour after the first request went.
	if wait := waitOf(t, a); wait > 3600 || wait < 3500 {
		t.Errorf("Retry-After %d, want an hour less what the test has taken", wait)
	}
	if n := used(waiting); n != 0 {
		t.Errorf("denied by the queue, and mine has %d units", n)
	}
	// Who is denied by both is told of both, and the queue is not overfilled.
	if a := ask(spent); a.status != 429 || violated(a) != "[mine geo]" || waitOf(t, a) < 3600 {
		t.Errorf("denied by both: %d, violated %s, Retry-After %s", a.status, violated(a), a.field("Retry-After"))
	}
	if wait := waitOf(t, ask(waiting)); wait > 3600 {
		t.Errorf("a denial by the queue itself took a place: Retry-After %d", wait)
	}
	if n := u.count(); n != 1 {
		t.Errorf("%d requests reached the upstream, want 1", n)
	}
	if n := g.sum("gateway_store_errors_total"); n != 0 {
		t.Errorf("%v errors of a store that was there all the time", n)
	}
	g.decidedByItsStore()
}
