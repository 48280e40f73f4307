package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// WebSocket bounds the time of connections that became WebSockets. The zero value
// bounds nothing.
type WebSocket struct {
	// Idle ends one on which nothing came for so long, from either side; a ping is
	// something. 0: none is ended for it.
	Idle time.Duration
	// Lifetime ends one so long after its handshake. 0: none is ended for it.
	Lifetime time.Duration
	// Until is when the caller's credential ends, and the WebSocket with it. The
	// zero time: never.
	Until time.Time
}

// An ending is why the gateway ends a WebSocket, and what both sides are told.
type ending struct {
	name   string // for Hooks.WebSocketEnded
	code   uint16 // RFC 6455 section 7.4.1
	reason string
}

// Going away (1001) has clients connect anew, which is right: they may. Policy
// violation (1008) has most of them give up, until they have another credential.
var (
	endIdle       = &ending{"idle", 1001, "nothing was sent for too long"}
	endLifetime   = &ending{"lifetime", 1001, "the connection is as old as one may be"}
	endCredential = &ending{"credential", 1008, "the credential has expired"}
	endShutdown   = &ending{"shutdown", 1001, "the gateway is being stopped"}
	endOver       = &ending{} // it was not the gateway that ended it
)

// farewell is how long a WebSocket that is being ended has for the rest of a frame
// that is under way, and its peers to answer. Then it is cut.
const farewell = 500 * time.Millisecond

// A tunnel is a connection that became a WebSocket. What comes on one side goes to
// the other as it is; the frames are only followed, so that both can be told when
// the gateway has to end it.
//
// It stands in for both connections towards httputil.ReverseProxy, which copies
// from one to the other and closes them. It is made for each WebSocket and refers
// to nothing that is used again.
type tunnel struct {
	ctx        context.Context // of the request; it ends when the gateway stops
	upstream   io.ReadWriteCloser
	client     net.Conn // nil until it was taken over from net/http
	toUpstream way
	toClient   way
	leaving    context.Context // ends when the gateway begins to stop; nil: never

	bounds WebSocket
	began  time.Time
	last   atomic.Int64 // when something came: since began, in ns
	timer  *time.Timer  // nil without bounds
	told   func(why string)

	unleave atomic.Pointer[func() bool] // nobody is to be told of leaving any more
	passing atomic.Bool                 // the handshake is answered, and bytes go to and fro
	why     atomic.Pointer[ending]
	cut     func() // closes both, once
}

// A way is one of the two that the bytes of a tunnel go.
type way struct {
	t      *tunnel
	to     io.Writer
	masked bool // its frames are those of a client

	mu     sync.Mutex // protects the following fields, and what is written
	frames frames
	said   bool // that it is over; what still comes is thrown away
}

func newTunnel(ctx context.Context, upstream io.ReadWriteCloser, bounds WebSocket, told func(why string)) *tunnel {
	t := &tunnel{ctx: ctx, upstream: upstream, bounds: bounds, told: told}
	t.toUpstream.t, t.toUpstream.to, t.toUpstream.masked = t, upstream, true
	t.toClient.t = t
	t.cut = sync.OnceFunc(func() {
		if t.client != nil {
			_ = t.client.Close()
		}
		_ = t.upstream.Close()
		t.why.CompareAndSwap(nil, endOver)
		if t.timer != nil {
			t.timer.Stop()
		}
		if stop := t.unleave.Load(); stop != nil {
			(*stop)()
		}
	})
	return t
}

// open is called when the client's connection was taken over, before anything is
// written to it. It returns what stands in for it.
func (t *tunnel) open(client net.Conn) net.Conn {
	t.client, t.toClient.to = client, client
	t.began = time.Now()
	if t.bounds != (WebSocket{}) {
		// Stopped before it is known to others: it may go off at once.
		t.timer = time.AfterFunc(time.Hour, t.look)
		t.timer.Reset(t.wait(t.began))
	}
	return clientSide{client, t}
}

// wait returns how long after now there is to be looked again whether a bound was
// reached.
func (t *tunnel) wait(now time.Time) time.Duration {
	age := now.Sub(t.began)
	soonest := 24 * time.Hour
	if d := t.bounds.Lifetime; d > 0 {
		soonest = min(soonest, d-age)
	}
	if d := t.bounds.Idle; d > 0 {
		soonest = min(soonest, d-(age-time.Duration(t.last.Load())))
	}
	if !t.bounds.Until.IsZero() {
		soonest = min(soonest, t.bounds.Until.Sub(now))
	}
	return soonest
}

// look ends the tunnel if it has reached a bound. The timer runs it.
func (t *tunnel) look() {
	now := time.Now()
	wait := t.wait(now)
	if wait > 0 {
		t.timer.Reset(wait)
		if t.why.Load() != nil {
			t.timer.Stop() // it came to its end just now
		}
		return
	}
	age := now.Sub(t.began)
	switch {
	case !t.bounds.Until.IsZero() && !now.Before(t.bounds.Until):
		t.end(endCredential)
	case t.bounds.Lifetime > 0 && age >= t.bounds.Lifetime:
		t.end(endLifetime)
	default:
		t.end(endIdle)
	}
}

// end tells both sides why the tunnel ends, where frames allow, and sees to it that
// it does.
func (t *tunnel) end(why *ending) {
	if !t.why.CompareAndSwap(nil, why) {
		return
	}
	if t.told != nil {
		t.told(why.name)
	}
	if !t.passing.Load() { // what would be written might come before the answer
		t.cut()
		return
	}
	time.AfterFunc(farewell, t.cut)
	go t.toUpstream.bye() // the one may stand still and the other not
	t.toClient.bye()
}

// touch takes note that something came.
func (t *tunnel) touch() {
	if t.bounds.Idle > 0 {
		t.last.Store(int64(time.Since(t.began)))
	}
}

// Write implements io.Writer.
func (w *way) Write(p []byte) (int, error) {
	w.t.touch()
	w.mu.Lock()
	n, err := w.pass(p)
	w.mu.Unlock()
	if w.t.why.Load() != nil {
		w.bye() // bye was here while it was locked
	}
	w.t.touch()
	return n, err
}

// pass writes p; at the end only up to that of the frame under way. It is called
// with mu held.
func (w *way) pass(p []byte) (int, error) {
	if w.t.why.Load() == nil {
		w.follow(p)
		return w.to.Write(p)
	}
	rest := p
	if !w.said && !w.frames.between() {
		n := w.frames.step(p)
		if _, err := w.to.Write(p[:n]); err != nil {
			return 0, err
		}
		rest = p[n:]
	}
	w.say() // before the rest is followed: it may be the answer of one who heard it first
	w.follow(rest)
	return len(p), nil
}

func (w *way) follow(p []byte) {
	for len(p) > 0 {
		p = p[w.frames.step(p):]
	}
}

// bye says farewell, unless somebody writes: he comes here himself when he is done.
func (w *way) bye() {
	if w.mu.TryLock() {
		defer w.mu.Unlock()
		w.say()
	}
}

// say tells the side at the end of the way that it is over, once, unless a frame is
// under way, or a Close frame went there already. It is called with mu held.
func (w *way) say() {
	if w.said || !w.frames.between() {
		return
	}
	w.said = true
	if why := w.t.why.Load(); !w.frames.closed {
		_, _ = w.to.Write(closeFrame(why.code, why.reason, w.masked)) // who has gone needs no farewell
	}
}

// over reports whether nothing is to be awaited from the side that the way begins
// at: it has said farewell as well.
func (w *way) over() bool {
	if w.t.why.Load() == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.said && w.frames.closed
}

// idleCopy is the room for what comes while little does; a quiet WebSocket holds
// two of them. When it is filled, the next read has copySize.
const idleCopy = 2 << 10

// carry copies what comes from one side to the other.
func (w *way) carry(from io.Reader) (total int64, err error) {
	if !w.t.passing.Swap(true) && w.t.leaving != nil {
		// One that was opened while the gateway stops has its handshake answered first.
		stop := context.AfterFunc(w.t.leaving, func() { w.t.end(endShutdown) })
		w.t.unleave.Store(&stop)
		if w.t.why.Load() != nil {
			stop() // it came to its end just now
		}
	}
	small := make([]byte, idleCopy)
	b := small
	defer func() {
		if len(b) > idleCopy {
			copyBuffers.Put(b)
		}
	}()
	for !w.over() {
		n, err := from.Read(b)
		if n > 0 {
			total += int64(n)
			if _, werr := w.Write(b[:n]); werr != nil {
				return total, werr
			}
		}
		switch {
		case err == io.EOF:
			return total, nil
		case err != nil:
			return total, err
		case n == len(b) && len(b) == idleCopy:
			b = copyBuffers.Get()
		case n <= idleCopy && len(b) > idleCopy:
			copyBuffers.Put(b)
			b = small
		}
	}
	return total, nil
}

// clientSide is the client's connection towards ReverseProxy.
type clientSide struct {
	net.Conn
	t *tunnel
}

// WriteTo implements io.WriterTo: it is what io.Copy calls.
func (c clientSide) WriteTo(io.Writer) (int64, error) { return c.t.toUpstream.carry(c.Conn) }

// Write implements net.Conn.
func (c clientSide) Write(p []byte) (int, error) { return c.t.toClient.Write(p) }

// CloseWrite ends what is sent, where the connection can do that.
func (c clientSide) CloseWrite() error { return c.t.closeWrite(c.Conn) }

// Close implements net.Conn.
func (c clientSide) Close() error {
	c.t.cut()
	return nil
}

// upstreamSide is the upstream's connection towards ReverseProxy.
type upstreamSide struct{ t *tunnel }

// Read implements io.Reader.
func (u upstreamSide) Read(p []byte) (int, error) { return u.t.upstream.Read(p) }

// WriteTo implements io.WriterTo: it is what io.Copy calls.
func (u upstreamSide) WriteTo(io.Writer) (int64, error) { return u.t.toClient.carry(u.t.upstream) }

// Write implements io.Writer.
func (u upstreamSide) Write(p []byte) (int, error) { return u.t.toUpstream.Write(p) }

// CloseWrite ends what is sent, where the connection can do that.
func (u upstreamSide) CloseWrite() error { return u.t.closeWrite(u.t.upstream) }

// Close implements io.Closer. ReverseProxy calls it when the request's context ends,
// which it does when the gateway stops, and after all was copied.
func (u upstreamSide) Close() error {
	if u.t.ctx.Err() != nil {
		u.t.end(endShutdown)
		return nil
	}
	u.t.cut()
	return nil
}

// closeWrite passes the end of one side on to the other. While the tunnel is being
// ended, a side that has said farewell does not keep the other from it.
func (t *tunnel) closeWrite(c any) error {
	if t.why.Load() != nil {
		return nil
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errNotHalf
}

// errNotHalf ends the tunnel when one side ends whose other cannot be told so.
var errNotHalf = errors.New("the connection cannot be closed by half")
