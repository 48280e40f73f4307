package door

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"bouncer/gateway/httperr"
)

const (
	// maxEarly is how much a client may send of another protocol before the
	// upgrade to it was answered.
	maxEarly = 64 << 10
	// linger is how long a connection that was refused is listened to after the
	// answer, and lingerBytes how much: to close it with bytes unread would take
	// the answer back (RFC 9112 section 9.6).
	linger      = 500 * time.Millisecond
	lingerBytes = 1 << 20
	// growth is by how much, at least, the room for a head grows.
	growth = 1 << 10
)

var errEarly = errors.New("door: too much was sent before the upgrade was answered")

// A conn passes on what its framing lets pass. Read, answered and upgraded are
// called by one goroutine at a time: net/http ends a read before it says that a
// request was answered or its connection taken over.
type conn struct {
	net.Conn
	o       *Options
	framing framing

	held    []byte    // was read and not passed on yet
	ready   int       // how much of it may be
	entered bool      // it was asked whether there is a place for it
	unread  bool      // held has to be looked at once more
	silent  bool      // it has sent no request; net/http tells of its states one by one
	due     time.Time // when the head that has begun has to be whole; zero if none has
	instead []byte    // what the server is still to read in place of what was refused

	tls *tls.ConnectionState // what was agreed on, if it speaks HTTP/2 in TLS

	refusal atomic.Pointer[httperr.Error]

	// mu protects the following fields, the times at which a read ends.
	mu     sync.Mutex
	server time.Time // as net/http wants
	own    time.Time // as the read under way wants
	set    time.Time // as the connection was told
}

func newConn(c net.Conn, o *Options) *conn {
	return &conn{Conn: c, o: o, framing: framing{o: o, first: true}}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if c.unread {
		c.unread = false
		c.held, c.ready = c.vet(c.held)
	}
	for {
		switch {
		case c.ready > 0:
			n := copy(p, c.held[:c.ready])
			if c.held, c.ready = c.held[n:], c.ready-n; len(c.held) == 0 {
				c.held = nil // an idle connection holds no room
			}
			return n, nil
		case len(c.instead) > 0:
			n := copy(p, c.instead)
			c.instead = c.instead[n:]
			return n, nil
		case c.framing.state == over:
			return 0, io.EOF
		case len(c.held) > 0:
			if err := c.more(); err != nil {
				return 0, err
			}
		default:
			if n, err := c.direct(p); n > 0 || err != nil {
				return n, err
			}
		}
	}
}

// direct reads with nothing held, as is usual, and passes on what may pass where
// it lies. 0 without an error means that there is something held now, or refused.
func (c *conn) direct(p []byte) (int, error) {
	if !c.entered {
		if c.entered = true; !admitted(c.Conn, c.o) {
			c.framing.state = over // net/http may ask again
			return 0, io.EOF
		}
	}
	n, err := c.read(p)
	if n == 0 {
		if err != nil && c.framing.first {
			tellProxy(c.Conn, c.o)
		}
		return 0, err
	}
	if c.framing.state == tunnel {
		return n, nil // an error comes again
	}
	b, ready := c.vet(p[:n])
	c.held = append(c.held, b[ready:]...)
	return ready, nil
}

// more reads more of what is not complete yet.
func (c *conn) more() error {
	if c.framing.state == undecided && len(c.held) >= maxEarly {
		return errEarly
	}
	if len(c.held) == cap(c.held) {
		c.held = append(make([]byte, 0, len(c.held)+max(growth, len(c.held))), c.held...)
	}
	n, err := c.read(c.held[len(c.held):cap(c.held)])
	if n == 0 {
		return err
	}
	c.held, c.ready = c.vet(c.held[:len(c.held)+n])
	return nil
}

// vet returns how much of b may be passed on, and b without what is to be
// forgotten. It refuses what is malformed.
func (c *conn) vet(b []byte) (kept []byte, ready int) {
	for ready < len(b) {
		n, v, e := c.framing.step(b[ready:])
		switch v {
		case pass:
			if ready += n; c.framing.state == inFrames {
				c.due = c.framing.frames.due(c.due, c.o)
			} else {
				c.due = time.Time{}
			}
		case drop:
			b = append(b[:ready], b[ready+n:]...)
		case wait:
			if (c.framing.state == inHead || c.framing.first) && c.due.IsZero() {
				c.due = time.Now().Add(c.o.HeaderTimeout)
			}
			return b, ready
		case refuse:
			c.refuse(e)
			return b[:ready], ready
		}
	}
	return b, ready
}

// refuse ends what is let in. e is nil where a body went wrong: its request is
// under way already.
func (c *conn) refuse(e *httperr.Error) {
	c.instead = malformed
	if e != nil {
		c.refusal.Store(e)
		c.instead = standIn(c.framing.method)
	}
	c.framing.state = over
}

// malformed is neither the size of a chunk, nor its end, nor a trailer.
var malformed = []byte("!\r\n\r\n")

// standIn is the request that stands for a refused one.
func standIn(method string) []byte {
	if method != "HEAD" { // whose answer has no body
		method = "GET"
	}
	return []byte(method + " / HTTP/1.1\r\nHost: refused.invalid\r\nConnection: close\r\n" + stands + ": " + secret + "\r\n\r\n")
}

// answered is called when a request was answered on this connection, which is
// still one of HTTP/1.
func (c *conn) answered() {
	if c.framing.state == undecided {
		c.framing.state, c.unread = atStart, true
	}
}

// upgraded is called when the connection was taken over by who speaks another
// protocol.
func (c *conn) upgraded() {
	if c.framing.state != over {
		c.framing.state, c.ready = tunnel, len(c.held)
	}
}

// read reads from the connection, as long as may be waited for what comes next.
func (c *conn) read(p []byte) (int, error) {
	var own time.Time
	switch c.framing.state {
	case atStart, inHead:
		own = c.due
	case inFrames:
		return c.readFrames(p)
	case inBody, atChunk, inChunk, afterChunk, inTrailer:
		own = time.Now().Add(c.o.BodyTimeout)
	}
	c.mu.Lock()
	c.own = own
	c.arm()
	c.mu.Unlock()
	n, err := c.Conn.Read(p)
	if n == 0 && c.framing.state == inHead && errors.Is(err, os.ErrDeadlineExceeded) && c.late() {
		c.refuse(tooSlow())
		return 0, nil
	}
	return n, err
}

// readFrames reads what HTTP/2 sends. To tell the connection of a time for each frame
// would cost more than the frame, so an alarm that was set for one before stays set; if
// it goes off too early, it is set anew.
func (c *conn) readFrames(p []byte) (int, error) {
	for {
		c.mu.Lock()
		if c.own.IsZero() || !c.due.IsZero() && c.due.Before(c.own) {
			c.own = c.due
		}
		c.arm()
		c.mu.Unlock()
		n, err := c.Conn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !c.late() || !c.due.IsZero() && !time.Now().Before(c.due) {
			return n, err
		}
		c.mu.Lock()
		c.own = time.Time{}
		c.mu.Unlock()
	}
}

// late reports whether it is our own time that is over.
func (c *conn) late() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.own.IsZero() && !time.Now().Before(c.own) && (c.server.IsZero() || c.own.Before(c.server))
}

// arm tells the connection when a read ends. It is called with mu held.
func (c *conn) arm() {
	t := c.server
	if t.IsZero() || !c.own.IsZero() && c.own.Before(t) {
		t = c.own
	}
	if t != c.set {
		c.set = t
		_ = c.Conn.SetReadDeadline(t) // a closed connection says so when it is read
	}
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = t
	c.arm()
	return nil
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// CloseWrite ends what is sent, where the connection can do that.
func (c *conn) CloseWrite() error {
	if half := halfCloser(c.Conn); half != nil {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn. Where a request was refused, what the client still
// sends is read for a moment, so that it gets to read the answer.
func (c *conn) Close() error {
	if c.refusal.Load() == nil || c.CloseWrite() != nil {
		return c.Conn.Close()
	}
	go func() {
		_ = c.Conn.SetReadDeadline(time.Now().Add(linger))
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
		_ = c.Conn.Close()
	}()
	return nil
}
