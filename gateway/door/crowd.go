package door

import (
	"net"
	"sync"
)

// A crowdListener asks of each connection whether there is a place for it, before
// anything is read from it, and closes those for which there is none.
type crowdListener struct {
	net.Listener
	o *Options
}

// Accept implements net.Listener. Whom a proxy of the PROXY protocol sends is known
// later, see admitted: nobody else is to wait for what such a proxy says.
func (l *crowdListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p := &placed{Conn: c}
		if l.o.Proxied != nil && l.o.Proxied(c.RemoteAddr()) || p.admit(l.o, c.RemoteAddr()) {
			return p, nil
		}
		_ = c.Close()
	}
}

// admitted asks for a place for a connection that has none yet. It may wait for the
// header of a proxy, and is called once, by whoever reads from the connection.
func admitted(c net.Conn, o *Options) bool {
	p, ok := rawOf(c).(*placed)
	return !ok || p.asked || p.admit(o, c.RemoteAddr())
}

// placed is a connection that gives its place back when it is closed.
type placed struct {
	net.Conn
	asked bool

	mu     sync.Mutex // protects the following fields
	leave  func()
	closed bool
}

func (p *placed) admit(o *Options, client net.Addr) bool {
	leave, ok := o.Enter(client)
	p.asked = true
	if !ok || leave == nil {
		return ok
	}
	p.mu.Lock()
	if !p.closed {
		p.leave, leave = leave, nil
	}
	p.mu.Unlock()
	if leave != nil { // it was closed meanwhile
		leave()
	}
	return true
}

// Close implements net.Conn.
func (p *placed) Close() error {
	p.mu.Lock()
	leave := p.leave
	p.leave, p.closed = nil, true
	p.mu.Unlock()
	err := p.Conn.Close()
	if leave != nil {
		leave()
	}
	return err
}

// CloseWrite ends what is sent, where the connection can do that.
func (p *placed) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return net.ErrClosed
}
