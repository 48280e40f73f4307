package gateway

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"

	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/gateway/scope"
	"bouncer/gateway/tracing"
)

// A traced is where traces go as long as that does not change, over any number of reloads,
// so that what waits to be sent survives them.
type traced struct {
	cfg      config.Traces // but for the share
	tlsFiles [sha256.Size]byte
	tracer   *tracing.Tracer
}

// makeTraced returns that of cfg: old if nothing changed, nil if there are to be no traces.
func makeTraced(cfg *config.Config, old *traced, version, instance string, hooks tracing.Hooks) (*traced, error) {
	c := cfg.Traces
	if c == nil {
		return nil, nil //nolint:nilnil // no traces
	}
	files := digest(c.TLS)
	if old != nil && old.tlsFiles == files && sameCollector(old.cfg, *c) {
		return old, nil
	}
	tlsConfig, err := clientTLS(c.TLS)
	if err != nil {
		return nil, fmt.Errorf("traces: tls: %w", err)
	}
	tracer, err := tracing.New(tracing.Options{
		Endpoint: c.Endpoint, Fields: c.Fields(), TLS: tlsConfig, Version: version, Instance: instance, Hooks: hooks,
	})
	if err != nil {
		return nil, err
	}
	return &traced{*c, files, tracer}, nil
}

// sameCollector compares where traces go, and not how many.
func sameCollector(a, b config.Traces) bool {
	tls := func(t *config.TLS) config.TLS {
		if t == nil {
			return config.TLS{}
		}
		return *t
	}
	return a.Endpoint == b.Endpoint && string(a.Headers) == string(b.Headers) && tls(a.TLS) == tls(b.TLS)
}

// traceHooks report what becomes of traces.
func (g *Gateway) traceHooks() tracing.Hooks {
	return tracing.Hooks{
		Spans: g.telemetry.TraceSpans,
		Failed: func(err error) {
			g.traceWarning.Do(func() {
				g.log.Warn("traces cannot be delivered, and are lost; requests are served as ever (said once a minute; gateway_trace_spans_total counts spans)",
					"error", err, "do", "see that the collector of traces.endpoint runs, and takes OTLP over HTTP with what traces.headers_file has")
			})
		},
	}
}

// useTracedLocked puts traces in force, and has those go that are not any more.
func (g *Gateway) useTracedLocked(t *traced, running bool) {
	old := g.traced
	g.traced = t
	if t != nil && running {
		t.tracer.Start() // the first begins with Run
	}
	if old != nil && old != t {
		g.closing.Go(func() { old.close(context.Background()) })
	}
}

// startTraces begins to send those of the first configuration.
func (g *Gateway) startTraces() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.traced != nil {
		g.traced.tracer.Start()
	}
}

// close sends what waits. It takes at most cutGrace.
func (t *traced) close(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, cutGrace)
	defer cancel()
	t.tracer.Close(ctx)
}

// beginTrace finds out which trace a request is part of, and begins ours if there is to be
// one. It is to be called when it is known whether the peer is trusted.
func (s *snapshot) beginTrace(x *exchange, r *http.Request) {
	var parent tracing.Parent
	if s.traced == nil && !x.PeerTrusted {
		return
	}
	if values := r.Header["Traceparent"]; len(values) == 1 {
		parent.Trace, parent.Span, parent.Sampled, _ = scope.ParseTraceparent(values[0])
	}
	if s.traced == nil {
		x.TraceID, x.TraceSampled = parent.Trace, parent.Sampled
		return
	}
	x.trace = s.traced.tracer.Begin(&x.Request, parent, x.PeerTrusted, int(s.cfg.Traces.Sample))
}

// decided ends the span of a decision.
func (x *exchange) decided(ds []ratelimit.Decision, err error) {
	switch {
	case x.trace == nil:
	case err != nil:
		x.trace.Decided("failed", "", redisstore.Kind(err))
	case len(ds) == 0:
		x.trace.Decided("allowed", string(ratelimit.SourceNone), "")
	case ratelimit.Admitted(ds):
		x.trace.Decided("allowed", string(ds[0].Source), "")
	default:
		x.trace.Decided("denied", string(ds[0].Source), "")
	}
}

// endTrace ends the trace of a request, when all of it is known.
func (x *exchange) endTrace(r *http.Request) {
	if x.trace == nil {
		return
	}
	template := ""
	if x.route != nil {
		template = x.route.template
	}
	x.trace.End(r, &x.Request, template)
}
