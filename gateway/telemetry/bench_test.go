package telemetry

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"bouncer/gateway/scope"
)

// sample is a request as most are.
func sample() (*http.Request, *scope.Request) {
	r := httptest.NewRequest(http.MethodGet, "http://api.example.com/api/weather?city=Pune", nil)
	return r, &scope.Request{
		ID: "01J9Z3K8M2", Arrived: time.Now(), ClientIP: netip.MustParseAddr("203.0.113.7"),
		Route: "weather", Upstream: "weather", Cost: 1, AuthMethod: "api_key",
		User: "priya123", Tenant: "acme", KeyID: "k-7f3a", Plan: "free", Source: "memory",
		Target: "127.0.0.1:9001", UpstreamStatus: 200, UpstreamDuration: 1234 * time.Microsecond,
		Status: 200, Bytes: 1024,
	}
}

func discarding(t testing.TB) *Telemetry {
	t.Helper()
	tm := New(Options{Out: io.Discard})
	t.Cleanup(func() { shut(t, tm) })
	tm.Configure(Labels{
		Routes:  []string{"weather"},
		Limits:  []Limit{{"weather", "free", "per-minute"}},
		Sources: []string{"memory"},
		Targets: []Target{{"weather", "127.0.0.1:9001"}},
		Modes:   []string{"local_cap"},

		Forbidden: []Forbidden{{"weather", "missing_scope"}},
	})
	return tm
}

// What a request pays is bounded: a regression here is paid by every request.
func TestHotPathAllocations(t *testing.T) {
	tm := discarding(t)
	r, s := sample()
	for name, f := range map[string]func(){
		"Request":      func() { tm.Request(r, s) },
		"Decided":      func() { tm.Decided("weather", "free", "per-minute", "memory", Enforced, true, 7, 20) },
		"Auth":         func() { tm.Auth("api_key", AuthAccepted) },
		"Forbidden":    func() { tm.Forbidden("weather", "missing_scope") },
		"InFlight":     func() { tm.InFlight("weather").Done() },
		"StoreTook":    func() { tm.StoreTook(300 * time.Microsecond) },
		"UpstreamDone": func() { tm.UpstreamDone("weather", "127.0.0.1:9001", 200, nil) },
	} {
		f()
		// Average over enough runs that the buffers' growth does not count.
		if got := testing.AllocsPerRun(5000, f); got > 0 {
			t.Errorf("%s allocates %v times a call, want 0", name, got)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	tm := discarding(b)
	r, s := sample()
	b.ReportAllocs()
	for b.Loop() {
		tm.Request(r, s)
	}
}

func BenchmarkRequestParallel(b *testing.B) {
	tm := discarding(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r, s := sample()
		for pb.Next() {
			tm.Request(r, s)
		}
	})
}

func BenchmarkDecided(b *testing.B) {
	tm := discarding(b)
	b.ReportAllocs()
	for b.Loop() {
		tm.Decided("weather", "free", "per-minute", "memory", Enforced, true, 7, 20)
	}
}

func BenchmarkLine(b *testing.B) {
	r, s := sample()
	b.Run("ours", func(b *testing.B) {
		buf := make([]byte, 0, 1024)
		b.ReportAllocs()
		for b.Loop() {
			buf = appendRequest(buf[:0], r, s, 5*time.Millisecond, "", "")
		}
	})
	b.Run("slog", func(b *testing.B) {
		var buf bytes.Buffer
		h := slog.NewJSONHandler(&buf, handlerOptions(slog.LevelInfo))
		b.ReportAllocs()
		for b.Loop() {
			buf.Reset()
			writeWithSlog(h, r, s, 5*time.Millisecond, "", nil)
		}
	})
}
