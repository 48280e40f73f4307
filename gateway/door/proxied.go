package door

import (
	"net"

	"github.com/pires/go-proxyproto"
)

// proxied returns a listener whose connections come from whom the proxies that
// o.Proxied names say, in a header of the PROXY protocol, version 1 or 2, in front
// of all else (haproxy.org, proxy-protocol.txt). Such a peer has to send one: were
// it optional, whoever gets through it could send one of his own. A header without
// an address, as of a proxy that asks on its own behalf, leaves the peer's.
// Nobody else's is looked at.
func proxied(l net.Listener, o *Options) net.Listener {
	return &proxyproto.Listener{
		Listener: l, ReadHeaderTimeout: o.HeaderTimeout,
		ConnPolicy: func(c proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if o.Proxied(c.Upstream) {
				return proxyproto.REQUIRE, nil
			}
			return proxyproto.SKIP, nil
		},
	}
}

// tellProxy tells of a proxy that sends no header, or none that can be read: its
// connection is closed, and nobody else would say why.
func tellProxy(c net.Conn, o *Options) {
	if p, ok := c.(*proxyproto.Conn); ok && p.ProxyHeader() == nil && o.ProxyFailed != nil {
		o.ProxyFailed(p.Raw().RemoteAddr())
	}
}

// halfCloser returns who can end what is sent on a connection, or nil.
func halfCloser(c net.Conn) interface{ CloseWrite() error } {
	if p, ok := c.(*proxyproto.Conn); ok {
		c = p.Raw()
	}
	half, _ := c.(interface{ CloseWrite() error })
	return half
}
