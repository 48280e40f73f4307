package test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// hotGateways is how many gateways share the hot key: three, or what the
// environment says.
func hotGateways(t testing.TB) int {
	t.Helper()
	text := os.Getenv("HOTKEY_GATEWAYS")
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 100 {
		t.Fatalf("HOTKEY_GATEWAYS: want 1 to 100, got %q", text)
	}
	return n
}

// What the one caller may do, whatever the algorithm: hotQuota in hotWindow, of
// which a bucket has hotBurst at once and a queue hotQueue places.
const (
	hotQuota  = 40
	hotWindow = 1_000_000 // µs
	hotBurst  = 25
	hotQueue  = 12
)

// Many gateways, one key, far more requests than it has quota for. Redis tells
// what it was asked and what it wrote, in order and with its own time, and every
// single decision is held against the rule: nobody is admitted too many, and
// nobody is denied who had a place.
func TestAHotKeyIsAdmittedToTheUnit(t *testing.T) {
	u := newUpstream(t, nil)
	srv := redistest.Start(t)
	s := newSite(t)
	algorithms := []struct {
		name, limit string
		judge       judge
	}{
		{"fixed_window", "limit: 40/second", &fixedWindowJudge{}},
		{"sliding_window_log", "limit: 40/second", &logJudge{}},
		{"sliding_window_counter", "limit: 40/second", &counterJudge{tally: map[int64]int64{}}},
		{"token_bucket", "limit: 40/second, burst: 25", &bucketJudge{places: hotBurst}},
		{"leaky_bucket", "limit: 40/second, queue: 12", &bucketJudge{places: hotQueue + 1, queue: true}},
	}
	plans, keys := "default_plan: fixed_window\nplans:\n", "keys:\n"
	for _, a := range algorithms {
		plans += fmt.Sprintf("  %s:\n    limits:\n      - {name: hot, algorithm: %s, %s}\n", a.name, a.name, a.limit)
		keys += keyEntry(a.name, "plan: "+a.name)
	}
	s.write("plans.yaml", plans)
	s.write("keys.yaml", keys)
	gateways := s.launchHot(t, srv.URL(), u.URL)
	for _, a := range algorithms {
		t.Run(a.name, func(t *testing.T) {
			before := u.count()
			calls := watchRedis(t, srv.Addr(), "{user:"+a.name+"}")
			statuses := overload(t, gateways, "/api/weather", keyOf(a.name), 2500*time.Millisecond)
			decisions := calls()
			var admitted int64
			for i, d := range decisions {
				wrote, err := d.wrote()
				if err == nil {
					err = a.judge.decide(d, wrote)
				}
				if err != nil {
					t.Fatalf("decision %d of %d, between %d and %d µs, which wrote %q: %v", i, len(decisions), d.from, d.to, d.value, err)
				}
				if wrote {
					admitted++
				}
			}
			denied := int64(len(decisions)) - admitted
			var told int64 // again, without asking Redis
			for _, g := range gateways {
				told += int64(g.sum("gateway_ratelimit_decisions_total", `plan="`+a.name+`"`, `outcome="denied"`, `source="deny_cache"`))
			}
			t.Logf("%d gateways: %d admitted, %d denied, %d of them told again", len(gateways), admitted, denied+told, told)
			if statuses[200] != admitted || statuses[429] != denied+told || len(statuses) != 2 {
				t.Errorf("clients were answered %v; Redis admitted %d and denied %d, and %d were told again", statuses, admitted, denied, told)
			}
			if reached := int64(u.count() - before); reached != admitted {
				t.Errorf("%d requests reached the upstream, %d were admitted", reached, admitted)
			}
			if err := a.judge.sum(decisions, admitted); err != nil {
				t.Error(err)
			}
		})
	}
	for _, g := range gateways {
		g.decidedByItsStore()
		if n := g.sum("gateway_store_errors_total"); n != 0 {
			t.Errorf("%v errors of a store that was there all the time", n)
		}
	}
	everyKeyEnds(t, srv)
}

// keyEntry is the line of keys.yaml for [keyOf] of a user, with further fields.
func keyEntry(user, more string) string {
	return fmt.Sprintf("  - {id: k-%s, user: %s, sha256: %x, %s}\n", user, user, sha256.Sum256([]byte(keyOf(user))), more)
}

// serving waits until a launched gateway serves, and notes where.
func (g *gateway) serving() {
	g.t.Helper()
	eventually(g.t, "the gateway says that it serves", func() bool { return g.logged("serving") != nil })
	for _, line := range g.all("listening") {
		switch address := str(line, "address"); line["for"] {
		case "http":
			g.url = "http://" + address
		case "admin":
			g.admin = "http://" + address
		}
	}
}

// overload sends as much as it can for so long and counts the answers.
func overload(t testing.TB, gateways []*gateway, path, key string, lasting time.Duration) map[int]int64 {
	const clients = 48
	var mu sync.Mutex
	statuses := map[int]int64{}
	var over atomic.Bool
	time.AfterFunc(lasting, func() { over.Store(true) })
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			url := gateways[i%len(gateways)].url + path
			for !over.Load() {
				a, err := trySend("GET", url, nil, "X-API-Key", key)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				statuses[a.status]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return statuses
}

// everyKeyEnds fails the test if a key of a server has no expiry.
func everyKeyEnds(t testing.TB, srv *redistest.Server) {
	t.Helper()
	rdb := srv.Client(t)
	for _, k := range rdb.Keys(t.Context(), "*").Val() {
		// -2: it has ended meanwhile.
		if ttl := rdb.PTTL(t.Context(), k).Val(); ttl == -1 {
			t.Errorf("key %q has no expiry", k)
		}
	}
}

// A judge knows one rule and what was admitted so far, and nothing of how the
// program counts. now lies between d.from and d.to of a decision.
type judge interface {
	// decide says what is wrong with one decision, in the order of Redis.
	decide(d redisCall, admitted bool) error
	// sum says what is wrong with all of them together.
	sum(ds []redisCall, admitted int64) error
}

// fixedWindowJudge: at most hotQuota in a window, which the first one opens when
// no other is open.
type fixedWindowJudge struct {
	used, ends int64
	windows    int64
}

func (j *fixedWindowJudge) decide(d redisCall, admitted bool) error {
	if !admitted {
		if j.used < hotQuota || d.from >= j.ends {
			return fmt.Errorf("denied with %d used in the window that ends at %d", j.used, j.ends)
		}
		return nil
	}
	used, ends := d.number(0), d.number(1)
	if ends != j.ends {
		opened := ends - hotWindow
		if opened < j.ends || opened < d.from || opened > d.to {
			return fmt.Errorf("a window is opened at %d, the last one ended at %d", opened, j.ends)
		}
		j.used, j.ends, j.windows = 0, ends, j.windows+1
	} else if d.from >= ends {
		return fmt.Errorf("charged to a window that ended at %d", ends)
	}
	if j.used++; used != j.used || used > hotQuota {
		return fmt.Errorf("%d used is written, %d were admitted of %d", used, j.used, hotQuota)
	}
	return nil
}

func (j *fixedWindowJudge) sum(_ []redisCall, admitted int64) error {
	if least, most := (j.windows-1)*hotQuota+1, j.windows*hotQuota; j.windows < 2 || admitted < least || admitted > most {
		return fmt.Errorf("%d admitted in %d windows, want %d to %d in at least two", admitted, j.windows, least, most)
	}
	return nil
}

// logJudge: at most hotQuota in any stretch of a window.
type logJudge struct{ at []int64 }

func (j *logJudge) decide(d redisCall, admitted bool) error {
	n := len(j.at)
	if !admitted {
		if n < hotQuota || j.at[n-hotQuota]+hotWindow <= d.from {
			return fmt.Errorf("denied with fewer than %d in the last window", hotQuota)
		}
		return nil
	}
	at, err := strconv.ParseInt(d.value, 10, 64)
	if err != nil {
		return fmt.Errorf("read when it was charged: %w", err)
	}
	if at < d.from || at > d.to {
		return fmt.Errorf("charged at %d, which is not within %d to %d", at, d.from, d.to)
	}
	if n >= hotQuota && at-j.at[n-hotQuota] < hotWindow {
		return fmt.Errorf("the %d-th within %d µs", hotQuota+1, at-j.at[n-hotQuota])
	}
	j.at = append(j.at, at)
	return nil
}

func (j *logJudge) sum(_ []redisCall, admitted int64) error { return several(admitted) }

// several makes sure that time went by and gave something back.
func several(admitted int64) error {
	if admitted < 2*hotQuota {
		return fmt.Errorf("%d admitted in more than two windows", admitted)
	}
	return nil
}

// counterJudge: those of this window of the clock and what the last window's
// length still covers of the one before are at most hotQuota.
type counterJudge struct{ tally map[int64]int64 }

// weight is what of the window before the one that begins at k counts at now.
func (j *counterJudge) weight(k, now int64) int64 {
	return (j.tally[k-hotWindow]*(hotWindow-(now-k)) + hotWindow - 1) / hotWindow
}

func (j *counterJudge) decide(d redisCall, admitted bool) error {
	if !admitted {
		// The earliest moment at which it can have been decided in each window:
		// what counts only gets less.
		for k := d.from - d.from%hotWindow; k <= d.to; k += hotWindow {
			if j.tally[k]+1+j.weight(k, max(k, d.from)) > hotQuota {
				return nil
			}
		}
		return fmt.Errorf("denied with %v", j.tally)
	}
	used, previous, begins := d.number(0), d.number(1), d.number(2)
	if begins%hotWindow != 0 || begins > d.to || begins+hotWindow <= d.from {
		return fmt.Errorf("charged to the window that begins at %d", begins)
	}
	j.tally[begins]++
	if used != j.tally[begins] || previous != j.tally[begins-hotWindow] {
		return fmt.Errorf("%d used after %d is written, want %d after %d", used, previous, j.tally[begins], j.tally[begins-hotWindow])
	}
	if weight := j.weight(begins, min(d.to, begins+hotWindow-1)); used+weight > hotQuota {
		return fmt.Errorf("%d used and %d of the window before, of %d", used, weight, hotQuota)
	}
	return nil
}

func (j *counterJudge) sum(_ []redisCall, admitted int64) error {
	if admitted < 3*hotQuota/2 {
		return fmt.Errorf("%d admitted in more than two windows", admitted)
	}
	return nil
}

// bucketJudge: what was spent drains evenly, and at most so many places are
// taken. Units are counted in parts of 1/hotWindow, hotQuota of which drain each
// µs, so that nothing is ever rounded.
type bucketJudge struct {
	places    int64
	queue     bool
	spent, at int64
	first     int64 // when the first was admitted
	departure int64 // of the last one that was admitted to the queue
	idle      int64 // how long nothing was spent since then, µs
	admitted  int64
	denied    int64 // when the last was denied
	before    int64 // how many were admitted by then
}

// left is what counts at now.
func (j *bucketJudge) left(now int64) int64 {
	return max(0, j.spent-max(0, now-j.at)*hotQuota)
}

func (j *bucketJudge) decide(d redisCall, admitted bool) error {
	if !admitted {
		if spent := j.left(d.from); spent+hotWindow <= j.places*hotWindow {
			return fmt.Errorf("denied with %d parts spent", spent)
		}
		j.denied, j.before = d.from, j.admitted
		return nil
	}
	j.admitted++
	spent, den, at := d.number(0), d.number(1), d.number(3)
	if at < d.from || at > d.to || at < j.at || hotWindow%den != 0 {
		return fmt.Errorf("charged at another time: %d, in parts of %d", at, den)
	}
	spent *= hotWindow / den
	if want := j.left(at) + hotWindow; spent != want || spent > j.places*hotWindow {
		return fmt.Errorf("%d parts spent are written, want %d, at most %d", spent, want, j.places*hotWindow)
	}
	if j.first == 0 {
		j.first = at
	} else {
		j.idle += max(0, at-j.at-(j.spent+hotQuota-1)/hotQuota)
	}
	if j.queue {
		wait := (spent - hotWindow + hotQuota - 1) / hotQuota
		if j.departure > 0 && at+wait-j.departure < hotWindow/hotQuota {
			return fmt.Errorf("it goes %d µs after the one before it", at+wait-j.departure)
		}
		j.departure = at + wait
	}
	j.spent, j.at = spent, at
	return nil
}

func (j *bucketJudge) sum(_ []redisCall, admitted int64) error {
	// What drains in Δt, and what may be there at once. When one is denied, no more
	// than one is left over; after the last denial the clients may have had no time
	// to ask.
	most := (j.places*hotWindow + (j.at-j.first)*hotQuota) / hotWindow
	used, least := j.before, (j.places*hotWindow+(j.denied-j.first-j.idle)*hotQuota)/hotWindow-1
	if j.queue {
		// Those who wait for their drip do not ask, so that a queue may have an
		// empty place in between; its drips are bounded by the departures.
		used, least = admitted, (j.departure-j.first-j.idle)*hotQuota/hotWindow
	}
	if admitted > most || used < least {
		return fmt.Errorf("%d admitted, of them %d when the last was denied; want %d to %d", admitted, used, least, most)
	}
	return several(admitted)
}

// A redisCall is one decision as Redis saw it.
type redisCall struct {
	// from and to enclose the time of the decision, in µs by the clock of Redis:
	// the call before it had ended, and its own last step was not yet over.
	from, to int64
	steps    int
	writes   int
	value    string // what it wrote
}

// wrote reports whether the call charged its key, once.
func (d redisCall) wrote() (bool, error) {
	if d.writes > 1 {
		return true, fmt.Errorf("%d units were charged for one request", d.writes)
	}
	return d.writes == 1, nil
}

// number returns a number that was written, by its place.
func (d redisCall) number(i int) int64 {
	if len(d.value) < 8*(i+1) {
		return -1
	}
	return int64(float64At(d.value[8*i:]))
}

// watchRedis follows what a server is asked of keys whose name has the text,
// until the function it returns is called, which returns that.
func watchRedis(t testing.TB, address, text string) func() []redisCall {
	t.Helper()
	m := monitorRedis(t, address)
	return func() (calls []redisCall) {
		t.Helper()
		var call *redisCall // the one whose steps follow
		var before int64
		for _, line := range m.stop() {
			if strings.HasPrefix(line.client, "lua") {
				if call != nil {
					call.steps++
					call.to = line.at
					switch line.args[0] {
					case "SET":
						call.writes++
						call.value = line.args[2]
					case "RPUSH":
						call.writes += len(line.args) - 2
						call.value = line.args[2]
					}
				}
				before = line.at
				continue
			}
			if call != nil && call.steps > 0 { // else the server did not know the script
				calls = append(calls, *call)
			}
			call = nil
			if (line.args[0] == "evalsha" || line.args[0] == "eval") && strings.Contains(line.args[3], text) {
				call = &redisCall{from: before}
			}
			before = line.at
		}
		if call != nil && call.steps > 0 {
			calls = append(calls, *call)
		}
		return calls
	}
}

// launchHot starts the gateways that share one key of the plans in s, whose keys
// are in keys.yaml, and returns when they serve.
func (s *site) launchHot(t *testing.T, store, upstream string) []*gateway {
	t.Helper()
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
store: {redis: {url: "`+store+`", timeout: 5s}}
auth: {api_keys: {file: keys.yaml}}
upstreams:
  weather: {targets: ["`+upstream+`"]}
routes:
  - {name: weather, path: /api/weather, upstream: weather, on_store_failure: deny}
`)
	gateways := make([]*gateway, hotGateways(t))
	for i := range gateways {
		gateways[i] = s.launch()
	}
	for _, g := range gateways {
		g.serving()
	}
	return gateways
}
