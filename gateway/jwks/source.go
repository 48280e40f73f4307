package jwks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// CoolDown is how often tokens can make a Source ask its provider, at most.
	CoolDown = 10 * time.Second
	// MaxWait is how long Missing waits for a fetch, at most.
	MaxWait = 100 * time.Millisecond
	// DefaultRefresh is how often the provider is asked when Options does not say.
	DefaultRefresh = 10 * time.Minute
	// DefaultMaxStale is how long keys hold when Options does not say.
	DefaultMaxStale = 24 * time.Hour
	// MinRefresh is the least that Options.Refresh can be.
	MinRefresh = 10 * time.Second
	// leastFresh is for how long an answer is taken to be good at least, whatever the
	// provider says itself.
	leastFresh = time.Minute
	// firstRetry and lastRetry bound the waits after failures, which double.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Outcome is what came of a fetch.
type Outcome string

// The outcomes.
const (
	Fetched     Outcome = "fetched"      // a good set came, with the same keys or others
	NotModified Outcome = "not_modified" // the provider says that it is as before (304)
	Failed      Outcome = "failed"       // anything else
)

// Outcomes lists every Outcome.
func Outcomes() []Outcome { return []Outcome{Fetched, NotModified, Failed} }

// Options is what a Source is made of.
type Options struct {
	// Issuer is whose keys they are; needed where URL is empty.
	Issuer string
	// URL is where the set is; empty: where the issuer's discovery document says.
	URL string
	// TLS is how the provider is spoken to; nil: as the system has it.
	TLS *tls.Config
	// Refresh is how long to wait from one fetch to the next, at least MinRefresh; 0:
	// DefaultRefresh. Up to a tenth is taken off at random, so that instances do not
	// ask together. A shorter max-age of the provider makes it sooner.
	Refresh time.Duration
	// MaxStale is how old the last good fetch may be before its keys are used no
	// longer; 0: DefaultMaxStale.
	MaxStale time.Duration
	// Previous is a Source of the same Issuer and URL that this one replaces, or nil.
	// What it has fetched holds here too, as long as MaxStale allows.
	Previous *Source
	// Hooks are told what happens.
	Hooks Hooks
	// Transport asks in place of the usual one, which takes a proxy from the
	// environment (HTTPS_PROXY); for tests.
	Transport http.RoundTripper
}

// Hooks are told what happens, one at a time, and must return soon. Any may be nil.
type Hooks struct {
	// Fetched is told of each fetch.
	Fetched func(Outcome)
	// Away is told of the first fetch that fails after one that did not, or of the first of all.
	Away func(error)
	// Back is told of the first fetch that succeeds after one that failed, and how long it took.
	Back func(away time.Duration)
	// TooOld is told when the keys have become older than MaxStale.
	TooOld func(age time.Duration)
	// Changed is told of every set that has other keys than the one before, the first included.
	Changed func(*Set)
}

// State is how a Source stands.
type State struct {
	From    string    // the URL of the set, redacted; empty while it is not discovered
	Set     *Set      // what Keys returns
	Fetched time.Time // when the last good answer came; zero: never
	Err     error     // why the last fetch failed; nil if it did not
	Since   time.Time // since when fetches fail; zero if they do not
	TooOld  bool      // there are keys, but older than MaxStale
}

// Source keeps the JWK set of one provider up to date. It is safe for concurrent
// use.
type Source struct {
	o       Options
	keys    atomic.Pointer[Set] // nil: none to trust
	tried   chan struct{}       // closed when the first fetch has ended
	wake    chan struct{}       // has one element when the loop is to look at its timers anew
	stop    context.CancelFunc
	stopped context.Context
	running sync.WaitGroup

	telling sync.Mutex    // one hook at a time
	turn    chan struct{} // holds one element while somebody fetches
	fetcher *fetcher      // of whom that is

	mu      sync.Mutex
	started bool
	set     *Set // the last good one, however old
	state   State
	next    time.Time     // when the loop fetches
	asked   time.Time     // when tokens last made us ask
	current chan struct{} // closed when the fetch that they made us ask ends; nil: none is under way
	fails   int           // in a row
}

// New returns a Source that knows no key yet but those of Options.Previous, and asks
// nobody before Start.
func New(o Options) (*Source, error) {
	if o.Refresh == 0 {
		o.Refresh = DefaultRefresh
	}
	if o.MaxStale == 0 {
		o.MaxStale = DefaultMaxStale
	}
	target := o.URL
	if target == "" {
		target = o.Issuer
	}
	switch err := CheckURL(target); {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", Redact(target), err)
	case o.Refresh < MinRefresh:
		return nil, fmt.Errorf("refresh: want %v or more, got %v", MinRefresh, o.Refresh)
	case o.MaxStale < o.Refresh:
		return nil, fmt.Errorf("max_stale: want refresh (%v) or more, got %v", o.Refresh, o.MaxStale)
	}
	s := &Source{o: o, fetcher: newFetcher(o), tried: make(chan struct{}), wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
	s.stopped, s.stop = context.WithCancel(context.Background())
	if p := o.Previous; p != nil && p.o.Issuer == o.Issuer && p.o.URL == o.URL {
		s.inherit(p)
	}
	s.o.Previous = nil // or all that ever were would stay in memory
	return s, nil
}

// inherit takes over the last good set of another Source.
func (s *Source) inherit(from *Source) {
	from.mu.Lock()
	defer from.mu.Unlock()
	if from.set == nil {
		return
	}
	s.set, s.state.Fetched = from.set, from.state.Fetched
	if s.state.TooOld = time.Since(s.state.Fetched) >= s.o.MaxStale; !s.state.TooOld {
		s.keys.Store(s.set)
	}
}

// Start begins to fetch. It must be called once at most, and not after Close.
func (s *Source) Start() {
	s.mu.Lock()
	s.started = true
	s.mu.Unlock()
	s.running.Go(s.loop)
}

// Close ends all fetching and waits until it has ended. The keys stay.
func (s *Source) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.running.Wait()
}

// Tried is closed when the first fetch has ended, well or not.
func (s *Source) Tried() <-chan struct{} { return s.tried }

// Keys returns the set in force, nil if there is none to trust: none has come yet,
// or the last is older than MaxStale. A set with the same keys is the same pointer.
func (s *Source) Keys() *Set { return s.keys.Load() }

// Missing is for a token whose key is not in the set: perhaps the provider has a new
// one. It makes a fetch if none was made for this reason within CoolDown, waits for it
// as long as it may, at most MaxWait from when it began, and returns the set then in
// force. heard is false if that fetch has not ended yet, or if the last one failed:
// then the provider may have keys that nobody here knows.
func (s *Source) Missing(ctx context.Context) (set *Set, heard bool) {
	if done, began := s.ask(); done != nil {
		if left := time.Until(began.Add(MaxWait)); left > 0 {
			t := time.NewTimer(left)
			defer t.Stop()
			select {
			case <-done:
			case <-t.C:
			case <-ctx.Done():
			}
		}
	}
	s.mu.Lock()
	heard = s.current == nil && s.state.Err == nil
	s.mu.Unlock()
	return s.Keys(), heard // in this order: what was heard is in the set
}

// Doubt is for a signature that does not verify with the key it names: perhaps the
// provider has put another in its place. It makes a fetch as Missing does, and waits
// for nothing.
func (s *Source) Doubt() { s.ask() }

// ask makes a fetch, unless one was made within CoolDown. It returns what is closed
// when the fetch under way ends, and when that began; nil if none is.
func (s *Source) ask() (done <-chan struct{}, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.current != nil:
		return s.current, s.asked
	case !s.asked.IsZero() && time.Since(s.asked) < CoolDown, !s.started, s.stopped.Err() != nil:
		return nil, time.Time{}
	}
	current := make(chan struct{})
	s.asked, s.current = time.Now(), current
	s.running.Go(func() {
		s.fetch()
		s.mu.Lock()
		s.current = nil
		s.mu.Unlock()
		close(current)
		select {
		case s.wake <- struct{}{}: // the loop's timers have changed
		default:
		}
	})
	return current, s.asked
}

// State returns how the Source stands.
func (s *Source) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.state
	st.Set = s.keys.Load()
	return st
}

// loop fetches when it is time to, and takes keys out of force that are too old, also
// while a fetch is under way: a provider that stalls makes no key last longer.
func (s *Source) loop() {
	fetching, first := s.fetchAside(), true
	for {
		s.mu.Lock()
		next := s.next
		if fetching != nil {
			next = time.Now().Add(time.Hour) // nothing but the end of that
		}
		if !s.state.TooOld && s.set != nil {
			next = earlier(next, s.state.Fetched.Add(s.o.MaxStale))
		}
		s.mu.Unlock()
		t := time.NewTimer(time.Until(next))
		select {
		case <-t.C:
		case <-s.wake:
		case <-fetching:
			if first {
				close(s.tried)
			}
			fetching, first = nil, false
		case <-s.stopped.Done():
			t.Stop()
			if first {
				<-fetching
				close(s.tried)
			}
			return
		}
		t.Stop()
		s.dropOld()
		s.mu.Lock()
		due := !time.Now().Before(s.next)
		s.mu.Unlock()
		if due && fetching == nil && s.stopped.Err() == nil {
			fetching = s.fetchAside()
		}
	}
}

// fetchAside is fetch for the loop, which has other things to do meanwhile. What it
// returns is closed at its end.
func (s *Source) fetchAside() <-chan struct{} {
	done := make(chan struct{})
	s.running.Go(func() {
		s.fetch()
		close(done)
	})
	return done
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// dropOld takes the keys out of force once they are older than MaxStale.
func (s *Source) dropOld() {
	s.mu.Lock()
	age := time.Since(s.state.Fetched)
	drop := s.set != nil && !s.state.TooOld && age >= s.o.MaxStale
	if drop {
		s.state.TooOld = true
		s.keys.Store(nil)
	}
	s.mu.Unlock()
	if drop {
		s.tell(event{tooOld: age})
	}
}

// fetch asks once and puts into force what came.
func (s *Source) fetch() {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-s.stopped.Done():
		return
	}
	got, err := s.fetcher.fetch(s.stopped)
	if s.stopped.Err() != nil {
		return // broken off by Close, which is nobody's failure
	}
	if err == nil && got.set == nil && s.set == nil {
		err = errors.New("bug: not modified, but there is nothing") // an etag is only sent of a set that is here
	}
	s.tell(s.settle(got, err))
}

// event is what has changed, for the hooks.
type event struct {
	outcome Outcome       // empty: nothing was fetched
	tooOld  time.Duration // 0: no
	away    error         // the first of a row of failures
	back    time.Duration // the first success after a row of failures; 0: no
	changed *Set
}

func (s *Source) tell(e event) {
	s.telling.Lock()
	defer s.telling.Unlock()
	h := s.o.Hooks
	if h.Fetched != nil && e.outcome != "" {
		h.Fetched(e.outcome)
	}
	if h.TooOld != nil && e.tooOld > 0 {
		h.TooOld(e.tooOld)
	}
	if h.Away != nil && e.away != nil {
		h.Away(e.away)
	}
	if h.Back != nil && e.back > 0 {
		h.Back(e.back)
	}
	if h.Changed != nil && e.changed != nil {
		h.Changed(e.changed)
	}
}

// settle takes over what a fetch found, and says when the next one is.
func (s *Source) settle(got fetched, err error) (e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.state.From = Redact(s.fetcher.discovered)
	if s.o.URL != "" {
		s.state.From = Redact(s.o.URL)
	}
	if err != nil {
		e.outcome = Failed
		if s.state.Since.IsZero() {
			s.state.Since, e.away = now, err
		}
		s.state.Err = err
		wait := min(firstRetry<<min(s.fails, 10), lastRetry)
		if f, ok := errors.AsType[*failure](err); ok {
			wait = max(wait, min(f.after, s.o.Refresh))
		}
		s.fails++
		s.next = now.Add(jitter(wait))
		return e
	}
	e.outcome = Fetched
	switch {
	case got.set == nil:
		e.outcome = NotModified
	case !got.set.Equal(s.set):
		s.set, e.changed = got.set, got.set
	}
	s.keys.Store(s.set)
	if !s.state.Since.IsZero() {
		e.back = max(now.Sub(s.state.Since), 1)
	}
	s.state.Fetched, s.state.Err, s.state.Since, s.state.TooOld, s.fails = now, nil, time.Time{}, false, 0
	wait := s.o.Refresh
	if got.fresh >= 0 {
		wait = min(wait, max(got.fresh, leastFresh))
	}
	s.next = now.Add(jitter(wait))
	return e
}

// jitter takes up to a tenth off.
func jitter(d time.Duration) time.Duration {
	return d - rand.N(d/10+1) //nolint:gosec // nothing is secret about it
}
