package door

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// TLS returns what the connection that r came by agreed on, or nil without TLS, for
// http.Request.TLS. Over HTTP/2 net/http is not told: it speaks it on no connection of
// TLS but its own.
func TLS(r *http.Request) *tls.ConnectionState {
	if c := cameBy(r); c != nil {
		return c.tls
	}
	return nil
}

// cameBy returns the connection that a request came by, or nil if none of ours.
func cameBy(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// A Body is the body of a request of HTTP/2. Its connection is shared, so it is bounded
// here and not where the connection is read: until the request is answered, a body of
// which nothing comes for Options.BodyTimeout ends with [os.ErrDeadlineExceeded].
// Afterwards it may stand still as the answer may: both are halves of a stream then, as
// in gRPC.
//
// It is safe for concurrent use, as reads of net/http's are not.
type Body struct {
	in   io.ReadCloser
	w    http.ResponseWriter
	r    *http.Request
	wait time.Duration

	turn  sync.Mutex // held while it is read
	ended bool       // by its sender; protected by turn

	mu       sync.Mutex // protects the following fields
	timer    *time.Timer
	reading  bool
	answered bool
}

// Follow puts a Body in the place of that of r, and returns it; nil if r has none, or is
// not of HTTP/2. w is r's.
func Follow(w http.ResponseWriter, r *http.Request) *Body {
	if r.ProtoMajor != 2 || r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	c := cameBy(r)
	if c == nil {
		return nil
	}
	b := &Body{in: r.Body, w: w, r: r, wait: c.o.BodyTimeout}
	r.Body = b
	return b
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	b.turn.Lock()
	defer b.turn.Unlock()
	b.begin()
	n, err := b.in.Read(p)
	b.mu.Lock()
	b.reading = false
	if b.timer != nil {
		b.timer.Stop()
	}
	b.mu.Unlock()
	b.ended = b.ended || err == io.EOF
	return n, err
}

func (b *Body) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = true
	switch {
	case b.answered:
	case b.timer == nil:
		b.timer = time.AfterFunc(b.wait, b.late)
	default:
		b.timer.Reset(b.wait)
	}
}

// late ends a read that has waited too long.
func (b *Body) late() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reading && !b.answered {
		b.end(time.Unix(1, 0))
	}
}

// end ends the body at a time. Who has no deadlines has no HTTP/2 either.
func (b *Body) end(at time.Time) { _ = http.NewResponseController(b.w).SetReadDeadline(at) }

// Close implements io.Closer.
func (b *Body) Close() error { return b.in.Close() }

// Answered tells that the head of the answer is sent. nil is allowed.
func (b *Body) Answered() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// Linger is called when the request was answered, and its handler is about to return.
// net/http resets the stream of a body that is still being sent then, and again for
// whatever comes of it; a client that hears of it while it sends may drop the answer. So
// what is still sent is read and thrown away for a moment (RFC 9113 section 8.1 lets an
// answer come before the end of the request). nil is allowed.
func (b *Body) Linger() {
	if b == nil {
		return
	}
	if b.turn.TryLock() { // else it is being read, and not at its end
		ended := b.ended
		b.turn.Unlock()
		if ended {
			return
		}
	}
	_ = http.NewResponseController(b.w).Flush() // a client that has gone is noticed below
	until := time.Now().Add(linger)
	b.end(until)
	b.turn.Lock()
	defer b.turn.Unlock()
	_, err := io.CopyN(io.Discard, b.in, lingerBytes)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		// Of a client that sends on, as much comes as was granted already.
		rest := time.NewTimer(time.Until(until))
		defer rest.Stop()
		select {
		case <-rest.C:
		case <-b.r.Context().Done():
		}
	}
}
