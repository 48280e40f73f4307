package tracing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"

	"bouncer/gateway/scope"
	"bouncer/internal/otlptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counts is what hooks were told.
type counts struct {
	mu     sync.Mutex
	spans  map[string]int
	failed []string
	told   chan struct{} // a note for each failure
}

func (c *counts) hooks() Hooks {
	c.spans, c.told = map[string]int{}, make(chan struct{}, 1000)
	return Hooks{
		Spans: func(outcome string, n int) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.spans[outcome] += n
		},
		Failed: func(err error) {
			c.mu.Lock()
			c.failed = append(c.failed, err.Error())
			c.mu.Unlock()
			c.told <- struct{}{}
		},
	}
}

func (c *counts) of(outcome string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans[outcome]
}

func open(t *testing.T, endpoint string, h Hooks) *Tracer {
	t.Helper()
	tr, err := New(Options{Endpoint: endpoint, Fields: map[string]string{"X-Own": "canary-of-the-collector"}, Version: "v1", Instance: "one", Hooks: h})
	if err != nil {
		t.Fatal(err)
	}
	tr.Start()
	t.Cleanup(func() { end(t, tr) })
	return tr
}

// end closes a tracer, for which it has five seconds.
func end(t *testing.T, tr *Tracer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
	defer cancel()
	tr.Close(ctx)
	if ctx.Err() != nil {
		t.Error("it was not closed in time")
	}
}

const all = 1_000_000

func TestTheSpansOfARequest(t *testing.T) {
	s, c := otlptest.Start(t), &counts{}
	tr := open(t, s.URL+"/v1/traces", c.hooks())
	r := httptest.NewRequest(http.MethodGet, "http://api.example.com/api/places/7?token=canary-in-a-query", nil)
	r.Header.Set("Authorization", "Bearer canary-in-a-field")
	sc := &scope.Request{ID: "r1", Arrived: time.Now(), Cost: 3, Route: "place", Upstream: "weather", Plan: "free", User: "canary-of-a-user"}
	x := tr.Begin(sc, Parent{}, false, all)
	if x == nil || !sc.TraceSampled {
		t.Fatal("no trace is made")
	}
	x.Deciding(2)
	x.Decided("allowed", "redis", "")
	x.Method("GET")
	var parents [][8]byte // what targets were told
	for i, a := range []struct {
		target string
		status int
		err    error
	}{{"127.0.0.1:9001", 0, errors.New("dial canary-in-an-error")}, {"[::1]:9002", 200, nil}} {
		sc.Target = a.target
		x.Attempt(sc)
		parents = append(parents, sc.SpanID)
		x.Attempted(sc, a.status, a.err)
		if i == 1 && parents[0] == parents[1] {
			t.Error("both attempts are one span")
		}
	}
	sc.Status, sc.Source = 200, "redis"
	x.End(r, sc, "/api/places/{id}")
	end(t, tr)

	if len(s.Spans()) != 4 || c.of(Sent) != 4 {
		t.Fatalf("%d spans arrived and %d count as sent, want 4: %v", len(s.Spans()), c.of(Sent), s.Spans())
	}
	byName := map[string][]*tracepb.Span{}
	for _, sp := range s.Spans() {
		byName[sp.Name] = append(byName[sp.Name], sp)
		if string(sp.TraceId) != string(sc.TraceID[:]) {
			t.Errorf("%s is of trace %x, want %x", sp.Name, sp.TraceId, sc.TraceID)
		}
	}
	server := byName["GET /api/places/{id}"]
	if len(server) != 1 || server[0].Kind != tracepb.Span_SPAN_KIND_SERVER || len(server[0].ParentSpanId) != 0 || server[0].Status.GetCode() != 0 {
		t.Fatalf("the request's own span: %v", server)
	}
	for key, want := range map[string]string{
		"http.request.method": "GET", "http.route": "/api/places/{id}", "http.response.status_code": "200", "url.path": "/api/places/7",
		"url.scheme": "http", "network.protocol.version": "1.1", "gateway.route": "place", "gateway.plan": "free", "gateway.request_id": "r1", "gateway.cost": "3", "gateway.source": "redis",
	} {
		if got := otlptest.Attributes(server[0])[key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	for _, name := range []string{"decide", "GET"} {
		for _, sp := range byName[name] {
			if string(sp.ParentSpanId) != string(server[0].SpanId) {
				t.Errorf("%s has another parent: %v", name, sp)
			}
		}
	}
	if d := byName["decide"]; len(d) != 1 || otlptest.Attributes(d[0])["gateway.outcome"] != "allowed" || otlptest.Attributes(d[0])["gateway.source"] != "redis" || otlptest.Attributes(d[0])["gateway.limits"] != "2" {
		t.Errorf("the decision: %v", d)
	}
	up := byName["GET"]
	if len(up) != 2 || string(up[0].SpanId) != string(parents[0][:]) || string(up[1].SpanId) != string(parents[1][:]) {
		t.Fatalf("the attempts are %v, and targets were told %x", up, parents)
	}
	if a := otlptest.Attributes(up[0]); a["error.type"] != "connection" || a["server.address"] != "127.0.0.1" || a["server.port"] != "9001" || up[0].Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR {
		t.Errorf("the first attempt: %v", up[0])
	}
	if a := otlptest.Attributes(up[1]); a["http.response.status_code"] != "200" || a["server.address"] != "::1" || a["http.request.resend_count"] != "1" || up[1].Kind != tracepb.Span_SPAN_KIND_CLIENT {
		t.Errorf("the second attempt: %v", up[1])
	}
	if text := fmt.Sprint(s.Spans()); strings.Contains(text, "canary") {
		t.Errorf("a secret, or who it was, is in the spans: %s", text)
	}
	if s.Fields()[0].Get("X-Own") != "canary-of-the-collector" {
		t.Errorf("the delivery has the fields %v", s.Fields()[0])
	}
}

// Whose word counts for the trace: that of a trusted proxy, of which the sampling is taken
// over, too; and nobody else's.
func TestWhoseTraceARequestIsIn(t *testing.T) {
	s := otlptest.Start(t)
	tr := open(t, s.URL+"/v1/traces", Hooks{})
	parent := Parent{Trace: [16]byte{1}, Span: [8]byte{2}, Sampled: true}
	quiet := Parent{Trace: [16]byte{3}, Span: [8]byte{4}}
	for _, tc := range []struct {
		name           string
		parent         Parent
		trusted        bool
		share          int
		made, own      bool
		ofParent, link bool
	}{
		{"nothing", Parent{}, false, all, true, true, false, false},
		{"nothing, none sampled", Parent{}, true, 0, false, true, false, false},
		{"a trusted proxy's", parent, true, 0, true, true, true, false},
		{"a trusted proxy's that nobody keeps", quiet, true, all, false, false, true, false},
		{"anybody's", parent, false, all, true, true, false, true},
		{"anybody's, none sampled", parent, false, 0, false, true, false, false},
	} {
		sc := &scope.Request{Arrived: time.Now()}
		x := tr.Begin(sc, tc.parent, tc.trusted, tc.share)
		own := sc.SpanID != [8]byte{} // so that the upstream is told of us
		if (x != nil) != tc.made || own != tc.own || (sc.TraceID == tc.parent.Trace) != tc.ofParent || sc.TraceID == [16]byte{} || sc.TraceSampled != tc.made {
			t.Errorf("%s: made %v, trace %x, span %x, sampled %v", tc.name, x != nil, sc.TraceID, sc.SpanID, sc.TraceSampled)
		}
		x.End(httptest.NewRequest(http.MethodGet, "/", nil), sc, tc.name)
	}
	end(t, tr)
	for _, sp := range s.Spans() {
		links := len(sp.Links) == 1 && string(sp.Links[0].TraceId) == string(parent.Trace[:])
		if fromParent := string(sp.ParentSpanId) == string(parent.Span[:]); fromParent != strings.HasSuffix(sp.Name, "proxy's") || links != strings.HasSuffix(sp.Name, "anybody's") {
			t.Errorf("%s: parent %x, links %v", sp.Name, sp.ParentSpanId, sp.Links)
		}
	}
	if len(s.Spans()) != 3 {
		t.Errorf("%d spans, want 3", len(s.Spans()))
	}
}

// What share of requests is traced is left to chance.
func TestTheShareIsHeld(t *testing.T) {
	tr, err := New(Options{Endpoint: "http://127.0.0.1:1/v1/traces"})
	if err != nil {
		t.Fatal(err)
	}
	sampled := 0
	for range 20_000 {
		sc := &scope.Request{}
		tr.Begin(sc, Parent{}, false, all/10) // not started: none is made
		if sc.TraceSampled {
			sampled++
		}
	}
	if sampled < 1700 || sampled > 2300 {
		t.Errorf("%d of 20,000 are sampled, want about 2,000", sampled)
	}
	tr.Close(t.Context())
}

// While a collector stands still nobody waits for it: what finds no room is dropped, and
// each span is counted once.
func TestACollectorThatStandsStill(t *testing.T) {
	s, c := otlptest.Start(t), &counts{}
	held := make(chan struct{})
	s.Answer(func(http.ResponseWriter) { <-held })
	tr := open(t, s.URL+"/v1/traces", c.hooks())
	const n = 3 * maxQueued
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for range n {
		sc := &scope.Request{Arrived: time.Now(), Status: 200}
		tr.Begin(sc, Parent{}, false, all).End(r, sc, "/")
	}
	if got := c.of(Dropped); got < n-2*maxQueued || got > n-maxQueued {
		t.Errorf("%d of %d spans were dropped, want %d", got, n, n-maxQueued)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	tr.Close(ctx)
	if got := c.of(Dropped) + c.of(Failed) + c.of(Sent); got != n || c.of(Sent) != 0 {
		t.Errorf("%d spans are counted: %v, want all %d, and none sent", got, c.spans, n)
	}
	close(held)
}

// What a collector says, and what is sent to it, is in no error.
func TestADeliveryThatFails(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		answer     func(http.ResponseWriter)
	}{
		{"refused", "it answered with status 401", func(w http.ResponseWriter) { http.Error(w, "canary", http.StatusUnauthorized) }},
		{"sent elsewhere", "it answered with status 307", func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://127.0.0.1:1/canary")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}},
		{"away", "connect: connection refused", nil},
	} {
		s, c := otlptest.Start(t), &counts{}
		s.Answer(tc.answer)
		if tc.answer == nil {
			s.Close()
		}
		tr := open(t, s.URL+"/canary", c.hooks())
		sc := &scope.Request{Arrived: time.Now(), Status: 200}
		tr.Begin(sc, Parent{}, false, all).End(httptest.NewRequest(http.MethodGet, "/", nil), sc, "/")
		select {
		case <-c.told:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: nothing is told", tc.name)
		}
		end(t, tr)
		if len(c.failed) != 1 || !strings.Contains(c.failed[0], tc.want) || strings.Contains(c.failed[0], "canary") || c.of(Failed) != 1 {
			t.Errorf("%s: told %q and counted %v, want %q", tc.name, c.failed, c.spans, tc.want)
		}

		late := &scope.Request{Arrived: time.Now(), Status: 200}
		tr.Begin(late, Parent{}, false, all).End(httptest.NewRequest(http.MethodGet, "/", nil), late, "/")
	}
}

// Without a trace nothing is done.
func TestNoTraceCostsNothing(t *testing.T) {
	tr, err := New(Options{Endpoint: "http://127.0.0.1:1/v1/traces"})
	if err != nil {
		t.Fatal(err)
	}
	r, sc := httptest.NewRequest(http.MethodGet, "/", nil), &scope.Request{}
	if got := testing.AllocsPerRun(1000, func() {
		x := tr.Begin(sc, Parent{}, false, 0)
		x.Deciding(1)
		x.Decided("allowed", "memory", "")
		x.Method("GET")
		x.Attempt(sc)
		x.Attempted(sc, 200, nil)
		x.End(r, sc, "/")
	}); got > 0 {
		t.Errorf("a request that is not sampled allocates %v times, want 0", got)
	}
}

func TestNewRefusesWhatIsNoEndpoint(t *testing.T) {
	for _, bad := range []string{"", "otel.example.com:4318", "ftp://otel.example.com", "http://", "http://%zz/canary"} {
		if _, err := New(Options{Endpoint: bad}); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if !slices.Equal(Outcomes(), []string{"sent", "dropped", "failed"}) {
		t.Error(Outcomes())
	}
}
