package telemetry

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"bouncer/gateway/scope"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scrape returns the samples of the gateway's own metrics as a scraper reads
// them: "name{labels}" → value.
func scrape(t testing.TB, tm *Telemetry) map[string]string {
	t.Helper()
	rec := httptest.NewRecorder()
	tm.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != http.StatusOK {
		t.Fatalf("scrape: %d %s", rec.Code, rec.Body)
	}
	samples := make(map[string]string)
	sc := bufio.NewScanner(rec.Body)
	for sc.Scan() {
		if line := sc.Text(); strings.HasPrefix(line, "gateway_") {
			i := strings.LastIndexByte(line, ' ')
			samples[line[:i]] = line[i+1:]
		}
	}
	return samples
}

// expect compares some samples; "" means that there is to be none.
func expect(t *testing.T, tm *Telemetry, want map[string]string) {
	t.Helper()
	got := scrape(t, tm)
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s = %q, want %q", name, got[name], value)
		}
	}
}

func TestMetricsPassTheLinter(t *testing.T) {
	tm := discarding(t)
	exercise(tm)
	problems, err := testutil.GatherAndLint(tm.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "gateway_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// exercise makes at least one series of every metric.
func exercise(tm *Telemetry) {
	r, s := sample()
	tm.InFlight("weather").Done()
	tm.Request(r, s)
	tm.Decided("weather", "free", "per-minute", "memory", Enforced, true, 5, 20)
	tm.Auth("jwt", AuthAccepted)
	tm.UnknownPlan()
	tm.Forbidden("weather", "missing_scope")
	tm.UntrustedForwarding()
	tm.StoreTook(time.Millisecond)
	tm.StoreFailed("timeout")
	tm.FallbackActive(true)
	tm.Overflow()
	tm.Instances(3)
	tm.UpstreamDone("weather", "127.0.0.1:9001", 200, nil)
	tm.Loaded("abc", time.Unix(1_800_000_000, 0))
	tm.Reloaded(true, "def", time.Unix(1_800_000_001, 500_000_000))
	tm.Reloaded(false, "", time.Time{})
	tm.Certificates(map[string]time.Time{"CN=api.example.com": time.Unix(1_900_000_000, 0)})
}

func TestEveryEventReachesItsMetric(t *testing.T) {
	tm := discarding(t)
	exercise(tm)
	expect(t, tm, map[string]string{
		`gateway_requests_total{code="200",method="GET",route="weather"}`:                                                     "1",
		`gateway_request_duration_seconds_count{route="weather"}`:                                                             "1",
		`gateway_request_duration_seconds_bucket{route="weather",le="10"}`:                                                    "1",
		`gateway_added_latency_seconds_count{route="weather"}`:                                                                "1",
		`gateway_in_flight{route="weather"}`:                                                                                  "0",
		`gateway_ratelimit_remaining_ratio_sum{limit="per-minute",plan="free"}`:                                               "0.25",
		`gateway_ratelimit_decisions_total{limit="per-minute",outcome="allowed",plan="free",route="weather",source="memory"}`: "1",
		`gateway_ratelimit_decisions_total{limit="per-minute",outcome="denied",plan="free",route="weather",source="memory"}`:  "0",
		`gateway_auth_total{method="jwt",outcome="accepted"}`:                                                                 "1",
		`gateway_unknown_plan_total`:                                                                                          "1",
		`gateway_forbidden_total{reason="missing_scope",route="weather"}`:                                                     "1",
		`gateway_untrusted_forwarding_total`:                                                                                  "1",
		`gateway_store_duration_seconds_count`:                                                                                "1",
		`gateway_store_errors_total{kind="timeout"}`:                                                                          "1",
		`gateway_fallback_active{mode="local_cap"}`:                                                                           "1",
		`gateway_store_overflow_total`:                                                                                        "1",
		`gateway_instances`:                                                                                                   "3",
		`gateway_upstream_requests_total{code="200",target="127.0.0.1:9001",upstream="weather"}`:                              "1",
		`gateway_upstream_up{target="127.0.0.1:9001",upstream="weather"}`:                                                     "1",
		`gateway_config_reloads_total{outcome="applied"}`:                                                                     "1",
		`gateway_config_reloads_total{outcome="rejected"}`:                                                                    "1",
		`gateway_config_last_reload_success`:                                                                                  "0",
		`gateway_config_last_reload_success_timestamp_seconds`:                                                                "1.8000000015e+09",
		`gateway_config_info{hash="abc"}`:                                                                                     "",
		`gateway_config_info{hash="def"}`:                                                                                     "1",
		`gateway_certificate_expiry_timestamp_seconds{subject="CN=api.example.com"}`:                                          "1.9e+09",
		`gateway_log_dropped_total`:                                                                                           "0",
	})
}

func TestSeriesWithFixedLabelsStartAtZero(t *testing.T) {
	tm := New(Options{Out: io.Discard, StoreErrorKinds: []string{"timeout", "readonly"}, AuthReasons: []string{"expired"}})
	defer shut(t, tm)
	tm.Configure(Labels{
		Routes:    []string{"weather"},
		Limits:    []Limit{{"weather", "free", "per-day"}, {Unmatched, "", "edge-ip"}},
		Sources:   []string{"redis", "local_cap"},
		Targets:   []Target{{"weather", "127.0.0.1:9001"}},
		Modes:     []string{"local_cap", "deny"},
		Forbidden: []Forbidden{{"weather", "forbidden_ip"}},
	})
	want := map[string]string{
		`gateway_request_duration_seconds_count{route="weather"}`:              "0",
		`gateway_request_duration_seconds_count{route="unmatched"}`:            "0",
		`gateway_added_latency_seconds_count{route="weather"}`:                 "0",
		`gateway_in_flight{route="weather"}`:                                   "0",
		`gateway_ratelimit_remaining_ratio_count{limit="per-day",plan="free"}`: "0",
		`gateway_store_duration_seconds_count`:                                 "0",
		`gateway_fallback_active{mode="local_cap"}`:                            "0",
		`gateway_fallback_active{mode="deny"}`:                                 "0",
		`gateway_fallback_active{mode="allow"}`:                                "",
		`gateway_store_overflow_total`:                                         "0",
		`gateway_unknown_plan_total`:                                           "0",
		`gateway_forbidden_total{reason="forbidden_ip",route="weather"}`:       "0",
		`gateway_untrusted_forwarding_total`:                                   "0",
		`gateway_instances`:                                                    "1",
		`gateway_upstream_up{target="127.0.0.1:9001",upstream="weather"}`:      "1",
		`gateway_config_reloads_total{outcome="applied"}`:                      "0",
		`gateway_config_reloads_total{outcome="rejected"}`:                     "0",
		`gateway_store_errors_total{kind="readonly"}`:                          "0",
		`gateway_store_errors_total{kind="other"}`:                             "0",
		`gateway_auth_total{method="none",outcome="missing"}`:                  "0",
		`gateway_auth_total{method="none",outcome="not_looked_at"}`:            "0",
		`gateway_auth_total{method="cookie",outcome="refused"}`:                "0",
		`gateway_auth_refused_total{method="api_key",reason="expired"}`:        "0",
		`gateway_auth_refused_total{method="other",reason="other"}`:            "0",
	}
	for _, outcome := range []string{"allowed", "denied"} {
		for _, source := range []string{"redis", "local_cap"} {
			want[fmt.Sprintf(`gateway_ratelimit_decisions_total{limit="per-day",outcome=%q,plan="free",route="weather",source=%q}`, outcome, source)] = "0"
			want[fmt.Sprintf(`gateway_ratelimit_decisions_total{limit="edge-ip",outcome=%q,plan="",route="unmatched",source=%q}`, outcome, source)] = "0"
		}
	}
	expect(t, tm, want)
}

// Native histograms are only in the protobuf format; the classic buckets beside
// them are what everybody else reads.
func TestHistogramsAreNativeAndClassic(t *testing.T) {
	tm := discarding(t)
	exercise(tm)
	families, err := tm.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	native := 0
	for _, f := range families {
		if f.GetType() != dto.MetricType_HISTOGRAM || !strings.HasPrefix(f.GetName(), "gateway_") {
			continue
		}
		native++
		h := f.GetMetric()[0].GetHistogram()
		if h.Schema == nil || len(h.GetBucket()) < 5 {
			t.Errorf("%s: schema %v with %d classic buckets, want both kinds", f.GetName(), h.Schema, len(h.GetBucket()))
		}
	}
	if native != 5 {
		t.Errorf("%d histograms, want 5", native)
	}
}

func TestNoCallerCanMakeASeries(t *testing.T) {
	tm := discarding(t)
	exercise(tm)
	before := len(scrape(t, tm))
	for i := range 20_000 {
		odd := fmt.Sprintf("%d\xff\x00\xc0\xae\n\"", i)
		r := &http.Request{Method: "M" + odd, Host: odd, Header: http.Header{"User-Agent": {odd}}}
		s := &scope.Request{
			ID: odd, Arrived: time.Now(), User: odd, Tenant: odd, KeyID: odd, TokenPlan: odd,
			ClientIP: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Status: i,
		}
		tm.InFlight("").Done()
		tm.Request(r, s)
		// These come from the program, but a mistake in it must not be a leak either.
		s.Route = odd
		tm.Request(r, s)
		tm.InFlight(odd).Done()
		tm.Decided(odd, odd, odd, odd, Enforced, i%2 == 0, 1, int64(i%3))
		tm.Auth(odd, odd)
		tm.StoreFailed(odd)
		tm.UpstreamDone(odd, odd, i, errors.New(odd))
		tm.UpstreamDone("weather", "127.0.0.1:9001", i, nil)
	}
	after := scrape(t, tm)
	// Statuses are a short list; beyond them a fixed handful.
	if limit := before + 4*maxCodes + 10; len(after) > limit {
		t.Errorf("%d series before, %d after, want at most %d", before, len(after), limit)
	}
	for name := range after {
		if strings.Contains(name, `\xff`) || strings.ContainsRune(name, '\uFFFD') {
			t.Errorf("a caller's bytes in a label: %s", name)
		}
	}
	// A thousand of each status from 100 to 599 and a flood of impossible ones.
	if after[`gateway_requests_total{code="404",method="other",route="unmatched"}`] != "1" ||
		after[`gateway_requests_total{code="4xx",method="other",route="unmatched"}`] == "" ||
		after[`gateway_requests_total{code="other",method="other",route="unmatched"}`] == "" {
		t.Error("statuses are not labeled by themselves, their class, or other")
	}
}

func TestOperatorsOddBytesDoNotPanic(t *testing.T) {
	tm := discarding(t)
	const odd = "w\xff"
	for range 2 { // the second time is a reload
		tm.Configure(Labels{
			Routes: []string{odd, other, Unmatched, "", "weather"}, Limits: []Limit{{odd, odd, odd}}, Sources: []string{odd},
			Targets: []Target{{odd, odd}}, Modes: []string{odd},
		})
		tm.Decided(odd, odd, odd, odd, Enforced, true, 1, 2)
		tm.UpstreamDone(odd, odd, 200, nil)
		tm.Loaded(odd, time.Now())
		tm.Certificates(map[string]time.Time{odd: time.Now()})
		tm.FallbackActive(true)
	}
	expect(t, tm, map[string]string{
		"gateway_upstream_requests_total{code=\"200\",target=\"w\uFFFD\",upstream=\"w\uFFFD\"}": "2",
		"gateway_config_info{hash=\"w\uFFFD\"}":                                                 "1",
	})
	tm.Configure(Labels{})
	for name := range scrape(t, tm) {
		if strings.ContainsRune(name, '\uFFFD') && !strings.HasPrefix(name, "gateway_config_info") &&
			!strings.HasPrefix(name, "gateway_certificate") {
			t.Errorf("outlived its configuration: %s", name)
		}
	}
}

func TestReloadKeepsCountsAndDeletesWhatIsGone(t *testing.T) {
	tm := discarding(t)
	tm.Configure(Labels{
		Routes:    []string{"weather", "export"},
		Limits:    []Limit{{"weather", "free", "per-minute"}, {"export", "free", "per-minute"}, {"export", "pro", "per-day"}},
		Sources:   []string{"memory"},
		Targets:   []Target{{"weather", "127.0.0.1:9001"}, {"weather", "127.0.0.1:9002"}},
		Modes:     []string{"local_cap", "deny"},
		Forbidden: []Forbidden{{"weather", "forbidden_ip"}, {"export", "missing_scope"}},
	})
	r, s := sample()
	tm.Request(r, s)
	s.Route = "export"
	tm.Request(r, s)
	for _, l := range []Limit{{"weather", "free", "per-minute"}, {"export", "free", "per-minute"}, {"export", "pro", "per-day"}} {
		tm.Decided(l.Route, l.Plan, l.Limit, "memory", Enforced, false, 0, 20)
	}
	tm.UpstreamDone("weather", "127.0.0.1:9002", 200, nil)
	tm.Forbidden("weather", "forbidden_ip")
	tm.Forbidden("export", "missing_scope")
	tm.FallbackActive(true)
	staying := tm.InFlight("weather")
	flying := tm.InFlight("export")
	racing := tm.route("export") // what a request holds that looked its route up before

	tm.Configure(Labels{
		Routes:    []string{"weather", "new"},
		Limits:    []Limit{{"weather", "free", "per-minute"}},
		Sources:   []string{"memory"},
		Targets:   []Target{{"weather", "127.0.0.1:9001"}},
		Modes:     []string{"allow"},
		Forbidden: []Forbidden{{"weather", "forbidden_ip"}},
	})
	flying.Done()
	tm.Forbidden("export", "missing_scope")
	tm.Request(r, s) // arrived under the old configuration, ends under the new
	tm.countRequest(racing, methodIndex(http.MethodPut), codes.of(201))
	tm.Decided("export", "pro", "per-day", "memory", Enforced, false, 0, 20)
	tm.UpstreamDone("weather", "127.0.0.1:9002", 200, nil)

	for name := range scrape(t, tm) {
		if strings.Contains(name, "export") || strings.Contains(name, "per-day") || strings.Contains(name, "9002") ||
			strings.Contains(name, `mode="deny"`) {
			t.Errorf("outlived its configuration: %s", name)
		}
	}
	expect(t, tm, map[string]string{
		`gateway_in_flight{route="weather"}`:                                                                                 "1",
		`gateway_requests_total{code="200",method="GET",route="weather"}`:                                                    "1",
		`gateway_requests_total{code="200",method="GET",route="other"}`:                                                      "1",
		`gateway_requests_total{code="201",method="PUT",route="other"}`:                                                      "1",
		`gateway_forbidden_total{reason="forbidden_ip",route="weather"}`:                                                     "1",
		`gateway_forbidden_total{reason="other",route="other"}`:                                                              "1",
		`gateway_in_flight{route="new"}`:                                                                                     "0",
		`gateway_fallback_active{mode="allow"}`:                                                                              "1", // the store is still away
		`gateway_ratelimit_remaining_ratio_count{limit="per-minute",plan="free"}`:                                            "2",
		`gateway_ratelimit_decisions_total{limit="per-minute",outcome="denied",plan="free",route="weather",source="memory"}`: "1",
		`gateway_ratelimit_decisions_total{limit="other",outcome="denied",plan="other",route="other",source="memory"}`:       "1",
		`gateway_upstream_requests_total{code="200",target="other",upstream="other"}`:                                        "1",
	})
	staying.Done()
	expect(t, tm, map[string]string{`gateway_in_flight{route="weather"}`: "0"})
}

func TestManyDecisionsAreNotAllMadeAtStart(t *testing.T) {
	tm := discarding(t)
	var l Labels
	l.Sources = []string{"redis", "local_cap"}
	for i := range maxAtStart/4 + 1 {
		l.Limits = append(l.Limits, Limit{fmt.Sprint("r", i), "free", "per-minute"})
	}
	tm.Configure(l)
	if n := testutil.CollectAndCount(tm.decisions); n != 0 {
		t.Errorf("%d series at start, want none", n)
	}
	tm.Decided("r7", "free", "per-minute", "redis", Enforced, true, 1, 2)
	if n := testutil.CollectAndCount(tm.decisions); n != 1 {
		t.Errorf("%d series after one verdict, want 1", n)
	}
}

func TestAddedLatencyIsAllButTheUpstreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := New(Options{Out: io.Discard})
		defer shut(t, tm)
		tm.Configure(Labels{Routes: []string{"weather", "stream", "events", "clock"}})
		r, s := sample()
		s.Arrived, s.UpstreamDuration = time.Now(), 3*time.Second
		time.Sleep(3*time.Second + 250*time.Millisecond)
		tm.Request(r, s)
		// An upgraded connection that lasted an hour says nothing about latency.
		s.Route, s.Status, s.Stream = "stream", http.StatusSwitchingProtocols, true
		time.Sleep(time.Hour)
		tm.Request(r, s)
		// Nor do server-sent events, but for what was added to them.
		s.Route, s.Status, s.Arrived, s.UpstreamDuration = "events", http.StatusOK, time.Now(), time.Hour
		time.Sleep(time.Hour + 250*time.Millisecond)
		tm.Request(r, s)
		s.UpstreamDuration, s.Stream = 0, false
		// A measurement that cannot be is no reason for a negative one.
		s.Route, s.Status, s.Arrived = "clock", 200, time.Now()
		tm.Request(r, s)
		expect(t, tm, map[string]string{
			`gateway_request_duration_seconds_sum{route="weather"}`:          "3.25",
			`gateway_added_latency_seconds_sum{route="weather"}`:             "0.25",
			`gateway_requests_total{code="101",method="GET",route="stream"}`: "1",
			`gateway_request_duration_seconds_count{route="stream"}`:         "0",
			`gateway_added_latency_seconds_count{route="stream"}`:            "0",
			`gateway_stream_duration_seconds_count{route="stream"}`:          "1",
			`gateway_stream_duration_seconds_count{route="weather"}`:         "0",
			`gateway_request_duration_seconds_count{route="events"}`:         "0",
			`gateway_added_latency_seconds_sum{route="events"}`:              "0.25",
			`gateway_stream_duration_seconds_sum{route="events"}`:            "3600.25",
			`gateway_added_latency_seconds_sum{route="clock"}`:               "0",
			`gateway_added_latency_seconds_count{route="clock"}`:             "1",
		})
	})
}

// The series of an upstream are there from the start, and go with it.
func TestUpstreamsAsAWhole(t *testing.T) {
	tm := New(Options{Out: io.Discard})
	defer shut(t, tm)
	tm.Configure(Labels{Upstreams: []string{"weather"}})
	tm.UpstreamRetry("weather", "done")
	tm.UpstreamRetry("gone", "done")
	tm.UpstreamRefused("weather", "no_room")
	tm.UpstreamCircuit("weather", true)
	expect(t, tm, map[string]string{
		`gateway_upstream_retries_total{outcome="done",upstream="weather"}`:        "1",
		`gateway_upstream_retries_total{outcome="budget",upstream="weather"}`:      "0",
		`gateway_upstream_refused_total{reason="no_room",upstream="weather"}`:      "1",
		`gateway_upstream_refused_total{reason="circuit_open",upstream="weather"}`: "0",
		`gateway_upstream_circuit_open{upstream="weather"}`:                        "1",
	})
	tm.Configure(Labels{})
	w := httptest.NewRecorder()
	tm.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.Contains(line, `upstream="weather"`) || strings.Contains(line, `upstream="gone"`) {
			t.Errorf("still there: %s", line)
		}
	}
}

// notConnected is an error that says of itself what it means.
type notConnected struct{ error }

func (notConnected) NotConnected() bool { return true }

func TestUpstreamUpSaysWhetherTheLastAttemptConnected(t *testing.T) {
	refused := notConnected{errors.New("connection refused")}
	reset := &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
	for _, tc := range []struct {
		name   string
		status int
		err    error
		was    float64
		up     float64
		code   string
	}{
		{"answered", 200, nil, 0, 1, "200"},
		{"answered with an error", 503, nil, 0, 1, "503"},
		{"answer broke off", 200, reset, 0, 1, "200"},
		{"unknown status", 599, nil, 0, 1, "5xx"},
		{"refused", 0, fmt.Errorf("send: %w", refused), 1, 0, "error"},
		{"certificate not taken", 0, &net.OpError{Op: "remote error", Err: tls.AlertError(42)}, 1, 0, "error"},
		{"reset after connecting", 0, reset, 0, 1, "error"},
		{"too slow after connecting", 0, context.DeadlineExceeded, 0, 1, "error"},
		{"client left, was up", 0, fmt.Errorf("send: %w", context.Canceled), 1, 1, "canceled"},
		{"client left, was down", 0, fmt.Errorf("send: %w", context.Canceled), 0, 0, "canceled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tm := discarding(t)
			tm.up.WithLabelValues("weather", "127.0.0.1:9001").Set(tc.was)
			tm.UpstreamDone("weather", "127.0.0.1:9001", tc.status, tc.err)
			expect(t, tm, map[string]string{
				`gateway_upstream_up{target="127.0.0.1:9001",upstream="weather"}`:                                           fmt.Sprint(tc.up),
				fmt.Sprintf(`gateway_upstream_requests_total{code=%q,target="127.0.0.1:9001",upstream="weather"}`, tc.code): "1",
			})
		})
	}
}

func TestCertificatesThatAreGoneWakeNobody(t *testing.T) {
	tm := discarding(t)
	at := time.Unix(1_900_000_000, 0)
	tm.Certificates(map[string]time.Time{"CN=old": at, "CN=same": at})
	tm.Certificates(map[string]time.Time{"CN=new": at, "CN=same": at.Add(100 * time.Second)})
	expect(t, tm, map[string]string{
		`gateway_certificate_expiry_timestamp_seconds{subject="CN=old"}`:  "",
		`gateway_certificate_expiry_timestamp_seconds{subject="CN=new"}`:  "1.9e+09",
		`gateway_certificate_expiry_timestamp_seconds{subject="CN=same"}`: "1.9000001e+09",
	})
}

// Every place in which a client can carry a credential holds the canary; none
// of it may be written, whatever went wrong.
func TestNoSecretIsWritten(t *testing.T) {
	const canary = "canary-7c1f"
	out := &recorder{}
	tm := New(Options{Out: out, AuthReason: func(error) string { return "expired" }})
	tm.Configure(Labels{Routes: []string{"weather"}})
	for _, status := range []int{200, 401, 429, 499, 502} {
		r := httptest.NewRequest(http.MethodPost, "http://"+"u:"+canary+"@api.example.com/api?token="+canary+"#"+canary,
			strings.NewReader(canary))
		for _, field := range []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key"} {
			r.Header.Set(field, "Bearer "+canary)
		}
		_, s := sample()
		s.Status = status
		s.AuthError = errors.New("token " + canary + " is malformed")
		s.UpstreamErr = fmt.Errorf("forward: %w", httpClientError(canary))
		tm.Request(r, s)
	}
	var metrics strings.Builder
	for name := range scrape(t, tm) {
		metrics.WriteString(name)
	}
	shut(t, tm)
	if got := out.all(); strings.Contains(got, canary) || strings.Count(got, `"auth_error":"expired"`) != 5 {
		t.Errorf("log:\n%s", got)
	}
	if strings.Contains(metrics.String(), canary) {
		t.Error("canary in a metric")
	}
}

// httpClientError is what net/http's client says when nobody listens: it quotes the URL.
func httpClientError(secret string) error {
	c := http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })}
	res, err := c.Get("http://127.0.0.1/?token=" + secret)
	if err == nil {
		_ = res.Body.Close()
	}
	return err
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAuthErrorIsOneFixedWord(t *testing.T) {
	for name, tc := range map[string]struct {
		reason func(error) string
		want   string
	}{
		"none given": {nil, AuthRefused},
		"unknown":    {func(error) string { return "" }, AuthRefused},
		"known":      {func(error) string { return "bad_signature" }, "bad_signature"},
	} {
		out := &recorder{}
		tm := New(Options{Out: out, AuthReason: tc.reason})
		r, s := sample()
		s.AuthError = errors.New("whatever a library says")
		tm.Request(r, s)
		shut(t, tm)
		var line struct {
			AuthError string `json:"auth_error"`
		}
		if err := json.Unmarshal([]byte(out.all()), &line); err != nil || line.AuthError != tc.want {
			t.Errorf("%s: auth_error %q (%v), want %q", name, line.AuthError, err, tc.want)
		}
	}
}

func TestBothLogsShareOneOutput(t *testing.T) {
	out := &recorder{}
	tm := New(Options{Out: out, FlushEvery: time.Millisecond})
	var wg sync.WaitGroup
	const workers, each = 4, 200
	for range workers {
		wg.Go(func() {
			r, s := sample()
			for range each {
				tm.Request(r, s)
			}
		})
		wg.Go(func() {
			for range each {
				tm.Logger().Error("store away", "err", errors.New("line\nbreak"))
			}
		})
	}
	wg.Wait()
	shut(t, tm)
	lines := 0
	for line := range strings.Lines(out.all()) {
		lines++
		var v struct {
			Time  time.Time `json:"time"`
			Level string    `json:"level"`
			Msg   string    `json:"msg"`
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil || v.Time.IsZero() || v.Level == "" || v.Msg == "" {
			t.Fatalf("bad line %q: %v", line, err)
		}
	}
	if lines != 2*workers*each {
		t.Errorf("%d lines, want %d", lines, 2*workers*each)
	}
}

// Requests, reloads and scrapes at once: for the race detector, and for totals.
func TestReloadsUnderTrafficLoseNothing(t *testing.T) {
	tm := discarding(t)
	var wg sync.WaitGroup
	const workers, each = 4, 500
	for range workers {
		wg.Go(func() {
			r, s := sample()
			for range each {
				f := tm.InFlight("weather")
				tm.Decided("weather", "free", "per-minute", "memory", Enforced, true, 1, 2)
				tm.UpstreamDone("weather", "127.0.0.1:9001", 200, nil)
				tm.Request(r, s)
				f.Done()
			}
		})
	}
	wg.Go(func() {
		for i := range 50 {
			tm.Configure(Labels{
				Routes: []string{"weather", fmt.Sprint("r", i)}, Limits: []Limit{{"weather", "free", "per-minute"}},
				Sources: []string{"memory"}, Targets: []Target{{"weather", "127.0.0.1:9001"}},
			})
			tm.FallbackActive(i%2 == 0)
			scrape(t, tm)
		}
	})
	wg.Wait()
	total := fmt.Sprint(workers * each)
	expect(t, tm, map[string]string{
		`gateway_requests_total{code="200",method="GET",route="weather"}`:                                                     total,
		`gateway_ratelimit_decisions_total{limit="per-minute",outcome="allowed",plan="free",route="weather",source="memory"}`: total,
		`gateway_upstream_requests_total{code="200",target="127.0.0.1:9001",upstream="weather"}`:                              total,
		`gateway_in_flight{route="weather"}`:                                                                                  "0",
	})
}

// A limit on trial is counted under outcomes of its own, at 0 from the start,
// and leaves the ratio of the numbers in force alone.
func TestALimitOnTrialHasOutcomesOfItsOwn(t *testing.T) {
	tm := New(Options{Out: io.Discard})
	defer tm.Close()
	l := Limit{"weather", "free", "per-minute"}
	tm.Configure(Labels{
		Routes: []string{"weather"}, Limits: []Limit{l}, Sources: []string{"memory"},
		Trials: []Trial{{l, Shadow}, {l, Candidate}},
	})
	tm.Decided(l.Route, l.Plan, l.Limit, "memory", Shadow, false, 0, 20)
	tm.Decided(l.Route, l.Plan, l.Limit, "memory", Candidate, true, 5, 20)
	for outcome, want := range map[string]float64{
		"allowed": 0, "denied": 0, "shadow_allowed": 0, "shadow_denied": 1, "candidate_allowed": 1, "candidate_denied": 0,
	} {
		got := testutil.ToFloat64(tm.decisions.WithLabelValues(l.Route, l.Plan, l.Limit, outcome, "memory"))
		if got != want {
			t.Errorf("%s: %v, want %v", outcome, got, want)
		}
	}
	if n := testutil.CollectAndCount(tm.decisions); n != 6 {
		t.Errorf("%d series, want 6", n)
	}
}

// Series of issuers begin at 0, whatever their outcome, and end with the issuer.
func TestIssuersHaveSeriesWhileTheyAreConfigured(t *testing.T) {
	t.Parallel()
	tel := New(Options{Out: io.Discard, FetchOutcomes: []string{"fetched", "failed"}})
	defer tel.Close()
	series := func() string {
		w := httptest.NewRecorder()
		tel.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		var lines []string
		for line := range strings.Lines(w.Body.String()) {
			if line, ok := strings.CutPrefix(line, "gateway_jwks_"); ok {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	check := func(what, want string) {
		t.Helper()
		if got := series(); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
		}
	}
	tel.Issuers([]string{"a"})
	check("at the start", `fetches_total{issuer="a",outcome="failed"} 0
fetches_total{issuer="a",outcome="fetched"} 0
keys{issuer="a"} 0
last_success_timestamp_seconds{issuer="a"} 0
`)
	tel.IssuerFetched("a", "fetched")
	tel.IssuerFetched("b", "fetched")
	tel.IssuerKeys("a", 2, time.Unix(1234, 500e6))
	tel.IssuerKeys("b", 2, time.Unix(1234, 0))
	const known = `fetches_total{issuer="a",outcome="failed"} 0
fetches_total{issuer="a",outcome="fetched"} 1
keys{issuer="a"} 2
last_success_timestamp_seconds{issuer="a"} 1234.5
`
	check("of one that is not configured nothing is counted", known)
	tel.Issuers([]string{"a"})
	check("what stays keeps its counts", known)
	tel.IssuerTooOld("a")
	check("keys that are too old are none", strings.Replace(known, "} 2\n", "} 0\n", 1))
	tel.Issuers(nil)
	check("what is gone has none", "")
}
