package gateway

import (
	"net/http/httptest"
	"testing"

	"bouncer/gateway/config"
	"bouncer/gateway/tracing"
)

// Where no traces are made, a request pays nothing for them; where they are, one that is not
// sampled pays no allocation.
func TestTracesCostNothingWhereThereAreNone(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	c := &config.Traces{Endpoint: "http://127.0.0.1:1/v1/traces"} // of nothing
	made, err := makeTraced(&config.Config{Traces: c}, nil, "", "", tracing.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	off, none := &snapshot{cfg: &config.Config{}}, &snapshot{cfg: &config.Config{Traces: c}, traced: made}
	for _, tc := range []struct {
		name    string
		s       *snapshot
		trusted bool
		traced  bool // the request is known to be in a trace
	}{
		{"off", off, false, false}, {"off, of a trusted proxy", off, true, true}, {"none sampled", none, false, true},
	} {
		r, x := httptest.NewRequest("GET", "/", nil), &exchange{}
		r.Header.Set("Traceparent", parent)
		x.PeerTrusted = tc.trusted
		if got := testing.AllocsPerRun(1000, func() {
			tc.s.beginTrace(x, r)
			x.trace.Deciding(1)
			x.decided(nil, nil)
			x.endTrace(r)
		}); got > 0 {
			t.Errorf("%s: %v allocations, want 0", tc.name, got)
		}
		if (x.TraceID != [16]byte{}) != tc.traced || x.trace != nil {
			t.Errorf("%s: trace %x", tc.name, x.TraceID)
		}
	}
}

// A collector stays as long as it is the same, whatever the share; a reload that
// names another one has another.
func TestACollectorOutlivesReloads(t *testing.T) {
	of := func(c config.Traces) *config.Config { return &config.Config{Traces: &c} }
	base := config.Traces{Endpoint: "http://127.0.0.1:1/v1/traces", Sample: 1, Headers: config.Secret("A: b"), TLS: &config.TLS{ServerName: "a"}}
	old, err := makeTraced(of(base), nil, "", "", tracing.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*config.Traces)
		stays  bool
	}{
		"nothing":  {func(*config.Traces) {}, true},
		"share":    {func(c *config.Traces) { c.Sample = 5 }, true},
		"endpoint": {func(c *config.Traces) { c.Endpoint += "/b" }, false},
		"fields":   {func(c *config.Traces) { c.Headers = config.Secret("A: c") }, false},
		"tls":      {func(c *config.Traces) { c.TLS = nil }, false},
	} {
		c := base
		tc.change(&c)
		now, err := makeTraced(of(c), old, "", "", tracing.Hooks{})
		if err != nil || (now == old) != tc.stays {
			t.Errorf("%s: stays %v, %v", name, now == old, err)
		}
	}
	if now, err := makeTraced(&config.Config{}, old, "", "", tracing.Hooks{}); now != nil || err != nil {
		t.Errorf("taken away: %v, %v", now, err)
	}
}
