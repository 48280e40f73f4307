package clientip

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"bouncer/gateway/scope"
)

// The work for one request is bounded from the right, where the trusted hops
// stand, so that no sender can make it long by writing much on the left.
const (
	maxEntries    = 64
	maxBytes      = 8 << 10
	maxEntryBytes = 512 // an element of Forwarded may also carry host, proto and by
)

// unknownBucket counts the requests whose client has no address: they came
// over a unix socket and no trusted hop named anybody. It is no address, so it
// can be mistaken for nobody's bucket.
const unknownBucket = scope.NoAddress

// Options says whose word counts. The zero value trusts nobody: the peer is
// the client.
type Options struct {
	// Trusted are the proxies that may name another address: those in front of
	// the gateway, and those in front of them. Empty: none. An IPv4 prefix in
	// IPv6-mapped form counts as the IPv4 prefix it stands for.
	Trusted []netip.Prefix
	// TrustUnix has peers on a unix socket be trusted proxies, too: processes of
	// this machine that were let at the socket's path.
	TrustUnix bool
	// Header is the field trusted proxies write: X-Forwarded-For (the default),
	// Forwarded, or the name of a field with a single address. Only this one is
	// read, because a proxy that writes one of them passes the others through
	// as its client sent them.
	Header string
	// IPv6Prefix is how many leading bits of an IPv6 address make one bucket,
	// 1 to 128. 0 means 64.
	IPv6Prefix int
}

// A Resolver tells whose address a request comes from. It is immutable and
// safe for concurrent use.
type Resolver struct {
	trusted    []netip.Prefix // sorted, disjoint
	trustUnix  bool
	header     string // canonical
	kind       kind
	ipv6Prefix int
}

type kind uint8

const (
	kindList      kind = iota // X-Forwarded-For
	kindForwarded             // Forwarded, RFC 7239
	kindSingle                // one address
)

// Result is whose address it is.
type Result struct {
	// Peer is who is on the wire, without zone, IPv4-mapped addresses as IPv4.
	// It is the zero Addr on a unix socket.
	Peer netip.Addr
	// PeerTrusted reports that the peer may name another address.
	PeerTrusted bool
	// Ignored reports that an untrusted peer sent the field all the same. One
	// peer that always does is a proxy somebody forgot to trust, and everyone
	// behind it shares one bucket: worth a warning.
	Ignored bool
	// Client is the whole address of the client as decided. It is the zero Addr
	// only if the peer is on a unix socket and no trusted hop named anybody.
	Client netip.Addr
	// Bucket is the client as limits count it: an IPv4 address as it is, an
	// IPv6 address as its prefix, "2001:db8::/64". It always parses as one of
	// these; for a zero Client it is scope.NoAddress.
	Bucket string
	// Forwarded is the believed chain, from the client over the trusted hops to
	// the peer, separated by ", ": what the upstream is to read as
	// X-Forwarded-For. What an untrusted peer sent is not in it. A peer on a
	// unix socket has no address to add, so it may be empty.
	Forwarded string
}

// New checks o and returns a resolver.
func New(o Options) (*Resolver, error) {
	r := &Resolver{ipv6Prefix: o.IPv6Prefix, trustUnix: o.TrustUnix}
	switch {
	case o.IPv6Prefix == 0:
		r.ipv6Prefix = 64
	case o.IPv6Prefix < 0 || o.IPv6Prefix > 128:
		return nil, fmt.Errorf("ipv6 prefix %d: want 1 to 128 bits", o.IPv6Prefix)
	}

	if o.Header == "" {
		o.Header = "X-Forwarded-For"
	}
	if !isToken(o.Header) {
		return nil, fmt.Errorf("header %q: want the name of a field, such as X-Forwarded-For", o.Header)
	}
	r.header = http.CanonicalHeaderKey(o.Header)
	switch r.header {
	case "X-Forwarded-For":
		r.kind = kindList
	case "Forwarded":
		r.kind = kindForwarded
	default:
		r.kind = kindSingle
	}

	var err error
	r.trusted, err = disjoint(o.Trusted)
	return r, err
}

// disjoint returns the prefixes sorted and without those that lie in another,
// so that one binary search finds the only one that can hold an address.
func disjoint(in []netip.Prefix) ([]netip.Prefix, error) {
	sorted := make([]netip.Prefix, 0, len(in))
	for _, p := range in {
		if !p.IsValid() {
			return nil, fmt.Errorf("trusted proxy %v: want an address prefix, such as 10.0.0.0/8", p)
		}
		if a := p.Addr(); a.Is4In6() {
			// Addresses are folded before they are compared, so that a prefix
			// which keeps the mapped form would never match.
			if p.Bits() < 96 {
				return nil, fmt.Errorf("trusted proxy %v: an IPv4-mapped prefix has at least 96 bits; write the IPv4 prefix", p)
			}
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits() // the wider first
	})
	out := sorted[:0]
	for _, p := range sorted {
		if n := len(out); n > 0 && out[n-1].Contains(p.Addr()) {
			continue
		}
		out = append(out, p)
	}
	return out, nil
}

// Trusts reports whether a peer, named as in http.Request.RemoteAddr, is a trusted
// proxy.
func (r *Resolver) Trusts(peer string) bool { return r.trustsPeer(parsePeer(peer)) }

// trustsPeer reports whether what parsePeer said is a trusted proxy.
func (r *Resolver) trustsPeer(a netip.Addr, local bool) bool {
	if local {
		return r.trustUnix
	}
	return r.trusts(a)
}

// Own returns the addresses that are one client for limits and that a peer, named as
// in http.Request.RemoteAddr, is among. It is not ok for a trusted proxy, which speaks
// for many, and for a peer without an address, behind a unix socket.
func (r *Resolver) Own(peer string) (own netip.Prefix, ok bool) {
	a, local := parsePeer(peer)
	if local || !a.IsValid() || r.trusts(a) {
		return netip.Prefix{}, false
	}
	bits := a.BitLen()
	if a.Is6() {
		bits = r.ipv6Prefix
	}
	own, err := a.Prefix(bits)
	return own, err == nil
}

// trusts reports whether a folded address is a trusted proxy's.
func (r *Resolver) trusts(a netip.Addr) bool {
	i, found := slices.BinarySearchFunc(r.trusted, a, func(p netip.Prefix, a netip.Addr) int {
		return p.Addr().Compare(a)
	})
	if found {
		return true
	}
	return i > 0 && r.trusted[i-1].Contains(a)
}

// Alone tells whose address req comes from if nobody has vouched for what it says: the
// peer's, whoever that is.
func (r *Resolver) Alone(req *http.Request) Result {
	peer, _ := parsePeer(req.RemoteAddr)
	res := Result{Peer: peer, Client: peer}
	r.alone(&res)
	return res
}

// alone makes the peer the only one that is believed.
func (r *Resolver) alone(res *Result) {
	res.Bucket = r.bucket(res.Peer)
	if res.Peer.Is4() {
		res.Forwarded = res.Bucket // the same text; one allocation less
	} else if res.Peer.IsValid() {
		res.Forwarded = res.Peer.String()
	}
}

// Resolve tells whose address req comes from. It reads RemoteAddr and the
// configured field, and changes nothing.
func (r *Resolver) Resolve(req *http.Request) Result {
	peer, local := parsePeer(req.RemoteAddr)
	res := Result{Peer: peer, Client: peer}
	lines := req.Header[r.header]

	res.PeerTrusted = r.trustsPeer(peer, local)
	if !res.PeerTrusted || len(lines) == 0 {
		res.Ignored = len(lines) > 0
		r.alone(&res)
		return res
	}

	// The chain is collected from the right: the peer, then each hop it and the
	// hops before it vouch for. Its last element is the client.
	var room [maxEntries + 1]netip.Addr
	chain := room[:0]
	if peer.IsValid() {
		chain = append(chain, peer)
	}
	switch r.kind {
	case kindSingle:
		if len(lines) == 1 {
			if a, ok := parseNode(trimOWS(lines[0])); ok {
				chain = append(chain, a)
			}
		}
	default:
		chain = r.walk(lines, chain)
	}

	if n := len(chain); n > 0 {
		res.Client = chain[n-1]
	}
	res.Bucket = r.bucket(res.Client)
	res.Forwarded = join(chain)
	return res
}

// walk appends what the field says to chain, from the right, up to and with
// the first address that is not trusted.
func (r *Resolver) walk(lines []string, chain []netip.Addr) []netip.Addr {
	budget := maxBytes
	entries := 0
	for _, line := range slices.Backward(lines) {
		// Lines are one list, as if joined by commas (RFC 9110 section 5.3);
		// walking them one by one saves the joining.
		rest, more := line, true
		for more {
			var entry string
			var ok bool
			// The last maxEntryBytes of what is there hold any entry that is
			// short enough to be one.
			window := rest
			if len(window) > maxEntryBytes {
				window = window[len(window)-maxEntryBytes:]
			}
			var at int // where the entry starts in window, behind its comma
			if r.kind == kindForwarded {
				at, ok = lastElement(window)
			} else {
				at, ok = strings.LastIndexByte(window, ',')+1, true
			}
			if !ok || (at == 0 && len(window) < len(rest)) {
				return chain // too long, or broken
			}
			entry = trimOWS(window[at:])
			if more = at > 0; more {
				rest = rest[:len(rest)-len(window)+at-1]
			}

			budget -= len(window) - at + 1
			entries++
			if budget < 0 || entries > maxEntries {
				return chain
			}

			var a netip.Addr
			if r.kind == kindForwarded {
				a, ok = parseElement(entry)
			} else {
				a, ok = parseNode(entry)
			}
			if !ok {
				return chain
			}
			chain = append(chain, a)
			if !r.trusts(a) {
				return chain
			}
		}
	}
	return chain
}

// Bucket is the text that limits count an address by, [scope.NoAddress] for the zero
// Addr.
func (r *Resolver) Bucket(a netip.Addr) string { return r.bucket(fold(a)) }

// bucket is the text limits count a by.
func (r *Resolver) bucket(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return unknownBucket
	case a.Is4():
		return a.String()
	}
	p, err := a.Prefix(r.ipv6Prefix)
	if err != nil {
		panic("bug: " + err.Error()) // New has checked the number of bits
	}
	var room [len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")]byte
	return string(p.AppendTo(room[:0])) // one allocation; String makes two
}

// join writes a chain, which was collected from the right, from left to right.
func join(chain []netip.Addr) string {
	var room [256]byte
	b := room[:0]
	for _, a := range slices.Backward(chain) {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = a.AppendTo(b)
	}
	return string(b)
}
