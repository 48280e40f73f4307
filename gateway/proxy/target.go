package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// target is one server, with a pool of connections of its own.
type target struct {
	// name is what logs and metrics call it: the host of its URL, or unix:/path.
	name string
	// scheme and host are those of the requests that it gets.
	scheme, host string
	weight       int64  // at least 1
	seed         uint64 // of the numbers that it draws for keys
	path         string // decoded, without a final slash
	rawPath      string // the same as configured, escaped
	url          string // as configured: which target it is
	dialer       dialer
	transport    atomic.Pointer[http.Transport] // replaced when its name has moved
	fresh        func() *http.Transport         // makes another one
	movable      string                         // the name that may move; empty: it has none
	checker      *checker                       // nil: its health is not checked
	inFlight     atomic.Int64
	condition
	// onlyHTTP2: it can be asked for no WebSocket.
	onlyHTTP2 bool
}

// socketHost is the Host of requests over a unix socket, which has none.
const socketHost = "localhost"

// newTarget checks a configured URL. Its text is not in the errors, because a
// user and password in it would be a secret.
func newTarget(configured Target, o *Options) (*target, error) {
	u := configured.URL
	switch {
	case u == nil:
		return nil, errors.New("want a URL")
	case configured.Weight < 0 || configured.Weight > MaxWeight:
		return nil, fmt.Errorf("weight %d: want 1 to %d", configured.Weight, MaxWeight)
	}
	t := &target{
		url: u.String(), name: TargetName(u), scheme: u.Scheme, host: u.Host, path: trimSlash(u.Path), rawPath: trimSlash(u.EscapedPath()),
		weight: int64(max(configured.Weight, 1)),
	}
	t.seed = xxhash.Sum64String(t.url)
	t.dialer = newDialer(o)
	switch {
	case u.User != nil:
		return nil, errors.New("want no user or password in the URL")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("want no query or fragment in the URL")
	case u.Opaque != "":
		return nil, errors.New("want // behind the scheme")
	}
	switch u.Scheme {
	case "http", "https":
	case "h2c":
		t.scheme, t.onlyHTTP2 = "http", true
	case "unix":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
			return nil, errors.New("want unix:///path, the whole path of a socket")
		}
		t.scheme, t.host, t.path, t.rawPath = "http", socketHost, "", ""
		t.dialer.socket = u.Path
	default:
		return nil, fmt.Errorf("scheme %q: want http, https, h2c or unix", u.Scheme)
	}
	if u.Hostname() == "" && u.Scheme != "unix" {
		return nil, errors.New("want a host")
	}
	t.movable = movable(u)
	t.fresh = func() *http.Transport { return t.newTransport(o, &t.dialer) }
	t.transport.Store(t.fresh())
	if o.Health != nil {
		t.checker = t.newChecker(o)
	}
	return t, nil
}

// newTransport returns a pool of connections that speaks the target's protocol.
func (t *target) newTransport(o *Options, d *dialer) *http.Transport {
	tr := newTransport(o, d)
	switch {
	case t.onlyHTTP2:
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	case t.scheme == "https":
		tr.ForceAttemptHTTP2 = true // by ALPN
	}
	return tr
}

// trimSlash cuts one final slash, since the request's path brings its own.
func trimSlash(path string) string { return strings.TrimSuffix(path, "/") }

// TargetName is what logs and metrics call the target with that URL.
func TargetName(u *url.URL) string {
	if u.Scheme == "unix" {
		return "unix:" + u.Path
	}
	return u.Host
}
