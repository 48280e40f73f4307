package limittest

import (
	"context"
	"maps"
	"math/big"
	"runtime"
	"slices"
	"strconv"
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
	q := *p //nolint:govet // the model reads its exported fields only
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

// digits is what is left of n after Lua's tostring.
func digits(n int64) int64 {
	f, err := strconv.ParseFloat(strconv.FormatFloat(float64(n), 'g', 14, 64), 64)
	if err != nil {
		panic(err)
	}
	return int64(f)
}

// roleMutants change what a role is for.
var roleMutants = []mutant{
	{name: "shadow: denies", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		cs := slices.Clone(charges)
		for i, c := range charges {
			if c.Policy.Role == ratelimit.Shadow {
				q := *c.Policy //nolint:govet // see altered
				q.Role = ratelimit.Enforce
				cs[i].Policy = &q
			}
		}
		ds := s.model.take(now, cs)
		for i := range ds {
			ds[i].Policy = charges[i].Policy
		}
		return ds
	}},
	{name: "shadow: is not charged", pays: func(ds []ratelimit.Decision, i int) bool {
		return ds[i].Policy.Role != ratelimit.Shadow && pays(ds, i)
	}},
	{name: "shadow: is charged what it denies", pays: func(ds []ratelimit.Decision, i int) bool {
		return pays(ds, i) || ds[i].Policy.Role == ratelimit.Shadow && admitted(ds)
	}, limit: func(_ *ratelimit.Policy, right limit) limit {
		return override{limit: right, onSpend: func(s state, now, cost int64) state { return right.spend(s, now, min(cost, 1000)) }}
	}, tables: true},
	{name: "shadow: is charged for a denied request", pays: func(ds []ratelimit.Decision, i int) bool {
		return pays(ds, i) || ds[i].Policy.Role == ratelimit.Shadow && ds[i].Allowed
	}, history: "History/Lists"},
	{name: "candidate: denies", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		cs := slices.Clone(charges)
		for i, c := range charges {
			if c.Policy.Role == ratelimit.Candidate {
				q := *c.Policy //nolint:govet // see altered
				q.Role, q.Scope = ratelimit.Enforce, q.Scope+" candidate"
				cs[i].Policy = &q
			}
		}
		ds := s.model.take(now, cs)
		for i := range ds {
			ds[i].Policy = charges[i].Policy
		}
		return ds
	}},
	{name: "candidate: is charged with its twin's verdict", pays: func(ds []ratelimit.Decision, i int) bool {
		if ds[i].Policy.Role == ratelimit.Candidate {
			return admitted(ds) && ds[i].Allowed
		}
		return pays(ds, i)
	}},
	{name: "candidate: is charged whoever denies", pays: func(ds []ratelimit.Decision, i int) bool {
		return pays(ds, i) || ds[i].Policy.Role == ratelimit.Candidate && ds[i].Allowed
	}, history: "History/Lists"},
	{name: "candidate: shares its twin's count", key: func(c ratelimit.Charge) string {
		q := *c.Policy //nolint:govet // see altered
		q.Role = ratelimit.Enforce
		c.Policy = &q
		return key(c)
	}},
	{name: "rejected: is not charged", paysRejected: func([]ratelimit.Decision, int) bool { return false }},
	{name: "rejected: is charged beyond the limit", limit: func(_ *ratelimit.Policy, right limit) limit {
		return override{limit: right, onFill: func(s state, now, cost int64) state { return right.spend(s, now, min(cost, 1000)) }}
	}},
	{name: "rejected: only those that deny are charged", paysRejected: func(ds []ratelimit.Decision, i int) bool {
		return paysRejected(ds, i) && !ds[i].Allowed
	}, history: "History/Lists"},
	{name: "rejected: is charged for the candidate", paysRejected: func(ds []ratelimit.Decision, i int) bool {
		return paysRejected(ds, i) || !admitted(ds) && ds[i].Policy.Role == ratelimit.Candidate && ds[i].Policy.Quota > 0
	}},
	{name: "rejected: is charged of an admitted request", paysRejected: func(ds []ratelimit.Decision, i int) bool {
		return paysRejected(ds, i) || !ds[i].Allowed && ds[i].Policy.CountRejected && ds[i].Policy.Quota > 0
	}},
	{name: "rejected: retry after is of before it was charged", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		var waits []time.Duration
		for _, c := range charges {
			waits = append(waits, alone(s.model, now, c))
		}
		ds := s.model.take(now, charges)
		for i := range ds {
			if len(ds) == 1 && ds[i].RetryAfter > 0 {
				ds[i].RetryAfter = waits[i]
			}
		}
		return ds
	}},
}

var logMutants = []mutant{
	{name: "log: admits one too many", limit: of(func(l logged) limit {
		if l.quota == 0 {
			return l
		}
		return override{limit: l, onFits: func(s state, now int64, units *big.Rat) bool {
			return logged{l.quota + 1, l.window}.fits(s, now, units)
		}, onWait: logged{l.quota + 1, l.window}.wait, onFill: logged{l.quota + 1, l.window}.fill}
	})},
	{name: "log: keeps one unit more of what is denied", limit: of(func(l logged) limit {
		return override{limit: l, onFill: logged{l.quota + 1, l.window}.fill}
	})},
	{name: "log: keeps the oldest of what is denied", limit: of(func(l logged) limit {
		return override{limit: l, onFill: func(s state, now, cost int64) state {
			s = l.spend(s, now, min(cost, l.quota))
			s.log = s.log[:min(len(s.log), int(l.quota))]
			return s
		}}
	})},
	{name: "log: charges denials", limit: of(func(l logged) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state { return l.spend(s, now, min(cost, 1000)) }}
	}), pays: func(ds []ratelimit.Decision, i int) bool {
		return pays(ds, i) || ds[i].Policy.Algorithm == ratelimit.SlidingWindowLog && !ds[i].Allowed && ds[i].Policy.Quota > 0
	}},
	{name: "log: equal timestamps are one entry", limit: of(func(l logged) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			s = l.spend(s, now, cost)
			s.log = slices.Compact(s.log)
			return s
		}}
	})},
	{name: "log: an entry counts a microsecond too long", limit: of(func(l logged) limit {
		return override{limit: l, onAt: logged{l.quota, l.window + 1}.at, onWait: logged{l.quota, l.window + 1}.wait}
	})},
	{name: "log: entries of a clock that stepped back are out of order", history: "History/SlidingWindowLog", limit: of(func(l logged) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			log := slices.Clone(s.log)
			for range cost {
				log = append(log, now)
			}
			return state{log: log, gone: now + l.window}
		}}
	})},
	{name: "log: waits for the oldest only", limit: of(func(l logged) limit {
		return override{limit: l, onWait: func(s state, now int64, units *big.Rat) time.Duration {
			if d := l.wait(s, now, units); d == never {
				return d
			}
			return time.Duration(s.log[0]+l.window-now) * micro
		}}
	})},
	{name: "log: times printed with 14 digits", limit: of(func(l logged) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state { return l.spend(s, digits(now), cost) }}
	})},
}

// weighs tells whether s is within the quota, by another share of the previous
// window.
func weighs(l counted, s state, now int64, share func(previous, left, window int64) int64) bool {
	elapsed := max(0, now-s.tally.k*l.window)
	return s.tally.current+share(s.tally.previous, l.window-elapsed, l.window) <= l.quota
}

var counterMutants = []mutant{
	{name: "counter: admits one too many", limit: of(func(l counted) limit {
		if l.quota == 0 {
			return l
		}
		return override{limit: l, onFits: func(s state, now int64, units *big.Rat) bool {
			return counted{l.quota + 1, l.window}.fits(s, now, units)
		}, onWait: counted{l.quota + 1, l.window}.wait}
	})},
	{name: "counter: rounds the weight down", limit: of(func(l counted) limit {
		return override{limit: l, onFits: func(s state, now int64, units *big.Rat) bool {
			s.tally.current += clampRat(units)
			return units.Cmp(unit(l.quota)) <= 0 && weighs(l, s, now, func(previous, left, window int64) int64 {
				return floor(new(big.Rat).Mul(unit(previous), big.NewRat(left, window)))
			})
		}}
	})},
	{name: "counter: weighs in floating point", history: "History/SlidingWindowCounter", limit: of(func(l counted) limit {
		return override{limit: l, onFits: func(s state, now int64, units *big.Rat) bool {
			s.tally.current += clampRat(units)
			return units.Cmp(unit(l.quota)) <= 0 && weighs(l, s, now, func(previous, left, window int64) int64 {
				share := float64(previous) * float64(left) / float64(window)
				n := int64(share)
				if float64(n) < share {
					n++
				}
				return n
			})
		}}
	})},
	{name: "counter: forgets the previous window at the edge", limit: of(func(l counted) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			s = l.at(s, now)
			s.tally.previous = 0
			return s
		}}
	})},
	{name: "counter: keeps the previous window for another", limit: of(func(l counted) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			if t := s.tally; t != (tally{}) && now/l.window == t.k+2 {
				return state{tally: tally{k: t.k + 2, previous: t.current}, gone: s.gone}
			}
			return l.at(s, now)
		}}
	})},
	{name: "counter: lives by the instance's clock", limit: of(func(l counted) limit {
		const ahead = 5_000_000
		return override{
			limit:      l,
			onAt:       func(s state, now int64) state { return l.at(s, now+ahead) },
			onFits:     func(s state, now int64, units *big.Rat) bool { return l.fits(s, now+ahead, units) },
			onDescribe: func(s state, now int64) (int64, time.Duration) { return l.describe(s, now+ahead) },
			onWait:     func(s state, now int64, units *big.Rat) time.Duration { return l.wait(s, now+ahead, units) },
		}
	})},
	{name: "counter: begins anew when the clock steps back", history: "History/SlidingWindowCounter", limit: of(func(l counted) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			if now/l.window < s.tally.k {
				return state{tally: tally{k: now / l.window}}
			}
			return l.at(s, now)
		}}
	})},
	{name: "counter: waits for the end of the window", limit: of(func(l counted) limit {
		return override{limit: l, onWait: func(s state, now int64, units *big.Rat) time.Duration {
			if d := l.wait(s, now, units); d == never {
				return d
			}
			return time.Duration((s.tally.k+1)*l.window-now) * micro
		}}
	})},
	{name: "counter: charges denials", limit: of(func(l counted) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state { return l.spend(s, now, min(cost, 1000)) }}
	}), pays: func(ds []ratelimit.Decision, i int) bool {
		return pays(ds, i) || ds[i].Policy.Algorithm == ratelimit.SlidingWindowCounter && !ds[i].Allowed && ds[i].Policy.Quota > 0
	}},
}

func clampRat(r *big.Rat) int64 { return clamp(new(big.Int).Quo(r.Num(), r.Denom())) }

// queued changes queues, not token buckets.
func queued(change func(bucketLimit) limit) func(*ratelimit.Policy, limit) limit {
	return of(func(l bucketLimit) limit {
		if !l.queue {
			return l
		}
		return change(l)
	})
}

var queueMutants = []mutant{
	{name: "queue: admits one too many", history: "History/LeakyBucket", limit: queued(func(l bucketLimit) limit {
		l.capacity = new(big.Rat).Add(l.capacity, unit(1))
		return l
	})},
	{name: "queue: the one that goes at once takes a place", limit: queued(func(l bucketLimit) limit {
		if l.capacity.Cmp(unit(2)) >= 0 {
			l.capacity = new(big.Rat).Sub(l.capacity, unit(1))
		}
		return l
	})},
	{name: "queue: held for the drip after its own", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(s state, now, cost int64) time.Duration { return l.delay(s, now, cost+1) }}
	})},
	{name: "queue: held for the first of its drips", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(s state, now, _ int64) time.Duration { return l.delay(s, now, 1) }}
	})},
	{name: "queue: holds nobody", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(state, int64, int64) time.Duration { return 0 }}
	})},
	{name: "queue: the delay is rounded down", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(s state, now, cost int64) time.Duration {
			ahead := new(big.Rat).Add(s.units(), unit(cost-1))
			return time.Duration(floor(ahead.Quo(ahead, l.rate))+max(0, s.since-now)) * micro
		}}
	})},
	{name: "queue: the delay forgets that the clock is behind", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(s state, now, cost int64) time.Duration { return l.delay(s, max(now, s.since), cost) }}
	})},
	{name: "queue: max delay bounds when the first of the drips falls", limit: func(p *ratelimit.Policy, right limit) limit {
		if p.MaxDelay == 0 || p.Quota == 0 {
			return right
		}
		return more(p, 0).(bucketLimit).wider()
	}},
	{name: "queue: ignores max delay", limit: func(p *ratelimit.Policy, _ limit) limit {
		return altered(p, func(q *ratelimit.Policy) { q.MaxDelay = 0 })
	}},
	{name: "queue: gives back the place of who left", tables: true},
	{name: "queue: saves up drips while idle", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(s state, now, cost int64) time.Duration {
			if s.units().Sign() == 0 {
				return 0
			}
			return l.delay(s, now, cost)
		}}
	})},
}

// wider is l with a drip more.
func (l bucketLimit) wider() bucketLimit {
	l.capacity = new(big.Rat).Add(l.capacity, unit(1))
	return l
}

// laid changes where the windows of calendars end.
func laid(ends func(c *ratelimit.Calendar, now int64) int64) func(*ratelimit.Policy, limit) limit {
	return of(func(l fixed) limit {
		if l.calendar == nil {
			return l
		}
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			fresh := s.empty()
			s = l.spend(s, now, cost)
			if fresh {
				s.ends = ends(l.calendar, now)
			}
			return s
		}}
	})
}

// in is c in another place.
func in(c *ratelimit.Calendar, place *time.Location) *ratelimit.Calendar {
	return &ratelimit.Calendar{Unit: c.Unit, Location: place, WeekStart: c.WeekStart}
}

var calendarMutants = []mutant{
	{name: "calendar: every day has 24 hours", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		from, to := calendarWindow(c, now)
		if c.Unit == ratelimit.CalendarDay {
			return from + day.Microseconds()
		}
		return to
	})},
	{name: "calendar: months are UTC's", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		if c.Unit == ratelimit.CalendarMonth {
			c = in(c, time.UTC)
		}
		_, to := calendarWindow(c, now)
		return to
	})},
	{name: "calendar: hours are UTC's", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		if c.Unit == ratelimit.CalendarHour {
			c = in(c, time.UTC)
		}
		_, to := calendarWindow(c, now)
		return to
	})},
	{name: "calendar: every month has 30 days", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		from, to := calendarWindow(c, now)
		if c.Unit == ratelimit.CalendarMonth {
			return from + 30*day.Microseconds()
		}
		return to
	})},
	{name: "calendar: weeks begin on Monday", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		_, to := calendarWindow(&ratelimit.Calendar{Unit: c.Unit, Location: c.Location, WeekStart: time.Monday}, now)
		return to
	})},
	{name: "calendar: the zone's offset is that of January", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		_, offset := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC).In(c.Location).Zone()
		_, to := calendarWindow(in(c, time.FixedZone("fixed", offset)), now)
		return to
	})},
	{name: "calendar: opens with the first charge", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		return now + c.Unit.Nominal().Microseconds()
	})},
	{name: "calendar: ends when the clock steps back before it", limit: of(func(l fixed) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			if l.calendar != nil && s.ends > now {
				if _, to := calendarWindow(l.calendar, now); to < s.ends {
					return state{}
				}
			}
			return l.at(s, now)
		}}
	})},
	{name: "calendar: the instance says which window it is", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		s.model.limitOf = func(p *ratelimit.Policy) limit {
			for _, c := range charges {
				if c.Policy == p && p.Calendar != nil {
					return laid(func(*ratelimit.Calendar, int64) int64 { return c.Windows[2] })(p, limitOf(p))
				}
			}
			return limitOf(p)
		}
		return s.model.take(now, charges)
	}},
	{name: "calendar: two calendars of one name are one count", tables: true, key: func(c ratelimit.Charge) string {
		q := *c.Policy //nolint:govet // see altered
		q.Calendar = nil
		c.Policy = &q
		return key(c)
	}},
}

// commonMutants are of the oldest algorithms, or of all.
var commonMutants = []mutant{
	{name: "admits one too many", limit: func(p *ratelimit.Policy, _ limit) limit { return more(p, 1) }},
	{name: "admits one too few", limit: func(p *ratelimit.Policy, _ limit) limit { return more(p, -1) }},
	{name: "charges the others on a denial", history: "History/Lists", pays: func(ds []ratelimit.Decision, i int) bool { return ds[i].Allowed }},
	{name: "charges the denied attempt", pays: func([]ratelimit.Decision, int) bool { return true }, limit: func(p *ratelimit.Policy, right limit) limit {
		return override{limit: right, onSpend: func(s state, now, cost int64) state {
			if p.Quota == 0 {
				return s
			}
			return right.spend(s, now, min(cost, 1000))
		}}
	}},
	{name: "opens the window at a denial", limit: of(func(l fixed) limit {
		return override{
			limit:  l,
			onFill: func(s state, now, _ int64) state { return opened(l, s, now) },
			onSpend: func(s state, now, cost int64) state {
				open := opened(l, s, now)
				s = l.spend(s, now, cost)
				s.ends = open.ends
				return s
			},
		}
	}), paysRejected: func(ds []ratelimit.Decision, i int) bool {
		return paysRejected(ds, i) || !admitted(ds) && ds[i].Policy.Algorithm == ratelimit.FixedWindow
	}},
	{name: "extends the window with each charge", limit: of(func(l fixed) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			s = l.spend(s, now, cost)
			s.ends = now + l.window
			return s
		}}
	})},
	{name: "aligns the window to the clock", limit: of(func(l fixed) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			s = l.spend(s, now, cost)
			if l.calendar == nil {
				s.ends = (now/l.window + 1) * l.window
			}
			return s
		}}
	})},
	{name: "retry after is a microsecond short", limit: waiting(func(d time.Duration) time.Duration { return d - micro })},
	{name: "retry after is a microsecond long", limit: waiting(func(d time.Duration) time.Duration { return d + micro })},
	{name: "retry after in whole milliseconds, rounded down", limit: waiting(func(d time.Duration) time.Duration { return d.Truncate(milli) })},
	{name: "retry after is the reset", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		for i := range ds {
			if ds[i].RetryAfter > 0 {
				ds[i].RetryAfter = ds[i].Reset
			}
		}
		return ds
	}},
	{name: "a wait where none helps", limit: func(p *ratelimit.Policy, right limit) limit {
		return override{limit: right, onWait: func(s state, now int64, units *big.Rat) time.Duration {
			if d := right.wait(s, now, units); d != never {
				return d
			}
			return p.Window
		}}
	}},
	{name: "reset is until all is refilled", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onDescribe: func(s state, now int64) (int64, time.Duration) {
			remaining, reset := l.describe(s, now)
			if reset > 0 {
				reset = l.drained(s, now, s.units())
			}
			return remaining, reset
		}}
	})},
	{name: "refills on a clock that stepped back", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			s.since = min(s.since, now)
			return l.at(s, now)
		}}
	})},
	{name: "ends a window on a clock that stepped back", tables: true, limit: of(func(l fixed) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			if now < s.ends-l.window {
				return state{}
			}
			return l.at(s, now)
		}}
	})},
	{name: "keeps what was left when the plan changes", history: "History/TokenBucket", limit: of(func(l bucketLimit) limit {
		capacity := floor(l.capacity)
		return override{limit: l, onAt: func(s state, now int64) state {
			if s.ends > 0 && s.ends != capacity { // the capacity it was charged under
				left := new(big.Rat).Sub(unit(s.ends), s.units())
				spent := new(big.Rat).Sub(unit(min(s.ends, capacity)), left)
				if spent.Sign() < 0 {
					spent = new(big.Rat)
				}
				s.spent = spent
			}
			return l.at(s, now)
		}, onSpend: func(s state, now, cost int64) state {
			s = l.spend(s, now, cost)
			s.ends = capacity
			return s
		}}
	})},
	{name: "keeps the debt when the plan is lowered", history: "History/TokenBucket", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			endless := l
			endless.capacity = unit(1 << 60)
			s = endless.at(s, now)
			s.spent = least(s.spent, l.capacity)
			return s
		}}
	})},
	{name: "rounds a part of a unit for the caller", history: "History/TokenBucket", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			grains := new(big.Rat).Quo(s.units(), l.grain())
			whole := new(big.Int).Div(grains.Num(), grains.Denom())
			s.spent = new(big.Rat).Mul(new(big.Rat).SetInt(whole), l.grain())
			return l.at(s, now)
		}}
	})},
	{name: "remaining is negative after a lowering", limit: of(func(l fixed) limit {
		return override{limit: l, onDescribe: func(s state, now int64) (int64, time.Duration) {
			_, reset := l.describe(s, now)
			return floor(new(big.Rat).Sub(l.quota, s.units())), reset
		}}
	})},
	{name: "remaining is after the charge on a denial", history: "History/Lists", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		for i := range ds {
			if !admitted(ds) && ds[i].Allowed && !ds[i].Policy.CountRejected && ds[i].Policy.Role == ratelimit.Enforce {
				ds[i].Remaining -= charges[i].Cost
			}
		}
		return ds
	}},
	{name: "remaining is before the charge on an admission", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		for i := range ds {
			if pays(ds, i) {
				ds[i].Remaining += charges[i].Cost
			}
		}
		return ds
	}},
	{name: "a key with the quota in it", key: func(c ratelimit.Charge) string {
		return key(c) + strconv.FormatInt(c.Policy.Quota, 10)
	}},
	{name: "a key without the window", tables: true, key: func(c ratelimit.Charge) string {
		q := *c.Policy //nolint:govet // see altered
		q.Window = 0
		c.Policy = &q
		return key(c)
	}},
	{name: "a key without the limit's name", tables: true, key: func(c ratelimit.Charge) string {
		q := *c.Policy //nolint:govet // see altered
		q.Scope = ""
		c.Policy = &q
		return key(c)
	}},
	{name: "a key without the caller", key: func(c ratelimit.Charge) string {
		c.Partition = ""
		return key(c)
	}},
	{name: "each charge of a list is decided alone", history: "History/Lists", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		var ds []ratelimit.Decision
		for i, c := range charges {
			if c.Policy.Role != ratelimit.Candidate {
				ds = append(ds, s.model.take(now, charges[i:i+1])[0])
			} else {
				ds = append(ds[:i-1], s.model.take(now, charges[i-1:i+1])...)
			}
		}
		return ds
	}},
	{name: "retry after forgets the other charges of the list", history: "History/Lists", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		var waits []time.Duration
		for _, c := range charges {
			waits = append(waits, alone(s.model, now, c))
		}
		ds := s.model.take(now, charges)
		for i := range ds {
			if !ds[i].Policy.CountRejected && ds[i].Policy.Role != ratelimit.Candidate {
				ds[i].RetryAfter = waits[i]
			}
		}
		return ds
	}},
	{name: "decisions in another order", history: "History/Lists", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		slices.Reverse(ds)
		return ds
	}},
	{name: "the decision names an equal policy", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		for i := range ds {
			q := *ds[i].Policy //nolint:govet // see altered
			ds[i].Policy = &q
		}
		return ds
	}},
	{name: "times printed with 14 digits", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		for k, b := range s.model.buckets {
			b.since, b.ends = digits(b.since), digits(b.ends)
			s.model.buckets[k] = b
		}
		return ds
	}},
	{name: "reads and writes in two steps", tables: true, take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		trial := *s.model
		trial.buckets = maps.Clone(s.model.buckets)
		s.mu.Unlock()
		runtime.Gosched()
		ds := trial.take(now, charges)
		s.mu.Lock()
		maps.Copy(s.model.buckets, trial.buckets)
		return ds
	}},
	{name: "a new slice instead of the caller's", tables: true, take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		return s.model.take(now, charges)
	}},
}

// opened is s with a window open at now.
func opened(l fixed, s state, now int64) state {
	if s.ends > now {
		return s
	}
	return l.holding(s, now, s.units())
}

// TestSuiteFindsFaults: a suite that passes everything shows nothing. Each mutant
// must fail some history or, where no history can show it, some table.
func TestSuiteFindsFaults(t *testing.T) {
	t.Setenv("LIMITTEST_SEED", "1") // so that what is rare is found every time
	for _, m := range slices.Concat(commonMutants, calendarMutants, logMutants, counterMutants, queueMutants, roleMutants) {
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
