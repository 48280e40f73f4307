package telemetry

import (
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Options sets up a [Telemetry]. The zero value logs to standard output.
type Options struct {
	// Out receives both logs; nil means os.Stdout. It is written to by one
	// goroutine only.
	Out io.Writer
	// FlushEvery is how long a line may wait for company, > 0; 0 means 50ms.
	FlushEvery time.Duration
	// CloseTimeout bounds how long Close waits for a reader of Out that stands
	// still, > 0; 0 means 2s.
	CloseTimeout time.Duration
	// DenyCache returns how many denials are held, and how many have been pushed
	// out by others; nil means none. It is called for each scrape.
	DenyCache func() (entries int, evictions uint64)
	// StoreErrorKinds are the kinds that StoreFailed is called with; nil means
	// DefaultStoreErrorKinds. Any other kind counts as "other".
	StoreErrorKinds []string
	// FallbackOutcomes are what FallbackUnits is called with; any other is not
	// counted.
	FallbackOutcomes []string
	// FetchOutcomes are what IssuerFetched is called with.
	FetchOutcomes []string
	// AuthReasons are the words for why a credential is refused, of which each has a
	// series in gateway_auth_refused_total; any other counts as AuthRefused.
	AuthReasons []string
	// AuthReason is the word for why err refused a credential, as the access log
	// is to show it, or "" if err is not of that kind. It must be one of a few
	// fixed words: an error's own text may hold parts of a credential, so it is
	// never written. nil, or "", writes AuthRefused.
	AuthReason func(err error) string
}

// DefaultStoreErrorKinds are the kinds of store errors that have a series of
// their own unless [Options] says otherwise.
func DefaultStoreErrorKinds() []string {
	return []string{"timeout", "connection", "reply", "canceled"}
}

// A Telemetry holds the metrics and the logs of one process. All methods are
// safe for concurrent use; those that are called per request take no lock
// after the first call with the same labels.
type Telemetry struct {
	metrics
	registry *prometheus.Registry
	handler  http.Handler
	lines    *lineWriter
	logger   *slog.Logger
	level    slog.LevelVar
	share    atomic.Pointer[sampling] // of lines that are written
	reason   func(error) string       // Options.AuthReason

	// current is what is in force, replaced whole by Configure.
	current atomic.Pointer[table]
	// What no configuration gives or takes; see table.
	unmatched      *route
	otherRoute     func() *route // made when it is first needed
	otherDecisions *decisions
	otherTarget    *target

	mu sync.Mutex // protects the following fields, and the making and retiring of series
	// configHash is the label of gateway_config_info, empty before the first load.
	configHash string
	modes      map[string]bool // series of gateway_fallback_active
	away       bool            // the value of all of them
	subjects   map[string]bool // series of gateway_certificate_expiry_timestamp_seconds
	issuers    map[string]bool // series of gateway_jwks_*

	sampled bool       // there is a Sampler, which reads made
	made    []madeCell // since it last looked

	fetchOutcomes []string // never changed
}

// New returns a Telemetry with a registry of its own. It starts one goroutine,
// which Close ends.
func New(o Options) *Telemetry {
	if o.Out == nil {
		o.Out = os.Stdout
	}
	if o.FlushEvery <= 0 {
		o.FlushEvery = 50 * time.Millisecond
	}
	if o.CloseTimeout <= 0 {
		o.CloseTimeout = 2 * time.Second
	}
	if o.DenyCache == nil {
		o.DenyCache = func() (int, uint64) { return 0, 0 }
	}
	if o.StoreErrorKinds == nil {
		o.StoreErrorKinds = DefaultStoreErrorKinds()
	}
	t := &Telemetry{
		registry: prometheus.NewRegistry(),
		reason:   o.AuthReason,
		lines:    newLineWriter(o.Out, o.FlushEvery, o.CloseTimeout),
		modes:    make(map[string]bool),
		subjects: make(map[string]bool),
		issuers:  make(map[string]bool),

		fetchOutcomes: o.FetchOutcomes,
	}
	t.logger = newLogger(t.lines, &t.level)
	t.metrics = newMetrics(t.registry, &o, t.lines.dropped.Load)
	t.handler = promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(t.logger.Handler(), slog.LevelError),
		// One broken series must not hide the others in the middle of an incident.
		ErrorHandling: promhttp.ContinueOnError,
		// It carries exemplars. Lines _created stay out: a Prometheus takes each for a
		// series of its own, and there would be half as many again.
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: 4,
	})
	t.unmatched = t.newRoute(Unmatched)
	t.otherRoute = sync.OnceValue(func() *route { return t.newRoute(other) })
	t.otherDecisions = &decisions{labels: Limit{Route: other, Plan: other, Limit: other}}
	t.otherTarget = &target{labels: Target{Upstream: other, Target: other}}
	t.current.Store(&table{})
	return t
}

// Handler serves the metrics in the format that a scraper prefers: OpenMetrics,
// with exemplars; the protobuf format, with native histograms beside the classic
// ones as well; else the classic text. It does not ask who is there; that is the
// admin listener's business.
func (t *Telemetry) Handler() http.Handler { return t.handler }

// Registry returns the registry, for another package's own collectors.
func (t *Telemetry) Registry() *prometheus.Registry { return t.registry }

// Logger returns the process log. Its records never interleave with access-log
// lines. A record of level Warn or above is written out at once.
func (t *Telemetry) Logger() *slog.Logger { return t.logger }

// Close writes out what is buffered and waits for it, for at most
// Options.CloseTimeout; the error says how many lines nobody took. What is
// logged after Close is dropped and counted. Close may be called twice.
func (t *Telemetry) Close() error { return t.lines.Close() }
