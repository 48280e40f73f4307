package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// replayable is the largest body, in bytes, that is kept so that a request of
// which nothing was written can go out again on a fresh connection.
const replayable = 8 << 10

// closeGrace is how long a read of the client's body may go on after the transport
// has done with the body. Most often the whole exchange is over by then.
const closeGrace = 50 * time.Millisecond

var errNoTaker = errors.New("the upstream broke off before the client had sent its body")

// upload is a request body on its way to the upstream. It notices when the
// upstream takes no more of it, remembers whether it was the client that broke
// off, and passes the trailers on.
//
// The transport may still read it when the answer has already ended, so it is
// made for each request and refers to nothing that is used again.
type upload struct {
	in     io.ReadCloser
	client *http.Request
	out    http.Header // the trailers that go out: the announced ones, filled in at the end
	wait   time.Duration
	cancel context.CancelFunc
	to     http.ResponseWriter // the client's
	keep   bool

	// turn is held while the client's body is read: an attempt that is over may
	// still be at it when the next one begins.
	turn sync.Mutex

	mu       sync.Mutex // protects following fields
	timer    *time.Timer
	stopped  func() bool // nobody is to be told any more that the gateway gave the request up
	trial    *time.Timer // nil unless the request tries whether the circuit may close
	answered bool
	stalled  bool
	begun    bool   // something was read, or tried to be
	reading  bool   // at this moment
	closed   bool   // it is not to be read any more
	over     bool   // the exchange has ended: nothing of the client's is to be touched
	useless  bool   // what the client still sends goes nowhere
	ended    bool   // the client's body is here, to its end
	err      error  // why it could not be read
	kept     []byte // what was read so far, if keep
	attempt  *sending
}

// sending is the body as one attempt reads it, an io.ReadCloser.
type sending struct {
	b  *upload
	at int // how much of kept was read
}

var (
	// errOver ends the reading of an attempt that is over.
	errOver = errors.New("there is another attempt")
	errGone = errors.New("the request body was sent already and not kept")
)

func newUpload(in io.ReadCloser, client *http.Request, trailers http.Header, wait time.Duration) *upload {
	b := &upload{in: in, client: client, out: trailers, wait: wait}
	if n := client.ContentLength; n > 0 && n <= replayable {
		b.keep, b.kept = true, make([]byte, 0, n)
	}
	return b
}

// Read implements io.Reader. Between two reads the transport is sending: that
// time is the upstream's, and the time inside of Read is the client's.
func (a *sending) Read(p []byte) (int, error) {
	b := a.b
	if !b.pause(a) {
		return 0, errOver
	}
	b.turn.Lock()
	defer b.turn.Unlock()
	n, err := a.read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.attempt == a && !b.answered {
		if b.timer == nil {
			b.timer = time.AfterFunc(b.wait, b.stall)
		} else {
			b.timer.Reset(b.wait)
		}
	}
	return n, err
}

// read gives out what was kept, and then what the client sends. All that is read
// is kept, whoever reads it, so that no attempt misses a part.
func (a *sending) read(p []byte) (int, error) {
	b := a.b
	b.mu.Lock()
	b.begun = true
	n := copy(p, b.kept[min(a.at, len(b.kept)):])
	var err error
	switch {
	case b.attempt != a: // since it waited for its turn
		n, err = 0, errOver
	case n > 0:
		a.at += n
	case b.closed:
		err = errNoTaker
	case b.ended:
		err = io.EOF
	default:
		err = b.err
	}
	if n > 0 || err != nil {
		b.mu.Unlock()
		return n, err
	}
	b.reading = true
	b.mu.Unlock()

	n, err = b.in.Read(p)

	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	if b.keep {
		b.kept = append(b.kept, p[:n]...)
		a.at += n
	}
	switch {
	case err == io.EOF:
		b.ended = true
		for name := range b.out {
			b.out[name] = b.client.Trailer[name]
		}
	case err != nil && b.useless:
		err = errNoTaker // rather than that time is up, which is nobody's fault
	case err != nil:
		b.err = err
	}
	return n, err
}

// Close implements io.Closer. The body stays open: it belongs to the server, and a
// transport that could not connect closes a body that the next target still gets.
// But one of HTTP/2 whose stream broke waits for a read to return before it says so,
// and the client, as in a stream of gRPC, may have nothing to send before it has heard
// from the upstream. A body of which nothing was read may go to another connection,
// and one that is kept may go out again: these are read on.
func (a *sending) Close() error {
	b := a.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.attempt != a || !b.begun || b.keep && !b.answered {
		return nil
	}
	b.closed = true
	if b.reading {
		time.AfterFunc(closeGrace, b.giveUp)
	}
	return nil
}

// giveUp ends a read that keeps the transport from saying what became of a request.
func (b *upload) giveUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.reading || b.over {
		return
	}
	b.useless = true
	if !b.answered {
		b.cancel()
	}
	if b.client.ProtoMajor == 2 {
		// One of HTTP/1 would take it for the end of its client.
		_ = http.NewResponseController(b.to).SetReadDeadline(time.Unix(1, 0))
	}
}

// abandon is called when the request is given up without an answer, and reports whether
// the client's body was waited for. A transport says what became of a request only when
// its reading of the body has ended: so it ends now. Over HTTP/1 the connection ends
// with it.
func (b *upload) abandon() (waited bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over || b.ended {
		return false
	}
	b.useless, b.closed = true, true
	_ = http.NewResponseController(b.to).SetReadDeadline(time.Unix(1, 0))
	return b.reading
}

// givenUp is called when the client's context has ended. If it was not the client, it is
// waiting for an answer, and that must not wait for its body.
func (b *upload) givenUp() {
	if context.Cause(b.client.Context()) != context.Canceled { //nolint:errorlint // as net/http ends it
		b.abandon()
	}
}

// finish waits for the end of a read under way, of a client that has left or whose body
// went wrong: only then is it known which.
func (b *upload) finish() {
	b.mu.Lock()
	reading := b.reading
	b.mu.Unlock()
	if reading {
		// In case that it is something else that went wrong.
		_ = http.NewResponseController(b.to).SetReadDeadline(time.Now().Add(closeGrace))
		b.turn.Lock()
		defer b.turn.Unlock() // it was waited for
	}
}

// again returns the body from its beginning, for an http.Request's GetBody. From then
// on the attempt before gets no more of it. It is an error if the beginning has gone:
// a body without it could pass for a whole one.
func (b *upload) again() (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.restLocked()
	if b.begun && !b.keep {
		return nil, errGone
	}
	b.attempt = &sending{b: b}
	return b.attempt, nil
}

// pause stops the time that the upstream has, if it is for attempt a that it runs.
func (b *upload) pause(a *sending) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.attempt != a {
		return false
	}
	b.pauseLocked()
	return true
}

func (b *upload) pauseLocked() {
	if b.timer != nil {
		b.timer.Stop()
	}
}

// rest is called between two attempts: neither of them has the body then.
func (b *upload) rest() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.restLocked()
}

func (b *upload) restLocked() {
	b.attempt = nil
	b.pauseLocked()
}

// whole reports whether another attempt can have the whole body.
func (b *upload) whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err == nil && (b.keep || !b.begun)
}

// stall ends a request that the upstream has stopped taking in.
func (b *upload) stall() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.answered {
		b.stalled = true
		b.cancel()
	}
}

// settle is called when there is an answer or none will come; it reports what
// went wrong until then. Afterwards the upload may take as long as it likes.
func (b *upload) settle() (stalled bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked()
	return b.stalled, b.err
}

func (b *upload) settleLocked() {
	b.answered = true
	b.pauseLocked()
}

// bodyToCome reports whether an answer that is sent now comes before the end of the
// client's body. Over HTTP/1 the connection has to end with it then (RFC 9112 section
// 9.3): where the body ends only after the handler, net/http takes that end for a
// reason to read on at once, and falls over its own reading of the next request.
func (x *exchange) bodyToCome() bool {
	if x.upload == nil || x.client.ProtoMajor != 1 {
		return false
	}
	x.upload.mu.Lock()
	defer x.upload.mu.Unlock()
	return !x.upload.ended
}

// leave is called when the exchange ends.
func (b *upload) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked() // if it is to blame, failure has said so
	b.over = true
	if b.stopped != nil {
		b.stopped()
	}
	if b.trial != nil {
		b.trial.Stop()
	}
}

// attachUpload gives the outgoing request a body that can be watched, and a
// context that ends when the upstream stops taking it in.
func (x *exchange) attachUpload(r *http.Request) *http.Request {
	ctx, cancel := context.WithCancel(r.Context())
	r = r.WithContext(ctx)
	x.stop = cancel
	x.upload = newUpload(r.Body, x.client, r.Trailer, x.u.stall)
	x.upload.cancel = cancel
	x.upload.to = x.answer.w
	r.Body, _ = x.upload.again()
	if x.upload.keep {
		r.GetBody = x.upload.again
	}
	x.upload.stopped = context.AfterFunc(x.client.Context(), x.upload.givenUp) //nolint:contextcheck // it is the same one
	x.forward.Place.onTrial(x.upload)
	return r
}
