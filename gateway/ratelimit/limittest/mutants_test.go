package limittest

import (
	"context"
	"maps"
	"math/big"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// A mutant is the model with one thing wrong: what implementations of limits
// really get wrong. The suite must find it.
type mutant struct {
	name string
	// tables: no history can show it; some table must.
	tables bool
	// history is the only one that is asked, if it is not empty.
	history string

	// Each of these stands in for what the model does, if it is not nil.
	limit        func(p *ratelimit.Policy, right limit) limit
	key          func(ratelimit.Charge) string
	pays         func(verdicts []ratelimit.Decision, i int) bool
	paysRejected func(verdicts []ratelimit.Decision, i int) bool
	take         func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision
}

// A mutantStore is a mutant as a store.
type mutantStore struct {
	modelStore
	mutant mutant
	left   []func() // what is to be given back for those who left
}

func newMutant(m mutant) NewStore {
	return func(_ testing.TB, clock *Clock) ratelimit.Store {
		s := &mutantStore{modelStore: modelStore{clock: clock, model: newModel()}, mutant: m}
		if m.limit != nil {
			s.model.limitOf = func(p *ratelimit.Policy) limit { return m.limit(p, limitOf(p)) }
		}
		if m.key != nil {
			s.model.key = m.key
		}
		if m.pays != nil {
			s.model.pays = m.pays
		}
		if m.paysRejected != nil {
			s.model.paysRejected = m.paysRejected
		}
		return s
	}
}

// Take implements [ratelimit.Store].
func (s *mutantStore) Take(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	if s.mutant.name == "queue: gives back the place of who left" {
		return s.takeAndGiveBack(ctx, charges, dst)
	}
	if s.mutant.take == nil {
		return s.modelStore.Take(ctx, charges, dst)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ds := s.mutant.take(s, s.clock.Now(), charges)
	if s.mutant.name == "a new slice instead of the caller's" {
		return ds, nil
	}
	return append(dst[:0], ds...), nil
}

func (s *mutantStore) takeAndGiveBack(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	for _, giveBack := range s.left {
		giveBack()
	}
	before := maps.Clone(s.model.buckets)
	dst, err := s.modelStore.Take(ctx, charges, dst)
	s.left = append(s.left, func() {
		if ctx.Err() != nil {
			maps.Copy(s.model.buckets, before)
		}
	})
	return dst, err
}

// alone returns how long the model says that one charge waits, without the others
// of its list and without a charge for what is denied. Of a candidate, 0.
func alone(m *model, now int64, c ratelimit.Charge) time.Duration {
	if c.Policy.Role == ratelimit.Candidate {
		return 0
	}
	trial := *m
	trial.paysRejected = func([]ratelimit.Decision, int) bool { return false }
	trial.buckets = maps.Clone(m.buckets)
	return trial.take(now, []ratelimit.Charge{c})[0].RetryAfter
}

// altered is a policy with other numbers.
func altered(p *ratelimit.Policy, change func(*ratelimit.Policy)) limit {
	q := *p
	change(&q)
	return limitOf(&q)
}

// more changes what p admits at once by n units.
func more(p *ratelimit.Policy, n int64) limit {
	return altered(p, func(q *ratelimit.Policy) {
		switch {
		case q.Quota == 0:
		case q.Algorithm == ratelimit.TokenBucket:
			q.Burst += n
		case q.Algorithm == ratelimit.LeakyBucket:
			q.Queue = max(0, q.Queue+n)
		default:
			q.Quota += n
		}
	})
}

// An override is a limit of which some methods are replaced.
type override struct {
	limit
	onAt       func(s state, now int64) state
	onFits     func(s state, now int64, units *big.Rat) bool
	onSpend    func(s state, now, cost int64) state
	onFill     func(s state, now, cost int64) state
	onDescribe func(s state, now int64) (int64, time.Duration)
	onWait     func(s state, now int64, units *big.Rat) time.Duration
	onDelay    func(s state, now, cost int64) time.Duration
}

func (o override) at(s state, now int64) state {
	if o.onAt != nil {
		return o.onAt(s, now)
	}
	return o.limit.at(s, now)
}

func (o override) fits(s state, now int64, units *big.Rat) bool {
	if o.onFits != nil {
		return o.onFits(s, now, units)
	}
	return o.limit.fits(s, now, units)
}

func (o override) spend(s state, now, cost int64) state {
	if o.onSpend != nil {
		return o.onSpend(s, now, cost)
	}
	return o.limit.spend(s, now, cost)
}

func (o override) fill(s state, now, cost int64) state {
	if o.onFill != nil {
		return o.onFill(s, now, cost)
	}
	return o.limit.fill(s, now, cost)
}

func (o override) describe(s state, now int64) (int64, time.Duration) {
	if o.onDescribe != nil {
		return o.onDescribe(s, now)
	}
	return o.limit.describe(s, now)
}

func (o override) wait(s state, now int64, units *big.Rat) time.Duration {
	if o.onWait != nil {
		return o.onWait(s, now, units)
	}
	return o.limit.wait(s, now, units)
}

func (o override) delay(s state, now, cost int64) time.Duration {
	if o.onDelay != nil {
		return o.onDelay(s, now, cost)
	}
	return o.limit.delay(s, now, cost)
}

// of changes limits of one algorithm.
func of[L limit](change func(L) limit) func(*ratelimit.Policy, limit) limit {
	return func(_ *ratelimit.Policy, right limit) limit {
		if l, ok := right.(L); ok {
			return change(l)
		}
		return right
	}
}

// waiting changes a wait that helps.
func waiting(change func(time.Duration) time.Duration) func(*ratelimit.Policy, limit) limit {
	return func(_ *ratelimit.Policy, right limit) limit {
		return override{limit: right, onWait: func(s state, now int64, units *big.Rat) time.Duration {
			d := right.wait(s, now, units)
			if d == never {
				return d
			}
			return change(d)
		}}
	}
}

// TestSuiteFindsFaults: a suite that passes everything shows nothing. Each mutant
// must fail some history or, where no history can show it, some table.
func TestSuiteFindsFaults(t *testing.T) {
	t.Setenv("LIMITTEST_SEED", "1") // so that what is rare is found every time
	for _, m := range slices.Concat(commonMutants, calendarMutants, logMutants, counterMutants, queueMutants, lagMutants, roleMutants, plansMutants) {
		t.Run(m.name, func(t *testing.T) {
			finds := func(c check) bool { return fails(t, c, m) }
			if m.tables {
				if !slices.ContainsFunc(append(tables(), concurrent()...), finds) {
					t.Error("no table found this fault")
				}
				return
			}
			asked := append(histories(), apart()...)
			if m.history != "" {
				asked = slices.DeleteFunc(asked, func(c check) bool { return c.name != m.history })
			}
			slices.Reverse(asked) // the one of lists, which has everything, finds most
			if !slices.ContainsFunc(asked, finds) {
				t.Error("no history found this fault")
			}
		})
	}
}

// TestPromisesFindFaults: the promises are checked without the model, so they are
// to find by themselves what breaks them.
func TestPromisesFindFaults(t *testing.T) {
	t.Setenv("LIMITTEST_SEED", "1")
	named := func(all []mutant, name string) mutant {
		i := slices.IndexFunc(all, func(m mutant) bool { return m.name == name })
		if i < 0 {
			t.Fatalf("no mutant %q", name)
		}
		return all[i]
	}
	tooMany := named(commonMutants, "admits one too many")
	for _, c := range promises() {
		broken := []mutant{
			named(commonMutants, "retry after is a microsecond short"),
			named(commonMutants, "retry after is a microsecond long"),
		}
		switch c.name {
		case "Promise/LeakyBucket":
			broken = []mutant{named(queueMutants, "queue: held for the first of its drips"), named(queueMutants, "queue: holds nobody")}
		case "Promise/LeakyBucketWithMaxDelay":
			broken = []mutant{named(queueMutants, "queue: ignores max delay"), named(queueMutants, "queue: max delay bounds when the first of the drips falls")}
		case "Promise/Plans/token_bucket", "Promise/Plans/leaky_bucket":
			broken = []mutant{
				tooMany,
				named(plansMutants, "plans: forgets what a smaller one has cut"),
				named(plansMutants, "plans: forgets what is charged under the smaller one"),
				named(plansMutants, "plans: a second cut takes the place of the first"),
			}
			if c.name == "Promise/Plans/token_bucket" {
				broken = append(broken, named(plansMutants, "plans: a second cut is not seen by the plan that made the first"))
			}
		case "Promise/Plans/sliding_window_log":
			broken = []mutant{tooMany, named(plansMutants, "plans: a rejected attempt throws away the units of a larger one")}
		case "Promise/SlidingWindowCounter":
			broken = []mutant{tooMany, named(counterMutants, "counter: forgets the previous window at the edge")}
		case "Promise/SlidingWindowLog":
			broken = []mutant{tooMany, named(logMutants, "log: equal timestamps are one entry")}
		case "Promise/Calendar":
			broken = []mutant{tooMany, named(calendarMutants, "calendar: opens with the first charge")}
		case "Promise/TokenBucket", "Promise/FixedWindow":
			broken = []mutant{tooMany}
		}
		for _, m := range broken {
			if !fails(t, c, m) {
				t.Errorf("%s holds, though the store %s", c.name, m.name)
			}
		}
	}
}

// TestSharedFindsFaults: what goes wrong where the answers of several partitions
// are put together.
func TestSharedFindsFaults(t *testing.T) {
	t.Setenv("LIMITTEST_SEED", "1")
	// split decides each partition by itself, and hands what was charged for a
	// request that is denied to undo.
	split := func(undo func(s *mutantStore, now int64, charged []ratelimit.Charge, before map[string]state)) func(*mutantStore, int64, []ratelimit.Charge) []ratelimit.Decision {
		return func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
			ds := make([]ratelimit.Decision, len(charges))
			before := maps.Clone(s.model.buckets)
			done := map[string]bool{}
			var charged []ratelimit.Charge
			for _, c := range charges {
				if done[c.Partition] {
					continue
				}
				done[c.Partition] = true
				var group []ratelimit.Charge
				var index []int
				for i := range charges {
					if charges[i].Partition == c.Partition {
						group, index = append(group, charges[i]), append(index, i)
					}
				}
				part := s.model.take(now, group)
				for i, d := range part {
					ds[index[i]] = d
				}
				if admitted(part) {
					charged = append(charged, group...)
				}
			}
			if !admitted(ds) {
				undo(s, now, charged, before)
			}
			return ds
		}
	}
	for _, m := range []mutant{
		{name: "keeps what was charged", take: split(func(*mutantStore, int64, []ratelimit.Charge, map[string]state) {})},
		{name: "gives back all that anyone ever charged", take: split(func(s *mutantStore, _ int64, charged []ratelimit.Charge, _ map[string]state) {
			for _, c := range charged {
				delete(s.model.buckets, key(c))
			}
		})},
		{name: "says what was left while it was charged", take: split(func(s *mutantStore, _ int64, _ []ratelimit.Charge, before map[string]state) {
			s.model.buckets = before
		})},
	} {
		if !slices.ContainsFunc(shared(), func(c check) bool { return fails(t, c, m) }) {
			t.Errorf("nothing found a store that %s", m.name)
		}
	}
}

// fails tells whether c finds m.
func fails(t *testing.T, c check, m mutant) bool {
	t.Helper()
	r := &recorder{TB: t}
	r.watch(func() { c.run(r, newMutant(m)) })
	return r.Failed()
}

// A recorder is a test that can fail without failing the one it stands in.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
}

// watch runs f, which may end with FailNow.
func (r *recorder) watch(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) FailNow()              { r.Fail(); runtime.Goexit() }
func (r *recorder) Error(...any)          { r.Fail() }
func (r *recorder) Errorf(string, ...any) { r.Fail() }
func (r *recorder) Fatal(...any)          { r.FailNow() }
func (r *recorder) Fatalf(string, ...any) { r.FailNow() }
func (r *recorder) Log(...any)            {}
func (r *recorder) Logf(string, ...any)   {}
func (r *recorder) Helper()               {}
