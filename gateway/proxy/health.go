package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// The defaults of Health.
const (
	DefaultHealthInterval = 2 * time.Second
	DefaultHealthTimeout  = time.Second
	DefaultHealthy        = 2
	DefaultUnhealthy      = 3
)

// checkBody is how much of the answer to a check is read, in bytes, so that a server
// with little to say can say it. None of it matters.
const checkBody = 4 << 10

// Health says how each target is asked whether it is well. It is when the status of
// the answer is one of 200 to 299, in time.
//
// A check goes over a connection of its own, by the target's scheme and with its TLS, as
// a GET with the target's Host, its path in front of Path, and User-Agent gateway-health.
// The next begins Interval after the one before, a tenth more or less, and never while
// that is under way. The first is made at once and decides by itself; until then a target
// counts as it did before, and a new one as well. One whose name could not be looked up is
// no verdict, and counts as if it had not been made.
//
// One that fails its checks gets no requests while another target may have them; those
// that it has go on. If none may, all targets get them.
type Health struct {
	// Path, with a query or not, is asked for. Required, from a slash on.
	Path string
	// Interval is the time between two checks, Timeout bounds one, with connecting. Zero
	// means DefaultHealthInterval, and DefaultHealthTimeout or Interval if that is less.
	Interval, Timeout time.Duration
	// Healthy is how many checks in a row have to pass before a target that failed is
	// well, Unhealthy how many have to fail before one that was well is not. Zero means
	// DefaultHealthy and DefaultUnhealthy.
	Healthy, Unhealthy int
}

// ErrUnhealthy marks in Hooks.Target what a health check found.
var ErrUnhealthy = errors.New("the health check failed")

// errNoAddress marks a check that reached nobody, since the target's name could not be
// looked up. It says nothing about the target: were it a verdict, a name server that is
// away would make all targets sick that have a name.
var errNoAddress = errors.New("its name could not be looked up")

// filled returns h with its defaults. An error says what is wrong.
func (h Health) filled() (*Health, error) {
	if h.Interval == 0 {
		h.Interval = DefaultHealthInterval
	}
	if h.Timeout == 0 {
		h.Timeout = min(DefaultHealthTimeout, h.Interval)
	}
	if h.Healthy == 0 {
		h.Healthy = DefaultHealthy
	}
	if h.Unhealthy == 0 {
		h.Unhealthy = DefaultUnhealthy
	}
	if _, err := url.ParseRequestURI(h.Path); err != nil || !strings.HasPrefix(h.Path, "/") || strings.ContainsFunc(h.Path, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' }) {
		return nil, fmt.Errorf("health path %q: want a path such as /healthz", h.Path)
	}
	if h.Interval < 0 || h.Timeout < 0 || h.Healthy < 0 || h.Unhealthy < 0 {
		return nil, fmt.Errorf("health %+v: want times and numbers above 0", h)
	}
	return &h, nil
}

// A checker asks one target.
type checker struct {
	transport *http.Transport
	request   *http.Request
	timeout   time.Duration
	http1     atomic.Bool // the last answer over h2c was one of HTTP/1
}

// A listened is a connection to a target of h2c whose first words are listened to: what
// net/http says of an answer in HTTP/1 depends on what it was doing.
type listened struct {
	net.Conn
	heard bool
	http1 *atomic.Bool
}

// Read implements net.Conn.
func (l *listened) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if !l.heard && n > 0 {
		l.heard = true
		l.http1.Store(bytes.HasPrefix(p[:n], []byte("HTTP/1")))
	}
	return n, err
}

func (t *target) newChecker(o *Options) *checker {
	d := t.dialer
	d.watch = nil // it is told of the whole check
	c := &checker{timeout: o.Health.Timeout}
	if t.onlyHTTP2 {
		connect := d.connect
		d.connect = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := connect(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &listened{Conn: conn, http1: &c.http1}, nil
		}
	}
	c.transport = t.newTransport(o, &d)
	// Over a fresh connection, so that a check says that those who come can connect,
	// and goes where the name points today.
	c.transport.DisableKeepAlives = true
	path, _ := url.ParseRequestURI(o.Health.Path) // it was parsed before
	to := new(url.URL)
	*to = *path
	t.point(to, path)
	c.request = &http.Request{
		Method: http.MethodGet, URL: to, Header: http.Header{"User-Agent": {"gateway-health"}},
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	return c
}

// check returns why the target is not well, in words that begin with what was asked. It is
// errNoAddress, too, if nobody could be asked.
func (c *checker) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	c.http1.Store(false)
	asked := "GET " + c.request.URL.RequestURI()
	// A name server that is silent costs the whole time, and then the error says no more
	// than that it is over. So it is noted which step we were at.
	var lookingUp atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		DNSStart: func(httptrace.DNSStartInfo) { lookingUp.Store(true) },
		DNSDone:  func(d httptrace.DNSDoneInfo) { lookingUp.Store(d.Err != nil) },
	})
	res, err := c.transport.RoundTrip(c.request.WithContext(traced))
	_, noName := errors.AsType[*net.DNSError](err)
	switch {
	case err == nil:
	case noName || lookingUp.Load():
		return fmt.Errorf("%w: %s: %w: %w", ErrUnhealthy, asked, errNoAddress, err)
	case ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("%w: %s got no answer within %v", ErrUnhealthy, asked, c.timeout)
	case c.http1.Load():
		return fmt.Errorf("%w: %s: it answers in HTTP/1 where h2c:// wants HTTP/2; want http:// in place of h2c://", ErrUnhealthy, asked)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %s: it closed the connection without an answer", ErrUnhealthy, asked)
	default:
		return fmt.Errorf("%w: %s: %w", ErrUnhealthy, asked, err)
	}
	defer res.Body.Close() //nolint:errcheck // the connection ends with it
	_, _ = io.CopyN(io.Discard, res.Body, checkBody)
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("%w: %s was answered with %d, want 200 to 299", ErrUnhealthy, asked, res.StatusCode)
	}
	return nil
}

// Check asks target i of Options.Targets once whether it is well, as Health says, which
// there must be, and returns why it is not. Nothing else comes of it.
func (u *Upstream) Check(ctx context.Context, i int) error {
	return u.targets[i].checker.check(ctx)
}

// watchOver checks a target until ctx ends.
func (u *Upstream) watchOver(ctx context.Context, t *target) {
	for {
		began := time.Now()
		err := t.checker.check(ctx)
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errNoAddress) {
			u.ward.checkEnded(t, err)
		}
		wait(ctx, jittered(u.ward.health.Interval)-time.Since(began))
		if ctx.Err() != nil {
			return
		}
	}
}

// jittered is d, a tenth more or less, so that what began together does not stay so.
func jittered(d time.Duration) time.Duration {
	return d*9/10 + rand.N(d/5+1) //nolint:gosec // no secret
}
