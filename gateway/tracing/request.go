package tracing

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"bouncer/gateway/scope"
)

// A Parent is the trace that a request says it is part of; the zero Parent is none.
type Parent struct {
	Trace   [16]byte
	Span    [8]byte
	Sampled bool
}

// Begin decides whether there is to be a trace of a request, and fills in s.TraceID,
// s.SpanID and s.TraceSampled. It returns nil if there is none.
//
// A request that a trusted proxy has begun a trace of is in that one, and is sampled if the
// proxy says so. All others begin their own, of which millionths in a million are sampled;
// what an untrusted client says its trace is, is only linked to.
func (t *Tracer) Begin(s *scope.Request, parent Parent, trusted bool, millionths int) *Request {
	known := parent.Trace != [16]byte{}
	if trusted && known {
		s.TraceID, s.TraceSampled = parent.Trace, parent.Sampled
	} else {
		s.TraceID, s.SpanID = scope.NewTrace()
		s.TraceSampled = rand.IntN(1_000_000) < millionths //nolint:gosec // no secret
	}
	made := t.tracer.Load()
	if made == nil || !s.TraceSampled {
		return nil
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(s.Arrived)}
	ctx := context.Background()
	switch {
	case !known:
		options = append(options, trace.WithNewRoot())
	case trusted:
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent.context())
	default:
		options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: parent.context()}))
	}
	r := &Request{tracer: *made}
	r.ctx, r.server = r.tracer.Start(ctx, "HTTP", options...)
	if sc := r.server.SpanContext(); sc.IsValid() {
		s.TraceID, s.SpanID = sc.TraceID(), sc.SpanID()
	}
	return r
}

func (p Parent) context() trace.SpanContext {
	flags := trace.TraceFlags(0)
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: p.Trace, SpanID: p.Span, TraceFlags: flags.WithSampled(p.Sampled), Remote: true})
}

// A Request is the trace of one request, or nil: then all of its methods do nothing. It is
// not safe for concurrent use.
type Request struct {
	tracer   trace.Tracer
	ctx      context.Context //nolint:containedctx // of the server's span, the parent of all others
	server   trace.Span
	decision trace.Span // nil: none is open
	attempt  trace.Span // nil: none is open
	attempts int
	method   string
}

// Deciding begins the span of the decision about n limits.
func (r *Request) Deciding(n int) {
	if r == nil {
		return
	}
	_, r.decision = r.tracer.Start(r.ctx, "decide", trace.WithAttributes(attribute.Int("gateway.limits", n)))
}

// Decided ends it. outcome is allowed, denied or failed; source who decided, and failure the
// kind of an error of the store; empty for none.
func (r *Request) Decided(outcome, source, failure string) {
	if r == nil || r.decision == nil {
		return
	}
	r.decision.SetAttributes(attribute.String("gateway.outcome", outcome))
	if source != "" {
		r.decision.SetAttributes(attribute.String("gateway.source", source))
	}
	if failure != "" {
		r.decision.SetAttributes(attribute.String("error.type", failure))
		r.decision.SetStatus(codes.Error, "")
	}
	r.decision.End()
	r.decision = nil
}

// Method says what the upstream is asked with.
func (r *Request) Method(method string) {
	if r != nil {
		r.method = knownMethod(method)
	}
}

// Attempt begins the span of an attempt at s.Target, which is the parent of what happens
// there: it sets s.SpanID.
func (r *Request) Attempt(s *scope.Request) {
	if r == nil {
		return
	}
	attributes := []attribute.KeyValue{
		attribute.String("http.request.method", r.method), attribute.String("gateway.upstream", s.Upstream),
	}
	if host, port, err := net.SplitHostPort(s.Target); err == nil {
		attributes = append(attributes, attribute.String("server.address", host))
		if n, err := strconv.Atoi(port); err == nil {
			attributes = append(attributes, attribute.Int("server.port", n))
		}
	} else {
		attributes = append(attributes, attribute.String("server.address", s.Target))
	}
	if r.attempts > 0 {
		attributes = append(attributes, attribute.Int("http.request.resend_count", r.attempts))
	}
	r.attempts++
	_, r.attempt = r.tracer.Start(r.ctx, r.method, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	if sc := r.attempt.SpanContext(); sc.IsValid() {
		s.SpanID = sc.SpanID()
	}
}

// Attempted ends it: status is that of the answer, 0 if there was none, and err why it was
// not a whole one.
func (r *Request) Attempted(_ *scope.Request, status int, err error) {
	if r == nil || r.attempt == nil {
		return
	}
	if status > 0 {
		r.attempt.SetAttributes(attribute.Int("http.response.status_code", status))
	}
	switch kind := failure(err); {
	case kind != "":
		r.attempt.SetAttributes(attribute.String("error.type", kind))
		r.attempt.SetStatus(codes.Error, "")
	case status >= http.StatusBadRequest:
		r.attempt.SetAttributes(attribute.String("error.type", strconv.Itoa(status)))
		r.attempt.SetStatus(codes.Error, "")
	}
	r.attempt.End()
	r.attempt = nil
}

// failure is the kind of an error. Its own text may hold an address with a query.
func failure(err error) string {
	var late net.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &late) && late.Timeout():
		return "timeout"
	}
	return "connection"
}

// End ends the trace. template is the path of the route as the operator wrote it, empty if
// none matched.
func (r *Request) End(req *http.Request, s *scope.Request, template string) {
	if r == nil {
		return
	}
	r.Decided("failed", "", "panic")             // if it is open, a stage did not come back
	r.Attempted(s, 0, errors.New("it was left")) // as above
	method := knownMethod(req.Method)
	name := method
	if method == otherMethod {
		name = "HTTP"
	}
	scheme := "http"
	if req.TLS != nil {
		scheme = "https"
	}
	attributes := []attribute.KeyValue{
		attribute.String("http.request.method", method), attribute.String("url.scheme", scheme),
		attribute.String("url.path", path(req)), attribute.String("network.protocol.version", version(req)),
		attribute.Int("http.response.status_code", s.Status), attribute.String("gateway.route", s.Route),
		attribute.String("gateway.request_id", s.ID), attribute.Int64("gateway.cost", s.Cost),
	}
	if template != "" {
		name += " " + template
		attributes = append(attributes, attribute.String("http.route", template))
	}
	for key, value := range map[string]string{"gateway.plan": s.Plan, "gateway.denied_by": s.DeniedBy, "gateway.source": s.Source} {
		if value != "" {
			attributes = append(attributes, attribute.String(key, value))
		}
	}
	if s.Status >= http.StatusInternalServerError || s.Status == 0 {
		attributes = append(attributes, attribute.String("error.type", strconv.Itoa(s.Status)))
		r.server.SetStatus(codes.Error, "")
	}
	r.server.SetName(name)
	r.server.SetAttributes(attributes...)
	r.server.End()
}

// maxPath is how many bytes of a path a span has.
const maxPath = 512

func path(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	p := r.URL.EscapedPath()
	return strings.ToValidUTF8(p[:min(len(p), maxPath)], "\uFFFD")
}

func version(r *http.Request) string {
	if r.ProtoMajor == 2 {
		return "2"
	}
	return strconv.Itoa(r.ProtoMajor) + "." + strconv.Itoa(r.ProtoMinor)
}

// otherMethod is any that a client made up.
const otherMethod = "_OTHER"

func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions, http.MethodConnect, http.MethodTrace:
		return m
	}
	return otherMethod
}
