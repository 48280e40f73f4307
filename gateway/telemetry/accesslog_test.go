package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"bouncer/gateway/scope"
)

// writeWithSlog writes the line the plain way, as the reference.
func writeWithSlog(h slog.Handler, r *http.Request, s *scope.Request, took time.Duration, authReason string, sampled *float64) {
	route := s.Route
	if route == "" {
		route = Unmatched
	}
	ip := "unix"
	if s.ClientIP.IsValid() {
		ip = s.ClientIP.String()
	}
	str := func(key, value string) slog.Attr { return slog.String(key, cut(value)) }
	millis := func(key string, d time.Duration) slog.Attr {
		return slog.Float64(key, float64(max(d.Microseconds(), 0))/1000)
	}
	rec := slog.NewRecord(s.Arrived, slog.LevelInfo, "request", 0)
	rec.AddAttrs(
		str("request_id", s.ID), str("client_ip", ip), str("method", r.Method), str("host", r.Host),
		str("path", r.URL.EscapedPath()), str("route", route), str("user", s.User), str("tenant", s.Tenant),
		str("key_id", s.KeyID), str("plan", s.Plan), slog.Int64("cost", s.Cost), slog.Int("status", s.Status),
		str("denied_by", s.DeniedBy), str("source", s.Source), millis("duration_ms", took),
		millis("upstream_ms", s.UpstreamDuration), slog.Int64("bytes", s.Bytes),
	)
	if s.Target != "" {
		rec.AddAttrs(str("target", s.Target))
	}
	if s.UpstreamAttempts > 1 {
		rec.AddAttrs(slog.Int("upstream_attempts", s.UpstreamAttempts))
	}
	if s.AuthError != nil {
		rec.AddAttrs(str("auth_error", authReason))
	}
	if s.StoreErr != nil {
		rec.AddAttrs(str("store_error", s.StoreErr.Error()))
	}
	if s.UpstreamErr != nil {
		rec.AddAttrs(str("upstream_error", s.UpstreamErr.Error()))
	}
	if s.TraceID != ([16]byte{}) {
		rec.AddAttrs(slog.String("trace_id", fmt.Sprintf("%x", s.TraceID)))
	}
	if sampled != nil {
		rec.AddAttrs(slog.Float64("sampled", *sampled))
	}
	_ = h.Handle(context.Background(), rec)
}

// hostile draws text that breaks careless encoders.
func hostile() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.OneOf(
			rapid.SampledFrom([]string{
				"\x00", "\x1b[31m", "\x7f", "\b\f\n\r\t", `"`, `\`, "</script>", "\u2028", "\u2029", "\u0085",
				"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf0\x9f", "é", "😀", "\ufffd", `","status":200,"x":"`,
				strings.Repeat("a", 300), strings.Repeat("é", 300), strings.Repeat("\x80", 600),
			}),
			rapid.String(),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		), 0, 6).Draw(t, "parts")
		return strings.Join(parts, "")
	})
}

func TestLineIsWhatSlogWouldWrite(t *testing.T) {
	texts := hostile()
	rapid.Check(t, func(rt *rapid.T) {
		text := func(label string) string { return texts.Draw(rt, label) }
		micros := func(label string) time.Duration {
			return time.Duration(rapid.Int64Range(-5, 4e9).Draw(rt, label)) * time.Microsecond
		}
		r := &http.Request{Method: text("method"), Host: text("host"), URL: &url.URL{Path: text("path"), RawQuery: "token=x"}}
		s := &scope.Request{
			ID: text("id"), Arrived: time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(rt, "arrived")),
			Route: text("route"), User: text("user"), Tenant: text("tenant"), KeyID: text("key"), Plan: text("plan"),
			Cost: rapid.Int64().Draw(rt, "cost"), Status: rapid.IntRange(0, 999).Draw(rt, "status"),
			DeniedBy: text("denied"), Source: text("source"), UpstreamDuration: micros("upstream"),
			Bytes: rapid.Int64().Draw(rt, "bytes"), Target: text("target"), UpstreamAttempts: rapid.IntRange(0, 11).Draw(rt, "attempts"),
		}
		switch rapid.IntRange(0, 3).Draw(rt, "ip") {
		case 1:
			s.ClientIP = netip.MustParseAddr("203.0.113.7")
		case 2:
			s.ClientIP = netip.MustParseAddr("2001:db8::7")
		case 3:
			s.ClientIP = netip.MustParseAddr(`fe80::1%e"th`)
		}
		if rapid.Bool().Draw(rt, "errors") {
			s.AuthError, s.StoreErr, s.UpstreamErr = errors.New("a"), errors.New(text("store")), errors.New(text("up"))
		}
		if rapid.Bool().Draw(rt, "traced") {
			s.TraceID = [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(rt, "trace"))
		}
		var sampled *float64
		field := ""
		if millionths := rapid.IntRange(0, 2*million).Draw(rt, "sampled"); millionths < million {
			tm := new(Telemetry)
			tm.SampleAllowed(millionths)
			field = tm.share.Load().field
			share := float64(millionths) / million
			sampled = &share
		}
		reason, took := text("reason"), micros("took")
		var want bytes.Buffer
		writeWithSlog(slog.NewJSONHandler(&want, handlerOptions(slog.LevelInfo)), r, s, took, reason, sampled)
		got := appendRequest(nil, r, s, took, reason, field)
		if !bytes.Equal(got, want.Bytes()) {
			rt.Fatalf("line differs from slog's\n got %q\nwant %q", got, want.Bytes())
		}
		if !json.Valid(got) || !utf8.Valid(got) || bytes.Count(got, []byte{'\n'}) != 1 {
			rt.Fatalf("not one line of JSON: %q", got)
		}
	})
}

func TestLineHasTheFieldsOperatorsReadInOrder(t *testing.T) {
	r, s := sample()
	s.Arrived = time.Date(2026, 11, 30, 12, 0, 0, 123_456_789, time.FixedZone("IST", 19800))
	s.DeniedBy, s.Status = "per-minute", 429
	got := string(appendRequest(nil, r, s, 2_050*time.Microsecond, "", ""))
	want := `{"time":"2026-11-30T06:30:00.123456Z","level":"INFO","msg":"request","request_id":"01J9Z3K8M2",` +
		`"client_ip":"203.0.113.7","method":"GET","host":"api.example.com","path":"/api/weather","route":"weather",` +
		`"user":"priya123","tenant":"acme","key_id":"k-7f3a","plan":"free","cost":1,"status":429,` +
		`"denied_by":"per-minute","source":"memory","duration_ms":2.05,"upstream_ms":1.234,"bytes":1024,` +
		`"target":"127.0.0.1:9001"}` + "\n"
	if got != want {
		t.Errorf("line\n got %s\nwant %s", got, want)
	}
}

func TestPathIsLoggedAsSent(t *testing.T) {
	for _, p := range []string{"/a%2Fb", "/a/b", "/%ff", "/a%20b", "*"} {
		u := &url.URL{Path: p}
		if p != "*" {
			var err error
			if u, err = url.ParseRequestURI(p + "?token=canary"); err != nil {
				t.Fatal(err)
			}
		}
		if got := path(&http.Request{URL: u}); got != p {
			t.Errorf("path of %q is logged as %q", p, got)
		}
	}
	if got := path(&http.Request{}); got != "" {
		t.Errorf("path of a request without URL: %q", got)
	}
}

func TestErrorTextLeavesURLsOut(t *testing.T) {
	cause := errors.New("connection refused")
	wrapped := fmt.Errorf("forward: %w", &url.Error{Op: "Get", URL: "http://u:canary@127.0.0.1/?token=canary", Err: cause})
	if got, want := errText(wrapped), "Get: connection refused"; got != want {
		t.Errorf("errText = %q, want %q", got, want)
	}
}

func TestValuesAreCutBetweenCharacters(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     int
	}{
		{"short", "abc", 3},
		{"exact", strings.Repeat("a", MaxValue), MaxValue},
		{"one more", strings.Repeat("a", MaxValue+1), MaxValue},
		{"two-byte character across the edge", strings.Repeat("a", MaxValue-1) + "éé", MaxValue - 1},
		{"four-byte character across the edge", strings.Repeat("a", MaxValue-3) + "😀", MaxValue - 3},
		{"no character anywhere", strings.Repeat("\x80", 4*MaxValue), MaxValue - utf8.UTFMax},
	} {
		if got := len(cut(tc.in)); got != tc.want {
			t.Errorf("%s: %d bytes kept, want %d", tc.name, got, tc.want)
		}
	}
}
