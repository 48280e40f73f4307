package telemetry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/scope"
)

// What Prometheus 2.42 asks for, without native histograms and with them.
const (
	acceptText     = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
	acceptProtobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited," + acceptText
)

// scrapeAs returns what a scraper reads that sends this field, and the type of it.
func scrapeAs(t testing.TB, tm *Telemetry, accept string) (body, contentType string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	rec := httptest.NewRecorder()
	tm.Handler().ServeHTTP(rec, r)
	if rec.Code != http.StatusOK {
		t.Fatalf("scrape: %d %s", rec.Code, rec.Body)
	}
	return rec.Body.String(), rec.Header().Get("Content-Type")
}

func TestAScraperGetsTheFormatThatItPrefers(t *testing.T) {
	tm := discarding(t)
	exercise(tm)
	for accept, want := range map[string]string{
		"":             "text/plain; version=0.0.4",
		"text/plain":   "text/plain; version=0.0.4",
		"*/*":          "text/plain; version=0.0.4",
		acceptText:     "application/openmetrics-text; version=1.0.0",
		acceptProtobuf: "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
	} {
		if _, got := scrapeAs(t, tm, accept); !strings.HasPrefix(got, want) {
			t.Errorf("Accept %q: %q, want %q", accept, got, want)
		}
	}
}

// The names of series are the same in both texts, and there are no more of them.
func TestOpenMetricsNamesTheSameSeries(t *testing.T) {
	tm := discarding(t)
	exercise(tm)
	series := func(body string) map[string]bool {
		out := map[string]bool{}
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "gateway_") {
				name, _, _ := strings.Cut(line, "{")
				name, _, _ = strings.Cut(name, " ")
				out[name] = true
			}
		}
		return out
	}
	classic, _ := scrapeAs(t, tm, "text/plain")
	open, _ := scrapeAs(t, tm, acceptText)
	if !strings.HasSuffix(open, "# EOF\n") {
		t.Error("OpenMetrics does not end as it must, with # EOF")
	}
	for name := range series(classic) {
		if !series(open)[name] {
			t.Errorf("%s is not in OpenMetrics", name)
		}
	}
	for name := range series(open) {
		if !series(classic)[name] {
			t.Errorf("%s is only in OpenMetrics", name)
		}
	}
	if n, m := strings.Count(classic, "\ngateway_"), strings.Count(open, "\ngateway_"); n != m || n == 0 {
		t.Errorf("%d samples in classic text, %d in OpenMetrics", n, m)
	}
}

// A trace is told of where somebody can look it up, and nowhere else.
func TestExemplarsAreOfTracesThatCanBeLookedUp(t *testing.T) {
	id := [16]byte{0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c}
	span := [8]byte{1}
	for name, test := range map[string]struct {
		s    scope.Request
		want bool
	}{
		"no trace":                             {scope.Request{}, false},
		"sampled, and no id":                   {scope.Request{TraceSampled: true, PeerTrusted: true}, false},
		"ours, sampled":                        {scope.Request{TraceID: id, SpanID: span, TraceSampled: true}, true},
		"ours, not sampled":                    {scope.Request{TraceID: id, SpanID: span}, false},
		"a trusted peer's, sampled":            {scope.Request{TraceID: id, TraceSampled: true, PeerTrusted: true}, true},
		"a trusted peer's, not sampled":        {scope.Request{TraceID: id, PeerTrusted: true}, false},
		"a stranger's, who says it is sampled": {scope.Request{TraceID: id, TraceSampled: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			tm := discarding(t)
			r, s := sample()
			s.TraceID, s.SpanID, s.TraceSampled, s.PeerTrusted = test.s.TraceID, test.s.SpanID, test.s.TraceSampled, test.s.PeerTrusted
			tm.Request(r, s)
			body, _ := scrapeAs(t, tm, acceptText)
			for _, metric := range []string{"gateway_request_duration_seconds", "gateway_added_latency_seconds"} {
				if got := hasExemplar(body, metric, "0af7651916cd43dd8448eb211c80319c"); got != test.want {
					t.Errorf("%s has an exemplar: %v, want %v", metric, got, test.want)
				}
			}
			if n := strings.Count(body, " # {"); test.want != (n == 2) || !test.want && n != 0 {
				t.Errorf("%d exemplars in all", n)
			}
		})
	}
}

// hasExemplar looks for a bucket of route weather with this trace.
func hasExemplar(body, metric, id string) bool {
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, metric+"_bucket{") && strings.Contains(line, `route="weather"`) &&
			strings.Contains(line, fmt.Sprintf(` # {trace_id="%s"} `, id)) {
			return true
		}
	}
	return false
}

// What is gathered, and in the protobuf format goes out, is all at once: classic
// buckets, native ones and exemplars.
func TestAHistogramIsClassicAndNativeAndHasExemplars(t *testing.T) {
	tm := discarding(t)
	r, s := sample()
	s.Arrived = s.Arrived.Add(-time.Second)
	s.TraceID, s.SpanID, s.TraceSampled = [16]byte{1}, [8]byte{1}, true
	tm.Request(r, s)
	families, err := tm.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "gateway_added_latency_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			h := m.GetHistogram()
			if m.GetLabel()[0].GetValue() != "weather" {
				continue
			}
			if len(h.GetBucket()) < 10 || h.Schema == nil || len(h.GetPositiveSpan()) == 0 || len(h.GetExemplars()) != 1 {
				t.Errorf("%d classic buckets, schema %v, %d native spans, %d exemplars", len(h.GetBucket()), h.Schema, len(h.GetPositiveSpan()), len(h.GetExemplars()))
			}
			return
		}
	}
	t.Error("gateway_added_latency_seconds of route weather is not there")
}

// However many traces there are, a bucket takes one a second, and a rare slow request
// is not crowded out by many quick ones.
func TestExemplarsAreFew(t *testing.T) {
	tm := discarding(t)
	rt := tm.route("weather")
	s := &scope.Request{TraceSampled: true, SpanID: [8]byte{1}, Arrived: time.Unix(1_800_000_000, 0)}
	id := byte(0)
	observe := func(took time.Duration) {
		id++
		s.TraceID[15] = id
		rt.observe(s, took)
		s.Arrived = s.Arrived.Add(time.Millisecond)
	}
	for range 100 {
		observe(3 * time.Millisecond)
	}
	observe(3 * time.Second)
	body, _ := scrapeAs(t, tm, acceptText)
	for trace, want := range map[int]bool{1: true, 2: false, 100: false, 101: true} {
		if got := hasExemplar(body, "gateway_request_duration_seconds", fmt.Sprintf("%032x", trace)); got != want {
			t.Errorf("trace %d is shown: %v, want %v", trace, got, want)
		}
	}
	s.Arrived = s.Arrived.Add(time.Second)
	observe(3 * time.Millisecond)
	body, _ = scrapeAs(t, tm, acceptText)
	if !hasExemplar(body, "gateway_request_duration_seconds", fmt.Sprintf("%032x", 102)) {
		t.Error("a second later the bucket does not show the next trace")
	}
}

// A request without a trace pays nothing for those that have one.
func TestNoTraceNoCost(t *testing.T) {
	tm := discarding(t)
	rt, s := tm.route("weather"), &scope.Request{Arrived: time.Now()}
	for _, traced := range []bool{false, true} {
		if traced {
			s.TraceID, s.SpanID, s.TraceSampled = [16]byte{1}, [8]byte{1}, true
			rt.observe(s, time.Millisecond) // told; those that follow within a second are not
		}
		if got := testing.AllocsPerRun(1000, func() { rt.observe(s, time.Millisecond) }); got > 0 {
			t.Errorf("traced %v: %v allocations a request, want 0", traced, got)
		}
	}
}
