package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestAnswers(t *testing.T) {
	h := handler(func() time.Time { return time.Date(2026, 7, 1, 12, 34, 0, 0, time.UTC) })
	for _, tt := range []struct {
		method, target, body string
		status               int
		contains             string
	}{
		{"GET", "/healthz", "", 200, "ok"},
		{"GET", "/api/weather?city=pune", "", 200, `"name":"Pune"`},
		{"GET", "/api/weather", "", 200, `"time":"2026-07-01T12:00:00Z"`},
		{"GET", "/api/weather?city=Atlantis", "", 404, "known: Pune"},
		{"POST", "/api/weather", "", 405, ""},
		{"GET", "/api/export/1", "", 200, `"name":"Hobart"`},
		{"GET", "/api/export/0", "", 400, "1 to 1000"},
		{"GET", "/api/export/many", "", 400, "1 to 1000"},
		{"POST", "/login", `{"user":"priya123","password":"monsoon"}`, 200, "priya123"},
		{"POST", "/login", `{"user":"priya123","password":"winter"}`, 401, "wrong user or password"},
		{"POST", "/login", `user=priya123`, 400, "bad body"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(tt.method, tt.target, strings.NewReader(tt.body)))
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.contains) {
			t.Errorf("%s %s: %d %q; want %d with %q", tt.method, tt.target, w.Code, w.Body, tt.status, tt.contains)
		}
	}
}

// TestForecastSize holds the size that the benchmarks and documents state.
func TestForecastSize(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/api/weather?city=Pune", nil)
	r.Header.Set("X-Auth-User", "priya123")
	r.Header.Set("X-Auth-Plan", "free")
	handler(time.Now).ServeHTTP(w, r)
	if n := w.Body.Len(); n < 900 || n > 1200 {
		t.Errorf("forecast of %d bytes, want about 1 KiB", n)
	}
	var f Forecast
	if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil {
		t.Fatal(err)
	}
	if f.Caller == nil || *f.Caller != (Caller{"priya123", "free"}) {
		t.Errorf("caller %+v, want what X-Auth-* says", f.Caller)
	}
	if len(f.Hours) != 12 {
		t.Errorf("%d hours, want 12", len(f.Hours))
	}
}

// TestWarmerWhereItShouldBe keeps the formula on the right side of the equator.
func TestWarmerWhereItShouldBe(t *testing.T) {
	july := time.Date(2026, 7, 18, 3, 0, 0, 0, time.UTC)
	january := july.AddDate(0, -6, 0)
	warmth := func(name string, at time.Time) float64 {
		c, ok := cityNamed(name)
		if !ok {
			t.Fatalf("no city %s", name)
		}
		return forecast(c, at, 1).Hours[0].Celsius
	}
	if j, d := warmth("Oslo", july), warmth("Oslo", january); j <= d {
		t.Errorf("Oslo: July %v, January %v", j, d)
	}
	if j, d := warmth("Hobart", july), warmth("Hobart", january); j >= d {
		t.Errorf("Hobart: July %v, January %v", j, d)
	}
}
