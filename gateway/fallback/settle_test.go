package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway/fallback"
	"bouncer/gateway/ratelimit"
)

var (
	errLost  = errors.New("the answer was lost")
	errNever = errors.New("no answer")
)

// A purse is a shared store that counts what it is charged, by bucket, in one of
// four conditions.
type purse struct {
	mu       sync.Mutex
	answers  error // nil; errDown: refuses; errLost: charges and fails; errNever: does not charge and fails
	charged  map[string]int64
	never    int64  // requests that got no answer and were not charged
	settles  int    // calls of Settle
	most     int    // debts that one call settles
	settling func() // called by each Settle, before it does anything
}

func newPurse() *purse { return &purse{charged: map[string]int64{}, most: 5} }

func (p *purse) set(err error) {
	p.mu.Lock()
	p.answers = err
	p.mu.Unlock()
}

func (p *purse) charge(partition string, q *ratelimit.Policy, units int64) {
	p.charged[partition+":"+q.Key()] += units
}

func (p *purse) Take(_ context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(p.answers, errNever) {
		for _, c := range cs {
			p.never += c.Cost
		}
	}
	if p.answers == nil || errors.Is(p.answers, errLost) {
		for _, c := range cs {
			p.charge(c.Partition, c.Policy, c.Cost)
		}
	}
	if p.answers != nil {
		return dst[:0], p.answers
	}
	return up(context.Background(), cs, dst)
}

func (p *purse) Settle(_ context.Context, debts []ratelimit.Debt) (int, error) {
	if p.settling != nil {
		p.settling()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settles++
	n := min(p.most, len(debts))
	if errors.Is(p.answers, errNever) {
		for i := range debts[:n] {
			p.never += debts[i].State.Spent
		}
	}
	if p.answers == nil || errors.Is(p.answers, errLost) {
		for i := range debts[:n] {
			d := &debts[i]
			p.charge(d.Partition, d.Policy, d.State.Spent)
			d.Charged = d.State.Spent
		}
	}
	return n, p.answers
}

func (p *purse) Probe(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answers
}

func (p *purse) total() (n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, units := range p.charged {
		n += units
	}
	return n
}

// account is what the hooks of a Fallback told of outcomes.
type account struct {
	mu       sync.Mutex
	units    map[fallback.Outcome]int64
	reported []fallback.Settlement
}

func (a *account) of(o fallback.Outcome) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.units[o]
}

func (a *account) reports() []fallback.Settlement {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]fallback.Settlement(nil), a.reported...)
}

func (p *purse) instance(t *testing.T, local ratelimit.Store) (*fallback.Fallback, *account) {
	t.Helper()
	a := &account{units: map[fallback.Outcome]int64{}}
	f, err := fallback.New(p, local, fallback.Options{
		Probe: p.Probe, Settle: p.Settle,
		Ambiguous: func(err error) bool { return !errors.Is(err, errDown) },
		Hooks: fallback.Hooks{
			Accounted: func(o fallback.Outcome, units int64) {
				a.mu.Lock()
				a.units[o] += units
				a.mu.Unlock()
			},
			Settled: func(s fallback.Settlement) {
				a.mu.Lock()
				a.reported = append(a.reported, s)
				a.mu.Unlock()
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.Start()
	t.Cleanup(f.Close)
	return f, a
}

func perYear(t testing.TB, name string, quota int64) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{
		Name: name, Scope: "plan/" + name, Algorithm: ratelimit.FixedWindow, Quota: quota, Window: ratelimit.MaxWindow,
	})
}

func ask(t *testing.T, s ratelimit.Store, partition string, cost int64, ps ...*ratelimit.Policy) bool {
	t.Helper()
	cs := make([]ratelimit.Charge, len(ps))
	for i, p := range ps {
		cs[i] = ratelimit.Charge{Policy: p, Partition: partition, Caller: partition, Cost: cost}
	}
	ds, err := s.Take(t.Context(), cs, nil)
	return err == nil && ratelimit.Admitted(ds)
}

// TestEveryAdmissionIsChargedOnceAtMost: a store that comes and goes, refuses,
// loses its answers to requests and to settlements, and gives none. Whatever was
// admitted is charged once, but for what nobody answered for.
func TestEveryAdmissionIsChargedOnceAtMost(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			p := newPurse()
			f1, a1 := p.instance(t, newStand())
			f2, a2 := p.instance(t, newStand())
			day, year := perYear(t, "day", 1e9), perYear(t, "year", 1e9)
			admitted := int64(0)
			for range 400 {
				switch rnd.IntN(10) {
				case 0:
					p.set([]error{nil, nil, errDown, errLost, errNever}[rnd.IntN(5)])
				case 1:
					time.Sleep(time.Duration(rnd.Int64N(int64(2 * time.Second))))
				default:
					f := []*fallback.Fallback{f1, f2}[rnd.IntN(2)]
					mode := []fallback.Mode{fallback.LocalCap, fallback.Allow}[rnd.IntN(2)]
					if !ask(t, f.Store(mode), fmt.Sprintf("{user:%d}", rnd.IntN(20)), 1, day, year) {
						t.Fatal("denied")
					}
					admitted += 2
				}
			}
			p.set(nil)
			time.Sleep(10 * time.Second)
			if f1.State().Owed != 0 || f2.State().Owed != 0 {
				t.Errorf("seed %d: %d and %d buckets are still owed", seed, f1.State().Owed, f2.State().Owed)
			}
			if got, want := p.total(), admitted-p.never; got != want {
				t.Errorf("seed %d: %d units were charged, want %d: all of %d but %d that nobody answered for", seed, got, want, admitted, p.never)
			}
			sum := fallback.Settlement{}
			for _, s := range append(a1.reports(), a2.reports()...) {
				sum.Units += s.Units
				sum.LeftOut += s.LeftOut
			}
			settled := a1.of(fallback.Settled) + a2.of(fallback.Settled)
			left := a1.of(fallback.Ambiguous) + a2.of(fallback.Ambiguous) + a1.of(fallback.Failed) + a2.of(fallback.Failed)
			if sum.Units != settled || sum.LeftOut > left || settled == 0 || left == 0 {
				t.Errorf("seed %d: reported %+v; accounted for: %d settled, %d left out", seed, sum, settled, left)
			}
		})
	}
}

// TestWhatIsNoted: what was admitted is, by the real policies, and a shadow as far
// as it allows; denials and refusals are not.
func TestWhatIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPurse()
		p.set(errDown)
		f, a := p.instance(t, newStand())
		small := policy(t, ratelimit.Policy{
			Name: "small", Scope: "plan/small", Algorithm: ratelimit.FixedWindow, Quota: 3, Window: ratelimit.MaxWindow,
			LocalCap: perYear(t, "cap", 5),
		})
		shadow := policy(t, ratelimit.Policy{
			Name: "shadow", Scope: "plan/shadow", Algorithm: ratelimit.FixedWindow, Quota: 3, Window: ratelimit.MaxWindow,
			Role: ratelimit.Shadow, LocalCap: small.LocalCap,
		})
		for i := range 7 { // the cap admits 5
			if ask(t, f.Store(fallback.LocalCap), priya, 1, small, shadow) != (i < 5) {
				t.Errorf("request %d: admitted %t", i, i >= 5)
			}
		}
		ask(t, f.Store(fallback.LocalCap), priya, 0, small) // usage asks for nothing
		ask(t, f.Store(fallback.Deny), "{user:refused}", 1, small)
		ask(t, f.Store(fallback.Allow), "{user:allowed}", 2, small, shadow)
		ask(t, f.Store(fallback.Allow), "{user:allowed}", 2, small, shadow) // fills the one, the other would deny
		if f.State().Owed != 4 {
			t.Errorf("%d buckets are noted, want 4", f.State().Owed)
		}
		p.set(nil)
		time.Sleep(5 * time.Second)
		want := map[string]int64{
			priya + ":" + small.Key(): 3, priya + ":" + shadow.Key(): 3,
			"{user:allowed}:" + small.Key(): 3, "{user:allowed}:" + shadow.Key(): 2,
		}
		synctest.Wait()
		if !maps.Equal(p.charged, want) {
			t.Errorf("charged %v, want %v", p.charged, want)
		}
		if got := a.reports(); len(got) != 1 || got[0] != (fallback.Settlement{Buckets: 4, Units: 11, Lapsed: 7}) {
			t.Errorf("reported %+v", got)
		}
	})
}

// TestOneFailureIsSettledToo: the breaker never opened, so nothing ever closes it.
func TestOneFailureIsSettledToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPurse()
		f, _ := p.instance(t, newStand())
		p.set(errDown)
		ask(t, f.Store(fallback.LocalCap), priya, 1, perYear(t, "year", 10))
		p.set(nil)
		if f.State().Open || f.State().Owed != 1 {
			t.Fatalf("state %+v", f.State())
		}
		time.Sleep(time.Second)
		if p.total() != 1 || f.State().Owed != 0 {
			t.Errorf("%d charged, %d owed; want 1 and 0", p.total(), f.State().Owed)
		}
	})
}

// TestTheStoreLeavesAgainWhileSettling: the rest waits for the next return.
func TestTheStoreLeavesAgainWhileSettling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPurse()
		p.set(errDown)
		f, a := p.instance(t, newStand())
		year := perYear(t, "year", 10)
		for i := range 100 {
			ask(t, f.Store(fallback.Allow), fmt.Sprintf("{user:%d}", i), 1, year)
		}
		calls := 0
		p.settling = func() {
			if calls++; calls == 3 {
				p.set(errDown)
			}
		}
		p.set(nil)
		time.Sleep(3 * time.Second)
		if p.total() != 10 || f.State().Owed != 90 || len(a.reports()) != 0 {
			t.Errorf("%d charged, %d owed, reports %v; want 10, 90 and none yet", p.total(), f.State().Owed, a.reports())
		}
		p.set(nil)
		time.Sleep(5 * time.Second)
		if p.total() != 100 || f.State().Owed != 0 {
			t.Errorf("%d charged, %d owed; want 100 and 0", p.total(), f.State().Owed)
		}
		if got := a.reports(); len(got) != 1 || got[0] != (fallback.Settlement{Buckets: 100, Units: 100}) {
			t.Errorf("reported %+v", got)
		}
	})
}

// TestTheEnd: what can be settled is, without waiting; the rest is counted.
func TestTheEnd(t *testing.T) {
	for _, back := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := newPurse()
			p.set(errDown)
			f, a := p.instance(t, newStand())
			for i := range 100 {
				ask(t, f.Store(fallback.Allow), fmt.Sprintf("{user:%d}", i), 1, perYear(t, "year", 10))
			}
			if back {
				p.set(nil)
				for f.State().Open {
					time.Sleep(10 * time.Millisecond)
				}
			}
			before := time.Now()
			f.Settle(t.Context())
			f.Close()
			f.Close()
			want := fallback.Settlement{LeftOut: 100}
			if back {
				want = fallback.Settlement{Buckets: 100, Units: 100}
			}
			if got := a.reports(); len(got) != 1 || got[0] != want || a.of(fallback.Dropped) != want.LeftOut || p.total() != want.Units {
				t.Errorf("reported %+v, dropped %d, charged %d; want %+v", got, a.of(fallback.Dropped), p.total(), want)
			}
			if took := time.Since(before); took != 0 || f.State().Owed != 0 {
				t.Errorf("took %s, %d owed", took, f.State().Owed)
			}
		})
	}
}

// TestDebtsAreBounded: new buckets are not noted beyond a bound, known ones are,
// and what counts no more makes room.
func TestDebtsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 100_000
		p := newPurse()
		p.set(errDown)
		f, a := p.instance(t, newStand())
		s := f.Store(fallback.Allow)
		short := policy(t, ratelimit.Policy{Name: "short", Scope: "plan/short", Algorithm: ratelimit.FixedWindow, Quota: 10, Window: time.Second})
		for i := range most {
			ask(t, s, fmt.Sprintf("{user:%d}", i), 1, short)
		}
		ask(t, s, "{user:new}", 3, short)
		ask(t, s, "{user:0}", 1, short)
		if f.State().Owed != most || a.of(fallback.Full) != 3 {
			t.Errorf("%d owed, %d found no room; want %d and 3", f.State().Owed, a.of(fallback.Full), most)
		}
		time.Sleep(2 * time.Second)
		ask(t, s, "{user:new}", 1, short)
		if f.State().Owed != 1 || a.of(fallback.Full) != 3 || a.of(fallback.Lapsed) != most+1 {
			t.Errorf("%d owed, %d found no room, %d lapsed; want 1, 3 and %d", f.State().Owed, a.of(fallback.Full), a.of(fallback.Lapsed), most+1)
		}
	})
}

// A bucket that was emptied owes nothing of what was admitted before.
func TestForgottenDebtsAreNotSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPurse()
		f, a := p.instance(t, newStand())
		day, year := perYear(t, "day", 1e9), perYear(t, "year", 1e9)
		p.set(errDown)
		for range 10 {
			ask(t, f.Store(fallback.Allow), "{user:a}", 1, day, year)
			ask(t, f.Store(fallback.Allow), "{user:b}", 1, day)
		}
		f.Forget([]ratelimit.Charge{{Policy: day, Partition: "{user:a}"}, {Policy: day, Partition: "{user:nobody}"}})
		if owed := f.State().Owed; owed != 2 {
			t.Errorf("%d buckets owe, want 2", owed)
		}
		p.set(nil)
		time.Sleep(time.Minute)
		p.mu.Lock()
		defer p.mu.Unlock()
		for bucket, want := range map[string]int64{"{user:a}:" + day.Key(): 0, "{user:a}:" + year.Key(): 10, "{user:b}:" + day.Key(): 10} {
			if got := p.charged[bucket]; got != want {
				t.Errorf("%s was charged %d, want %d", bucket, got, want)
			}
		}
		if n := a.of(fallback.Lapsed); n != 10 {
			t.Errorf("%d units are told of as lapsed, want 10", n)
		}
	})
}
