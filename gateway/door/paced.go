package door

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// A pacedListener bounds how long its connections take nothing of what is sent.
type pacedListener struct {
	net.Listener
	o *Options
}

func (l *pacedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &paced{Conn: c, o: l.o}, nil
}

// A paced is a connection on which a write ends when nothing was taken of it for
// Options.BodyTimeout, and up to a quarter of that: a client that does not read would
// else hold an upstream's connection, and a place there, for as long as it likes.
//
// What a write has got rid of is known only when it returns, so it is made to return
// now and then, after a slice of the time. And to tell the connection of a time for
// each write would be a lock and a timer for each: one that was told lately has enough
// of its slice left.
type paced struct {
	net.Conn
	o      *Options
	told   atomic.Int64 // when it was told of a time, in ns since 1970; 0: it has none of ours
	theirs atomic.Bool  // somebody else bounds writes, as TLS does when it says farewell
}

// parts is in how many slices the bound of a write is cut.
const parts = 8

// Write implements net.Conn.
func (p *paced) Write(b []byte) (n int, err error) {
	if p.theirs.Load() {
		return p.Conn.Write(b)
	}
	began := time.Now()
	if slice := p.o.BodyTimeout / parts; began.UnixNano()-p.told.Load() > int64(slice/2) {
		p.tell(began)
	}
	// began is when something was taken last, as far as is known.
	for {
		taken, err := p.Conn.Write(b[n:])
		n += taken
		if err == nil || p.theirs.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		now := time.Now()
		if taken > 0 {
			began = now
		} else if now.Sub(began) >= p.o.BodyTimeout {
			if p.o.NotRead != nil {
				p.o.NotRead()
			}
			return n, err
		}
		p.tell(now)
	}
}

// tell gives writes a slice of time.
func (p *paced) tell(now time.Time) {
	p.told.Store(now.UnixNano())
	_ = p.Conn.SetWriteDeadline(now.Add(p.o.BodyTimeout / parts)) // a closed connection says so when it is written to
}

// SetWriteDeadline implements net.Conn.
func (p *paced) SetWriteDeadline(t time.Time) error {
	p.others(t)
	return p.Conn.SetWriteDeadline(t)
}

// SetDeadline implements net.Conn.
func (p *paced) SetDeadline(t time.Time) error {
	p.others(t)
	return p.Conn.SetDeadline(t)
}

// others takes note of a time that is not ours.
func (p *paced) others(t time.Time) {
	p.told.Store(0)
	p.theirs.Store(!t.IsZero())
}

// CloseWrite ends what is sent, where the connection can do that.
func (p *paced) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return net.ErrClosed
}
