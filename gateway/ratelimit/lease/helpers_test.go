package lease_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/lease"
	"bouncer/gateway/ratelimit/memory"
)

var errAway = errors.New("nobody answers")

// A fake is a shared store in memory that can lend. It goes by the clock of the
// test's bubble.
type fake struct {
	mu       sync.Mutex
	store    *memory.Store
	calls    int
	lent     int64 // units charged in advance
	asked    []int64
	returned []ratelimit.Block
	away     error
	during   func() // called while a call is under way
}

func newFake(t testing.TB) *fake {
	t.Helper()
	store, err := memory.New(memory.Options{MaxKeys: 100_000, Source: ratelimit.SourceRedis})
	if err != nil {
		t.Fatal(err)
	}
	return &fake{store: store}
}

func (f *fake) Take(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	ds, _, err := f.Lend(ctx, charges, make([]int64, len(charges)), dst, nil)
	return ds, err
}

func (f *fake) Lend(ctx context.Context, charges []ratelimit.Charge, extra []int64, dst []ratelimit.Decision, blocks []ratelimit.Block) ([]ratelimit.Decision, []ratelimit.Block, error) {
	if f.during != nil {
		f.during()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	blocks = append(blocks[:0], make([]ratelimit.Block, len(charges))...)
	if f.away != nil {
		return dst[:0], blocks, f.away
	}
	ds, err := f.store.Take(ctx, charges, dst)
	if err != nil || !ratelimit.Admitted(ds) {
		return ds, blocks, err
	}
	for i, units := range extra {
		f.asked = append(f.asked, units)
		if units = min(units, ds[i].Remaining); units == 0 {
			continue
		}
		c := charges[i]
		c.Cost = units
		one, err := f.store.Take(ctx, []ratelimit.Charge{c}, nil)
		if err != nil {
			return ds, blocks, err
		}
		f.lent += units
		ds[i].Remaining, ds[i].Reset = one[0].Remaining, one[0].Reset
		blocks[i] = ratelimit.Block{Policy: c.Policy, Partition: c.Partition, Units: units}
		if c.Policy.Algorithm == ratelimit.FixedWindow {
			blocks[i].Lasts = one[0].Reset
		}
	}
	return ds, blocks, nil
}

func (f *fake) Return(_ context.Context, blocks []ratelimit.Block) (stranded int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.returned = append(f.returned, blocks...)
	if f.away != nil {
		for _, b := range blocks {
			stranded += b.Units
		}
	}
	return stranded, f.away
}

// fail has the store fail with err from now on; nil ends that.
func (f *fake) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = err
}

// back is how many units were returned.
func (f *fake) back() (units int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.returned {
		units += b.Units
	}
	return units
}

// counts are what hooks were told.
type counts struct {
	mu sync.Mutex
	n  numbers
}

type numbers struct {
	blocks, full, failures int
	stranded               int64
}

func (c *counts) now() numbers {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *counts) hooks() lease.Hooks {
	locked := func(f func()) { c.mu.Lock(); defer c.mu.Unlock(); f() }
	return lease.Hooks{
		Blocks:   func(n int) { locked(func() { c.n.blocks += n }) },
		Stranded: func(n int64) { locked(func() { c.n.stranded += n }) },
		Full:     func() { locked(func() { c.n.full++ }) },
		Failed:   func(error) { locked(func() { c.n.failures++ }) },
	}
}

// start returns leases of store that are at work until the test is over.
func start(t testing.TB, store lease.Store, o lease.Options) *lease.Leases {
	t.Helper()
	l, err := lease.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	l.Start()
	t.Cleanup(l.Close)
	return l
}

func policy(t testing.TB, spec ratelimit.Policy) *ratelimit.Policy {
	t.Helper()
	spec.Name = "hot"
	if spec.Scope == "" {
		spec.Scope = "limit/hot"
	}
	if spec.Window == 0 {
		spec.Window = time.Hour
	}
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// window is a limit of quota in an hour of which blocks are leased for a second.
func window(t testing.TB, quota, size int64) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{
		Algorithm: ratelimit.FixedWindow, Quota: quota, Lease: ratelimit.Lease{TTL: time.Second, Size: size},
	})
}

// of returns a charge of each policy in the bucket of everybody.
func of(cost int64, ps ...*ratelimit.Policy) (cs []ratelimit.Charge) {
	for _, p := range ps {
		cs = append(cs, ratelimit.Charge{Policy: p, Partition: "{global}", Caller: "{user:x}", Cost: cost})
	}
	return cs
}

// take takes and ends the test on an error.
func take(t testing.TB, s ratelimit.Store, cs []ratelimit.Charge) []ratelimit.Decision {
	t.Helper()
	ds, err := s.Take(t.Context(), cs, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(ds) != len(cs) {
		t.Fatalf("%d decisions for %d charges", len(ds), len(cs))
	}
	return ds
}
