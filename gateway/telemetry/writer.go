package telemetry

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// flushAt is how many bytes are worth a write of their own.
	flushAt = 64 << 10
	// maxBuffered is how many bytes wait while a write is under way. Beyond it
	// lines are dropped: a reader that stands still must not stop the gateway.
	maxBuffered = 1 << 20
	// maxServed is how many may wait for a line about a request that went well to be
	// taken: the rest is kept for what somebody will look for, denials and errors.
	maxServed = maxBuffered * 3 / 4
)

// A lineWriter collects lines and writes them in one piece, so that a request
// pays no system call and lines of different goroutines never mix. Each Write
// must be one or more whole lines. It never blocks on the reader.
type lineWriter struct {
	out          io.Writer
	every        time.Duration
	closeTimeout time.Duration
	dropped      atomic.Int64 // lines that nobody will see

	some chan struct{} // the buffer is no longer empty
	soon chan struct{} // the buffer is worth writing at once
	quit chan struct{} // closed by Close
	done chan struct{} // closed when the flusher has ended

	mu     sync.Mutex // protects the following fields
	buf    []byte
	closed bool

	// Owned by the flusher.
	spare []byte
	torn  bool // the last write broke off within a line
}

func newLineWriter(out io.Writer, every, closeTimeout time.Duration) *lineWriter {
	w := &lineWriter{
		out: out, every: every, closeTimeout: closeTimeout,
		some: make(chan struct{}, 1),
		soon: make(chan struct{}, 1),
		quit: make(chan struct{}),
		done: make(chan struct{}),
	}
	go w.run()
	return w
}

// Write takes p, or drops it; either way it reports success, because no caller
// could do anything better about it.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.offer(p, maxBuffered)
	return len(p), nil
}

// offer is Write that takes p only if no more than most bytes wait then.
func (w *lineWriter) offer(p []byte, most int) {
	w.mu.Lock()
	if w.closed || len(w.buf)+len(p) > most {
		w.mu.Unlock()
		w.dropped.Add(countLines(p))
		return
	}
	first := len(w.buf) == 0
	w.buf = append(w.buf, p...)
	full := len(w.buf) >= flushAt
	w.mu.Unlock()
	if full {
		signal(w.soon)
	} else if first {
		signal(w.some)
	}
}

// flushSoon asks for a write without waiting for it.
func (w *lineWriter) flushSoon() { signal(w.soon) }

// Close writes out the rest and ends the flusher.
func (w *lineWriter) Close() error {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.quit)
	}
	w.mu.Unlock()
	timer := time.NewTimer(w.closeTimeout)
	defer timer.Stop()
	select {
	case <-w.done:
		return nil
	case <-timer.C:
		w.mu.Lock()
		defer w.mu.Unlock()
		return fmt.Errorf("close log: whatever reads it has stood still for %v; at least %d lines are lost",
			w.closeTimeout, countLines(w.buf)+w.dropped.Load())
	}
}

// run is the flusher.
func (w *lineWriter) run() {
	defer close(w.done)
	timer := time.NewTimer(w.every)
	defer timer.Stop()
	for {
		select {
		case <-w.some:
			timer.Reset(w.every)
			select {
			case <-timer.C:
			case <-w.soon:
			case <-w.quit:
			}
		case <-w.soon:
		case <-w.quit:
			w.flush()
			return
		}
		w.flush()
	}
}

// flush writes out what is buffered; lines keep arriving meanwhile.
func (w *lineWriter) flush() {
	w.mu.Lock()
	chunk := w.buf
	w.buf = w.spare[:0]
	w.mu.Unlock()
	w.spare = chunk
	if len(chunk) == 0 {
		return
	}
	if w.torn {
		// A line that broke off must not swallow the next one.
		if _, err := w.out.Write([]byte{'\n'}); err != nil {
			w.dropped.Add(countLines(chunk))
			return
		}
		w.torn = false
	}
	n, err := w.out.Write(chunk)
	if err == nil && n == len(chunk) {
		return
	}
	// There is no other place to complain: the log is what is broken. The
	// counter tells.
	n = max(0, min(n, len(chunk)))
	w.dropped.Add(countLines(chunk[n:]))
	w.torn = n > 0 && chunk[n-1] != '\n'
}

func countLines(p []byte) int64 { return int64(bytes.Count(p, []byte{'\n'})) }

// signal leaves a note that is not there yet.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
