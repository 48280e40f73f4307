package config

import (
	"math"
	"net"
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// ref is a name that stands for something declared elsewhere.
type ref struct {
	name string
	at   value
}

// routesFile is what routes.yaml says. Parts that were wrong are zero, and
// were reported; what was named keeps its name, so that a mistake in one place
// makes no second one elsewhere.
type routesFile struct {
	root     value
	listen   Listen
	sockets  []value // public addresses that are unix sockets
	adminAt  value   // listen.admin, or the root
	admin    Admin
	log      Log
	traces   *Traces
	shutdown time.Duration
	drain    time.Duration
	clientIP ClientIP
	trusted  bool // trusted_proxies is not empty
	store    Store
	// redisGiven: store.redis is there, even if it was wrong.
	redisGiven bool
	auth       authSection
	limits     map[string]*limitDecl
	order      []*limitDecl // limits in file order
	edge       []ref
	upstreams  map[string]*Upstream // nil values were wrong
	pools      []*Upstream          // upstreams in file order
	routes     []*routeDecl
	usesKnown  bool // every place was read that can name a limit
	headers    ClientHeaders
	usage      string // usage_path; empty: none
	usageAt    value
	// httpsGiven says that listen.https is there, right or wrong.
	httpsGiven bool
}

const wantedRoutes = "the fields listen, upstreams and routes"

// readRoutes reads routes.yaml. It returns nil if there is nothing to check.
func readRoutes(root value) *routesFile {
	f := &routesFile{root: root}
	o, ok := root.object(wantedRoutes)
	if !ok {
		return nil
	}
	o.extensions = true
	f.readListen(o)
	f.readAdmin(o)
	f.log, f.traces = readLog(o), readTraces(o)
	f.shutdown = o.duration("shutdown_timeout", 30*time.Second, 0, day)
	f.drain = o.duration("drain_delay", 0, 0, day)
	f.readClientIP(o)
	f.store, f.redisGiven = readStore(o)
	f.auth = readAuth(o)
	f.checkClientCerts()
	f.readLimits(o)
	edgeKnown := !o.has("edge")
	if v, ok := o.get("edge", "a list of limits"); ok {
		f.edge, edgeKnown = v.refs("names of limits")
	}
	f.readUpstreams(o)
	forward := o.boolean("forward_credentials", false)
	f.readRoutes(o, forward)
	f.auth.lookForScopes(f.routes)
	f.usesKnown = f.usesKnown && edgeKnown
	f.headers = readClientHeaders(o)
	f.usage, f.usageAt = readUsagePath(o)
	o.done()
	return f
}

// duration reads an optional field.
func (o *object) duration(name string, fallback, low, high time.Duration) time.Duration {
	if v, ok := o.get(name, "a duration such as 30s"); ok {
		if d, ok := v.duration(low, high); ok {
			return d
		}
	}
	return fallback
}

// boolean reads an optional field.
func (o *object) boolean(name string, fallback bool) bool {
	if v, ok := o.get(name, "true or false"); ok {
		if b, ok := v.boolean(); ok {
			return b
		}
	}
	return fallback
}

// word reads an optional field.
func (o *object) word(name, wanted string) string {
	if v, ok := o.get(name, wanted); ok {
		s, _ := v.word(wanted)
		return s
	}
	return ""
}

// refs reads a list of names; ok says that all of them could be read.
func (v value) refs(wanted string) (refs []ref, ok bool) {
	vs, names, ok := v.words(wanted, false)
	if len(vs) > maxLimits {
		v.errorf("%d limits; want at most %d, since every request is decided by all of them", len(vs), maxLimits)
		return nil, false
	}
	refs = make([]ref, len(vs))
	for i := range vs {
		refs[i] = ref{names[i], vs[i]}
	}
	return refs, ok
}

const wantedAddress = `"host:port", ":port" or "unix:/path"`

// readListen reads listen.
func (f *routesFile) readListen(top *object) {
	l := &f.listen
	l.Admin = "127.0.0.1:9090"
	f.adminAt = top.value
	v, ok := top.need("listen", "listen.http, listen.https or both")
	if !ok {
		return
	}
	f.adminAt = v
	o, ok := v.object("http, https, admin and max_connections_per_ip")
	if !ok {
		return
	}
	var publicAt []value
	if a, ok := o.get("http", wantedAddress); ok {
		if l.HTTP, ok = a.listenAddress(); ok {
			publicAt = append(publicAt, a)
		}
	}
	if h, ok := o.get("https", wantedHTTPS); ok {
		var at value
		if l.HTTPS, at = readHTTPS(h); l.HTTPS != nil {
			publicAt = append(publicAt, at)
		}
	}
	if v, ok := o.get("max_connections_per_ip", "a number of connections"); ok {
		if word := strings.ToLower(v.n.Value); word == "any" || word == "off" || word == "none" || word == "unlimited" {
			v.errorf("%s is not a number; want 0, which is any number of connections", quote(v.n.Value))
		} else {
			n, _ := v.integer(0, math.MaxInt32)
			l.MaxConnectionsPerIP = int(n)
		}
	}
	f.httpsGiven = o.has("https")
	if !o.has("http") && !o.has("https") {
		v.missing("http", wantedAddress+", or https")
	}
	if l.HTTPS != nil && l.HTTP != "" && sameAddress(l.HTTP, l.HTTPS.Address) {
		publicAt[1].errorf("is the address of listen.http too; want another port")
	}
	if a, ok := o.get("admin", wantedAddress); ok {
		f.adminAt = a
		if s, ok := a.listenAddress(); ok {
			l.Admin = s
		}
	}
	for i, p := range publicAt {
		public := l.HTTP
		if i == len(publicAt)-1 && l.HTTPS != nil {
			public = l.HTTPS.Address
		}
		if strings.HasPrefix(public, "unix:") {
			f.sockets = append(f.sockets, p)
		}
		if sameAddress(l.Admin, public) {
			f.adminAt.errorf("the admin listener has the address of %s, where everyone can reach it; want another port", p.path)
			break
		}
	}
	o.done()
}

const wantedHTTPS = "address, and acme or cert_file and key_file"

// readHTTPS reads listen.https; nil if anything was wrong.
func readHTTPS(v value) (*HTTPS, value) {
	o, ok := v.object(wantedHTTPS)
	if !ok {
		return nil, v
	}
	h, good, at := &HTTPS{}, false, v
	if a, ok := o.need("address", wantedAddress); ok {
		at = a
		h.Address, good = a.listenAddress()
	}
	o.later("client_ca_file", wantedHTTPS)
	var pair bool
	if a, ok := o.get("acme", wantedACME); ok {
		h.ACME = a.acme()
		pair = h.ACME != nil
		for _, name := range [...]string{"cert_file", "key_file"} {
			if f, ok := o.get(name, "a PEM file"); ok {
				f.keyErrorf("stands beside acme, which gets certificates by itself; want one of them")
				pair = false
			}
		}
	} else {
		h.CertFile, h.KeyFile, pair = o.keyPair(true)
	}
	o.done()
	if !good || !pair {
		return nil, v
	}
	return h, at
}

// maxSocketPath bounds the path of a unix socket, in bytes: with the zero at its end
// it is 104, which is what the narrowest of the systems we run on allows.
const maxSocketPath = 103

// listenAddress reads an address to listen on.
func (v value) listenAddress() (string, bool) {
	s, ok := v.word(wantedAddress)
	if !ok {
		return "", false
	}
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if !strings.HasPrefix(path, "/") || len(path) > maxSocketPath {
			v.errorf("%s: want unix: and an absolute path of at most %d bytes", quote(s), maxSocketPath)
			return "", false
		}
		return s, true
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		guess := ""
		if _, err := strconv.ParseUint(s, 10, 16); err == nil {
			guess = " (did you mean " + strconv.Quote(":"+s) + "?)"
		}
		v.errorf("%s is not an address; want %s%s", quote(s), wantedAddress, guess)
		return "", false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		v.errorf("%s: bad port %s; want a number from 0 to 65535", quote(s), quote(port))
		return "", false
	}
	if !isHost(host) && host != "" {
		v.errorf("%s: bad host; want an IP address, a host name or nothing", quote(s))
		return "", false
	}
	return s, true
}

// isHost reports whether s is an IP address or a host name.
func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	if len(s) == 0 || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// sameAddress reports whether two listeners would meet on one port. Port 0 is
// any free port, and meets none.
func sameAddress(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	if strings.HasPrefix(a, "unix:") || strings.HasPrefix(b, "unix:") {
		return a == b
	}
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	return portA == portB && portA != "0" && (hostA == hostB || isWildcard(hostA) || isWildcard(hostB))
}

// isWildcard reports whether a listener on host answers on every interface.
func isWildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// isLoopback reports whether only this machine can reach the address.
func isLoopback(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// wantedAdmin is what admin has.
const wantedAdmin = "token_file, client_ca_file, cert_file and key_file"

// readAdmin reads admin.
func (f *routesFile) readAdmin(top *object) {
	guarded := false
	if v, ok := top.get("admin", wantedAdmin); ok {
		if o, ok := v.object(wantedAdmin); ok {
			guarded = f.readAdminAccess(o)
			o.done()
		}
	}
	if !guarded && !isLoopback(f.listen.Admin) {
		f.adminAt.errorf("the admin listener on %s can be reached from other machines, and anyone who reaches it could use it; "+
			"want admin.token_file or admin.client_ca_file, or a loopback address such as 127.0.0.1:9090", quote(f.listen.Admin))
	}
}

// readAdminAccess reads the members of admin, and says whether anything is asked of who
// uses the listener.
func (f *routesFile) readAdminAccess(o *object) (guarded bool) {
	if t, ok := o.get("token_file", "a file that holds the token"); ok {
		guarded = true
		path, token, ok := t.secretText("the token")
		switch {
		case !ok:
		case strings.TrimSpace(token) != token || strings.ContainsFunc(token, unicode.IsControl):
			t.errorf("%s holds white space or a control character, with which no request could carry it; want the token alone, on one line", path)
		default:
			f.admin.Token, f.admin.TokenFile = Secret(token), absolute(path)
		}
	}
	f.admin.CertFile, f.admin.KeyFile, _ = o.keyPair(false)
	if c, ok := o.get("client_ca_file", "a PEM file of the authorities that vouch for operators"); ok {
		guarded = true
		f.admin.ClientCAFile, f.admin.ClientCAs = c.authorities()
		if !f.httpsGiven && !o.has("cert_file") && !o.has("key_file") {
			c.errorf("clients show certificates over HTTPS, for which the admin listener has none to show itself; " +
				"want admin.cert_file and admin.key_file, or listen.https, whose certificate it then shows")
		}
	}
	return guarded
}

// trustsUnix is the word among the trusted proxies for all peers on unix sockets.
const trustsUnix = "unix"

// readClientIP reads client_ip.
func (f *routesFile) readClientIP(top *object) {
	c := &f.clientIP
	*c = ClientIP{Header: "X-Forwarded-For", IPv6Prefix: 64}
	v, ok := top.get("client_ip", "trusted_proxies, header or ipv6_prefix")
	if !ok {
		return
	}
	o, ok := v.object("trusted_proxies, header or ipv6_prefix")
	if !ok {
		return
	}
	const wantedNet = "networks such as 10.0.0.0/8, or unix"
	if v, ok := o.get("trusted_proxies", "a list of "+wantedNet); ok {
		vs, texts, ok := v.words(wantedNet, false)
		f.trusted = !ok || len(vs) > 0
		c.TrustUnix = !ok // what cannot be read is an error, and no reason for a warning
		for i, s := range texts {
			if s == trustsUnix {
				c.TrustUnix = true
				continue
			}
			p, ok := parseNetwork(s)
			if !ok {
				vs[i].errorf("%s is not a network; want one such as 10.0.0.0/8 or 2001:db8::/32, or unix for the peers of a unix socket", quote(s))
				continue
			}
			if p.Bits() == 0 {
				vs[i].warnf("trusts every peer, so that each client can claim any address; name the networks of the proxies")
			}
			c.TrustedProxies = append(c.TrustedProxies, p)
		}
	}
	if v, ok := o.get("header", "the name of a header"); ok {
		if s, ok := v.header(); ok {
			c.Header = s
		}
	}
	if v, ok := o.get("ipv6_prefix", "a number of bits"); ok {
		if n, ok := v.integer(1, 128); ok {
			c.IPv6Prefix = int(n)
		}
	}
	if v, ok := o.get("proxy_protocol", "true or false"); ok {
		if c.ProxyProtocol, _ = v.boolean(); c.ProxyProtocol && !f.trusted {
			v.errorf("its header is believed of trusted proxies only, and there are none; want trusted_proxies beside it, the networks of those that send it")
		}
	}
	o.done()
}

// parseNetwork reads a prefix, or an address as a prefix of all its bits, and
// folds IPv4 written as IPv6 back.
func parseNetwork(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		ip, err := netip.ParseAddr(s)
		if err != nil || ip.Zone() != "" {
			return netip.Prefix{}, false
		}
		p = netip.PrefixFrom(ip, ip.BitLen())
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, false
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}

// header reads a header's name and returns its canonical form.
func (v value) header() (string, bool) {
	s, ok := v.word("the name of a header")
	if !ok {
		return "", false
	}
	if !isToken(s) {
		v.errorf("%s is not the name of a header; want letters, digits and -", quote(s))
		return "", false
	}
	return textproto.CanonicalMIMEHeaderKey(s), true
}

// isToken reports whether s is a token of RFC 9110 section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// readStore reads store, and says whether there is a redis, right or wrong.
func readStore(top *object) (s Store, redisGiven bool) {
	s = Store{MemoryMaxKeys: 1_000_000}
	v, ok := top.get("store", "memory or redis")
	if !ok {
		return s, false
	}
	o, ok := v.object("memory or redis")
	if !ok {
		return s, false
	}
	if v, ok := o.get("memory", "max_keys"); ok {
		if m, ok := v.object("max_keys"); ok {
			if v, ok := m.get("max_keys", "a number of entries"); ok {
				if n, ok := v.integer(1, math.MaxInt32); ok {
					s.MemoryMaxKeys = int(n)
				}
			}
			m.done()
		}
	}
	if v, ok := o.get("redis", "url"); ok {
		s.Redis = readRedis(v)
	}
	o.done()
	return s, o.has("redis")
}

// readClientHeaders reads client_headers.
func readClientHeaders(top *object) ClientHeaders {
	h := ClientHeaders{IETF: "draft-11", Legacy: true}
	v, ok := top.get("client_headers", "ietf or legacy")
	if !ok {
		return h
	}
	o, ok := v.object("ietf or legacy")
	if !ok {
		return h
	}
	if v, ok := o.get("ietf", "draft-11, draft-12, both or off"); ok {
		if s, ok := v.choice([]string{"draft-11", "draft-12", "both", "off"}); ok {
			h.IETF = s
		}
	}
	if v, ok := o.get("legacy", "on or off"); ok {
		if s, ok := v.choice([]string{"on", "off"}); ok {
			h.Legacy = s == "on"
		}
	}
	o.done()
	return h
}
