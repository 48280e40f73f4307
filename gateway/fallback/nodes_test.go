package fallback_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway/fallback"
	"bouncer/gateway/ratelimit"
)

// cluster is a primary of nodes. Partition "{a:1}" lies on the node that has the
// letter a.
type cluster struct {
	*remote
	mu      sync.Mutex
	owner   map[string]string // node by letter; nil: nobody has got to know it
	dead    map[string]error  // by node
	settled []string          // partitions, in order
	seed    error             // of a probe while owner is nil
	next    map[string]string // becomes owner at the first probe that works
}

// errNode is what a node that is dead answers.
type errNode struct{ node string }

func (e errNode) Error() string { return "node " + e.node + ": connection refused" }

func newCluster() *cluster {
	c := &cluster{owner: map[string]string{"a": "A", "b": "B", "c": "C"}, dead: map[string]error{}}
	c.remote = newRemote(c.take)
	return c
}

func (c *cluster) take(ctx context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	for i := range cs {
		if err := c.fails(cs[i].Partition); err != nil {
			return dst[:0], err
		}
	}
	return up(ctx, cs, dst)
}

func (c *cluster) fails(partition string) error {
	node := c.Node(partition)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead[node]
}

func (c *cluster) Node(partition string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owner[partition[1:2]]
}

func (c *cluster) Failed(err error) string {
	if e, ok := errors.AsType[errNode](err); ok {
		return e.node
	}
	return ""
}

func (c *cluster) Spread() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]bool{}
	for letter, node := range c.owner {
		if !seen[node] {
			seen[node] = true
			out = append(out, "{"+letter+":probe}")
		}
	}
	slices.Sort(out)
	return out
}

// Probe asks for a partition. It hides the one of remote, which a Fallback is given
// as a function.
func (c *cluster) Probe(_ context.Context, partition string) error { return c.fails(partition) }

func (c *cluster) probeAny(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owner == nil && c.seed != nil {
		return c.seed
	}
	if c.owner == nil {
		c.owner = c.next
	}
	return nil
}

func (c *cluster) kill(node string) { c.set(func() { c.dead[node] = errNode{node} }) }
func (c *cluster) heal(node string) { c.set(func() { delete(c.dead, node) }) }
func (c *cluster) give(letter, node string) {
	c.set(func() { c.owner[letter] = node })
}

func (c *cluster) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *cluster) settle(_ context.Context, debts []ratelimit.Debt) (int, error) {
	// Those of one node at a time, as one script call is.
	n, node := 0, c.Node(debts[0].Partition)
	for n < len(debts) && c.Node(debts[n].Partition) == node {
		n++
	}
	if err := c.fails(debts[0].Partition); err != nil {
		return n, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range debts[:n] {
		debts[i].Charged = debts[i].Units
		c.settled = append(c.settled, debts[i].Partition)
	}
	return n, nil
}

func (c *cluster) charged() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.settled))
}

// asks counts the decisions that reached the primary while f ran.
func (c *cluster) asks(f func()) int64 {
	before := c.calls.Load()
	f()
	return c.calls.Load() - before
}

func on(t testing.TB, letters string) (cs []ratelimit.Charge) {
	p := policy(t, ratelimit.Policy{
		Name: "per-hour", Scope: "plan/per-hour", Algorithm: ratelimit.FixedWindow, Quota: 1000, Window: time.Hour,
	})
	for letter := range strings.SplitSeq(letters, "") {
		partition := "{" + letter + ":1}"
		cs = append(cs, ratelimit.Charge{Policy: p, Partition: partition, Caller: partition, Cost: 1})
	}
	return cs
}

func startCluster(t *testing.T, c *cluster, o fallback.Options) *fallback.Fallback {
	t.Helper()
	o.Nodes, o.Probe = c, c.probeAny
	o.Ambiguous = func(error) bool { return false }
	return start(t, c.remote, newStand(), o)
}

// lose has enough requests fail on a node that its breaker opens.
func lose(t *testing.T, f *fallback.Fallback, c *cluster, letter, node string) {
	t.Helper()
	c.kill(node)
	for range fallback.DefaultConsecutiveFailures {
		take(t, f.Store(fallback.LocalCap), on(t, letter))
	}
	if away := f.State().Away; !slices.Contains(away, node) {
		t.Fatalf("Away = %v after failures on %s", away, node)
	}
}

// source is what decided the charges on these letters, one request.
func source(t *testing.T, f *fallback.Fallback, letters string) ratelimit.Source {
	t.Helper()
	return take(t, f.Store(fallback.LocalCap), on(t, letters))[0].Source
}

func TestOnlyTheCallersOfALostNodeAreDecidedWithoutIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		f := startCluster(t, c, fallback.Options{})
		lose(t, f, c, "b", "B")
		for range 100 { // far more than a breaker counts, through many probes
			if s := source(t, f, "a"); s != ratelimit.SourceRedis {
				t.Fatalf("a caller on a healthy node: decided by %s", s)
			}
			if n := c.asks(func() { source(t, f, "b") }); n != 0 {
				t.Fatal("a caller on the lost node was asked for")
			}
			time.Sleep(50 * time.Millisecond)
		}
		if st := f.State(); !st.Open || !slices.Equal(st.Away, []string{"B"}) {
			t.Fatalf("State = %+v, want B away, all the time", st)
		}
		c.heal("B")
		time.Sleep(time.Second)
		if s := source(t, f, "b"); s != ratelimit.SourceRedis || f.State().Open {
			t.Fatalf("the node is back: decided by %s, State = %+v", s, f.State())
		}
	})
}

func TestARequestThatNeedsALostNodeAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		f := startCluster(t, c, fallback.Options{})
		// Failures of requests that need more count for the node that failed.
		c.kill("B")
		for range fallback.DefaultConsecutiveFailures {
			take(t, f.Store(fallback.LocalCap), on(t, "abc"))
		}
		if away := f.State().Away; !slices.Equal(away, []string{"B"}) {
			t.Fatalf("Away = %v, want B alone", away)
		}
		if n := c.asks(func() {
			for _, d := range take(t, f.Store(fallback.LocalCap), on(t, "ab")) {
				if d.Source != ratelimit.SourceLocalCap {
					t.Errorf("decided by %s", d.Source)
				}
			}
			if _, err := f.Store(fallback.Deny).Take(t.Context(), on(t, "cb"), nil); err == nil {
				t.Error("a route that denies has admitted")
			}
		}); n != 0 {
			t.Errorf("the primary was asked %d times", n)
		}
		if s := source(t, f, "ac"); s != ratelimit.SourceRedis {
			t.Errorf("a request on healthy nodes: decided by %s", s)
		}
	})
}

func TestWhoTakesOverFromALostNodeIsAskedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		var changes []fallback.Change
		f := startCluster(t, c, fallback.Options{Hooks: fallback.Hooks{
			StateChanged: func(c fallback.Change) { changes = append(changes, c) },
		}})
		lose(t, f, c, "b", "B")
		time.Sleep(5 * time.Second)
		c.give("b", "D")
		if s := source(t, f, "b"); s != ratelimit.SourceRedis {
			t.Fatalf("decided by %s", s)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if st := f.State(); st.Open {
			t.Fatalf("State = %+v, want nobody away: B has nothing any more", st)
		}
		if len(changes) != 2 {
			t.Fatalf("changes: %+v", changes)
		}
		if ch := changes[0]; !ch.Open || ch.Node != "B" || ch.Away != 1 || ch.Nodes != 3 {
			t.Errorf("the first change: %+v", ch)
		}
		if ch := changes[1]; ch.Open || ch.Node != "B" || ch.By != "D" || ch.ByAway || ch.Away != 0 || ch.Err == nil {
			t.Errorf("the second change: %+v", ch)
		}
	})
}

// The lost node's place is taken by one that fails too: at no moment is the store
// said to be in use.
func TestWhoTakesOverAndFailsIsAwayAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		var away []int
		var changes []fallback.Change
		f := startCluster(t, c, fallback.Options{Hooks: fallback.Hooks{
			StateChanged: func(c fallback.Change) { away, changes = append(away, c.Away), append(changes, c) },
		}})
		lose(t, f, c, "b", "B")
		c.kill("D")
		c.give("b", "D")
		time.Sleep(time.Second)
		synctest.Wait()
		if st := f.State(); !slices.Equal(st.Away, []string{"D"}) {
			t.Fatalf("Away = %v, want D alone", st.Away)
		}
		if slices.Contains(away, 0) {
			t.Errorf("nodes away at each change: %v", away)
		}
		if len(changes) != 3 || changes[2].Open || changes[2].Node != "B" || changes[2].By != "D" || !changes[2].ByAway {
			t.Errorf("changes: %+v; want that B has lost all to D, which is away", changes)
		}
		c.heal("D")
		time.Sleep(time.Second)
		if st := f.State(); st.Open {
			t.Fatalf("State = %+v", st)
		}
	})
}

// What was sent to a node and on to another one, that is dead, says nothing of the
// first, which answers whoever it has still.
func TestANodeIsNotBlamedForWhoHasItsSlotsNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.owner["d"] = "A"
		moved := make(chan struct{})
		c.remote = newRemote(func(ctx context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
			if cs[0].Partition == "{a:1}" {
				<-moved
			}
			return c.take(ctx, cs, dst)
		})
		f := startCluster(t, c, fallback.Options{})
		var asking sync.WaitGroup
		for range 2 * fallback.DefaultConsecutiveFailures {
			asking.Go(func() { take(t, f.Store(fallback.LocalCap), on(t, "a")) })
		}
		synctest.Wait()
		c.kill("D")
		c.give("a", "D")
		close(moved)
		asking.Wait()
		if away := f.State().Away; len(away) != 0 {
			t.Errorf("away: %q; want nobody yet", away)
		}
		if s := source(t, f, "d"); s != ratelimit.SourceRedis {
			t.Errorf("a caller on the node that is well: decided by %s", s)
		}
		lose(t, f, c, "a", "D")
	})
}

func TestANodeThatIsAwayAtTheStartIsKnownBeforeTheFirstRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.kill("C")
		f := startCluster(t, c, fallback.Options{})
		if away := f.State().Away; !slices.Equal(away, []string{"C"}) {
			t.Fatalf("Away = %v", away)
		}
	})
}

func TestAClusterThatNobodyReachedIsAwayAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.next, c.owner, c.seed = c.owner, nil, errDown
		f := startCluster(t, c, fallback.Options{})
		if n := c.asks(func() { source(t, f, "a") }); n != 0 || !f.State().Open {
			t.Fatalf("asked %d times, State = %+v", n, f.State())
		}
		// It comes without one node.
		c.kill("B")
		c.set(func() { c.seed = nil })
		time.Sleep(time.Second)
		if away := f.State().Away; !slices.Equal(away, []string{"B"}) {
			t.Fatalf("Away = %v, want B", away)
		}
		if s := source(t, f, "a"); s != ratelimit.SourceRedis {
			t.Fatalf("decided by %s", s)
		}
		c.heal("B")
		time.Sleep(time.Second)
		if st := f.State(); st.Open {
			t.Fatalf("State = %+v", st)
		}
	})
}

func TestWhatALostNodeIsOwedDoesNotHoldUpTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		reports := 0
		f := startCluster(t, c, fallback.Options{Settle: c.settle, Hooks: fallback.Hooks{
			Settled: func(fallback.Settlement) { reports++ },
		}})
		lose(t, f, c, "b", "B")
		for range 200 { // several batches, all of them with some of each
			source(t, f, "bac")
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := c.charged(); !slices.Equal(got, []string{"{a:1}", "{c:1}"}) {
			t.Fatalf("settled: %v", got)
		}
		if st := f.State(); st.Owed != 1 || reports != 0 {
			t.Fatalf("%d buckets owed, %d reports; want that of b, and none yet", st.Owed, reports)
		}
		c.heal("B")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := c.charged(); !slices.Equal(got, []string{"{a:1}", "{b:1}", "{c:1}"}) || reports != 1 || f.State().Owed != 0 {
			t.Fatalf("settled: %v, %d reports, %d owed", got, reports, f.State().Owed)
		}
	})
}

// A node that answers but does not let itself be settled is asked again each
// second; the others are settled meanwhile.
func TestANodeThatRefusesToBeSettledHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		refusing := true
		var mu sync.Mutex
		f := startCluster(t, c, fallback.Options{Settle: func(ctx context.Context, debts []ratelimit.Debt) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if refusing && c.Node(debts[0].Partition) == "B" {
				return 1, errDown
			}
			return c.settle(ctx, debts)
		}})
		lose(t, f, c, "c", "C")
		source(t, f, "cba")
		time.Sleep(3 * time.Second)
		if got := c.charged(); !slices.Equal(got, []string{"{a:1}"}) {
			t.Fatalf("settled: %v", got)
		}
		mu.Lock()
		refusing = false
		mu.Unlock()
		time.Sleep(3 * time.Second)
		if got := c.charged(); !slices.Equal(got, []string{"{a:1}", "{b:1}"}) {
			t.Fatalf("settled: %v", got)
		}
	})
}

func TestDecisionsOnNodesAllocateNothing(t *testing.T) {
	c := newCluster()
	f, err := fallback.New(constant{}, constant{}, fallback.Options{Nodes: c, Probe: c.probeAny})
	if err != nil {
		t.Fatal(err)
	}
	f.Start()
	t.Cleanup(f.Close)
	s, cs, ds := f.Store(fallback.LocalCap), on(t, "aabc"), make([]ratelimit.Decision, 0, 8)
	if n := testing.AllocsPerRun(1000, func() { ds, _ = s.Take(context.Background(), cs, ds) }); n >= 1 && !raceEnabled {
		t.Errorf("%v allocations a decision, want none", n)
	}
}
