package proxy

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// patience is how long the head of an answer, or a part that filled the copy
// buffer, waits for more, so that most answers leave in one write.
const patience = time.Millisecond

// answer is the body of an answer on its way to the client, and the client's
// http.ResponseWriter.
//
// It sends everything as soon as the upstream does, whether the length is
// known or not, in as few writes as it can: what was written is flushed just
// before a Read that will probably have to wait. It will when the last Read
// did not fill its buffer. When it did, or when there was none yet, the rest
// is usually there already, so only a timer is set. The usual small answer,
// whose head and body arrive together, is never flushed on its own.
type answer struct {
	body    io.ReadCloser
	from    *http.Response
	stop    func() // ends what is left of the upload; nil without one
	drained bool   // the last Read took all there was
	held    error  // came together with data, and is told by the next Read
	readErr error  // why the body broke off

	// mu protects w and the following fields: the timer, and for event streams
	// ReverseProxy's own flusher, come from other goroutines.
	mu       sync.Mutex
	w        http.ResponseWriter
	pending  bool // something was written and not flushed
	waiting  bool // the timer may flush
	writeErr error
	timer    *time.Timer
	ran      bool // a timer ran, or might still

	// unread goes off when a client of HTTP/2 takes nothing for ever; bound is for how
	// long it may. 0: as long as it likes.
	unread *time.Timer
	bound  time.Duration
	told   func() // that it went off; nil: nobody is
}

// unblock is run by unread: it ends the write, or the flush, that waits for the client.
func (a *answer) unblock() {
	if a.told != nil {
		a.told()
	}
	_ = http.NewResponseController(a.w).SetWriteDeadline(time.Unix(1, 0)) // long ago
}

// patient does what waits for the client, and ends the wait in time. It is called with
// mu held.
func (a *answer) patient(do func() error) error {
	if a.bound == 0 {
		return do()
	}
	a.unread.Reset(a.bound)
	err := do()
	if !a.unread.Stop() {
		a.ran = true
	}
	return err
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	if a.held != nil {
		a.readErr = a.held
		a.flushNow()
		return 0, a.held
	}
	a.mu.Lock()
	if a.pending && a.drained {
		_ = a.flushLocked()
	}
	waits := a.pending
	a.waiting = waits
	a.mu.Unlock()
	if waits {
		a.timer.Reset(patience)
	}
	n, err := a.body.Read(p)
	if waits {
		if !a.timer.Stop() {
			a.ran = true
		}
		a.mu.Lock()
		a.waiting = false
		a.mu.Unlock()
	}
	a.drained = n < len(p)
	if err != nil && err != io.EOF {
		if n > 0 {
			a.held = err
			return n, nil
		}
		a.readErr = err
		a.flushNow() // what came is the client's, and no head must be lost
	}
	return n, err
}

// Close implements io.Closer. What is left of the upload has nobody to go to, and a
// transport of HTTP/2 would wait for the client to send more of it, while the trailers
// that the client waits for are here.
func (a *answer) Close() error {
	if a.stop != nil {
		a.stop()
	}
	err := a.body.Close()
	a.from.Trailer = allowedTrailers(a.from.Trailer) // they are here now
	return err
}

// isEventStream reports whether an answer is server-sent events (HTML, section 9.2):
// it goes on until one of its sides has had enough.
func isEventStream(h http.Header) bool {
	kind := h["Content-Type"]
	if len(kind) == 0 {
		return false
	}
	kindOnly, _, _ := strings.Cut(kind[0], ";")
	return strings.EqualFold(strings.TrimSpace(kindOnly), "text/event-stream")
}

// late is run by the timer.
func (a *answer) late() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting && a.pending {
		_ = a.flushLocked()
	}
}

func (a *answer) flushNow() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending {
		_ = a.flushLocked()
	}
}

// flushLocked returns what Flush does, for those who are asked. A client that
// has gone is kept in writeErr in any case.
func (a *answer) flushLocked() error {
	a.pending = false
	err := a.patient(http.NewResponseController(a.w).Flush)
	// A writer that cannot flush still gets everything, only later.
	if err != nil && a.writeErr == nil && !errors.Is(err, http.ErrNotSupported) {
		a.writeErr = err
	}
	return err
}

// Header implements http.ResponseWriter. Until there is a final answer the
// fields are those of a 1xx answer and are kept apart from the client's, which
// ReverseProxy would clear.
func (x *exchange) Header() http.Header {
	if x.answered {
		return x.answer.w.Header()
	}
	if x.interim == nil {
		x.interim = make(http.Header)
	}
	return x.interim
}

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols {
		x.writeInterim(status)
		return
	}
	a := &x.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	x.started, a.pending = true, true
	if x.bodyToCome() {
		a.w.Header()["Connection"] = []string{"close"}
	}
	a.w.WriteHeader(status)
}

// writeInterim sends a 1xx answer with its own fields only. HTTP/1.0 has none
// (RFC 9110 section 15.2).
func (x *exchange) writeInterim(status int) {
	if !x.client.ProtoAtLeast(1, 1) {
		return
	}
	a := &x.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	header := a.w.Header()
	final := maps.Clone(header)
	clear(header)
	maps.Copy(header, x.interim)
	for _, name := range [...]string{"Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Trailer"} {
		delete(header, name)
	}
	a.w.WriteHeader(status)
	clear(header)
	maps.Copy(header, final)
}

// Write implements http.ResponseWriter.
func (x *exchange) Write(p []byte) (int, error) {
	a := &x.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	var n int
	err := a.patient(func() (err error) { n, err = a.w.Write(p); return err })
	a.pending = true
	if err != nil && a.writeErr == nil {
		a.writeErr = err
	}
	return n, err
}

// FlushError is found by http.ResponseController.
func (x *exchange) FlushError() error {
	a := &x.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.flushLocked()
}

// Hijack is found by http.ResponseController. ReverseProxy adds the fields of
// the 101 afterwards, from what is then left of them: they are given to the
// client's writer before, so that whoever wraps it can put its own beside them
// or in their place, as with any other answer.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h := x.answer.w.Header()
	for name, values := range x.switched {
		h[name] = append(h[name], values...)
	}
	clear(x.switched)
	conn, rw, err := http.NewResponseController(x.answer.w).Hijack()
	if err == nil {
		x.started, x.scope.Stream = true, true
		conn = x.tunnel.open(conn)
	}
	return conn, rw, err
}
