package test

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"bouncer/internal/otlptest"
)

// tracedSite has routes that are served, denied and retried, and traces as given.
func tracedSite(t testing.TB, u *upstream) (s *site, with func(traces string)) {
	s = newSite(t)
	s.write("plans.yaml", "anonymous_plan: free\nplans: {free: {limits: [{name: per-hour, per: ip, algorithm: fixed_window, limit: 1000/hour}]}}\n")
	s.write("fields", "X-Collector-Key: canary-of-the-collector\n")
	with = func(traces string) {
		s.write("routes.yaml", traces+`
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [127.0.0.2]}
limits: {one: {per: ip, algorithm: fixed_window, limit: 1/hour}}
upstreams: {a: {targets: ["`+u.URL+`"], retries: {attempts: 1}}}
routes:
  - {name: place, path: "/places/{id}", upstream: a, auth: none}
  - {name: few, path: /few, upstream: a, auth: none, limits: [one]}
`)
	}
	return s, with
}

// named are the spans of this name.
func named(spans []*tracepb.Span, name string) (found []*tracepb.Span) {
	for _, s := range spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// A request is one span with the decision and each attempt below it; the upstream is told
// of the attempt, and the access log of the trace.
func TestARequestIsATrace(t *testing.T) {
	t.Parallel()
	collector := otlptest.Start(t)
	var failures atomic.Int32
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/places/retried" && failures.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	s, with := tracedSite(t, u)
	with("traces: {endpoint: \"" + collector.URL + "/otlp\", sample: 100%, headers_file: fields}")
	g := s.start()
	const theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

	served := g.get("/places/7?token=canary-in-a-query", "Authorization", "Bearer canary-in-a-field", "Traceparent", theirs, "Tracestate", "a=b")
	told := u.last(t).Header
	line := g.requestLine(served.field("X-Request-Id"))
	id, _ := line["trace_id"].(string)
	if len(id) != 32 || strings.Contains(theirs, id) || !strings.HasPrefix(told.Get("Traceparent"), "00-"+id+"-") || told.Get("Tracestate") != "" {
		t.Errorf("the log has trace %q, and the upstream was told %v", id, told)
	}
	retried := g.get("/places/retried")
	retriedID := fmt.Sprint(g.requestLine(retried.field("X-Request-Id"))["trace_id"])
	var parents []string
	u.mu.Lock()
	seen := slices.Clone(u.requests)
	u.mu.Unlock()
	for _, r := range seen {
		if r.URL.Path == "/places/retried" {
			parents = append(parents, strings.Split(r.Header.Get("Traceparent"), "-")[2])
		}
	}
	g.get("/few")
	denied := g.get("/few")
	missing := g.get("/nowhere")
	if served.status != 200 || retried.status != 200 || denied.status != 429 || missing.status != 404 {
		t.Fatalf("answers %d, %d, %d, %d", served.status, retried.status, denied.status, missing.status)
	}
	fromProxy := g.dialFrom("127.0.0.2")
	fromProxy.say("GET /places/8 HTTP/1.1\r\nHost: a\r\nTraceparent: " + theirs + "\r\nTracestate: a=b\r\n\r\n")
	if a := fromProxy.hearAll("GET"); a.status != 200 {
		t.Errorf("%d", a.status)
	}
	proxied := u.last(t).Header
	if got := proxied.Get("Traceparent"); !strings.HasPrefix(got, theirs[:36]) || got == theirs || !strings.HasSuffix(got, "-01") || proxied.Get("Tracestate") != "a=b" {
		t.Errorf("of a trusted proxy's trace the upstream was told %v", proxied)
	}
	g.stop() // which delivers what waits

	spans := collector.Spans()
	byID := map[string]*tracepb.Span{}
	for _, sp := range spans {
		byID[hex.EncodeToString(sp.SpanId)] = sp
	}
	of := func(trace string) (server *tracepb.Span, below []*tracepb.Span) {
		for _, sp := range spans {
			switch {
			case hex.EncodeToString(sp.TraceId) != trace:
			case sp.Kind == tracepb.Span_SPAN_KIND_SERVER:
				server = sp
			default:
				below = append(below, sp)
			}
		}
		return server, below
	}
	server, below := of(id)
	if server == nil || server.Name != "GET /places/{id}" || len(server.ParentSpanId) != 0 || len(server.Links) != 1 || len(below) != 2 {
		t.Fatalf("the trace of a request: %v, and below it %v", server, below)
	}
	for _, sp := range below {
		if string(sp.ParentSpanId) != string(server.SpanId) {
			t.Errorf("%s is not below the request", sp.Name)
		}
	}
	if d := named(below, "decide"); len(d) != 1 || otlptest.Attributes(d[0])["gateway.source"] != "memory" || otlptest.Attributes(d[0])["gateway.outcome"] != "allowed" {
		t.Errorf("the decision: %v", d)
	}
	if up := byID[strings.Split(told.Get("Traceparent"), "-")[2]]; up == nil || up.Kind != tracepb.Span_SPAN_KIND_CLIENT || "http://"+otlptest.Attributes(up)["server.address"]+":"+otlptest.Attributes(up)["server.port"] != u.URL {
		t.Errorf("the upstream was told of the span %v", up)
	}
	if len(parents) != 2 || parents[0] == parents[1] || byID[parents[0]] == nil || otlptest.Attributes(byID[parents[0]])["http.response.status_code"] != "503" ||
		byID[parents[1]] == nil || otlptest.Attributes(byID[parents[1]])["http.response.status_code"] != "200" {
		t.Errorf("two attempts were told of %q", parents)
	}
	if _, below := of(retriedID); len(below) != 3 {
		t.Errorf("a request with two attempts has %d spans below it, want 3", len(below))
	}
	few := named(spans, "GET /few")
	if len(few) != 2 || otlptest.Attributes(few[1])["gateway.denied_by"] != "one" || otlptest.Attributes(few[1])["http.response.status_code"] != "429" || few[1].Status.GetCode() != 0 {
		t.Errorf("the denied request: %v", few)
	}
	if none := named(spans, "GET"); len(none) == 0 {
		t.Error("a request without a route has no span")
	}
	if sp, _ := of(theirs[3:35]); sp == nil || hex.EncodeToString(sp.ParentSpanId) != theirs[36:52] {
		t.Errorf("of a trusted proxy's trace there is %v", sp)
	}
	for _, f := range collector.Fields() {
		if f.Get("X-Collector-Key") != "canary-of-the-collector" {
			t.Errorf("a delivery has the fields %v", f)
		}
	}
	if strings.Contains(collector.Raw(), "canary") || strings.Contains(g.output(), "canary") {
		t.Error("a secret is in the traces or in the log")
	}
}

// Without traces a client's trace goes on as it is, and a trusted proxy's is in the log; a
// reload switches traces on and off.
func TestTracesAreSwitchedByAReload(t *testing.T) {
	t.Parallel()
	collector := otlptest.Start(t)
	u := newUpstream(t, nil)
	s, with := tracedSite(t, u)
	with("")
	g := s.start()
	const theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ask := func(source string) (trace any, told string) {
		t.Helper()
		c := g.dialFrom(source)
		c.say("GET /places/8 HTTP/1.1\r\nHost: a\r\nTraceparent: " + theirs + "\r\n\r\n")
		return g.requestLine(c.hearAll("GET").field("X-Request-Id"))["trace_id"], u.last(t).Header.Get("Traceparent")
	}
	for _, step := range []struct {
		traces          string
		anybody, passes bool // there is a trace of anybody; a trusted proxy's word passes as it is
	}{
		{"", false, true},
		{"traces: {endpoint: \"" + collector.URL + "\", sample: 0}", true, false},
		{"traces: {endpoint: \"" + collector.URL + "\", sample: 100%}", true, false},
		{"traces: {endpoint: \"\"}", false, true},
	} {
		with(step.traces)
		if !g.reload() {
			t.Fatalf("%q is not taken", step.traces)
		}
		trace, told := ask("127.0.0.1")
		if (trace != nil) != step.anybody || trace == theirs[3:35] || (told == theirs) == step.anybody {
			t.Errorf("%q: of anybody the log has trace %v, and the upstream was told %s", step.traces, trace, told)
		}
		trace, told = ask("127.0.0.2")
		if trace != theirs[3:35] || (told == theirs) != step.passes || told[:36] != theirs[:36] {
			t.Errorf("%q: of a trusted proxy the log has trace %v, and the upstream was told %s", step.traces, trace, told)
		}
	}
	// One of a trusted proxy at share 0; then both of them, at 100 %.
	eventually(t, "the spans of three requests", func() bool { return len(named(collector.Spans(), "GET /places/{id}")) == 3 })
	if got := g.value(`gateway_trace_spans_total{outcome="sent"}`); got != 9 {
		t.Errorf("%v spans count as sent, want 9", got)
	}
}

// A collector that is away, or stands still, costs spans and nothing else: the log says so
// once, requests go on, and the process ends in time.
func TestACollectorThatIsAwaySlowsNobody(t *testing.T) {
	t.Parallel()
	collector := otlptest.Start(t)
	u := newUpstream(t, nil)
	for name, endpoint := range map[string]string{"away": "http://" + deadAddress(t), "still": collector.URL} {
		s, with := tracedSite(t, u)
		held := make(chan struct{})
		collector.Answer(func(http.ResponseWriter) { <-held })
		with("traces: {endpoint: \"" + endpoint + "/v1/traces\", sample: 1}")
		g := s.start()
		for range 50 {
			if a := g.get("/places/1"); a.status != 200 {
				t.Fatalf("%s: %d", name, a.status)
			}
		}
		if name == "away" {
			eventually(t, "a word about the collector", func() bool {
				return g.logged("traces cannot be delivered, and are lost; requests are served as ever (said once a minute; gateway_trace_spans_total counts spans)") != nil
			})
			for range 50 {
				g.get("/places/1")
			}
			eventually(t, "spans that failed", func() bool { return g.value(`gateway_trace_spans_total{outcome="failed"}`) >= 150 })
			if n := strings.Count(g.output(), "traces cannot be delivered"); n != 1 {
				t.Errorf("the log says %d times that the collector is away, want once", n)
			}
		}
		began := time.Now()
		g.stop()
		if took := time.Since(began); took > patience/2 {
			t.Errorf("%s: it took %v to end", name, took)
		}
		close(held)
	}
}
