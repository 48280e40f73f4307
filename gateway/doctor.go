package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"bouncer/gateway/acme"
	"github.com/redis/go-redis/v9"

	"bouncer/gateway/config"
	"bouncer/gateway/proxy"
	"bouncer/gateway/ratelimit/redisstore"
)

// A Finding is what Examine found out about one part.
type Finding struct {
	Level Level  `json:"level"`
	Part  string `json:"part"` // store, upstream NAME, issuer NAME, certificate, keys
	What  string `json:"what"` // what was seen, in a sentence
	Hint  string `json:"hint,omitempty"`
}

// Level says how a part is.
type Level string

// The levels.
const (
	LevelOK   Level = "ok"
	LevelWarn Level = "warn" // it works, and will bite some day
	LevelFail Level = "fail" // requests would fail, or be decided without the store
)

// Thresholds of Examine.
const (
	// A store that needs a quarter of its timeout when nothing is going on will
	// exceed it when something is.
	slowStore = 4
	// To dial, to say HELLO, and to ask.
	newConnection = 3
	// Calendar windows, tokens and logs are compared across machines.
	clockApart = time.Second
	// Most issuers of certificates renew within 30 days of the end; when half of
	// that is gone, the renewal has failed.
	expiresSoon = 14 * 24 * time.Hour
	// examineFor bounds the look at one part.
	examineFor = 5 * time.Second
)

// Examine asks the real parts that cfg names whether they can do their work: it
// connects to the store and takes one unit of a key of its own, connects to each
// upstream and makes its health check, fetches the keys of issuers, and reads the
// certificates. It serves nothing and changes nothing. It
// ends when ctx does, and within some seconds in any case.
func Examine(ctx context.Context, cfg *config.Config) []Finding {
	var e examination
	e.certificates(ctx, cfg)
	e.keys(cfg)
	e.keysInRedis(ctx, cfg)
	e.keySets(ctx, cfg)
	e.store(ctx, cfg)
	e.upstreams(ctx, cfg)
	return e.found
}

type examination struct{ found []Finding }

func (e *examination) add(level Level, part, what, hint string) {
	e.found = append(e.found, Finding{level, part, what, hint})
}

func (e *examination) store(ctx context.Context, cfg *config.Config) {
	const part = "store"
	c := cfg.Store.Redis
	if c == nil {
		e.add(LevelWarn, part, "limits are counted in the memory of each instance; a restart forgets them",
			"right for one instance; set store.redis for more")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, examineFor)
	defer cancel()
	store, err := OpenStore(cfg)
	if err != nil {
		e.add(LevelFail, part, err.Error(), "see that the files it names are there and hold PEM")
		return
	}
	defer store.Close() //nolint:errcheck // it was only asked

	// The first decision pays for the connection and for sending the script.
	err = store.Probe(ctx)
	if redisstore.Kind(err) == redisstore.KindTimeout {
		err = store.Probe(ctx)
	}
	if err != nil {
		kind := redisstore.Kind(err)
		e.add(LevelFail, part, fmt.Sprintf("a decision fails (%s): %v", kind, err), storeHint(kind))
		if kind == redisstore.KindRefused || kind == redisstore.KindAuth {
			return
		}
	} else {
		e.decisions(ctx, store, c.Timeout)
	}
	facts, err := store.Inspect(ctx)
	if err != nil {
		e.add(LevelFail, part, err.Error(), storeHint(redisstore.Kind(err)))
	}
	for _, f := range facts {
		if f.RoundTrip > 0 {
			e.server(f, c)
			e.keysAtRisk(f, cfg)
		}
	}
	if nodes := store.Nodes(); nodes != nil && nodes.Unassigned() > 0 {
		e.add(LevelFail, part, fmt.Sprintf("no node of the cluster has %d of its 16384 slots: callers whose counts are there are decided without Redis", nodes.Unassigned()),
			storeHint(redisstore.KindClusterDown))
	}
}

// decisions tells the quickest of a few: what is slower is somebody else's doing.
func (e *examination) decisions(ctx context.Context, store *redisstore.Store, timeout time.Duration) {
	quickest := timeout
	for range 5 {
		sent := time.Now()
		if err := store.Probe(ctx); err == nil {
			quickest = min(quickest, time.Since(sent))
		}
	}
	e.add(LevelOK, "store", fmt.Sprintf("decides in %s, of the %s that store.redis.timeout allows", short(quickest), timeout), "")
}

// server judges what one server says of itself.
func (e *examination) server(f redisstore.Facts, c *config.Redis) {
	part := "store"
	if f.Address != "" {
		part += " " + f.Address
	}
	trip := fmt.Sprintf("round trip %s", short(f.RoundTrip))
	switch {
	case f.RoundTrip*newConnection > c.Timeout:
		e.add(LevelWarn, part, fmt.Sprintf("%s; a new connection takes %d of them, more than store.redis.timeout (%s)", trip, newConnection, c.Timeout),
			fmt.Sprintf("run Redis near the gateway, or raise the timeout to %s or more: who finds no connection ready is decided without Redis", short(f.RoundTrip*slowStore)))
	case f.RoundTrip*slowStore > c.Timeout:
		e.add(LevelWarn, part, fmt.Sprintf("%s, over a quarter of store.redis.timeout (%s)", trip, c.Timeout),
			"run Redis near the gateway, or raise the timeout: what exceeds it is decided without Redis")
	default:
		e.add(LevelOK, part, trip, "")
	}
	switch ahead := f.Ahead.Round(time.Millisecond); {
	case ahead.Abs() > clockApart:
		e.add(LevelWarn, part, fmt.Sprintf("its clock is %s %s this machine's", ahead.Abs(), aheadOrBehind(ahead)),
			"let both follow NTP: limits go by the clock of Redis, tokens and logs by this one")
	default:
		e.add(LevelOK, part, "its clock and this machine's agree to a second", "")
	}
	if !f.Told {
		e.add(LevelWarn, part, "it does not answer INFO, so version, eviction and persistence are not known",
			"allow the user of store.redis INFO to have them examined; the gateway itself does not need it")
		return
	}
	switch {
	case f.Product == "redis" && !atLeast(f.Version, 6, 2):
		e.add(LevelFail, part, "redis "+f.Version, "the scripts need 6.2 or later, or Valkey")
	default:
		e.add(LevelOK, part, f.Product+" "+f.Version, "")
	}
	if f.Role == "slave" {
		e.add(LevelFail, part, "it is a replica and takes no writes", storeHint(redisstore.KindReadOnly))
	}
	switch {
	case f.MaxMemory == 0:
		e.add(LevelOK, part, "maxmemory none, so nothing is evicted", "")
	case f.Eviction != "noeviction":
		e.add(LevelWarn, part, "maxmemory-policy "+f.Eviction+" may evict a count that is still needed: its caller starts anew, and nothing shows it",
			"set maxmemory-policy noeviction and give it enough memory: a full Redis is noticed")
	case f.UsedMemory*10 > f.MaxMemory*8:
		e.add(LevelWarn, part, fmt.Sprintf("%s of maxmemory %s are in use; when it is full every decision fails", mebibytes(f.UsedMemory), mebibytes(f.MaxMemory)),
			"give it more memory")
	default:
		e.add(LevelOK, part, fmt.Sprintf("maxmemory-policy noeviction, %s of %s in use", mebibytes(f.UsedMemory), mebibytes(f.MaxMemory)), "")
	}
	if !f.AppendOnly && !f.Snapshots && f.Replicas == 0 {
		e.add(LevelWarn, part, "no persistence and no replica: when it restarts, all counts start anew",
			"for daily and monthly quotas set appendonly yes (appendfsync everysec), or run replicas")
	}
	if f.MaxClients > 0 && f.Clients*10 > f.MaxClients*8 {
		e.add(LevelWarn, part, fmt.Sprintf("%d of %d connections are in use", f.Clients, f.MaxClients), "raise maxclients")
	}
}

// upstreams connects to every target, and asks whether it is well, all at once.
func (e *examination) upstreams(ctx context.Context, cfg *config.Config) {
	type look struct {
		upstream *config.Upstream
		index    int
		found    Finding
	}
	made, _ := makeUpstreams(cfg, nil, proxy.Hooks{}) // an error is that of a handshake below
	var looks []*look
	for _, u := range cfg.Upstreams {
		for i := range u.Targets {
			looks = append(looks, &look{upstream: u, index: i})
		}
	}
	var wg sync.WaitGroup
	places := make(chan struct{}, 32)
	for _, l := range looks {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			target := l.upstream.Targets[l.index].URL
			l.found = reach(ctx, l.upstream, target)
			if p := made[l.upstream.Name]; p != nil && l.found.Level == LevelOK && l.upstream.Health != nil {
				if err := p.upstream.Check(ctx, l.index); err != nil {
					l.found.Level, l.found.What = LevelFail, fmt.Sprintf("%s: %v", proxy.TargetName(target), err)
					l.found.Hint = "see why it says so; until it does not, it gets requests only while no other target is well"
				} else {
					l.found.What += ", and is well (" + l.upstream.Health.Path + ")"
				}
			}
		})
	}
	wg.Wait()
	for _, l := range looks {
		e.found = append(e.found, l.found)
	}
}

// reach connects to one target as the proxy would, and sends no request: what
// one does is not for us to know, but for that of a health check.
func reach(ctx context.Context, u *config.Upstream, target *url.URL) Finding {
	ctx, cancel := context.WithTimeout(ctx, u.ConnectTimeout)
	defer cancel()
	f := Finding{Level: LevelFail, Part: "upstream " + u.Name}
	name, network, address := proxy.TargetName(target), "tcp", target.Host
	switch {
	case target.Scheme == "unix":
		network, address = "unix", target.Path
	case target.Port() != "":
	case target.Scheme == "https":
		address = net.JoinHostPort(target.Hostname(), "443")
	default:
		address = net.JoinHostPort(target.Hostname(), "80")
	}
	began := time.Now()
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil && target.Scheme == "https" {
		var secure *tls.Conn
		if secure, err = shakeHands(ctx, conn, u, target); secure != nil {
			conn = secure
		}
	}
	if conn != nil {
		defer conn.Close() //nolint:errcheck // nothing was sent
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		f.What, f.Hint = fmt.Sprintf("%s does not take a connection within %s (timeout.connect)", name, u.ConnectTimeout), "see that it runs and that no firewall stands between"
	case errors.Is(err, syscall.ECONNREFUSED):
		f.What, f.Hint = name+" refuses connections: nobody listens there", "see that it runs at the address of upstreams."+u.Name+".targets"
	case err != nil:
		f.What, f.Hint = fmt.Sprintf("%s: %v", name, err), reachHint(u.Name, err)
	default:
		f.Level, f.What = LevelOK, fmt.Sprintf("%s takes a connection in %s", name, short(time.Since(began)))
	}
	return f
}

// reachHint is what to do about a target that was reached, and is not spoken to.
func reachHint(upstream string, err error) string {
	section := "upstreams." + upstream + ".tls."
	switch {
	case errorIs[x509.UnknownAuthorityError](err):
		return "set " + section + "ca_file to the certificate of who signed its own"
	case errorIs[x509.HostnameError](err):
		return "set " + section + "server_name to a name that its certificate has, or the target to one"
	case errorIs[x509.CertificateInvalidError](err):
		return "see that its certificate is renewed, and the clock of this machine"
	case isAlert(err):
		return "it refuses us: set " + section + "cert_file and key_file to a certificate that it trusts, or see which versions of TLS it speaks"
	case errorIs[tls.RecordHeaderError](err):
		return "it speaks no TLS at this port: want http:// or another port in upstreams." + upstream + ".targets"
	}
	return "see that it runs at the address of upstreams." + upstream + ".targets"
}

// isAlert reports whether err is what the other side of TLS said is wrong.
func isAlert(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "remote error" // as crypto/tls calls it
}

func errorIs[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// refusalFor is how long a server has to refuse our certificate, or that there is none:
// with TLS 1.3 it does so after the handshake is over for us.
const refusalFor = 300 * time.Millisecond

// shakeHands is the proxy's side of TLS with a target.
func shakeHands(ctx context.Context, conn net.Conn, u *config.Upstream, target *url.URL) (*tls.Conn, error) {
	c, err := clientTLS(u.TLS)
	if err != nil {
		return nil, err
	}
	if c == nil {
		c = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if c.ServerName == "" {
		c.ServerName = target.Hostname()
	}
	asked := false
	c = c.Clone()
	own, certificates := c.GetClientCertificate, c.Certificates
	c.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked = true
		if own != nil {
			return own(info)
		}
		for i := range certificates {
			if info.SupportsCertificate(&certificates[i]) == nil {
				return &certificates[i], nil
			}
		}
		return new(tls.Certificate), nil
	}
	secure := tls.Client(conn, c)
	if err := secure.HandshakeContext(ctx); err != nil || !asked {
		return secure, err
	}
	if err := secure.SetReadDeadline(time.Now().Add(refusalFor)); err != nil {
		return secure, err
	}
	if _, err := secure.Read(make([]byte, 1)); isAlert(err) {
		return secure, err
	}
	return secure, nil
}

func (e *examination) certificates(ctx context.Context, cfg *config.Config) {
	if clients := cfg.Auth.ClientCerts; clients != nil {
		for _, ca := range clients.CAs {
			e.certificate("client CA "+subject(ca), ca, "put the new certificate of the authority into auth.client_certs.ca_file beside it, in time: then clients of both are let in")
		}
	}
	c := cfg.Listen.HTTPS
	switch {
	case c == nil:
	case c.ACME != nil:
		e.acme(ctx, c.ACME)
	default:
		cert, err := loadCertificate(c)
		if err != nil {
			e.add(LevelFail, "certificate", err.Error(), "renew it; the gateway does not start without")
			return
		}
		e.certificate(subject(cert.Leaf), cert.Leaf, "renew it; changed files are read by themselves")
	}
}

// acme looks at what is kept, and asks the authority for its directory.
func (e *examination) acme(ctx context.Context, c *config.ACME) {
	ctx, cancel := context.WithTimeout(ctx, examineFor)
	defer cancel()
	trust, err := clientTLS(&config.TLS{CAFile: c.CAFile})
	if err == nil {
		err = acme.Reach(ctx, c.DirectoryURL, trust.RootCAs)
	}
	if err != nil {
		what := fmt.Sprintf("%s: %v", c.DirectoryURL, err)
		if noDirectory(err) {
			what = c.DirectoryURL + " answers, but not with the directory of an authority (RFC 8555), which is JSON"
		}
		e.add(LevelFail, "certificate authority", what, acmeHint(err))
	} else {
		e.add(LevelOK, "certificate authority", c.DirectoryURL+" answers", "")
	}
	for _, domain := range c.Domains {
		leaf, err := acme.Kept(ctx, c.CacheDir, domain)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			e.add(LevelWarn, "certificate", fmt.Sprintf("the one for %s in %s cannot be used: %v", domain, c.CacheDir, err),
				"the gateway gets another one in its place when it runs; see who wrote there, and that the files are its own to read")
			continue
		}
		if err != nil {
			e.add(LevelWarn, "certificate", "there is none for "+domain+" in "+c.CacheDir+" yet",
				"the gateway gets it when it runs: in DNS the domain has to name this machine, and port 443 has to be that of listen.https, or port 80 that of listen.http")
			continue
		}
		e.certificate(subject(leaf), leaf, "the gateway renews it while it runs; its log says what keeps it from that")
	}
}

// certificate judges one.
func (e *examination) certificate(name string, leaf *x509.Certificate, renew string) {
	const part = "certificate"
	left := time.Until(leaf.NotAfter)
	until := leaf.NotAfter.UTC().Format(time.DateOnly)
	switch {
	case left <= 0:
		e.add(LevelFail, part, fmt.Sprintf("%s expired on %s", name, until), renew)
	case time.Now().Before(leaf.NotBefore):
		e.add(LevelFail, part, fmt.Sprintf("%s is valid from %s on", name, leaf.NotBefore.UTC().Format(time.DateOnly)), "see the clock of this machine")
	case left < expiresSoon:
		e.add(LevelWarn, part, fmt.Sprintf("%s expires on %s, in %d days", name, until, int(left.Hours()/24)), renew)
	default:
		e.add(LevelOK, part, fmt.Sprintf("%s is valid until %s", name, until), "")
	}
}

// keys counts the API keys that no longer work.
func (e *examination) keys(cfg *config.Config) {
	if cfg.Auth.APIKeys == nil || cfg.Auth.APIKeys.File == "" {
		return
	}
	expired := 0
	for _, k := range cfg.Auth.APIKeys.Keys {
		if !k.Expires.IsZero() && !time.Now().Before(k.Expires) {
			expired++
		}
	}
	n := len(cfg.Auth.APIKeys.Keys)
	switch {
	case n == 0:
		e.add(LevelWarn, "keys", "the key file has no keys", "gateway keys new makes one")
	case expired > 0:
		e.add(LevelWarn, "keys", fmt.Sprintf("%d of %d API keys have expired", expired, n), "gateway keys list shows which")
	default:
		e.add(LevelOK, "keys", fmt.Sprintf("%d API keys, none expired", n), "")
	}
}

// keysInRedis asks for a key that nobody has, as a gateway would.
func (e *examination) keysInRedis(ctx context.Context, cfg *config.Config) {
	c := cfg.Store.Redis
	if cfg.Auth.APIKeys == nil || cfg.Auth.APIKeys.RedisHash == "" || c == nil {
		return
	}
	const part = "keys in redis"
	tlsConfig, err := clientTLS(c.TLS)
	if err != nil {
		return // it is told of the store
	}
	client, err := redisClient(c, tlsConfig)
	if err != nil {
		return // the same
	}
	defer client.Close() //nolint:errcheck // it was only asked
	ctx, cancel := context.WithTimeout(ctx, examineFor)
	defer cancel()
	hash := keysHash(cfg)
	ask := func() error {
		return client.Process(ctx, redis.NewStringCmd(ctx, "hget", hash, strings.Repeat("0", 64)))
	}
	err = ask()
	if redisstore.Kind(err) == redisstore.KindTimeout { // the first one pays for the connection
		err = ask()
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		e.add(LevelFail, part, fmt.Sprintf("no key of the hash %s can be looked up: %v", hash, err), keyTableHint(err))
		return
	}
	e.add(LevelOK, part, "keys of the hash "+hash+" can be looked up", "")
}

// keysAtRisk says how API keys that are in Redis alone could be lost. Counts come again by
// themselves; keys do not, and who has one is refused, and then locked out as a guesser.
func (e *examination) keysAtRisk(f redisstore.Facts, cfg *config.Config) {
	if cfg.Auth.APIKeys == nil || cfg.Auth.APIKeys.RedisHash == "" || !f.Told {
		return
	}
	const part = "keys in redis"
	if f.MaxMemory > 0 && strings.HasPrefix(f.Eviction, "allkeys-") {
		e.add(LevelWarn, part, "maxmemory-policy "+f.Eviction+" may evict the hash, and with it all API keys in it", "set maxmemory-policy noeviction, or keep them in a key file")
	}
	if !f.AppendOnly && !f.Snapshots {
		e.add(LevelWarn, part, "no persistence: when it restarts, all API keys in it are gone", "set appendonly yes (appendfsync everysec), or have the portal write them anew")
	}
}

func short(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(100 * time.Microsecond)
}

func aheadOrBehind(d time.Duration) string {
	if d > 0 {
		return "ahead of"
	}
	return "behind"
}

func mebibytes(n int64) string {
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// atLeast compares the head of a version such as 6.2.14.
func atLeast(version string, major, minor int) bool {
	a, rest, _ := strings.Cut(version, ".")
	b, _, _ := strings.Cut(rest, ".")
	x, err1 := strconv.Atoi(a)
	y, err2 := strconv.Atoi(b)
	if err1 != nil || err2 != nil {
		return false
	}
	return x > major || x == major && y >= minor
}
