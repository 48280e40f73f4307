// Package gateway is the gateway itself: it takes configurations and serves
// requests under them.
//
// The order of a request stands in pipeline.go and nowhere else. build.go turns
// a configuration into stages, reload.go replaces one by the next, run.go owns
// the listeners. The stages are packages of their own that do not know each
// other; what two of them have to agree on is decided here.
//
// It is not the place for anything a stage can do by itself: what a limit means
// is in gateway/ratelimit, what happens without Redis in gateway/fallback, how
// an upstream is asked in gateway/proxy.
//
// What it promises when things fail: a configuration with a mistake changes
// nothing, the one in force stays; a request keeps the configuration it came
// with; a panic is one request's 500; a shared store that is away costs a
// request at most the store's timeout, and then nothing.
//
//	g, err := gateway.New(gateway.Options{Routes: "routes.yaml", Plans: "plans.yaml"})
//	...
//	err = g.Run(ctx, nil) // serves until ctx ends, then drains
package gateway

import (
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"bouncer/gateway/auth"
	"bouncer/gateway/callers"
	"bouncer/gateway/config"
	"bouncer/gateway/denials"
	"bouncer/gateway/door"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/denycache"
	"bouncer/gateway/ratelimit/memory"
	"bouncer/gateway/scope"
	"bouncer/gateway/telemetry"
	"bouncer/gateway/topk"
)

// Options says where the configuration is and where the log goes.
type Options struct {
	// Routes and Plans are the paths of the two files.
	Routes, Plans string
	// Version is what the admin listener calls this build.
	Version string
	// Log takes the JSON lines of the process and of every request; nil means
	// os.Stdout.
	Log io.Writer
}

// A Gateway serves requests under the configuration in force. It is made by
// [New], started by [Gateway.Run], and safe for concurrent use.
type Gateway struct {
	options   Options
	telemetry *telemetry.Telemetry
	log       *slog.Logger
	current   atomic.Pointer[snapshot]

	// These outlive configurations: counts, and what is known of the store and
	// the upstreams, must not start anew because a number was edited.
	edgeStore   *memory.Store
	denied      *denycache.Cache // what Redis has denied
	sockets     *tally[string]   // WebSockets, by route and caller
	connections *tally[netip.Prefix]
	topDenied   *topk.Sketch
	topNear     *topk.Sketch   // who has little left, though admitted
	overview    *overview      // nil in a rehearsal
	callers     *callers.Table // who called of late
	denials     *denials.Log   // what limits denied
	// nil without listen.https
	certificates atomic.Pointer[certificates]
	listenerTLS  *tls.Config // as long as no certificates of clients count

	adminTLS         *tls.Config
	adminCertificate atomic.Pointer[tls.Certificate] // nil: what the HTTPS listener shows
	adminAsking      atomic.Pointer[tls.Config]      // nil: no certificate of an operator is asked for

	adminHandler  atomic.Pointer[http.Handler]
	adminLoopback bool // of the address it is bound to, whatever a reload says

	draining atomic.Bool
	closed   atomic.Bool     // all connections of clients are
	flights  atomic.Int64    // requests in flight, WebSockets too, which servers do not know
	leaving  context.Context // ends when the listeners close
	leave    context.CancelFunc
	leaveBy  time.Time     // when what is in flight is cut; read after leaving has ended
	stopped  chan struct{} // closed when nothing is in flight any more
	started  time.Time
	instance string // the name of this process among those that share a store

	untrusted    rate.Sometimes // bounds the warning about a proxy nobody trusts
	crowded      rate.Sometimes // and the one about an address with too many connections
	unsaid       rate.Sometimes // and about one that does not say who its client is
	boardWarning rate.Sometimes // and that about a board nobody can write to

	traceWarning rate.Sometimes // bounds the warning about a collector that takes nothing

	keyUse        *auth.UseLog
	keyUseOwed    map[string]time.Time // what Redis was not told yet; see writeKeyUse
	keyUseWarning rate.Sometimes

	showing sync.Mutex // held while the metric and the log are told of the store's state

	mu        sync.Mutex // protects the following fields: one reload at a time
	upstreams map[string]*pooled
	providers map[string]*provider // by issuer; replaced, never changed
	shared    *shared
	traced    *traced        // nil: no traces
	bound     *config.Config // the first one: what only a restart changes is as it says
	watched   []config.File  // the files of the last attempt, good or bad
	lastError string         // of the last attempt to load; empty after a good one
	failedAt  time.Time
	closing   sync.WaitGroup // stores of older configurations being closed
}

// topDeniedKeys is how many partitions the list of the most denied ones tells
// apart: any with more than a thousandth of all denials is in it.
const topDeniedKeys = 1000

// New loads the configuration and builds everything, and starts nothing. The
// error holds every mistake, a line each.
func New(o Options) (*Gateway, error) {
	if o.Log == nil {
		o.Log = os.Stdout
	}
	cfg, report := config.Load(config.Options{Routes: o.Routes, Plans: o.Plans})
	if err := report.Err(); err != nil {
		return nil, err
	}
	g := &Gateway{options: o, started: time.Now(), stopped: make(chan struct{}), upstreams: map[string]*pooled{}}
	g.leaving, g.leave = context.WithCancel(context.Background())
	g.instance = crand.Text()
	g.boardWarning = rate.Sometimes{First: 1, Interval: time.Hour}
	g.keyUse, g.keyUseOwed = auth.NewUseLog(), map[string]time.Time{}
	g.keyUseWarning = rate.Sometimes{First: 1, Interval: time.Hour}
	g.traceWarning = rate.Sometimes{First: 1, Interval: time.Minute}
	g.untrusted = rate.Sometimes{First: 1, Interval: time.Hour}
	g.crowded = rate.Sometimes{First: 1, Interval: time.Minute}
	g.unsaid = rate.Sometimes{First: 1, Interval: time.Hour}
	var err error
	if g.denied, err = denycache.New(denycache.Options{}); err != nil {
		return nil, fmt.Errorf("make the table of denials: %w", err)
	}
	g.telemetry = telemetry.New(telemetry.Options{
		Out: o.Log, StoreErrorKinds: storeErrorKinds(), FallbackOutcomes: fallbackOutcomes(), AuthReason: authReason, AuthReasons: authReasons(), DenyCache: g.deniedStats, FetchOutcomes: fetchOutcomes(),
	})
	g.log = g.telemetry.Logger()
	g.telemetry.SetLevel(logLevels[cfg.Log.Level])
	if g.topDenied, err = topk.New(topDeniedKeys, listHalfLife); err != nil {
		return nil, fmt.Errorf("make the list of denied keys: %w", err)
	}
	if g.topNear, err = topk.New(topDeniedKeys, listHalfLife); err != nil {
		return nil, fmt.Errorf("make the list of keys near their limits: %w", err)
	}
	g.overview = newOverview(g)
	if g.callers, err = callers.New(callers.Options{}); err != nil {
		return nil, err
	}
	if g.denials, err = denials.New(denials.Options{}); err != nil {
		return nil, err
	}
	g.sockets = newTally[string](cfg.Store.MemoryMaxKeys, g.telemetry.Overflow)
	g.connections = newTally[netip.Prefix](cfg.Store.MemoryMaxKeys, g.telemetry.Overflow)
	g.edgeStore, err = memory.New(memory.Options{
		MaxKeys: cfg.Store.MemoryMaxKeys, Hooks: memory.Hooks{Overflow: g.telemetry.Overflow},
	})
	if err != nil {
		return nil, fmt.Errorf("make the table of edge limits: %w", err)
	}
	g.listenerTLS = g.makeListenerTLS()
	g.adminTLS = g.makeAdminTLS()
	if err := g.apply(cfg); err != nil {
		return nil, err
	}
	g.telemetry.Loaded(cfg.Hash, time.Now())
	g.telemetry.Store(cfg.Store.Redis != nil)
	g.watched = report.Files
	g.logWarnings(report)
	g.logSecrets(cfg)
	return g, nil
}

// logWarnings says what is legal but dangerous in a configuration now in force.
func (g *Gateway) logWarnings(r *config.Report) {
	for _, w := range r.Warnings() {
		g.log.Warn("configuration", "at", w.Pos.String(), "path", w.Path, "warning", w.Message)
	}
}

// Logger is the process log: JSON lines among those of the requests.
func (g *Gateway) Logger() *slog.Logger { return g.log }

// authReasons are all the words for why a credential is refused.
func authReasons() (words []string) {
	for _, r := range auth.Reasons() {
		words = append(words, string(r))
	}
	return words
}

// authReason is the word for why a credential was refused. The error itself
// may be a library's, and stays out of the log.
func authReason(err error) string {
	if refused, ok := errors.AsType[*auth.RefusedError](err); ok {
		return string(refused.Reason)
	}
	if errors.Is(err, auth.ErrNotKnown) {
		return telemetry.AuthNotLookedAt
	}
	return telemetry.AuthMissing
}

// deniedStats is for the metrics.
func (g *Gateway) deniedStats() (entries int, evictions uint64) {
	s := g.denied.Stats()
	return s.Entries, s.Evictions
}

// deniedKey counts a denial for the list of the most denied partitions.
func (g *Gateway) deniedKey(partition, limit string) {
	g.topDenied.AddPair(limit, partition, 1)
}

// warnUntrusted tells the operator that a peer sends forwarding fields and is
// not believed: if it is a balancer, everyone behind it shares one bucket.
func (g *Gateway) warnUntrusted(peer netip.Addr, header string) {
	g.untrusted.Do(func() {
		g.log.Warn("a peer that is not trusted sends the client-address field; if it is your own proxy, every caller behind it shares one bucket: add it to client_ip.trusted_proxies",
			"peer", scope.AddressName(peer), "field", header)
	})
}

// saysClient reports whether a peer is a proxy that says by the PROXY protocol who
// its client is, under the configuration in force.
func (g *Gateway) saysClient(peer net.Addr) bool {
	s := g.current.Load()
	return s.cfg.ClientIP.ProxyProtocol && s.clientIP.Trusts(peer.String())
}

// enterConnection counts a connection to those of the client's address, unless that
// has as many as it may under the configuration in force.
func (g *Gateway) enterConnection(client net.Addr) (leave func(), ok bool) {
	s := g.current.Load()
	may := s.cfg.Listen.MaxConnectionsPerIP
	if may == 0 {
		return nil, true
	}
	own, counted := s.clientIP.Own(client.String())
	if !counted {
		return nil, true
	}
	h, ok := g.connections.enter(own, may)
	if !ok {
		g.telemetry.ConnectionRefused()
		g.crowded.Do(func() {
			g.log.Warn("an address has as many connections as it may, and further ones are closed; if it is a proxy of yours, add it to client_ip.trusted_proxies (said once a minute; gateway_connections_refused_total counts them)",
				"address", own.String(), "max_connections_per_ip", may)
		})
		return nil, false
	}
	return h.leave, true
}

// warnUnsaid tells the operator why connections of a proxy come to nothing.
func (g *Gateway) warnUnsaid(peer net.Addr, why string) {
	g.telemetry.ProxyHeaderRefused(why)
	g.unsaid.Do(func() {
		g.log.Warn("a connection from a trusted proxy was closed, since it does not say whom it comes from (said once an hour; gateway_proxy_headers_refused_total counts them)",
			"peer", scope.PeerName(peer.String()), "error", unsaid[why].what, "do", unsaid[why].do)
	})
}

// unsaid are the words for what proxies fail to say.
var unsaid = map[string]struct{ what, do string }{
	door.ProxyMissing: {"it began without a header of the PROXY protocol", "make the proxy send one, or set client_ip.proxy_protocol to false"},
	door.ProxyBad:     {"it began with a header of the PROXY protocol that cannot be read", "see that it is one of version 1 or 2, for TCP"},
	door.ProxySlow:    {"its header of the PROXY protocol was not whole in time", "have the proxy send it before it waits for its client"},
}

// maxRequestID bounds a request id taken from a trusted peer.
const maxRequestID = 128

// validRequestID returns the id a trusted peer sent, if it is one that can
// stand in a log line and a header field as it is; else "".
func validRequestID(values []string) string {
	if len(values) != 1 || len(values[0]) > maxRequestID {
		return ""
	}
	const others = "-_.:/+=@"
	for _, c := range []byte(values[0]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && strings.IndexByte(others, c) < 0 {
			return ""
		}
	}
	return values[0]
}

// newRequestID returns 128 random bits in hex. They tell requests apart and
// guard nothing, so the fast generator will do.
func newRequestID() string {
	var b [16]byte
	var text [32]byte
	hi, lo := rand.Uint64(), rand.Uint64() //nolint:gosec // an id, not a secret
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	hex.Encode(text[:], b[:])
	return string(text[:])
}

// sourceOf is for the readiness page.
func sourceOf(cfg *config.Config) string {
	if cfg.Store.Redis == nil {
		return string(ratelimit.SourceMemory)
	}
	return string(ratelimit.SourceRedis)
}
