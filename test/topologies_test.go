package test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/internal/redistest"
)

// topologyPlans has one limit by each algorithm that keeps a key of its own, so
// that a decision is about several keys, and all rights are needed.
const topologyPlans = `
default_plan: free
plans:
  free:
    local_cap: 40/hour
    limits:
      - {name: per-day, algorithm: fixed_window, limit: 1000000/day}
      - {name: bucket, algorithm: token_bucket, limit: 1000000/day, burst: 1000000}
      - {name: log, algorithm: sliding_window_log, limit: 10000/day}
      - {name: counter, algorithm: sliding_window_counter, limit: 1000000/day}
      - {name: queue, algorithm: leaky_bucket, limit: 1000000/second, queue: 1000}
`

// A pair is two gateways that count in one store.
type pair struct {
	t        testing.TB
	gateways [2]*gateway
	site     *site
	user     string
}

// startPair runs two gateways on the store section of a configuration.
func startPair(t testing.TB, store, user string) *pair {
	t.Helper()
	s := newSite(t)
	s.write("keys.yaml", "keys:\n"+keyEntry(user, "plan: free"))
	s.write("plans.yaml", topologyPlans)
	s.awayRoutes(newUpstream(t, nil), store)
	p := &pair{t: t, site: s, user: user, gateways: [2]*gateway{s.launch(), s.launch()}}
	for _, g := range p.gateways {
		g.serving()
		g.shared()
	}
	return p
}

// ask sends a request that is refused if it cannot be counted in Redis.
func (p *pair) ask(i int) answer {
	p.t.Helper()
	return p.gateways[i].get("/closed", "X-API-Key", keyOf(p.user))
}

// left returns what remains of the day, -1 if Redis did not decide.
func left(a answer) int {
	_, after, ok := strings.Cut(a.field("RateLimit"), `"per-day";r=`)
	if a.status != 200 || !ok {
		return -1
	}
	digits, _, _ := strings.Cut(after, ";")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return n
}

// oneCount reports whether both gateways are counted in one place now: each
// request leaves one less, whoever takes it.
func (p *pair) oneCount() bool {
	p.t.Helper()
	before := left(p.ask(0))
	for i := 1; i < 6; i++ {
		now := left(p.ask(i % 2))
		if before < 0 || now != before-1 {
			return false
		}
		before = now
	}
	return true
}

// together waits until both gateways are counted in one place.
func (p *pair) together() {
	p.t.Helper()
	eventually(p.t, "two gateways share one count", p.oneCount)
}

// refused waits until both gateways do without Redis.
func (p *pair) refused() {
	p.t.Helper()
	for i, g := range p.gateways {
		eventually(p.t, "a gateway notices that Redis is away", func() bool { return p.ask(i).status == 503 && g.fallback() == 3 })
	}
}

// stop ends both gateways as an orchestrator does.
func (p *pair) stop() {
	p.t.Helper()
	for _, g := range p.gateways {
		g.stop()
	}
}

// rights is the rule of docs/OPERATING.md for the user of a gateway.
func rights(t testing.TB) string {
	t.Helper()
	text := string(must(os.ReadFile("../docs/OPERATING.md")))
	_, rule, ok := strings.Cut(text, "ACL SETUSER gateway on >PASSWORD ")
	rule, _, ends := strings.Cut(rule, "\n\n")
	if !ok || !ends {
		t.Fatal("docs/OPERATING.md shows no ACL SETUSER gateway")
	}
	return strings.Join(strings.Fields(rule), " ")
}

// quoted writes text as YAML, whatever is in it.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// One server, by each way to reach it: two gateways share one count, and do so
// again by themselves when it was restarted.
func TestOneServerHoweverReached(t *testing.T) {
	odd := redistest.User{Name: "gate@:/#+%$\"'wäy", Password: "@:/#+%$ \"quoted\" 'pässword' "}
	odd.Rules = rights(t)
	for name, start := range map[string]func(t *testing.T) (srv *redistest.Server, store string){
		"port": func(t *testing.T) (*redistest.Server, string) {
			srv := redistest.Start(t)
			return srv, `url: "` + srv.URL() + `"`
		},
		"socket": func(t *testing.T) (*redistest.Server, string) {
			srv := redistest.Start(t)
			return srv, `url: "unix://` + srv.Socket() + `"`
		},
		"TLS": func(t *testing.T) (*redistest.Server, string) {
			srv := redistest.StartTLS(t)
			f := srv.TLS()
			return srv, fmt.Sprintf("url: %q, tls: {ca_file: %q, cert_file: %q, key_file: %q}", srv.URL(), f.CAFile, f.CertFile, f.KeyFile)
		},
		"a user with the rights of the documentation": func(t *testing.T) (*redistest.Server, string) {
			srv := redistest.Start(t, "--aclfile", redistest.ACLFile(t, odd))
			return srv, fmt.Sprintf("url: %q, username: %s, password: %s", "redis://"+srv.Addr(), quoted(odd.Name), quoted(odd.Password))
		},
		"append-only": func(t *testing.T) (*redistest.Server, string) {
			srv := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			return srv, `url: "` + srv.URL() + `"`
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, store := start(t)
			p := startPair(t, "store: {redis: {"+store+", timeout: 2s}}", "priya")
			p.together()
			srv.Kill()
			p.refused()
			p.gateways[0].get("/capped", "X-API-Key", keyOf(p.user)) // to be charged later, if anything is
			srv.Restart()
			back := time.Now()
			p.together()
			t.Logf("shared again within %s", time.Since(back))
			for _, g := range p.gateways {
				for _, kind := range []string{"noperm", "auth"} {
					if n := g.value(`gateway_store_errors_total{kind="` + kind + `"}`); n != 0 {
						t.Errorf("%v errors of kind %s", n, kind)
					}
				}
			}
			p.stop()
		})
	}
}

// A password that changes in Redis first and in its file later: the store is
// away in between, and comes back by itself.
func TestThePasswordOfRedisIsRotated(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--requirepass", "first")
	file := t.TempDir() + "/password"
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("first\n")
	p := startPair(t, fmt.Sprintf("store: {redis: {url: %q, password_file: %q, timeout: 2s}}", "redis://"+srv.Addr(), file), "priya")
	p.together()
	admin := srv.Client(t)
	if err := admin.ConfigSet(t.Context(), "requirepass", "hunter2").Err(); err != nil {
		t.Fatal(err)
	}
	p.together() // on the connections that there are
	if err := admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	p.refused()
	for _, g := range p.gateways {
		if n := g.value(`gateway_store_errors_total{kind="auth"}`); n == 0 {
			t.Error("no error of kind auth")
		}
	}
	put("hunter2\n")
	back := time.Now()
	p.together()
	t.Logf("shared again within %s", time.Since(back))
	for _, g := range p.gateways {
		if strings.Contains(g.output()+g.stderr.String(), "hunter2") {
			t.Error("the log shows the password")
		}
	}
	p.stop()
}

func sentinelStore(s *redistest.Sentinel) string {
	return fmt.Sprintf(`store: {redis: {sentinel: {master: %s, addresses: ["%s"]}, timeout: 1s}}`,
		redistest.MasterName, strings.Join(s.Addrs(), `", "`))
}

// Sentinels choose another master, whichever way the old one went: both gateways
// count there. An old master that was only frozen leads nobody back.
func TestSentinelsChooseAnotherMaster(t *testing.T) {
	for how, away := range map[string]func(t *testing.T, s *redistest.Sentinel){
		"killed":   func(_ *testing.T, s *redistest.Sentinel) { s.Servers[0].Kill() },
		"frozen":   func(_ *testing.T, s *redistest.Sentinel) { s.Servers[0].Freeze() },
		"asked to": func(t *testing.T, s *redistest.Sentinel) { s.Failover(t) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartSentinel(t, redistest.SentinelOptions{})
			p := startPair(t, sentinelStore(s), "priya")
			p.together()
			away(t, s)
			eventually(t, "another master is chosen", func() bool { return s.Master(t, s.Sentinels[0]) != s.Servers[0] })
			chosen := time.Now()
			now := s.Master(t, s.Sentinels[0])
			key := "rl:v1:{user:priya}:plan/per-day:fw/86400"
			eventually(t, "both gateways count on the new master", func() bool {
				before := unitsIn(t, now.Client(t), key)
				return p.oneCount() && unitsIn(t, now.Client(t), key) == before+6
			})
			t.Logf("followed within %s", time.Since(chosen))
			switch how {
			case "killed":
				s.Servers[0].Restart() // which believes that it is the master
			case "frozen":
				s.Servers[0].Thaw()
			}
			for range 10 {
				if !p.oneCount() {
					t.Fatal("the old master is back, and the count is not one any more")
				}
			}
			p.stop()
		})
	}
}

// A master of a cluster dies and its replica takes over; the callers of the
// others are not concerned.
func TestAReplicaOfTheClusterTakesOver(t *testing.T) {
	t.Parallel()
	c := redistest.StartClusterWithReplicas(t, 3)
	probed := c.NodeOf(t, "rl:v1:{probe}")
	p := startPair(t, clusterStore(c), userOn(t, c, probed, "priya"))
	p.together()
	probed.Kill()
	for i := range c.Nodes {
		if c.Nodes[i] == probed {
			eventually(t, "the replica is the master", func() bool {
				return strings.Contains(c.Replicas[i].Client(t).Info(t.Context(), "replication").Val(), "role:master")
			})
		}
	}
	over := time.Now()
	p.together()
	t.Logf("shared again within %s", time.Since(over))
	p.stop()
}

// A slot with the counts of a caller moves to another node and back, key by key,
// under load: MOVED, ASK and TRYAGAIN reach no client, and nothing is lost or
// charged twice. The gateways have the rights of the documentation, no more.
func TestASlotMovesUnderLoad(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	user := userOn(t, c, c.Nodes[0], "priya")
	const more = "+cluster|slots +asking"
	if !strings.Contains(string(must(os.ReadFile("../docs/OPERATING.md"))), "`"+more+"`") {
		t.Errorf("docs/OPERATING.md does not ask for %s", more)
	}
	for _, node := range c.Nodes {
		rule := []any{"acl", "setuser", "gateway", "on", ">secret"}
		for word := range strings.FieldsSeq(rights(t) + " " + more) {
			rule = append(rule, word)
		}
		must(node.Client(t).Do(t.Context(), rule...).Result())
	}
	p := startPair(t, strings.Replace(clusterStore(c), "timeout:", "username: gateway, password: secret, timeout:", 1), user)
	p.together()
	key := "rl:v1:{user:" + user + "}:plan/per-day:fw/86400"
	slot := int(must(c.Nodes[0].Client(t).ClusterKeySlot(t.Context(), key).Result()))

	const clients = 4
	done := make(chan struct{})
	var load sync.WaitGroup
	var mu sync.Mutex
	admitted := 6 // by together
	for i := range clients {
		load.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				a, err := trySend("GET", p.gateways[i%2].url+"/closed", nil, "X-API-Key", keyOf(user))
				if err != nil || left(a) < 0 {
					t.Errorf("%d %s, %v: a request fails because a slot moves", a.status, a.body, err)
					return
				}
				mu.Lock()
				admitted++
				mu.Unlock()
			}
		})
	}
	for range 3 {
		moveSlot(t, c, slot, c.Nodes[0], c.Nodes[1])
		moveSlot(t, c, slot, c.Nodes[1], c.Nodes[0])
	}
	close(done)
	load.Wait()
	if used := unitsIn(t, c.Nodes[0].Client(t), key); int(used) != admitted {
		t.Errorf("%d units are used by %d requests", used, admitted)
	}
	for _, g := range p.gateways {
		if n := g.sum("gateway_store_errors_total"); n != 0 {
			t.Errorf("%v errors of a store that was there all the time", n)
		}
	}
	p.stop()
}

// moveSlot moves a slot with its keys, one at a time, as redis-cli does.
func moveSlot(t testing.TB, c *redistest.Cluster, slot int, from, to *redistest.Server) {
	t.Helper()
	ctx := t.Context()
	source, target := from.Client(t), to.Client(t)
	id := func(client *redis.Client) string { return must(client.Do(ctx, "cluster", "myid").Text()) }
	must(target.Do(ctx, "cluster", "setslot", slot, "importing", id(source)).Result())
	must(source.Do(ctx, "cluster", "setslot", slot, "migrating", id(target)).Result())
	for moved := 0; ; moved++ {
		keys := must(source.ClusterGetKeysInSlot(ctx, slot, 1).Result())
		if len(keys) == 0 {
			if moved == 0 {
				t.Error("no key was moved")
			}
			break
		}
		must(source.Migrate(ctx, "127.0.0.1", strconv.Itoa(to.Port()), keys[0], 0, 5*time.Second).Result())
		time.Sleep(5 * time.Millisecond) // so that requests find the keys on two nodes
	}
	owner := id(target)
	for _, node := range []*redis.Client{target, source, c.Nodes[2].Client(t)} {
		must(node.Do(ctx, "cluster", "setslot", slot, "node", owner).Result())
	}
}

// A cluster that wants all its slots served stops when a node is gone
// (CLUSTERDOWN), and goes on when it is back.
func TestTheWholeClusterIsDown(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	for _, node := range c.Nodes {
		for name, value := range map[string]string{"cluster-require-full-coverage": "yes", "cluster-node-timeout": "500"} {
			if err := node.Client(t).ConfigSet(t.Context(), name, value).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	gone := c.Nodes[0]
	if c.NodeOf(t, "rl:v1:{probe}") == gone {
		gone = c.Nodes[1]
	}
	p := startPair(t, clusterStore(c), userOn(t, c, c.Nodes[2], "priya"))
	p.together()
	gone.Kill()
	p.refused()
	for _, g := range p.gateways {
		eventually(t, "an error of kind clusterdown", func() bool { return g.value(`gateway_store_errors_total{kind="clusterdown"}`) > 0 })
	}
	gone.Restart()
	p.together()
	p.stop()
}
