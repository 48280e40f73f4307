package door

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// Options are the settings of a listener. All durations and sizes are to be
// above 0.
type Options struct {
	// TLS, if not nil, is what connections begin with. HTTP/2 is spoken where it
	// was agreed on, if the server speaks it without TLS: the door has taken that off
	// (see the function [TLS]).
	TLS *tls.Config
	// HTTP2 admits HTTP/2 with prior knowledge (RFC 9113 section 3.3). It is for
	// connections without TLS.
	HTTP2 bool
	// HeaderTimeout bounds a TLS handshake, and a head from its first byte on.
	HeaderTimeout time.Duration
	// BodyTimeout bounds the wait for more of a body, and for a client to take more of
	// what is sent to it.
	BodyTimeout time.Duration
	// MaxHeader is how long a head may be, in bytes.
	MaxHeader int
	// MaxFields is how many field lines it may have.
	MaxFields int
	// Enter, if not nil, decides about each connection, by the address of whom it
	// comes from, before its TLS handshake: it is closed unless ok. leave, if not nil,
	// is called once, when it is closed. It must not wait.
	Enter func(client net.Addr) (leave func(), ok bool)
	// Proxied, if not nil, reports whether a peer is a proxy that says in a header
	// of the PROXY protocol whom a connection comes from. It is asked for each
	// connection.
	Proxied func(peer net.Addr) bool
	// ProxyFailed, if not nil, is told of connections that such a peer began
	// without a good header, and that were closed for it; why is [ProxyMissing],
	// [ProxyBad] or [ProxySlow]. One that only connected is not told of.
	ProxyFailed func(peer net.Addr, why string)
	// HandshakeFailed, if not nil, is told of TLS handshakes that came to nothing.
	HandshakeFailed func(client net.Addr, err error)
	// NotRead, if not nil, is told of connections whose client took nothing for
	// BodyTimeout. All of these must be safe for concurrent use.
	NotRead func()
}

// Over returns a listener whose connections let in only what is well formed.
func Over(l net.Listener, o Options) net.Listener {
	l = &pacedListener{Listener: l, o: &o}
	if o.Enter != nil {
		l = &crowdListener{Listener: l, o: &o}
	}
	if o.Proxied != nil {
		l = proxied(l, &o)
	}
	if o.TLS == nil {
		return &plainListener{Listener: l, o: &o}
	}
	s := &tlsListener{Listener: l, o: &o, ready: make(chan accepted)}
	s.open, s.close = context.WithCancel(context.Background())
	go s.run()
	return s
}

// Stop ends the taking of connections. Those that were taken are still handed on, when
// their TLS handshakes have come to an end; after the last, Accept of a listener made
// by [Over] returns [net.ErrClosed].
func Stop(l net.Listener) {
	if secure, ok := l.(*tlsListener); ok {
		l = secure.Listener
	}
	_ = l.Close() // it is closed either way
}

// A Census knows the connections of a server that have sent no request yet.
type Census struct {
	mu     sync.Mutex // protects silent
	silent map[*conn]struct{}
}

// Silent returns how many connections of HTTP/1 were taken and have not sent the head
// of a request yet.
func (c *Census) Silent() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.silent)
}

// Close closes those connections. A server that shuts down would wait five seconds for
// each of them to speak.
func (c *Census) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for silent := range c.silent {
		_ = silent.Close()
	}
}

func (c *Census) note(nc *conn, silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if silent {
		c.silent[nc] = struct{}{}
	} else {
		delete(c.silent, nc)
	}
}

// Attach makes server tell its connections what they have to know, and its
// requests which connection they came by.
func Attach(server *http.Server) *Census {
	census := &Census{silent: map[*conn]struct{}{}}
	server.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		if c := connOf(nc); c != nil {
			return context.WithValue(ctx, connKey{}, c)
		}
		return ctx
	}
	server.ConnState = func(nc net.Conn, state http.ConnState) {
		c := connOf(nc)
		if c == nil {
			return
		}
		if silent := state == http.StateNew; silent != c.silent {
			c.silent = silent
			census.note(c, silent)
		}
		// No read is under way: net/http ends its own before it says so.
		switch {
		case state == http.StateIdle:
			c.answered()
		case state == http.StateHijacked:
			c.upgraded()
		}
	}
	return census
}

type connKey struct{}

// secret names the requests that stand for refused ones. Nobody can guess it.
var secret = rand.Text()

// stands is the field that has it.
const stands = "Bouncer-Refused"

func connOf(nc net.Conn) *conn {
	switch c := nc.(type) {
	case *conn:
		return c
	case *secureConn:
		return c.conn
	}
	return nil
}

// plainListener is one without TLS.
type plainListener struct {
	net.Listener
	o *Options
}

func (l *plainListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newConn(c, l.o), nil
}

// tlsListener does the handshakes, each in its own goroutine, since what a
// connection is good for is known only then.
type tlsListener struct {
	net.Listener
	o     *Options
	ready chan accepted
	open  context.Context // ends with Close
	close context.CancelFunc
	hands sync.WaitGroup // handshakes under way
}

type accepted struct {
	conn net.Conn
	err  error
}

func (l *tlsListener) Accept() (net.Conn, error) {
	select {
	case a := <-l.ready:
		return a.conn, a.err
	case <-l.open.Done():
		return nil, net.ErrClosed
	}
}

// Close closes the listener, and the connections whose handshake is under way.
func (l *tlsListener) Close() error {
	l.close()
	return l.Listener.Close()
}

func (l *tlsListener) run() {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				l.hands.Wait()
				l.close()
				return
			}
			l.pass(accepted{err: err})
			continue // net/http waits before it asks again
		}
		l.hands.Go(func() {
			if nc := l.handshake(c); nc != nil {
				l.pass(accepted{conn: nc})
			}
		})
	}
}

// pass hands a to Accept, unless nobody will ask any more.
func (l *tlsListener) pass(a accepted) {
	select {
	case l.ready <- a:
	case <-l.open.Done():
		if a.conn != nil {
			_ = a.conn.Close()
		}
	}
}

// handshake returns the connection that is to be served, or nil if there is none.
func (l *tlsListener) handshake(c net.Conn) net.Conn {
	if !admitted(c, l.o) {
		_ = c.Close()
		return nil
	}
	ctx, cancel := context.WithTimeout(l.open, l.o.HeaderTimeout)
	defer cancel()
	secure := tls.Server(c, l.o.TLS)
	err := secure.HandshakeContext(ctx)
	if err != nil {
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) && plain.Conn != nil && letters(plain.RecordHeader[:]) {
			_ = plain.Conn.SetWriteDeadline(time.Now().Add(l.o.HeaderTimeout))
			_, _ = plain.Conn.Write([]byte("HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nThis port speaks HTTPS. Use https:// in the address.\n"))
		}
		tellProxy(c, l.o)
		_ = c.Close()
		if l.o.HandshakeFailed != nil {
			l.o.HandshakeFailed(c.RemoteAddr(), err)
		}
		return nil
	}
	switch secure.ConnectionState().NegotiatedProtocol {
	case "h2":
		// Not as one of TLS, or net/http would read it past us.
		c := newConn(secure, l.o)
		state := secure.ConnectionState()
		c.tls, c.framing.only2 = &state, true
		return c
	case "", "http/1.1":
	default: // it was about the handshake alone, as a challenge is (RFC 8737 section 3)
		_ = secure.Close()
		return nil
	}
	return &secureConn{conn: newConn(secure, l.o), state: secure.ConnectionState()}
}

// letters reports whether b is how a request in the clear begins.
func letters(b []byte) bool {
	for _, c := range b {
		if c != ' ' && c != '/' && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// A secureConn tells net/http what was agreed on, for http.Request.TLS.
type secureConn struct {
	*conn
	state tls.ConnectionState
}

func (c *secureConn) ConnectionState() tls.ConnectionState { return c.state }
