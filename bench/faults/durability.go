package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"bouncer/bench/internal/rig"
	"bouncer/internal/redistest"
)

// The durability table: how much more than its limit a caller was given because
// Redis had forgotten what it had said.
const (
	durableLimit     = 1000
	durableInstances = 2
	// Some 1,500 requests a second use the limit up in two thirds of a second.
	durableClients  = 30
	durableInterval = 20 * time.Millisecond
	// Redis dies between these moments of a round.
	durableFirst, durableLast = 50 * time.Millisecond, time.Second
	maxRounds                 = 64
)

// A durable is one way to keep what Redis knows, measured.
type durable struct {
	Name  string  `json:"name"`
	Over  []int   `json:"over_admitted"` // units beyond the limit, a round each
	Min   int     `json:"min"`
	Mid   int     `json:"median"`
	Max   int     `json:"max"`
	Away  float64 `json:"away_s"` // the median of the times until every instance used Redis again
	aways []float64
}

// A keeper is how a Redis is set up, and how it dies and comes back in a round.
type keeper struct {
	store string
	// die kills the Redis that has the caller's counts.
	die func(caller string)
	// back brings about what serves from now on. It may return before that serves.
	back func()
	// restore makes everything as it was, for the next round.
	restore func()
}

type keeping struct {
	name  string
	start func(x *experiment) keeper
}

// keepings are the rows of the table.
func keepings() []keeping {
	alone := func(args ...string) func(x *experiment) keeper {
		return func(x *experiment) keeper {
			s := x.server(args...)
			return keeper{
				store: storeAt(s.Addr()),
				die:   func(string) { s.Kill() },
				back:  s.Restart, restore: func() {},
			}
		}
	}
	return []keeping{
		{"no persistence", alone()},
		{"append-only file, `everysec`", alone("--appendonly", "yes", "--appendfsync", "everysec")},
		{"append-only file, `always`", alone("--appendonly", "yes", "--appendfsync", "always")},
		{"one replica, promoted by hand", byHand(0)},
		{"one replica 100 ms away, promoted by hand", byHand(replicaAway)},
		{"two replicas, sentinels", func(x *experiment) keeper {
			s := redistest.StartSentinel(x, redistest.SentinelOptions{})
			master := s.Master(x, s.Sentinels[0])
			var dead *redistest.Server
			return keeper{
				store: sentinelStore(s),
				die:   func(string) { dead = master; dead.Kill() },
				back:  func() { master = x.elected(s, dead) },
				restore: func() {
					dead.Restart()
					// The sentinels would notice in some ten seconds.
					x.must(dead.Client(x).Do(x.ctx, "REPLICAOF", "127.0.0.1", master.Port()).Err(), "make a replica")
					x.replicates(dead)
				},
			}
		}},
		{"cluster, a replica for each master", func(x *experiment) keeper {
			c := x.cluster(redistest.StartClusterWithReplicas(x, masters))
			var dead *redistest.Server
			var mourner string
			return keeper{
				store: c.fault(nil, nil).store,
				die: func(caller string) {
					s, err := c.masterOf(caller, nil)
					x.must(err, "find a caller's master")
					dead, mourner = s, caller
					dead.Kill()
				},
				back: func() { c.taken(mourner, dead) },
				restore: func() {
					dead.Restart()
					x.replicates(dead)
				},
			}
		}},
	}
}

// replicaAway is how long what the primary says is on its way to a replica in
// another place.
const replicaAway = 100 * time.Millisecond

// byHand is a primary with one replica, whose address somebody moves when the
// primary has died.
func byHand(away time.Duration) func(x *experiment) keeper {
	return func(x *experiment) keeper {
		n := x.network() // for the gateways
		primary, replica := n.s, x.server()
		link, err := newWire(primary.Addr()) // for the replica
		x.must(err, "make a wire")
		x.Cleanup(link.close)
		follow := func() {
			address := primary.Addr()
			link.target.Store(&address)
			link.cutAll()
			replica.followAt(port(link.addr))
			link.set(trouble{delay: away})
		}
		follow()
		return keeper{
			store: storeAt(n.addr),
			die: func(string) {
				link.cutAll() // what is on the way does not arrive
				primary.Kill()
			},
			back: func() {
				replica.do("REPLICAOF", "NO", "ONE")
				address := replica.Addr()
				n.target.Store(&address)
			},
			restore: func() {
				link.set(trouble{})
				primary.Restart()
				primary, replica = replica, primary
				follow()
			},
		}
	}
}

// durability is the report.
type durability struct {
	Machine string     `json:"machine"`
	Date    string     `json:"date"`
	Rounds  int        `json:"rounds"`
	Seed    uint64     `json:"seed"`
	Rows    []*durable `json:"rows"`
}

var _ rig.Report = (*durability)(nil)

// measureDurability kills each keeper's Redis rounds times.
func measureDurability(ctx context.Context, program string, rounds int, seed uint64) (*durability, error) {
	if rounds < 1 || rounds > maxRounds {
		return nil, fmt.Errorf("-rounds: want 1 to %d, got %d", maxRounds, rounds)
	}
	fmt.Fprintln(os.Stderr, "seed", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeatable is the point
	out := &durability{Machine: rig.Machine(), Date: time.Now().Format(time.DateOnly), Rounds: rounds, Seed: seed}
	all := keepings()
	for i, k := range all {
		progress(i+1, len(all), k.name)
		x := &experiment{host: &host{ctx: ctx}, program: program}
		d := &durable{Name: k.name}
		err := x.run(func() {
			keeper := k.start(x)
			x.site = newSite(x.host, program, durableInstances, keeper.store, plans{narrow: durableLimit})
			for round := range rounds {
				after := durableFirst + time.Duration(random.Int64N(int64(durableLast-durableFirst)))
				over, away := x.durableRound(keeper, hot+strconv.Itoa(round), after)
				d.Over, d.aways = append(d.Over, over), append(d.aways, away)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		sorted := slices.Sorted(slices.Values(d.Over))
		d.Min, d.Mid, d.Max = sorted[0], sorted[len(sorted)/2], sorted[len(sorted)-1]
		slices.Sort(d.aways)
		d.Away = quantile(d.aways, .5)
		out.Rows = append(out.Rows, d)
	}
	return out, nil
}

// durableRound lets a caller who has never been here ask for more than his limit
// all the time, kills Redis once, and counts what he was given.
func (x *experiment) durableRound(k keeper, caller string, after time.Duration) (over int, away float64) {
	var clients []client
	for i := range durableClients {
		g := x.site.gateways[i%durableInstances]
		clients = append(clients, client{address: g.address, request: request("closed", caller), instance: i % durableInstances, route: "closed", caller: caller, interval: durableInterval})
	}
	spread(clients)
	l := drive(x.ctx, clients)
	defer l.cancel()
	x.sleep(after)
	k.die(caller)
	died := time.Now()
	x.sleep(200 * time.Millisecond)
	k.back()
	for !x.site.serves() {
		if time.Since(died) > 30*time.Second {
			x.Fatalf("Redis is not in use again")
		}
		x.sleep(20 * time.Millisecond)
	}
	away = time.Since(died).Seconds()
	// Everything that he gets, he gets now.
	for idle := time.Now(); time.Since(idle) < 500*time.Millisecond; x.sleep(50 * time.Millisecond) {
		if slices.ContainsFunc(l.since(time.Now().Add(-200*time.Millisecond)), func(s sample) bool { return s.status == http.StatusOK }) {
			idle = time.Now()
		}
	}
	admitted := 0
	for _, s := range l.stop() {
		if s.status == http.StatusOK {
			admitted++
		}
	}
	k.restore()
	return max(0, admitted-durableLimit), away
}

// serves reports whether every instance decides with Redis.
func (s *site) serves() bool {
	if s.open() > 0 {
		return false
	}
	for i := range s.gateways {
		answer, err := s.ask(i, "closed", "victim")
		if err != nil || answer.degraded() {
			return false
		}
	}
	return true
}

// Markdown is the report as a section of a document.
func (d *durability) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s: %s.\n\n    make durability ROUNDS=%d SEED=%d\n\n", d.Date, d.Machine, d.Rounds, d.Seed)
	fmt.Fprintf(&b, "| Redis keeps what it knows by | units beyond %d: min | median | max | until Redis decided again, median |\n| --- | --: | --: | --: | --: |\n", durableLimit)
	for _, row := range d.Rows {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %.1f s |\n", row.Name, row.Min, row.Mid, row.Max, row.Away)
	}
	return b.String()
}

// Table prints the report.
func (d *durability) Table() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "KEPT BY\tMIN\tMEDIAN\tMAX\tAWAY s\t")
	for _, row := range d.Rows {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.1f\t\n", row.Name, row.Min, row.Mid, row.Max, row.Away)
	}
	return w.Flush()
}
