package door

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/pires/go-proxyproto"
)

// Why a connection of a proxy was closed that did not begin as it should.
const (
	ProxyMissing = "missing" // with something else
	ProxyBad     = "bad"     // with a header that cannot be read
	ProxySlow    = "slow"    // with no whole header within Options.HeaderTimeout
)

// proxied returns a listener whose connections come from whom the proxies that
// o.Proxied names say, in a header of the PROXY protocol, version 1 or 2, in front
// of all else (haproxy.org, proxy-protocol.txt). Such a peer has to send one: were
// it optional, whoever gets through it could send one of his own. A header without
// an address that could be a client's leaves the peer's, see [Unnamed].
// Nobody else's is looked at.
func proxied(l net.Listener, o *Options) net.Listener {
	return &proxyproto.Listener{
		Listener: &gatherer{l, o}, ReadHeaderTimeout: o.HeaderTimeout,
		ConnPolicy: func(c proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if o.Proxied(c.Upstream) {
				return proxyproto.REQUIRE, nil
			}
			return proxyproto.SKIP, nil
		},
	}
}

// Unnamed reports whether a request came by a connection whose proxy named no client by
// the PROXY protocol: it asks on its own behalf (LOCAL), does not know (UNKNOWN, UNSPEC),
// or names a socket of its machine. Nobody has vouched for what such a client says of
// itself.
func Unnamed(r *http.Request) bool {
	c := cameBy(r)
	if c == nil {
		return false
	}
	nc := c.Conn
	if secure, ok := nc.(*tls.Conn); ok {
		nc = secure.NetConn()
	}
	p, ok := nc.(*proxyproto.Conn)
	if !ok {
		return false
	}
	header := p.ProxyHeader()
	return header == nil || header.Command.IsLocal()
}

// gatherer hands on connections of proxies whose headers may come in pieces: the library
// reads one of version 1 in a single piece, and otherwise breaks off.
type gatherer struct {
	net.Listener
	o *Options
}

// Accept implements net.Listener.
func (l *gatherer) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil || !l.o.Proxied(c.RemoteAddr()) {
		return c, err
	}
	return &gathered{Conn: c}, nil
}

// A gathered is a connection whose header is waited for before anything is handed on.
// Its time is bounded by whoever reads.
type gathered struct {
	net.Conn
	begun bool
	held  []byte
	fault string // what it would be called if the library cannot read it
}

// The signatures of both versions, and the longest line of version 1.
const (
	signature1 = "PROXY "
	signature2 = "\r\n\r\n\x00\r\nQUIT\n"
	longest1   = 107
)

// Read implements net.Conn.
func (g *gathered) Read(p []byte) (int, error) {
	if !g.begun {
		g.begun = true
		if err := g.gather(); err != nil && len(g.held) == 0 {
			return 0, err
		}
	}
	if len(g.held) > 0 {
		n := copy(p, g.held)
		if g.held = g.held[n:]; len(g.held) == 0 {
			g.held = nil
		}
		return n, nil
	}
	return g.Conn.Read(p)
}

func (g *gathered) gather() error {
	b := make([]byte, 0, 2*longest1)
	for !begins(b) {
		n, err := g.Conn.Read(b[len(b):longest1])
		b = b[:len(b)+n]
		if err != nil {
			g.held = b
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				g.fault = ProxySlow
			case len(b) > 0: // else it only connected, as health checks do
				g.fault = faultOf(b)
			case !errors.Is(err, io.EOF):
				return err
			}
			return err
		}
	}
	g.held, g.fault = b, faultOf(b)
	// The library refuses UNSPEC, and takes a socket for a client. Both say no more than
	// LOCAL does.
	if v2 := len(signature2); len(b) > v2+1 && bytes.HasPrefix(b, []byte(signature2)) && b[v2] == 0x21 && (b[v2+1]>>4 == 0 || b[v2+1]>>4 == 3) {
		b[v2] = 0x20
	}
	return nil
}

// begins reports whether enough is here for the library, or for a refusal.
func begins(b []byte) bool {
	switch {
	case len(b) >= longest1:
		return true
	case strings.HasPrefix(signature1, string(b[:min(len(b), len(signature1))])):
		return bytes.IndexByte(b, '\n') >= 0
	case strings.HasPrefix(signature2, string(b[:min(len(b), len(signature2))])):
		return len(b) > len(signature2)+1
	}
	return true
}

func faultOf(b []byte) string {
	if bytes.HasPrefix(b, []byte(signature1)) || bytes.HasPrefix(b, []byte(signature2)) {
		return ProxyBad
	}
	return ProxyMissing
}

// tellProxy tells of a proxy that sends no header, or none that can be read: its
// connection is closed, and nobody else would say why.
func tellProxy(c net.Conn, o *Options) {
	p, ok := c.(*proxyproto.Conn)
	if !ok || p.ProxyHeader() != nil || o.ProxyFailed == nil {
		return
	}
	if g, ok := p.Raw().(*gathered); ok && g.fault != "" {
		o.ProxyFailed(g.RemoteAddr(), g.fault)
		g.fault = "" // it is told once, however often net/http reads
	}
}

// rawOf returns the connection below the PROXY protocol.
func rawOf(c net.Conn) net.Conn {
	if p, ok := c.(*proxyproto.Conn); ok {
		c = p.Raw()
	}
	if g, ok := c.(*gathered); ok {
		c = g.Conn
	}
	return c
}

// halfCloser returns who can end what is sent on a connection, or nil.
func halfCloser(c net.Conn) interface{ CloseWrite() error } {
	half, _ := rawOf(c).(interface{ CloseWrite() error })
	return half
}
