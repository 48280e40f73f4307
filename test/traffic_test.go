package test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// traffic is a number of clients that keep asking, each in its own rhythm,
// until it is stopped. It remembers every answer.
type traffic struct {
	quit chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex
	samples []sample
}

// A sample is one request of a client and what came of it.
type sample struct {
	path string
	key  string
	took time.Duration
	answer
	err error
}

// pace is how long a client rests between two requests.
const pace = 10 * time.Millisecond

// drive starts clients that take turns at the paths and share the keys.
func drive(t testing.TB, g *gateway, clients int, keys, paths []string) *traffic {
	tr := &traffic{quit: make(chan struct{})}
	for i := range clients {
		tr.wg.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for n := i; ; n++ {
				s := sample{path: paths[n%len(paths)], key: keys[i%len(keys)]}
				began := time.Now()
				s.answer, s.err = trySend("GET", g.url+s.path, nil, "X-API-Key", s.key)
				s.took = time.Since(began)
				tr.mu.Lock()
				tr.samples = append(tr.samples, s)
				tr.mu.Unlock()
				select {
				case <-tr.quit:
					return
				case <-tick.C:
				}
			}
		})
	}
	t.Cleanup(func() { tr.stop() })
	return tr
}

// stop ends the clients and returns every sample.
func (tr *traffic) stop() []sample {
	tr.mu.Lock()
	select {
	case <-tr.quit:
	default:
		close(tr.quit)
	}
	tr.mu.Unlock()
	tr.wg.Wait()
	return tr.samples
}

// count is how many requests have been answered.
func (tr *traffic) count() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.samples)
}

// more waits until so many further requests have been answered.
func (tr *traffic) more(t testing.TB, n int) {
	t.Helper()
	want := tr.count() + n
	eventually(t, strconv.Itoa(n)+" more answers", func() bool { return tr.count() >= want })
}

// median is the middle one of ds; it orders them.
func median[T int | float64 | time.Duration](ds []T) T {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[len(ds)/2]
}

// value returns a sample of a scrape as a number; a series that is not there
// fails the test.
func (g *gateway) value(series string) float64 {
	g.t.Helper()
	text, ok := g.metrics()[series]
	if !ok {
		g.t.Fatalf("there is no series %s", series)
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		g.t.Fatalf("%s: %v", series, err)
	}
	return v
}

// sum adds up the samples of a scrape whose text has all of the parts.
func (g *gateway) sum(parts ...string) (total float64) {
	g.t.Helper()
	for series, text := range g.metrics() {
		if contains(series, parts...) {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				g.t.Fatalf("%s: %v", series, err)
			}
			total += v
		}
	}
	return total
}

// at is when a log line was written, or for a request when it arrived.
func at(t testing.TB, line map[string]any) time.Time {
	t.Helper()
	text, _ := line["time"].(string)
	when, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatalf("the time of a log line: %v", err)
	}
	return when
}

// str returns an attribute of a log line, empty if it has none.
func str(line map[string]any, name string) string {
	s, _ := line[name].(string)
	return s
}

// tellsInsides reports whether a body shows a client what only the log may say.
func tellsInsides(body string) bool {
	body = strings.ToLower(body)
	for _, word := range []string{
		"redis", "dial", "127.0.0.1", "deadline", "context", "eof", "goroutine", "panic",
		"reset by peer", "broken pipe", "refused", "evalsha", "breaker", "wrongpass", "noauth", "wrongtype",
	} {
		if strings.Contains(body, word) {
			return true
		}
	}
	return false
}
