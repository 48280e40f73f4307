package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics is every metric of the gateway. Children are resolved once and kept
// in a table: a look-up by label values per request would cost more than the
// counting.
type metrics struct {
	requests   *prometheus.CounterVec   // route, method, code
	duration   *prometheus.HistogramVec // route
	added      *prometheus.HistogramVec // route
	streams    *prometheus.HistogramVec // route
	inFlight   *prometheus.GaugeVec     // route
	decisions  *prometheus.CounterVec   // route, plan, limit, outcome, source
	remaining  *prometheus.HistogramVec // plan, limit
	storeTook  prometheus.Histogram
	fallback   *prometheus.GaugeVec // mode
	overflow   prometheus.Counter
	unknown    prometheus.Counter
	untrusted  prometheus.Counter
	leased     prometheus.Gauge
	stranded   prometheus.Counter
	leasesFull prometheus.Counter
	instances  prometheus.Gauge
	upRequests *prometheus.CounterVec // upstream, target, code
	up         *prometheus.GaugeVec   // upstream, target
	forbidden  *prometheus.CounterVec // route, reason
	lastOK     prometheus.Gauge
	lastOKTime prometheus.Gauge
	configInfo *prometheus.GaugeVec // hash
	shared     prometheus.Gauge
	circuit    *prometheus.GaugeVec   // upstream
	noRoom     *prometheus.CounterVec // upstream, reason
	retries    *prometheus.CounterVec // upstream, outcome
	certExpiry *prometheus.GaugeVec   // subject
	sockets    *prometheus.GaugeVec   // route
	noSocket   prometheus.Counter
	noPlace    prometheus.Counter
	notRead    prometheus.Counter
	keyFetches *prometheus.CounterVec // issuer, outcome
	keysFrom   *prometheus.GaugeVec   // issuer: when they were last fetched
	keys       *prometheus.GaugeVec   // issuer

	// Those with fixed labels, all there from the start; never changed.
	storeErrors map[string]prometheus.Counter // by kind
	auth        map[authLabels]prometheus.Counter
	refused     map[authLabels]prometheus.Counter // by reason in place of an outcome
	applied     prometheus.Counter
	rejected    prometheus.Counter

	fallbackUnits map[string]prometheus.Counter // by outcome
	socketsEnded  map[string]prometheus.Counter // by reason
	traceSpans    map[string]prometheus.Counter // by outcome
	proxyHeaders  map[string]prometheus.Counter // by reason
}

type authLabels struct{ method, outcome string }

// The outcomes of authentication.
const (
	AuthAccepted    = "accepted"      // a valid credential
	AuthRefused     = "refused"       // a credential that is not valid
	AuthMissing     = "missing"       // no credential where one is required
	AuthNotLookedAt = "not_looked_at" // the address has failed too often
)

// socketEndings are why the gateway ends a WebSocket.
var socketEndings = [...]string{"idle", "lifetime", "credential", "shutdown"}

// authNone is the method of an attempt that had, or was looked at for, none.
const authNone = "none"

// authMethods are the kinds of credentials.
var authMethods = [...]string{"jwt", "cookie", "api_key", "client_cert"}

// authCombinations are the series of gateway_auth_total.
func authCombinations() []authLabels {
	all := []authLabels{{authNone, AuthMissing}, {authNone, AuthNotLookedAt}, {authNone, AuthRefused}, {other, other}}
	for _, method := range authMethods {
		all = append(all, authLabels{method, AuthAccepted}, authLabels{method, AuthRefused})
	}
	return all
}

// refusedCombinations are the series of gateway_auth_refused_total.
func refusedCombinations(reasons []string) []authLabels {
	all := []authLabels{{other, other}}
	for _, method := range authMethods {
		for _, reason := range reasons {
			all = append(all, authLabels{method, reason})
		}
	}
	return all
}

// latencyBuckets are the classic buckets in seconds, from what a local decision
// costs to what no client waits for. A scraper that understands native
// histograms gets finer ones.
var latencyBuckets = [...]float64{
	.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05,
	.1, .25, .5, 1, 2.5, 5, 10,
}

// streamBuckets are those of what lasts as long as its two sides want, in seconds: a
// second, ten, a minute, ten, an hour, six, a day.
var streamBuckets = [...]float64{1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600}

// native makes a histogram native as well as classic. The resolution (buckets
// that grow by 10 %) is given up before the bound on their number is.
func native(o prometheus.HistogramOpts) prometheus.HistogramOpts {
	o.NativeHistogramBucketFactor = 1.1
	o.NativeHistogramMaxBucketNumber = 160
	o.NativeHistogramMinResetDuration = time.Hour
	return o
}

func newMetrics(reg prometheus.Registerer, o *Options, dropped func() int64) metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: name, Help: help}
	}
	seconds := func(name, help string) prometheus.HistogramOpts {
		return native(prometheus.HistogramOpts{Name: name, Help: help, Buckets: latencyBuckets[:]})
	}
	m := metrics{
		requests: prometheus.NewCounterVec(counter("gateway_requests_total",
			"Requests answered, by route, method and status; 499 is a client that left."), []string{"route", "method", "code"}),
		duration: prometheus.NewHistogramVec(seconds("gateway_request_duration_seconds",
			"Time from the request's head to the end of its answer; streams of events and upgraded connections excepted."), []string{"route"}),
		added: prometheus.NewHistogramVec(seconds("gateway_added_latency_seconds",
			"The part of a request's duration that was not the upstream's; upgraded connections excepted."), []string{"route"}),
		streams: prometheus.NewHistogramVec(native(prometheus.HistogramOpts{
			Name:    "gateway_stream_duration_seconds",
			Help:    "How long streams of events and upgraded connections lasted, counted when they end.",
			Buckets: streamBuckets[:],
		}), []string{"route"}),
		inFlight: prometheus.NewGaugeVec(gauge("gateway_in_flight",
			"Requests being served."), []string{"route"}),
		decisions: prometheus.NewCounterVec(counter("gateway_ratelimit_decisions_total",
			"Verdicts, one for each limit that was evaluated."), []string{"route", "plan", "limit", "outcome", "source"}),
		remaining: prometheus.NewHistogramVec(native(prometheus.HistogramOpts{
			Name: "gateway_ratelimit_remaining_ratio",
			Help: "What a caller had left of a limit after a verdict, as a part of its capacity.",
			// Zero has a bucket of its own: it says how often callers stand at the limit.
			Buckets: []float64{0, .01, .05, .1, .25, .5, .75, .9, 1},
		}), []string{"plan", "limit"}),
		storeTook: prometheus.NewHistogram(seconds("gateway_store_duration_seconds",
			"Time that the limit store took to decide one request.")),
		fallback: prometheus.NewGaugeVec(gauge("gateway_fallback_active",
			"1 while the shared store is taken to be away, for each mode that a route uses."), []string{"mode"}),
		overflow: prometheus.NewCounter(counter("gateway_store_overflow_total",
			"Charges, WebSockets and connections that were counted in a budget shared with others because a table in this process was full.")),
		unknown: prometheus.NewCounter(counter("gateway_unknown_plan_total",
			"Callers whose credential names a plan that does not exist, given the default plan.")),
		untrusted: prometheus.NewCounter(counter("gateway_untrusted_forwarding_total",
			"Requests with the configured client-address field from a peer that is not trusted for it, whose own address was taken.")),
		leased: prometheus.NewGauge(gauge("gateway_lease_blocks",
			"Blocks of budget that this instance has taken out of the shared store in advance.")),
		stranded: prometheus.NewCounter(counter("gateway_lease_stranded_units_total",
			"Units that were taken in advance and are not known to be spent or back.")),
		leasesFull: prometheus.NewCounter(counter("gateway_lease_overflow_total",
			"Charges of leased limits that were asked for one by one because too many buckets have blocks.")),
		instances: prometheus.NewGauge(gauge("gateway_instances",
			"Gateway instances that are alive, as last known.")),
		upRequests: prometheus.NewCounterVec(counter("gateway_upstream_requests_total",
			"Attempts at an upstream, by the status it answered; error: no answer, canceled: the client left first."), []string{"upstream", "target", "code"}),
		up: prometheus.NewGaugeVec(gauge("gateway_upstream_up",
			"0 if a target is left out, or the last attempt could not connect, else 1."), []string{"upstream", "target"}),
		forbidden: prometheus.NewCounterVec(counter("gateway_forbidden_total",
			"Requests that were refused with 403, by what the route wants and the caller does not have."), []string{"route", "reason"}),
		circuit: prometheus.NewGaugeVec(gauge("gateway_upstream_circuit_open",
			"1 while an upstream is left alone because it fails, or is only tried."), []string{"upstream"}),
		noRoom: prometheus.NewCounterVec(counter("gateway_upstream_refused_total",
			"Requests that were not sent to an upstream, by the reason: no_room or circuit_open."), []string{"upstream", "reason"}),
		retries: prometheus.NewCounterVec(counter("gateway_upstream_retries_total",
			"Further attempts at requests that had failed, by what became of them: done, or not, because the budget was spent."), []string{"upstream", "outcome"}),
		lastOK: prometheus.NewGauge(gauge("gateway_config_last_reload_success",
			"1 if the last load of the configuration was applied, 0 if it was rejected.")),
		lastOKTime: prometheus.NewGauge(gauge("gateway_config_last_reload_success_timestamp_seconds",
			"When a configuration was last applied, Unix time.")),
		configInfo: prometheus.NewGaugeVec(gauge("gateway_config_info",
			"Always 1; the label identifies the content of the configuration in force."), []string{"hash"}),
		shared: prometheus.NewGauge(gauge("gateway_store_shared",
			"1 where limits are counted in a store that instances share, 0 where this one counts alone, in its own memory.")),
		certExpiry: prometheus.NewGaugeVec(gauge("gateway_certificate_expiry_timestamp_seconds",
			"When a certificate that the gateway presents expires, Unix time."), []string{"subject"}),
		sockets: prometheus.NewGaugeVec(gauge("gateway_websockets",
			"WebSockets that are open."), []string{"route"}),
		noSocket: prometheus.NewCounter(counter("gateway_websockets_refused_total",
			"Handshakes of callers that had as many WebSockets open as they may.")),
		noPlace: prometheus.NewCounter(counter("gateway_connections_refused_total",
			"Connections that were closed because their address had as many as it may.")),
		notRead: prometheus.NewCounter(counter("gateway_answers_not_read_total",
			"Answers that were broken off because their client took nothing of them for two minutes.")),
		keyFetches: prometheus.NewCounterVec(counter("gateway_jwks_fetches_total",
			"Attempts to fetch the keys of an issuer, by what came of them."), []string{"issuer", "outcome"}),
		keysFrom: prometheus.NewGaugeVec(gauge("gateway_jwks_last_success_timestamp_seconds",
			"When the keys of an issuer were last fetched, or were said not to have changed, Unix time; 0: never."), []string{"issuer"}),
		keys: prometheus.NewGaugeVec(gauge("gateway_jwks_keys",
			"Keys of an issuer that its tokens are verified with; 0: none are known, or they are too old."), []string{"issuer"}),
		storeErrors: make(map[string]prometheus.Counter),
		auth:        make(map[authLabels]prometheus.Counter),
		refused:     make(map[authLabels]prometheus.Counter),

		fallbackUnits: make(map[string]prometheus.Counter),
		socketsEnded:  make(map[string]prometheus.Counter),
		traceSpans:    make(map[string]prometheus.Counter),
		proxyHeaders:  make(map[string]prometheus.Counter),
	}
	units := prometheus.NewCounterVec(counter("gateway_fallback_units_total",
		"Units of limits admitted without the shared store, by what became of them."), []string{"outcome"})
	for _, outcome := range o.FallbackOutcomes {
		m.fallbackUnits[outcome] = units.WithLabelValues(clean(outcome))
	}
	ended := prometheus.NewCounterVec(counter("gateway_websockets_ended_total",
		"WebSockets that the gateway ended, by why: idle, lifetime, credential (expired) or shutdown."), []string{"reason"})
	for _, reason := range socketEndings {
		m.socketsEnded[reason] = ended.WithLabelValues(reason)
	}
	spans := prometheus.NewCounterVec(counter("gateway_trace_spans_total",
		"Spans of traces, by what became of them: sent, dropped (too many waited) or failed (the collector did not take them)."), []string{"outcome"})
	for _, outcome := range [...]string{"sent", "dropped", "failed"} {
		m.traceSpans[outcome] = spans.WithLabelValues(outcome)
	}
	proxyHeaders := prometheus.NewCounterVec(counter("gateway_proxy_headers_refused_total",
		"Connections of trusted proxies that were closed at the header of the PROXY protocol: missing, bad or slow."), []string{"reason"})
	for _, reason := range [...]string{"missing", "bad", "slow"} {
		m.proxyHeaders[reason] = proxyHeaders.WithLabelValues(reason)
	}
	storeErrors := prometheus.NewCounterVec(counter("gateway_store_errors_total",
		"Calls of the shared store that failed, by what went wrong: decisions, refunds, and what instances tell each other."), []string{"kind"})
	for _, kind := range append([]string{other}, o.StoreErrorKinds...) {
		m.storeErrors[kind] = storeErrors.WithLabelValues(clean(kind))
	}
	auth := prometheus.NewCounterVec(counter("gateway_auth_total",
		"Attempts to authenticate, by kind of credential and outcome."), []string{"method", "outcome"})
	for _, l := range authCombinations() {
		m.auth[l] = auth.WithLabelValues(clean(l.method), clean(l.outcome))
	}
	refused := prometheus.NewCounterVec(counter("gateway_auth_refused_total",
		"Credentials that were refused, by kind and reason; clients are never told it."), []string{"method", "reason"})
	for _, l := range refusedCombinations(o.AuthReasons) {
		m.refused[l] = refused.WithLabelValues(clean(l.method), clean(l.outcome))
	}
	reloads := prometheus.NewCounterVec(counter("gateway_config_reloads_total",
		"Reloads of the configuration, the first load not counted."), []string{"outcome"})
	m.applied = reloads.WithLabelValues("applied")
	m.rejected = reloads.WithLabelValues("rejected")
	logDropped := prometheus.NewCounterFunc(counter("gateway_log_dropped_total",
		"Log lines lost because whatever reads the log was too slow or gone."),
		func() float64 { return float64(dropped()) })
	denials := prometheus.NewGaugeFunc(gauge("gateway_deny_cache_entries",
		"Denials by Redis that are held and told again without asking it; those that are over count until their place is needed."),
		func() float64 { n, _ := o.DenyCache(); return float64(n) })
	pushedOut := prometheus.NewCounterFunc(counter("gateway_deny_cache_evictions_total",
		"Denials that made room for others, because too many were held."),
		func() float64 { _, n := o.DenyCache(); return float64(n) })
	m.instances.Set(1) // this one

	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
		m.requests, m.duration, m.added, m.streams, m.inFlight, m.decisions, m.remaining, m.storeTook,
		m.fallback, m.overflow, m.unknown, m.untrusted, m.leased, m.stranded, m.leasesFull, m.instances, m.upRequests, m.up, m.forbidden,
		m.lastOK, m.lastOKTime, m.configInfo, m.shared, m.circuit, m.noRoom, m.retries, m.certExpiry,
		m.sockets, m.noSocket, m.noPlace, m.notRead, m.keyFetches, m.keysFrom, m.keys, ended, spans, proxyHeaders, storeErrors, units, auth, refused, reloads, logDropped, denials, pushedOut,
	)
	return m
}
