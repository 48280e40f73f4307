package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"bouncer/gateway/config"
	"bouncer/gateway/door"
	"bouncer/gateway/scope"
)

// Bounds on what a connection may cost before there is a request.
const (
	headTimeout    = 10 * time.Second // from its first byte on; a TLS handshake as well
	idleTimeout    = 2 * time.Minute  // between requests, and within a body
	maxHeaderBytes = 64 << 10
	maxFields      = 200
)

// A front is one listener and the server behind it.
type front struct {
	name     string
	listener net.Listener
	server   *http.Server
	census   *door.Census  // nil: nobody asks
	ended    chan struct{} // closed when it takes no connections any more
}

// Run listens and serves until ctx ends, then drains: it reports itself not
// ready, lets go of idle connections, finishes what is in flight within
// shutdown_timeout, and returns nil. A value on hup reloads at once. An error
// means that it could not listen, or that a listener failed.
func (g *Gateway) Run(ctx context.Context, hup <-chan os.Signal) error {
	defer g.telemetry.Close() //nolint:errcheck // whoever reads the log has gone
	s := g.current.Load()
	// What is still in flight when draining ends is cut by this.
	inFlight, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	public, private, err := g.listen(inFlight, s.cfg)
	if err != nil {
		return err
	}
	g.shared.start() //nolint:contextcheck // it ends with Close, after what is in flight and not with ctx
	g.startUpstreams()
	g.startTraces()            //nolint:contextcheck // as above
	g.startFirstProviders(ctx) // requests wait for it in front of the listeners
	g.announce(s.cfg, public, private)

	failed := make(chan error, 3)
	var serving sync.WaitGroup
	for _, d := range append(public, private...) {
		serving.Go(func() {
			err := d.server.Serve(d.listener)
			close(d.ended)
			if !errors.Is(err, http.ErrServerClosed) && !g.draining.Load() {
				failed <- fmt.Errorf("serve %s on %s: %w", d.name, d.listener.Addr(), err)
			}
		})
	}
	g.startCertificates()
	overseeing, stopOverseeing := context.WithCancel(context.WithoutCancel(ctx)) // also how it is stopped
	var overseer sync.WaitGroup
	overseer.Go(func() { g.overview.run(overseeing) })
	defer stopOverseeing()
	watching, stopWatching := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { g.watch(watching) })
	defer boundMemory(g.log, memlimit.FromCgroup)()
	watchers.Go(func() { tuneGC(watching) })
	watchers.Go(func() { g.writeKeyUses(watching) })
	watchers.Go(func() {
		for {
			select {
			case <-watching.Done():
				return
			case <-hup:
				_ = g.Reload(watching) // it has logged what is wrong
			}
		}
	})

	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stopWatching()
	watchers.Wait()
	g.drain(context.WithoutCancel(ctx), public, cut)
	stopOverseeing()
	overseer.Wait()
	for _, d := range private {
		_ = d.server.Close()
	}
	serving.Wait()
	g.closeCertificates()
	close(g.stopped)
	g.closing.Wait()
	for _, p := range g.upstreams {
		p.upstream.Close()
	}
	for _, p := range g.providers {
		p.source.Close()
	}
	// Even when what was in flight took all of shutdown_timeout.
	by := time.Now().Add(cutGrace)
	if g.leaveBy.After(by) {
		by = g.leaveBy
	}
	settling, cancel := context.WithDeadline(context.WithoutCancel(ctx), by)
	defer cancel()
	g.writeKeyUse(settling)
	if cerr := g.shared.close(settling); cerr != nil {
		g.log.Warn("close the connections to the limit store", "error", cerr)
	}
	g.traced.close(settling)
	g.log.Info("stopped")
	return err
}

// listen opens every listener, or none. Requests end with inFlight at the latest.
func (g *Gateway) listen(inFlight context.Context, cfg *config.Config) (public, private []*front, err error) {
	var open []*front
	defer func() {
		if err != nil {
			for _, d := range open {
				_ = d.listener.Close()
			}
		}
	}()
	inherited, err := inheritedListeners()
	if err != nil {
		return nil, nil, err
	}
	defer g.dismiss(inherited)
	add := func(name, setting, address string, h http.Handler) (*front, error) {
		l := inherited.take(address)
		if l == nil {
			l, err = listenOn(address)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", setting, err)
		}
		d := &front{name: name, listener: l, server: g.server(inFlight, h), ended: make(chan struct{})}
		open = append(open, d)
		return d, nil
	}
	if cfg.Listen.HTTP != "" {
		d, err := add("http", "listen.http", cfg.Listen.HTTP, g)
		if err != nil {
			return nil, nil, err
		}
		d.server.Protocols.SetUnencryptedHTTP2(true) // by prior knowledge only
		g.guard(d, door.Options{HTTP2: true})        //nolint:contextcheck // a listener ends when it is closed
		public = append(public, d)
	}
	if h := cfg.Listen.HTTPS; h != nil {
		d, err := add("https", "listen.https.address", h.Address, g)
		if err != nil {
			return nil, nil, err
		}
		d.server.Protocols.SetUnencryptedHTTP2(true) // the door takes TLS off
		g.guard(d, door.Options{TLS: g.listenerTLS}) //nolint:contextcheck // as above
		public = append(public, d)
	}
	d, err := add("admin", "listen.admin", cfg.Listen.Admin, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*g.adminHandler.Load()).ServeHTTP(w, r)
	}))
	if err != nil {
		return nil, nil, err
	}
	if g.bound.Admin.HTTPS() {
		d.listener = tls.NewListener(d.listener, g.adminTLS)
	}
	return public, []*front{d}, nil
}

// guard lets in only requests that are well formed.
func (g *Gateway) guard(f *front, o door.Options) {
	o.HeaderTimeout, o.BodyTimeout = headTimeout, idleTimeout
	o.MaxHeader, o.MaxFields = maxHeaderBytes, maxFields
	o.Enter = g.enterConnection
	o.NotRead = g.telemetry.NotRead
	o.Proxied = g.saysClient
	o.ProxyFailed = g.warnUnsaid
	o.HandshakeFailed = func(client net.Addr, err error) {
		g.log.Debug("a TLS handshake failed", "client", scope.PeerName(client.String()), "error", err)
	}
	f.listener = door.Over(f.listener, o)
	f.census = door.Attach(f.server)
}

func (g *Gateway) server(inFlight context.Context, h http.Handler) *http.Server {
	p := &http.Protocols{}
	p.SetHTTP1(true)
	return &http.Server{
		Handler: h, Protocols: p,
		BaseContext: func(net.Listener) context.Context { return inFlight },
		// Twice, so that a head that has begun is the door's to answer.
		ReadHeaderTimeout: 2 * headTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		// OPTIONS * is about the server as a whole; ours has nothing to say.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
}

// countedAlone is said at the start, and by the reload that takes the store away:
// each instance then grants the whole of every limit.
const countedAlone = "limits are counted in the memory of this process: a restart forgets them, and other instances do not share them; set store.redis for that"

// announce says what was started, in the log.
func (g *Gateway) announce(cfg *config.Config, public, private []*front) {
	for _, d := range append(public, private...) {
		g.log.Info("listening", "for", d.name, "address", d.listener.Addr().String())
	}
	if cfg.Store.Redis == nil {
		g.log.Warn(countedAlone)
	}
	g.log.Info("serving", "version", g.options.Version, "configuration", cfg.Summary(), "hash", cfg.Hash, "store", sourceOf(cfg))
}
