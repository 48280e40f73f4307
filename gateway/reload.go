package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"bouncer/gateway/auth"
	"bouncer/gateway/config"
	"bouncer/gateway/proxy"
)

// Reload puts what the files say now into force, whole or not at all. The error
// holds every mistake, a line each; the configuration in force is then the old
// one. It is safe for concurrent use.
func (g *Gateway) Reload(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reloadLocked() //nolint:contextcheck // a store it starts outlives the caller, and ends with Close
}

func (g *Gateway) reloadLocked() error {
	old := g.current.Load()
	cfg, report := config.Load(config.Options{Routes: g.options.Routes, Plans: g.options.Plans})
	g.watched = report.Files
	err := report.Err()
	if err == nil {
		err = g.applyLocked(cfg)
	}
	now := time.Now()
	if err != nil {
		g.lastError, g.failedAt = err.Error(), now
		g.telemetry.Reloaded(false, "", now)
		g.log.Error("the new configuration is not used; the one in force stays",
			"mistakes", strings.Split(err.Error(), "\n"), "in_force", old.cfg.Hash)
		return err
	}
	level := g.telemetry.Level()
	g.openLog(cfg)
	defer g.useLog(cfg, level)
	g.lastError = ""
	g.telemetry.Reloaded(true, cfg.Hash, now)
	g.telemetry.Store(cfg.Store.Redis != nil)
	g.logWarnings(report)
	g.logSecrets(cfg)
	changes := config.Describe(old.cfg, cfg)
	if len(changes) == 0 {
		changes = []string{"nothing that matters changed"}
	}
	g.log.Info("the new configuration is in force", "hash", cfg.Hash, "changes", changes)
	if cfg.Store.Redis == nil && old.cfg.Store.Redis != nil {
		g.log.Warn(countedAlone)
	}
	if fixed := config.NeedsRestart(g.bound, cfg); len(fixed) > 0 {
		g.log.Warn("some changes take effect at the next restart only", "settings", fixed)
	}
	return nil
}

func (g *Gateway) apply(cfg *config.Config) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bound, g.adminLoopback = cfg, isLoopback(cfg.Listen.Admin)
	return g.applyLocked(cfg)
}

// applyLocked builds everything cfg asks for, starts what is new, swaps, and
// lets go of what is old, in this order: up to the swap nothing that serves is
// touched, so that a failure leaves all as it was.
func (g *Gateway) applyLocked(cfg *config.Config) error {
	certs, err := g.makeCertificates(cfg)
	if err != nil {
		return err
	}
	adminCert, err := loadAdminCertificate(&cfg.Admin)
	if err != nil {
		return err
	}
	var previous *auth.Authenticator
	old := g.current.Load()
	if old != nil {
		previous = old.auth
	}
	up, err := makeUpstreams(cfg, g.upstreams, proxy.Hooks{
		Done: g.upstreamDone, NoRoom: g.telemetry.UpstreamRefused, Circuit: g.circuitChanged, Target: g.targetChanged,
		Moved: g.targetMoved, Retry: g.telemetry.UpstreamRetry, WebSocketEnded: g.webSocketEnded, NotRead: g.telemetry.NotRead,
	})
	if err != nil {
		return err
	}
	providers, err := makeProviders(cfg, g.providers, g.providerHooks)
	if err != nil {
		return err
	}
	traces, err := makeTraced(cfg, g.traced, g.options.Version, g.instance, g.traceHooks())
	if err != nil {
		return err
	}
	sh := g.shared
	if sh == nil || !sh.same(cfg) {
		if sh, err = g.makeShared(cfg); err != nil {
			return err
		}
	}
	keys, err := g.makeKeyTable(sh, cfg)
	var s *snapshot
	if err == nil {
		s, err = build(cfg, g, up, keySources{providers, keys.orNone(), g.usesFor(cfg)}, sh.storeFor, previous)
	}
	if err != nil {
		if sh != g.shared {
			err = errors.Join(err, sh.close(context.Background())) // it owes nothing
		}
		return err
	}

	s.traced = traces
	g.useTracedLocked(traces, old != nil)
	g.useProviders(providers, old != nil)
	g.telemetry.Configure(labels(cfg))
	g.telemetry.SampleAllowed(int(cfg.Log.SampleAllowed))
	if old != nil && sh != g.shared {
		// In this order: to the others, both boards are one instance.
		g.shared.leave()
		sh.start()
	}
	g.useCertificates(certs, old != nil)
	g.useAdminCertificate(cfg, adminCert)
	g.adminHandler.Store(g.admin(cfg))
	if old != nil && !sameOperators(&old.cfg.Admin, &cfg.Admin) {
		g.overview.feed.Restart() // whoever watches shows what counts now, or goes
	}
	keys.use(sh)
	g.current.Store(s)
	g.showCertificates()

	for name, p := range g.upstreams {
		if up[name] != p {
			p.upstream.Close()
		}
	}
	for name, p := range up {
		if g.upstreams[name] != p {
			g.telemetry.UpstreamCircuit(name, false) // it starts anew
			g.showTargets(p)
			if old != nil {
				p.upstream.Start() // those of the first configuration begin with Run
			}
		}
	}
	g.upstreams = up
	g.dropProviders(providers)
	if g.shared != nil && g.shared != sh {
		g.storeReplaced(g.shared, sh)
		g.retireLocked(g.shared)
	}
	g.shared = sh
	if old != nil && old.cfg.Hash != cfg.Hash {
		sh.freedAll()
	}
	return nil
}

// retireLocked closes a store that no new request will use, once those that
// came under the older configuration must have had their decision.
func (g *Gateway) retireLocked(sh *shared) {
	if sh.cfg == nil {
		return
	}
	g.closing.Go(func() {
		select {
		case <-time.After(sh.cfg.Timeout + time.Second):
		case <-g.stopped:
		}
		ctx, cancel := context.WithTimeout(context.Background(), cutGrace)
		defer cancel()
		if err := sh.close(ctx); err != nil {
			g.log.Warn("close the connections to the former limit store", "error", err)
		}
	})
}

func (g *Gateway) upstreamDone(upstream, target string, status int, took time.Duration, stream bool, err error) {
	if !stream { // it took as long as two parties talked
		g.telemetry.UpstreamTook(upstream, took)
	}
	if errors.Is(err, proxy.ErrClient) {
		err = context.Canceled // the upstream was not at fault
	}
	g.telemetry.UpstreamDone(upstream, target, status, err)
}

func (g *Gateway) webSocketEnded(_, reason string) { g.telemetry.WebSocketEnded(reason) }

// circuitChanged says, once each time, that an upstream is left alone because it
// fails, and that it is not any longer.
func (g *Gateway) circuitChanged(upstream string, open bool) {
	g.telemetry.UpstreamCircuit(upstream, open)
	if open {
		g.log.Error("an upstream fails; its requests are answered with 503 until it is well, but for a few that try", "upstream", upstream)
	} else {
		g.log.Warn("the upstream that failed is well again", "upstream", upstream)
	}
}

// targetChanged says, once each time, that a target is left out, and that it is not
// any longer.
func (g *Gateway) targetChanged(upstream, target string, up bool, err error) {
	g.telemetry.UpstreamTarget(upstream, target, !up)
	switch {
	case up:
		g.log.Warn("the target that was left out is well again; it gets its share by and by", "upstream", upstream, "target", target)
	case errors.Is(err, proxy.ErrUnhealthy):
		g.log.Error("a target fails its health checks; while another target is well it gets no requests", "upstream", upstream, "target", target, "error", err)
	default:
		g.log.Error("a target cannot be connected to; while another target can, it is only tried now and then", "upstream", upstream, "target", target, "error", err)
	}
}

// targetMoved says that a target's name means other addresses than before.
func (g *Gateway) targetMoved(upstream, target string) {
	g.log.Info("the name of a target has other addresses now; new requests go there", "upstream", upstream, "target", target)
}

// startUpstreams has those of the first configuration begin.
func (g *Gateway) startUpstreams() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.upstreams {
		p.upstream.Start()
	}
}

// showTargets tells the metrics what an upstream knows of its targets from the one
// before it.
func (g *Gateway) showTargets(p *pooled) {
	out := p.upstream.LeftOut()
	for _, t := range p.cfg.Targets {
		name := proxy.TargetName(t.URL)
		g.telemetry.UpstreamTarget(p.cfg.Name, name, slices.ContainsFunc(out, func(l proxy.LeftOut) bool { return l.Target == name }))
	}
}

// loadCertificate reads the listener's certificate.
func loadCertificate(c *config.HTTPS) (*tls.Certificate, error) {
	cert, err := keyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("listen.https: cert_file and key_file: %w", err)
	}
	return &cert, nil
}

// subject is what a certificate is called in metrics: its first name, since the
// common name is empty on most of today's.
func subject(leaf *x509.Certificate) string {
	if len(leaf.DNSNames) > 0 {
		return leaf.DNSNames[0]
	}
	if cn := leaf.Subject.CommonName; cn != "" {
		return cn
	}
	if len(leaf.IPAddresses) > 0 {
		return leaf.IPAddresses[0].String()
	}
	return "unnamed"
}

// How soon a changed file is noticed.
const (
	// settle is how long to wait after an event for the rest of a save: editors
	// write, rename and touch in several steps.
	settle = 100 * time.Millisecond
	// pollEvery is the net under the notifications, which some file systems do
	// not send at all.
	pollEvery = 500 * time.Millisecond
)

// watch reloads when a file of the configuration changes, until ctx ends. It
// watches directories, not files: an editor renames a new file into place, and
// Kubernetes swaps a symlink beside it, and both leave a watch on the file
// looking at the old one.
func (g *Gateway) watch(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		g.log.Warn("cannot be notified of changed files; they are looked at instead", "every", pollEvery.String(), "error", err)
		watcher = &fsnotify.Watcher{} // its channels are nil and never ready
	} else {
		defer watcher.Close() //nolint:errcheck // nothing is lost with it
	}
	// follow watches the directories of today. It adds them all each time: one
	// that was replaced by another of its name has lost its watch.
	follow := func() {
		if watcher.Events == nil {
			return
		}
		dirs := g.directories()
		for _, dir := range watcher.WatchList() {
			if !dirs[dir] {
				_ = watcher.Remove(dir) // it may have gone by itself
			}
		}
		for dir := range dirs {
			_ = watcher.Add(dir) // what cannot be watched is looked at
		}
	}
	follow()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
			// The first event starts the wait and later ones do not lengthen it,
			// so that a busy directory cannot put a reload off for ever.
			if settled == nil {
				settled = time.After(settle)
			}
			continue
		case err := <-watcher.Errors:
			g.log.Warn("watch the configuration", "error", err)
		case <-settled:
			settled = nil
		case <-poll.C:
		}
		g.reloadIfChanged() //nolint:contextcheck // as in Reload
		follow()
	}
}

// reloadIfChanged reloads if the bytes of a file are not those of the last
// attempt, good or bad.
func (g *Gateway) reloadIfChanged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if slices.ContainsFunc(g.watched, config.File.Changed) {
		_ = g.reloadLocked() // it has logged what is wrong
	}
}

// directories are those of all files, those they are found through by symlinks,
// and those above these, in which a whole directory can be swapped for another.
func (g *Gateway) directories() map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	dirs := map[string]bool{}
	for _, f := range g.watched {
		dir := filepath.Dir(f.Path)
		dirs[dir], dirs[filepath.Dir(dir)] = true, true
		if real, err := filepath.EvalSymlinks(f.Path); err == nil {
			dirs[filepath.Dir(real)] = true
		}
	}
	return dirs
}
