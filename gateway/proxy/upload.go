package proxy

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// replayable is the largest body, in bytes, that is kept so that a request of
// which nothing was written can go out again on a fresh connection.
const replayable = 8 << 10

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

	mu       sync.Mutex // protects following fields
	timer    *time.Timer
	answered bool
	stalled  bool
	err      error  // why the client's body could not be read
	kept     []byte // what was read so far, if small enough
	keep     bool
	at       int // how much of kept this attempt has read
}

func newUpload(in io.ReadCloser, client *http.Request, trailers http.Header, wait time.Duration) *upload {
	b := &upload{in: in, client: client, out: trailers, wait: wait}
	if n := client.ContentLength; n > 0 && n <= replayable {
		b.keep, b.kept = true, make([]byte, 0, n)
	}
	return b
}

// Read implements io.Reader. Between two reads the transport is sending: that
// time is the upstream's, and the time inside of Read is the client's.
func (b *upload) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.timer != nil {
		b.timer.Stop()
	}
	if b.at < len(b.kept) {
		n := copy(p, b.kept[b.at:])
		b.at += n
		b.mu.Unlock()
		return n, nil
	}
	b.mu.Unlock()

	n, err := b.in.Read(p)

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keep {
		b.kept = append(b.kept, p[:n]...)
		b.at = len(b.kept)
	}
	switch {
	case err == io.EOF:
		for name := range b.out {
			b.out[name] = b.client.Trailer[name]
		}
	case err != nil:
		b.err = err
	}
	if !b.answered {
		if b.timer == nil {
			b.timer = time.AfterFunc(b.wait, b.stall)
		} else {
			b.timer.Reset(b.wait)
		}
	}
	return n, err
}

// Close implements io.Closer. It does nothing: the body belongs to the server,
// and a transport that could not connect closes a body that the next target
// still gets.
func (b *upload) Close() error { return nil }

// again returns the body from its beginning, for an http.Request's GetBody.
// The transport asks for it when the attempt before is over.
func (b *upload) again() (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at = 0
	return b, nil
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
	b.answered = true
	if b.timer != nil {
		b.timer.Stop()
	}
	return b.stalled, b.err
}

// attachUpload gives the outgoing request a body that can be watched, and a
// context that ends when the upstream stops taking it in.
func (x *exchange) attachUpload(r *http.Request) *http.Request {
	ctx, cancel := context.WithCancel(r.Context())
	r = r.WithContext(ctx)
	x.stop = cancel
	x.upload = newUpload(r.Body, x.client, r.Trailer, x.u.stall)
	x.upload.cancel = cancel
	r.Body = x.upload
	if x.upload.keep {
		r.GetBody = x.upload.again
	}
	return r
}
