package proxy

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	// lookUpEvery is the time between two looks at where a target's name points, a tenth
	// more or less. Most names that move by themselves live for some seconds, or a minute.
	lookUpEvery = 10 * time.Second
	// lookUpFor bounds one look.
	lookUpFor = 5 * time.Second
)

// movable returns the host name of a target that may come to mean other addresses; empty
// if it has none that may.
func movable(u *url.URL) string {
	host := u.Hostname()
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(host); err == nil || u.Scheme == "unix" || name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return ""
	}
	return host
}

// follow looks now and then where the target's name points, until ctx ends. When that
// has changed, new requests go over new connections, and the old ones end as their
// requests do: a connection in use does not know that its server's name has moved, and a
// busy one would be used for ever. A look that fails, or finds nothing, changes nothing.
func (u *Upstream) follow(ctx context.Context, t *target) {
	var known []string
	for {
		found, err := u.lookUp(ctx, t.movable)
		if ctx.Err() != nil {
			return
		}
		if err == nil && len(found) > 0 {
			slices.Sort(found)
			found = slices.Compact(found)
			if known != nil && !slices.Equal(known, found) {
				u.move(t)
			}
			known = found
		}
		wait(ctx, jittered(lookUpEvery))
		if ctx.Err() != nil {
			return
		}
	}
}

func (u *Upstream) lookUp(ctx context.Context, host string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpFor)
	defer cancel()
	if u.resolve != nil {
		return u.resolve(ctx, host)
	}
	return net.DefaultResolver.LookupHost(ctx, host)
}

// move has new requests to t connect anew. Where it could not be connected to, one may
// try at once.
func (u *Upstream) move(t *target) {
	old := t.transport.Swap(t.fresh())
	// Those of HTTP/1 close as they become idle from now on. Those of HTTP/2 do not; and
	// a request that took hold of the pool just now makes it keep connections again. So
	// each request that ends here says so once more, in exchange.leave.
	old.CloseIdleConnections()
	u.ward.moved(t)
	if u.hooks.Moved != nil && !u.room.closed.Load() {
		u.hooks.Moved(u.name, t.name)
	}
}
