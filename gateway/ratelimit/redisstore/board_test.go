package redisstore_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// An instance is a board and what it was told.
type instance struct {
	*redisstore.Board

	mu     sync.Mutex
	freed  []uint64
	all    int
	errs   []error
	counts []int
}

// join returns a board on store that makes its calls by hand, unless it is
// started. It counts as alive for longer than any test takes.
func join(t testing.TB, store *redisstore.Store, name string) *instance {
	t.Helper()
	return joinWith(t, store, redisstore.BoardOptions{Instance: name, Interval: 10 * time.Millisecond, TTL: time.Minute})
}

func joinWith(t testing.TB, store *redisstore.Store, o redisstore.BoardOptions) *instance {
	t.Helper()
	i := &instance{}
	o.OnFreed = func(buckets []uint64, all bool) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.freed = append(i.freed, buckets...)
		if all {
			i.all++
		}
	}
	o.OnError = func(err error) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.errs = append(i.errs, err)
	}
	o.OnChange = func(n int) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.counts = append(i.counts, n)
	}
	b, err := redisstore.NewBoard(store, o)
	if err != nil {
		t.Fatal(err)
	}
	i.Board = b
	t.Cleanup(b.Close)
	return i
}

// told returns what it was told since told was last called, sorted.
func (i *instance) told() (freed []uint64, all int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	freed, all = i.freed, i.all
	i.freed, i.all = nil, 0
	slices.Sort(freed)
	return freed, all
}

func (i *instance) wantTold(t *testing.T, freed []uint64, all int) {
	t.Helper()
	i.Call()
	i.wantNoError(t)
	if f, a := i.told(); !slices.Equal(f, freed) || a != all {
		t.Errorf("told of %d buckets (%.100s) and %d times of all; want %d and %d", len(f), fmt.Sprint(f), a, len(freed), all)
	}
}

func (i *instance) wantInstances(t *testing.T, n int) {
	t.Helper()
	i.Call()
	i.wantNoError(t)
	if got := i.Instances(); got != n {
		t.Errorf("%d instances, want %d", got, n)
	}
}

func (i *instance) wantNoError(t *testing.T) {
	t.Helper()
	if errs := i.failed(); len(errs) > 0 {
		t.Fatal(errs)
	}
}

// failed returns what was told to OnError since failed was last called.
func (i *instance) failed() (errs []error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	errs, i.errs = i.errs, nil
	return errs
}

// grown makes the board older than any TTL, so that it does not wait for those
// who may not have said yet that they are alive.
func grown(t testing.TB, look redis.UniversalClient) {
	t.Helper()
	if err := look.HSet(t.Context(), "rl:v1:{gateway}:board", "created", 1).Err(); err != nil {
		t.Fatal(err)
	}
}

// soon waits for ok.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(generous); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", generous, what)
		}
	}
}

// buckets returns those from..to.
func buckets(from, to uint64) (ns []uint64) {
	for n := from; n <= to; n++ {
		ns = append(ns, n)
	}
	return ns
}

// onBoth runs a test on one Redis and on a cluster. open returns another store.
func onBoth(t *testing.T, test func(t *testing.T, open func() *redisstore.Store, look redis.UniversalClient)) {
	t.Run("one", func(t *testing.T) {
		t.Parallel()
		srv := redistest.Start(t)
		test(t, func() *redisstore.Store { return at(t, srv.Addr()) }, srv.Client(t))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3)
		test(t, func() *redisstore.Store {
			return onCluster(t, c, redisstore.Options{Timeout: generous})
		}, c.NodeOf(t, "{gateway}").Client(t))
	})
}

func TestBoardCountsWhoIsAlive(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *redisstore.Store, look redis.UniversalClient) {
		about := `{"version":"1"}`
		a := joinWith(t, open(), redisstore.BoardOptions{Instance: "a", TTL: time.Minute, About: func() string { return about }})
		if a.Instances() != 1 || len(a.Members()) != 0 {
			t.Errorf("before the first call: %d, %v", a.Instances(), a.Members())
		}
		a.wantInstances(t, 1)
		grown(t, look)
		b := join(t, open(), "b")
		b.Start() // it knows when this returns
		if b.Instances() != 2 {
			t.Errorf("after Start: %d instances, want 2", b.Instances())
		}
		a.wantInstances(t, 2)
		c := join(t, open(), "c")
		c.wantInstances(t, 3)
		a.wantInstances(t, 3)
		since := map[string]time.Time{}
		for _, m := range a.Members() {
			since[m.Instance] = m.Since
			if time.Since(m.Since).Abs() > time.Minute {
				t.Errorf("%s came at %s", m.Instance, m.Since)
			}
			if want := map[string]string{"a": about}[m.Instance]; m.About != want {
				t.Errorf("%s says %q of itself, want %q", m.Instance, m.About, want)
			}
		}
		if len(since) != 3 {
			t.Errorf("members %v", a.Members())
		}

		everyKeyExpires(t, look.(*redis.Client))
		b.Close()
		resetStats(t, look.(*redis.Client))
		a.wantInstances(t, 2)
		if calls := commandCalls(t, look.(*redis.Client)); calls["evalsha"] != 1 || calls["eval"] != 0 {
			t.Errorf("one call of the board is %v", calls)
		}
		about = strings.Repeat("x", 600)
		a.Start()
		c.wantInstances(t, 2)
		for _, m := range c.Members() {
			if m.Since != since[m.Instance] {
				t.Errorf("%s came at %s, and now at %s", m.Instance, since[m.Instance], m.Since)
			}
			if m.Instance == "a" && m.About != about[:512] {
				t.Errorf("a says %q of itself now", m.About)
			}
		}
		a.Close()
		c.wantInstances(t, 1)
		if got := c.counts; !slices.Equal(got, []int{3, 2, 1}) {
			t.Errorf("told of the counts %v", got)
		}
	})
}

func TestBoardForgetsWhoCrashed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	o := redisstore.BoardOptions{Interval: 10 * time.Millisecond, TTL: 300 * time.Millisecond}
	a, b := joinWith(t, at(t, srv.Addr()), o), joinWith(t, at(t, srv.Addr()), o)
	a.Start()
	b.Start()
	soon(t, "two see each other", func() bool { return a.Instances() == 2 && b.Instances() == 2 })
	b.Crash()
	soon(t, "the one that crashed is gone", func() bool { return a.Instances() == 1 && len(a.Members()) == 1 })
	if n := srv.Client(t).HLen(t.Context(), "rl:v1:{gateway}:about").Val(); n != 1 {
		t.Errorf("Redis keeps what %d instances say of themselves, want 1", n)
	}
}

func TestBoardTellsEachOtherInstanceOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *redisstore.Store, _ redis.UniversalClient) {
		a, b, c := join(t, open(), "a"), join(t, open(), "b"), join(t, open(), "c")
		for _, i := range []*instance{a, b, c} {
			i.wantTold(t, nil, 0)
		}
		for _, bucket := range []uint64{7, 1 << 63, 7, 0} {
			a.Free(bucket)
		}
		b.Free(9)
		a.wantTold(t, nil, 0)
		b.wantTold(t, []uint64{0, 7, 1 << 63}, 0)
		c.wantTold(t, []uint64{0, 7, 9, 1 << 63}, 0)
		a.wantTold(t, []uint64{9}, 0)
		for _, i := range []*instance{a, b, c} {
			i.wantTold(t, nil, 0)
		}

		a.FreeAll()
		a.Free(3) // is one of all
		a.wantTold(t, nil, 0)
		b.Free(4)
		b.wantTold(t, nil, 1)
		c.wantTold(t, nil, 1) // 4 is one of all
		a.wantTold(t, []uint64{4}, 0)

		// Who comes later missed nothing.
		join(t, open(), "d").wantTold(t, nil, 0)
	})
}

func TestBoardTellsOfAllWhereTooMuchWasMissed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	store := at(t, srv.Addr())
	a, b, c := join(t, store, "a"), join(t, store, "b"), join(t, store, "c")
	for _, i := range []*instance{a, b, c} {
		i.Call()
	}
	tell := func(from, to uint64) {
		for _, n := range buckets(from, to) {
			a.Free(n)
			a.Free(n)
		}
		a.wantTold(t, nil, 0)
	}
	tell(1, 1000)
	b.wantTold(t, buckets(1, 1000), 0)
	tell(1, 1)
	b.wantTold(t, []uint64{1}, 0)
	c.wantTold(t, nil, 1) // 1001 were told of since
	tell(1, 1001)         // more than is kept to be sent
	b.wantTold(t, nil, 1)
	tell(1, 600)
	tell(601, 1000)
	c.wantTold(t, nil, 1)
	b.wantTold(t, buckets(1, 1000), 0)
	if n := srv.Client(t).LLen(t.Context(), "rl:v1:{gateway}:freed").Val(); n != 1000 {
		t.Errorf("Redis keeps %d buckets, want 1000", n)
	}
}

// Redis has lost everything, without anybody having noticed: those who are alive
// had no time yet to say so, and what was told is not known.
func TestBoardHoldsTheCountOfABoardThatBeginsAnew(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	o := redisstore.BoardOptions{Interval: 10 * time.Millisecond, TTL: 2 * time.Second}
	a, b, c := joinWith(t, store, o), joinWith(t, store, o), joinWith(t, store, o)
	for _, i := range []*instance{c, b, a} {
		i.Call()
	}
	look.FlushAll(t.Context())
	a.wantInstances(t, 3)
	b.Call()
	a.wantTold(t, nil, 1)
	a.wantInstances(t, 3)
	// c does not come back.
	soon(t, "only two are alive", func() bool { b.Call(); a.Call(); return a.Instances() == 2 })
	if !slices.Equal(a.counts, []int{3, 2}) {
		t.Errorf("told of the counts %v", a.counts)
	}
	// What somebody else wrote, and a clock that stood in the future, hold nobody up.
	look.ZAdd(t.Context(), "rl:v1:{gateway}:instances", redis.Z{Score: 9e12, Member: "ghost"})
	look.HSet(t.Context(), "rl:v1:{gateway}:board", "created", "9999999999999", "generation", "x", "sequence", "y")
	look.HSet(t.Context(), "rl:v1:{gateway}:about", "ghost", "not ours")
	b.Call()
	a.wantTold(t, nil, 1)
	a.wantInstances(t, 2)
	a.wantTold(t, nil, 0)
}

func TestBoardFollowsAnother(t *testing.T) {
	t.Parallel()
	store := at(t, redistest.Start(t).Addr())
	a := joinWith(t, store, redisstore.BoardOptions{Known: 5, Interval: 10 * time.Millisecond, TTL: 100 * time.Millisecond})
	a.wantInstances(t, 5) // the others may not have said so here yet
	soon(t, "it is alone", func() bool { a.Call(); return a.Instances() == 1 })
}

func TestBoardOutlivesItsRedis(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	o := redisstore.BoardOptions{Interval: 20 * time.Millisecond, TTL: 4 * time.Second}
	var all []*instance
	for range 3 {
		i := joinWith(t, at(t, srv.Addr()), o)
		i.Start()
		all = append(all, i)
	}
	each := func(what string, ok func(i *instance) bool) {
		t.Helper()
		for _, i := range all {
			soon(t, what, func() bool { return ok(i) })
		}
	}
	each("three are there", func(i *instance) bool { return i.Instances() == 3 })
	srv.Kill()
	each("it is noticed", func(i *instance) bool { return len(i.failed()) > 0 })
	all[0].Free(1)
	for _, i := range all {
		if i.Instances() != 3 {
			t.Errorf("while Redis is away: %d instances, want the last known 3", i.Instances())
		}
		i.told()
		i.mu.Lock()
		i.counts = nil
		i.mu.Unlock()
	}
	srv.Restart()
	each("all are told that they may have missed something", func(i *instance) bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.all > 0
	})
	// As usual again, and nobody took the others for gone.
	all[0].told()
	all[1].Free(7)
	soon(t, "a bucket is told of", func() bool { freed, _ := all[0].told(); return slices.Equal(freed, []uint64{7}) })
	for _, i := range all {
		i.mu.Lock()
		if len(i.counts) > 0 {
			t.Errorf("told of the counts %v, and it was 3 all the time", i.counts)
		}
		i.mu.Unlock()
	}
	all[2].Close()
	soon(t, "one is gone", func() bool { return all[0].Instances() == 2 })
}

// A server that stands still costs a call its time, and what was to be told is
// told later.
func TestBoardWaitsNoLongerThanTheStore(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	store := open(t, redisstore.ClientOptions{Address: srv.Addr()}, redisstore.Options{Timeout: 50 * time.Millisecond})
	a, b := join(t, store, "a"), join(t, at(t, srv.Addr()), "b")
	soon(t, "it has called once", func() bool { a.Call(); return a.Instances() == 1 && len(a.Members()) == 1 })
	b.Call()
	a.failed()
	srv.Freeze()
	a.Free(7)
	begun := time.Now()
	a.Call()
	if took := time.Since(begun); took > slack {
		t.Errorf("a call took %s", took)
	}
	if errs := a.failed(); len(errs) != 1 || redisstore.Kind(errs[0]) != redisstore.KindTimeout {
		t.Errorf("errors %v, want one timeout", errs)
	}
	srv.Thaw()
	var odd []error // on a busy machine a new connection may be cut while it is made, which is no slowness
	soon(t, "the call is made again", func() bool {
		a.Call()
		errs := a.failed()
		for _, err := range errs {
			if redisstore.Kind(err) != redisstore.KindTimeout {
				odd = append(odd, err)
			}
		}
		return len(errs) == 0
	})
	b.Call()
	// Twice where the server ran the first call after all.
	if freed, all := b.told(); !slices.Equal(slices.Compact(freed), []uint64{7}) || all != 0 {
		t.Errorf("told of %v and %d times of all", freed, all)
	}
	if _, all := a.told(); all != 0 && odd == nil {
		t.Error("one that was only slow is taken for another server")
	}
}

// Replies get lost; what was to be told arrives all the same.
func TestBoardTellsAtLeastOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var n atomic.Int64
	lossy := serve(t, func(c net.Conn) { loseThirdReply(t, srv.Addr(), c, &n) })
	a, b := join(t, at(t, lossy), "a"), join(t, at(t, srv.Addr()), "b")
	b.Call()
	a.Call()
	lost := 0
	for bucket := range uint64(20) {
		a.Free(bucket)
		a.Call()
		lost += len(a.failed())
	}
	a.Call()
	b.Call()
	freed, _ := b.told()
	if got := slices.Compact(freed); !slices.Equal(got, buckets(0, 19)) || lost == 0 {
		t.Errorf("told of %v, with %d replies lost", got, lost)
	}
}

func TestBoardLeavesForeignValuesAlone(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	a, b := join(t, store, "a"), join(t, store, "b")
	for key, kind := range map[string]string{"board": "string", "instances": "string", "about": "list", "freed": "string"} {
		look.FlushAll(t.Context())
		b.Call()
		a.wantInstances(t, 2)
		b.told()
		a.Free(7)
		key = "rl:v1:{gateway}:" + key
		look.Del(t.Context(), key)
		if kind == "list" {
			look.RPush(t.Context(), key, "theirs")
		} else {
			look.Set(t.Context(), key, "theirs", 0)
		}
		a.Call()
		errs := a.failed()
		if len(errs) != 1 || redisstore.Kind(errs[0]) != redisstore.KindCorrupt || !redisstore.KeyFault(errs[0]) || !strings.Contains(errs[0].Error(), key) {
			t.Errorf("%s: %v", key, errs)
		}
		if a.Instances() != 2 {
			t.Errorf("%s: %d instances, want the last known 2", key, a.Instances())
		}
		if got := look.Type(t.Context(), key).Val(); got != kind {
			t.Errorf("%s is a %s now", key, got)
		}
		look.Del(t.Context(), key)
		if key == "rl:v1:{gateway}:board" {
			a.Call()
			b.wantTold(t, nil, 1) // nobody knows what has been told of before
		} else {
			a.Call()
			b.wantTold(t, []uint64{7}, 0)
		}
	}
}

// What docs/OPERATING.md asks for is enough, and without it limits are decided
// all the same.
func TestBoardNeedsNoMoreThanTheDocumentedRights(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	user := func(name string, rules ...string) *redisstore.Store {
		set := append([]any{"acl", "setuser", name, "on", ">pw", "~rl:*"}, anys(rules)...)
		if err := srv.Client(t).Do(t.Context(), set...).Err(); err != nil {
			t.Fatal(err)
		}
		return open(t, redisstore.ClientOptions{Address: srv.Addr(), Username: name, Password: "pw"}, redisstore.Options{Timeout: generous})
	}
	const deciding = "+eval +evalsha +time +get +set +del +pexpire +llen +lindex +lrange +lrem +ltrim +rpush"
	const board = "+hget +hmget +hset +hdel +zadd +zrem +zcard +zrange +zrangebyscore"
	text, err := os.ReadFile("../../../docs/OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	docs := strings.Join(strings.Fields(string(text)), " ")
	for _, list := range []string{deciding, board} {
		if !strings.Contains(docs, list) {
			t.Errorf("docs/OPERATING.md does not say %s", list)
		}
	}
	full := user("full", append(strings.Fields(deciding), strings.Fields(board)...)...)
	for _, p := range everyAlgorithm(t, 2) {
		for range 3 { // the last one is denied
			mustTake(t, full, charges(p))
		}
	}
	_, giveBack, err := full.TakeForRefund(t.Context(), charges(everyAlgorithm(t, 9)[:5]...))
	if err == nil {
		err = giveBack()
	}
	if err != nil {
		t.Error(err)
	}
	a := join(t, full, "a")
	a.wantInstances(t, 1)
	b := join(t, at(t, srv.Addr()), "b")
	b.Call()
	a.Free(1)
	a.FreeAll()
	a.wantInstances(t, 2)
	a.Free(1)
	b.Free(2)
	a.Call()
	b.wantTold(t, nil, 1)
	a.wantTold(t, []uint64{2}, 0)
	b.Crash()
	grown(t, srv.Client(t))
	srv.Client(t).ZAdd(t.Context(), "rl:v1:{gateway}:instances", redis.Z{Score: 1, Member: "b"})
	a.wantInstances(t, 1)
	a.Close()
	a.wantNoError(t)

	store := user("without", strings.Fields(deciding)...)
	c := join(t, store, "c")
	c.Call()
	if errs := c.failed(); len(errs) != 1 || redisstore.Kind(errs[0]) != redisstore.KindNoPerm {
		t.Errorf("errors %v, want one of the kind noperm", errs)
	}
	if c.Instances() != 1 {
		t.Errorf("%d instances", c.Instances())
	}
	mustTake(t, store, charges(perMinute(t)))
}

func TestBoardTakesNoNonsense(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"short":        "*1\r\n:1\r\n",
		"impossible":   "*9223372036854775807\r\n",
		"negative":     "*-7\r\n",
		"a number":     ":1\r\n",
		"all texts":    "*7\r\n" + strings.Repeat("$1\r\nx\r\n", 7),
		"all numbers":  "*7\r\n" + strings.Repeat(":1\r\n", 7),
		"below zero":   "*7\r\n:-1\r\n:0\r\n:1\r\n:0\r\n$0\r\n\r\n:1\r\n*0\r\n",
		"half buckets": "*7\r\n:1\r\n:0\r\n:1\r\n:0\r\n$7\r\n1234567\r\n:1\r\n*0\r\n",
		"half members": "*7\r\n:1\r\n:0\r\n:1\r\n:0\r\n$0\r\n\r\n:1\r\n*1\r\n$1\r\nx\r\n",
	} {
		a := joinWith(t, open(t, redisstore.ClientOptions{Address: startFake(t, reply)}, redisstore.Options{Timeout: 200 * time.Millisecond}),
			redisstore.BoardOptions{Known: 4})
		a.Call()
		errs := a.failed()
		if len(errs) != 1 || redisstore.Kind(errs[0]) != redisstore.KindCorrupt {
			t.Errorf("%s: %v", name, errs)
		}
		if a.Instances() != 4 {
			t.Errorf("%s: %d instances", name, a.Instances())
		}
	}
}

func TestBoardEndsHoweverItBegan(t *testing.T) {
	t.Parallel()
	store := at(t, redistest.Start(t).Addr())
	watch := join(t, store, "watch")
	watch.wantInstances(t, 1)
	never := join(t, store, "never")
	never.Close()
	never.Start()
	watch.wantInstances(t, 1)

	often := join(t, store, "often")
	often.Start()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(often.Start)
		wg.Go(func() { often.Free(1) })
	}
	wg.Wait()
	often.Free(2)
	for range 4 {
		wg.Go(often.Close)
	}
	wg.Wait()
	watch.wantTold(t, []uint64{1, 2}, 0) // also what was to be told at the end
	watch.wantInstances(t, 1)
	often.Free(3)
	often.FreeAll()
	if often.Instances() != 1 && often.Instances() != 2 {
		t.Errorf("%d instances after the end", often.Instances())
	}
	watch.wantTold(t, nil, 0)
}

func TestBoardOptionsAreChecked(t *testing.T) {
	t.Parallel()
	store := at(t, "127.0.0.1:1")
	for _, o := range []redisstore.BoardOptions{
		{Instance: strings.Repeat("x", 257)},
		{Interval: time.Microsecond},
		{Interval: time.Second, TTL: time.Second},
	} {
		if _, err := redisstore.NewBoard(store, o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
	a, b := join(t, store, ""), join(t, store, "")
	a.Call()
	b.Call()
	if errs := a.failed(); len(errs) != 1 || redisstore.Kind(errs[0]) != redisstore.KindRefused || errors.Unwrap(errs[0]) == nil {
		t.Errorf("%v", errs)
	}
}

func TestFreeAllocatesNothing(t *testing.T) {
	store := at(t, "127.0.0.1:1")
	a := join(t, store, "a")
	bucket := uint64(0)
	if n := testing.AllocsPerRun(500, func() { a.Free(bucket % 100); bucket++ }); n >= 1 {
		t.Errorf("%v allocations", n)
	}
	for range 2000 {
		a.Free(bucket)
		bucket++
	}
	if n := testing.AllocsPerRun(500, func() { a.Free(bucket); bucket++ }); n != 0 {
		t.Errorf("%v allocations when all is to be told of", n)
	}
}

// A limit on one node denies, and what those on others were charged is given
// back: their buckets are told of, and no other.
func TestRefundsAreToldOf(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	var mu sync.Mutex
	var freed []uint64
	store := onCluster(t, c, redisstore.Options{Timeout: generous, OnFreed: func(bucket uint64) {
		mu.Lock()
		defer mu.Unlock()
		freed = append(freed, bucket)
	}})
	at := partitionsOnNodes(t, c)
	day, minute := perDay(t), perMinute(t)
	off := newPolicy(t, ratelimit.Policy{Scope: "plan/off", Algorithm: ratelimit.FixedWindow, Quota: 0, Window: time.Hour})
	mustTake(t, store, []ratelimit.Charge{in(at[0], day, 1), in(at[2], minute, 1)})
	if len(freed) > 0 {
		t.Errorf("an admitted request frees %v", freed)
	}
	mustTake(t, store, []ratelimit.Charge{in(at[0], day, 1), in(at[1], off, 1), in(at[2], minute, 1)})
	want := []uint64{ratelimit.BucketHash(at[0], day), ratelimit.BucketHash(at[2], minute)}
	slices.Sort(want)
	slices.Sort(freed)
	if !slices.Equal(freed, want) {
		t.Errorf("told of %v, want %v", freed, want)
	}
}

// A replica has taken over that was not told all, and by its numbers nothing is
// missing; and Redis comes after the first requests.
func TestBoardTellsOfAllWhereRedisMayBeAnother(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	a := join(t, at(t, srv.Addr()), "a")
	a.wantInstances(t, 1)
	sequence := srv.Client(t).HGet(t.Context(), "rl:v1:{gateway}:board", "sequence").Val()
	srv.Kill()
	late := join(t, at(t, srv.Addr()), "late")
	for _, i := range []*instance{a, late} {
		i.Call()
		if len(i.failed()) != 1 {
			t.Error("a call of a dead server did not fail")
		}
	}
	srv.Restart()
	srv.Client(t).HSet(t.Context(), "rl:v1:{gateway}:board", "sequence", sequence)
	for _, i := range []*instance{a, late} {
		soon(t, "it calls again", func() bool { i.Call(); return len(i.failed()) == 0 })
		if freed, all := i.told(); len(freed) != 0 || all != 1 {
			t.Errorf("told of %v and %d times of all; want all, once", freed, all)
		}
		i.wantTold(t, nil, 0)
	}
}
