package telemetry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A recorder keeps each write and when it came.
type recorder struct {
	mu     sync.Mutex
	writes []string
	at     []time.Time
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, string(p))
	r.at = append(r.at, time.Now())
	return len(p), nil
}

func (r *recorder) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.writes, "")
}

// A gate is a reader that stands still until it is opened.
type gate struct {
	opened  chan struct{}
	entered chan struct{} // one note for each write that began
	recorder
}

func newGate() *gate {
	return &gate{opened: make(chan struct{}), entered: make(chan struct{}, 100)}
}

func (g *gate) Write(p []byte) (int, error) {
	g.entered <- struct{}{}
	<-g.opened
	return g.recorder.Write(p)
}

// put writes lines, which never fails.
func put(t testing.TB, w io.Writer, lines []byte) {
	t.Helper()
	if n, err := w.Write(lines); n != len(lines) || err != nil {
		t.Errorf("Write of %d bytes: %d, %v", len(lines), n, err)
	}
}

// shut closes c, which here never fails.
func shut(t testing.TB, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestLinesWaitForCompanyButNotLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &recorder{}
		w := newLineWriter(out, 50*time.Millisecond, time.Second)
		start := time.Now()
		put(t, w, []byte("a\n"))
		time.Sleep(30 * time.Millisecond)
		put(t, w, []byte("b\n"))
		time.Sleep(19 * time.Millisecond)
		synctest.Wait()
		if got := out.all(); got != "" {
			t.Errorf("written before its time: %q", got)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if len(out.writes) != 1 || out.writes[0] != "a\nb\n" || out.at[0].Sub(start) != 50*time.Millisecond {
			t.Errorf("writes %q at %v, want both lines in one after 50ms", out.writes, out.at)
		}
		// Nothing to say, nothing written.
		time.Sleep(time.Hour)
		if len(out.writes) != 1 {
			t.Errorf("idle writes: %q", out.writes)
		}
		shut(t, w)
	})
}

func TestFullBufferIsWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &recorder{}
		w := newLineWriter(out, time.Hour, time.Second)
		defer shut(t, w)
		start := time.Now()
		put(t, w, bytes.Repeat([]byte("x\n"), flushAt/2))
		synctest.Wait()
		if len(out.writes) != 1 || !out.at[0].Equal(start) {
			t.Errorf("%d writes, want one at once", len(out.writes))
		}
	})
}

func TestWarningsAreWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &recorder{}
		tm := New(Options{Out: out, FlushEvery: time.Hour})
		defer shut(t, tm)
		log := tm.Logger().With("part", "store").WithGroup("g")
		log.Info("first")
		synctest.Wait()
		if got := out.all(); got != "" {
			t.Errorf("an info was not buffered: %q", got)
		}
		log.Warn("second", "k", "v")
		synctest.Wait()
		got := out.all()
		if strings.Count(got, "\n") != 2 || !strings.Contains(got, `"msg":"second","part":"store","g":{"k":"v"}`) {
			t.Errorf("after a warning: %q", got)
		}
	})
}

func TestCloseWritesTheRestAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newGate()
		w := newLineWriter(out, time.Hour, time.Minute)
		put(t, w, []byte("last words\n"))
		go func() {
			time.Sleep(10 * time.Second) // the reader is slow, not dead
			close(out.opened)
		}()
		start := time.Now()
		shut(t, w)
		if got := out.all(); got != "last words\n" || time.Since(start) != 10*time.Second {
			t.Errorf("after %v: %q", time.Since(start), got)
		}
		put(t, w, []byte("too late\n"))
		if got := w.dropped.Load(); got != 1 {
			t.Errorf("a line after Close: %d dropped, want 1", got)
		}
		if err := w.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

func TestCloseGivesUpOnAReaderThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newGate()
		w := newLineWriter(out, time.Millisecond, 2*time.Second)
		put(t, w, []byte("a\n"))
		<-out.entered
		put(t, w, []byte("b\n"))
		start := time.Now()
		err := w.Close()
		if err == nil || time.Since(start) != 2*time.Second {
			t.Errorf("Close: %v after %v, want an error after 2s", err, time.Since(start))
		}
		close(out.opened) // lets the flusher end; the bubble insists on it
	})
}

func TestReaderThatStandsStillCostsLinesNotTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newGate()
		w := newLineWriter(out, time.Millisecond, time.Minute)
		line := []byte(strings.Repeat("x", 1023) + "\n")
		put(t, w, line)
		<-out.entered // from here on the reader holds the first line
		start := time.Now()
		const fit, more = maxBuffered / 1024, 5000
		for range fit + more {
			put(t, w, line)
		}
		if time.Since(start) != 0 {
			t.Errorf("writing took %v while the reader stood still", time.Since(start))
		}
		if got := w.dropped.Load(); got != more {
			t.Errorf("%d lines dropped, want %d", got, more)
		}
		if n := cap(w.buf); n > 2*maxBuffered {
			t.Errorf("the buffer has grown to %d bytes", n)
		}
		close(out.opened)
		shut(t, w)
		if got := strings.Count(out.all(), "\n"); got != 1+fit {
			t.Errorf("%d lines came out, want %d", got, 1+fit)
		}
	})
}

func TestLinesOfManyGoroutinesNeverMix(t *testing.T) {
	out := &recorder{}
	w := newLineWriter(out, time.Millisecond, time.Minute)
	var wg sync.WaitGroup
	const workers, each = 8, 500
	for i := range workers {
		wg.Go(func() {
			line := []byte(strings.Repeat(string(rune('a'+i)), 100+i) + "\n")
			for range each {
				put(t, w, line)
			}
		})
	}
	wg.Wait()
	shut(t, w)
	lines := strings.Split(strings.TrimSuffix(out.all(), "\n"), "\n")
	if len(lines) != workers*each {
		t.Errorf("%d lines, want %d", len(lines), workers*each)
	}
	for _, l := range lines {
		if want := strings.Repeat(l[:1], 100+int(l[0]-'a')); l != want {
			t.Fatalf("mixed line %q", l)
		}
	}
}

// A full disk takes part of a chunk and refuses the rest.
type fullDisk struct {
	recorder
	room []int // bytes that each write takes; -1: all
}

func (d *fullDisk) Write(p []byte) (int, error) {
	n := -1
	if len(d.room) > 0 {
		n, d.room = d.room[0], d.room[1:]
	}
	if n < 0 || n >= len(p) {
		return d.recorder.Write(p)
	}
	_, _ = d.recorder.Write(p[:n])
	return n, errors.New("no space left on device")
}

func TestLostLinesAreCountedAndDoNotSpoilOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &fullDisk{room: []int{5, 0, -1}}
		w := newLineWriter(out, time.Millisecond, time.Minute)
		for _, chunk := range []string{"one\ntwo\nthree\n", "four\n", "five\n"} {
			put(t, w, []byte(chunk))
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		shut(t, w)
		if got, want := out.all(), "one\nt\nfive\n"; got != want {
			t.Errorf("came out: %q, want %q", got, want)
		}
		if got := w.dropped.Load(); got != 3 {
			t.Errorf("%d lines counted as lost, want 3 (two, three, four)", got)
		}
	})
}

func ExampleTelemetry_Logger() {
	var out bytes.Buffer
	t := New(Options{Out: &out})
	t.Logger().Info("listening", "address", "127.0.0.1:8080")
	if err := t.Close(); err != nil {
		fmt.Println(err)
	}
	_, line, _ := strings.Cut(out.String(), `Z",`) // without the time
	fmt.Print(line)
	// Output: "level":"INFO","msg":"listening","address":"127.0.0.1:8080"}
}
