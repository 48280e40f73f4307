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
// Options.BodyTimeout: a client that does not read would else hold an upstream's
// connection, and a place there, for as long as it likes.
//
// To tell the connection of a time for each write would be a lock and a timer for
// each, so the time is told anew only after an eighth of it. A write has seven eighths
// at least.
type paced struct {
	net.Conn
	o      *Options
	told   atomic.Int64 // when it was told of a time, in ns since 1970; 0: it has none of ours
	theirs atomic.Bool  // somebody else bounds writes, as TLS does when it says farewell
}

// Write implements net.Conn.
func (p *paced) Write(b []byte) (n int, err error) {
	if p.theirs.Load() {
		return p.Conn.Write(b)
	}
	if now := time.Now(); now.UnixNano()-p.told.Load() > int64(p.o.BodyTimeout/8) {
		p.tell(now)
	}
	for {
		taken, err := p.Conn.Write(b[n:])
		n += taken
		if err == nil || p.theirs.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if taken == 0 {
			if p.o.NotRead != nil {
				p.o.NotRead()
			}
			return n, err
		}
		p.tell(time.Now()) // slow, and not at a standstill
	}
}

func (p *paced) tell(now time.Time) {
	p.told.Store(now.UnixNano())
	_ = p.Conn.SetWriteDeadline(now.Add(p.o.BodyTimeout)) // a closed connection says so when it is written to
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
