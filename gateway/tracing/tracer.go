package tracing

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// The bounds of what waits to be sent.
const (
	maxQueued    = 4096 // spans, those that are being sent among them
	maxBatch     = 512
	batchTimeout = 2 * time.Second  // how long a span waits for company
	sendTimeout  = 10 * time.Second // for one batch, further attempts included
	maxAnswer    = 64 << 10         // bytes that are read of a collector's answer
)

// The outcomes of spans in Hooks.Spans.
const (
	Sent    = "sent"    // the collector has them
	Dropped = "dropped" // too many waited, or there was nobody any more to send them
	Failed  = "failed"  // the collector did not take them
)

// Outcomes are all of them.
func Outcomes() []string { return []string{Sent, Dropped, Failed} }

// Options say where traces go.
type Options struct {
	// Endpoint is the http or https URL that takes them, with its path. Required.
	Endpoint string
	// Fields go with each delivery, by name. They may be secret.
	Fields map[string]string
	// TLS is whom to trust, and which certificate to show; nil: the system's. It is not
	// modified and must not be.
	TLS *tls.Config
	// Version and Instance are what the program and this process are called.
	Version, Instance string
	// Hooks report what happened.
	Hooks Hooks
}

// Hooks report what happened; nil functions are skipped. They are called from several
// goroutines and must not block.
type Hooks struct {
	// Spans is called with what became of n spans: one of [Outcomes].
	Spans func(outcome string, n int)
	// Failed is called when a batch could not be delivered. The error has nothing of the
	// request or the answer but the status.
	Failed func(error)
}

// A Tracer sends traces. It is made by [New], begins with Start and ends with Close. It is
// safe for concurrent use.
type Tracer struct {
	exporter *exporter
	resource *resource.Resource
	waiting  atomic.Int64 // spans that have ended and are not sent
	closed   atomic.Bool
	hooks    Hooks

	start    sync.Once
	provider *sdktrace.TracerProvider     // set by Start
	tracer   atomic.Pointer[trace.Tracer] // what makes spans; nothing before Start
	stop     context.CancelCauseFunc      // ends what is being sent
	stopped  context.Context
}

// New returns a Tracer. It opens no connection and starts no goroutine; an error says which
// option is wrong.
func New(o Options) (*Tracer, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("traces: endpoint: want a URL with http or https") // the error could repeat a password
	}
	t := &Tracer{hooks: o.Hooks}
	t.stopped, t.stop = context.WithCancelCause(context.Background())
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig, transport.MaxIdleConnsPerHost = o.TLS, 1
	watched := &watch{transport: transport}
	options := []otlptracehttp.Option{
		otlptracehttp.WithEndpoint(u.Host), otlptracehttp.WithURLPath(u.Path),
		// All of it is said here, so that nothing in the environment changes it.
		otlptracehttp.WithHeaders(o.Fields), otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithTimeout(sendTimeout), otlptracehttp.WithMaxResponseSize(maxAnswer),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: time.Second, MaxInterval: 5 * time.Second, MaxElapsedTime: sendTimeout,
		}),
		otlptracehttp.WithHTTPClient(&http.Client{
			Transport: watched,
			// What goes with a delivery is for the collector and nobody it names.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}),
	}
	if u.Scheme == "http" {
		options = append(options, otlptracehttp.WithInsecure())
	}
	t.exporter = &exporter{SpanExporter: otlptrace.NewUnstarted(otlptracehttp.NewClient(options...)), t: t, watched: watched}
	own := resource.NewSchemaless(
		attribute.String("service.name", "gateway"), attribute.String("service.version", o.Version),
		attribute.String("service.instance.id", o.Instance), attribute.String("host.name", hostname()),
	)
	if t.resource, err = resource.Merge(own, resource.Environment()); err != nil {
		return nil, fmt.Errorf("traces: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return t, nil
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// Start begins to take spans, and to send them. It may be called again.
func (t *Tracer) Start() {
	t.start.Do(func() {
		if err := t.exporter.start(); err != nil {
			t.failed(err)
		}
		batches := sdktrace.NewBatchSpanProcessor(t.exporter,
			sdktrace.WithMaxQueueSize(maxQueued), sdktrace.WithMaxExportBatchSize(maxBatch),
			sdktrace.WithBatchTimeout(batchTimeout), sdktrace.WithExportTimeout(sendTimeout))
		t.provider = sdktrace.NewTracerProvider(
			sdktrace.WithSampler(sdktrace.AlwaysSample()), // it is decided before
			sdktrace.WithResource(t.resource), sdktrace.WithSpanProcessor(&bounded{batches, t}))
		made := t.provider.Tracer("bouncer/gateway")
		t.tracer.Store(&made)
	})
}

// Close sends what waits, until ctx ends, and drops the rest. Spans that end later are
// dropped, too.
func (t *Tracer) Close(ctx context.Context) {
	t.start.Do(func() {}) // it does not begin any more
	none := noop.NewTracerProvider().Tracer("")
	t.tracer.Store(&none)
	if t.provider == nil {
		return
	}
	defer t.stop(nil)
	defer context.AfterFunc(ctx, func() { t.stop(context.Cause(ctx)) })()
	// It is over when nothing is sent any more, which stop sees to.
	_ = t.provider.Shutdown(context.WithoutCancel(ctx)) // what failed was told and counted
}

func (t *Tracer) count(outcome string, n int) {
	if t.hooks.Spans != nil && n > 0 {
		t.hooks.Spans(outcome, n)
	}
}

func (t *Tracer) failed(err error) {
	if t.hooks.Failed != nil {
		t.hooks.Failed(err)
	}
}

// bounded lets only so many spans wait, and counts those that find no room, which the
// processor behind it would drop in silence.
type bounded struct {
	sdktrace.SpanProcessor
	t *Tracer
}

// OnEnd implements [sdktrace.SpanProcessor].
func (b *bounded) OnEnd(s sdktrace.ReadOnlySpan) {
	if b.t.waiting.Add(1) > maxQueued || b.t.closed.Load() {
		b.t.waiting.Add(-1)
		b.t.count(Dropped, 1)
		return
	}
	b.SpanProcessor.OnEnd(s)
}

// Shutdown implements [sdktrace.SpanProcessor].
func (b *bounded) Shutdown(ctx context.Context) error {
	b.t.closed.Store(true)
	err := b.SpanProcessor.Shutdown(ctx)
	b.t.count(Dropped, int(b.t.waiting.Swap(0))) // those that came between the two
	return err
}

// exporter delivers batches, and tells what became of them.
type exporter struct {
	sdktrace.SpanExporter
	t       *Tracer
	watched *watch
}

func (e *exporter) start() error {
	if s, ok := e.SpanExporter.(*otlptrace.Exporter); ok {
		return s.Start(context.Background())
	}
	return nil
}

// ExportSpans implements [sdktrace.SpanExporter]. It returns no error: what the library
// would do with it is to print it.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(e.t.stopped, func() { cancel(context.Canceled) })() //nolint:contextcheck // the end of the tracer ends it too
	defer cancel(nil)
	e.watched.last.Store(nil)
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.t.waiting.Add(-int64(len(spans)))
	switch {
	case err == nil:
		e.t.count(Sent, len(spans))
	case e.t.stopped.Err() != nil:
		e.t.count(Dropped, len(spans))
	default:
		e.t.count(Failed, len(spans))
		e.t.failed(e.watched.why())
	}
	return nil
}

// watch knows how the last delivery went. The library's own errors repeat the URL and what
// the collector answered.
type watch struct {
	transport http.RoundTripper
	last      atomic.Pointer[error]
}

// RoundTrip implements [http.RoundTripper].
func (w *watch) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := w.transport.RoundTrip(r)
	told := err
	if err == nil && res.StatusCode/100 != 2 {
		told = fmt.Errorf("it answered with status %d", res.StatusCode)
	}
	w.last.Store(&told)
	return res, err
}

// why is what was wrong with the last delivery.
func (w *watch) why() error {
	if err := w.last.Load(); err != nil && *err != nil {
		return *err
	}
	return errors.New("it did not take all of them")
}
