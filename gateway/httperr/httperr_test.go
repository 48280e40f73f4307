package httperr

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"
)

func write(method string, e *Error) *http.Response {
	rec := httptest.NewRecorder()
	Write(rec, httptest.NewRequest(method, "/", nil), "id-1", e)
	return rec.Result()
}

func TestAnErrorIsAProblem(t *testing.T) {
	res := write("GET", &Error{
		Status: 429, Type: TypeQuotaExceeded, Detail: "Wait.", RetryAfter: 1200 * time.Millisecond,
		Violated: []string{"per-minute"}, Header: http.Header{"Allow": {"GET"}}, Close: true,
		Err: errors.New("dial tcp 10.0.0.1:6379: secret"), Reason: "quota",
	})
	for name, want := range map[string]string{
		"Content-Type": "application/problem+json", "Cache-Control": "no-store", "Retry-After": "2",
		"Allow": "GET", "Connection": "close",
	} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	var got map[string]any
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"type": TypeQuotaExceeded, "title": "Too Many Requests", "status": 429.0, "detail": "Wait.", "request_id": "id-1",
	}
	for member, v := range want {
		if got[member] != v {
			t.Errorf("%s: %v, want %v", member, got[member], v)
		}
	}
	if v, _ := got["violated-policies"].([]any); len(v) != 1 || v[0] != "per-minute" {
		t.Errorf("violated-policies: %v", got["violated-policies"])
	}
	if len(got) != len(want)+1 {
		t.Errorf("members nobody asked for: %v", got)
	}
}

func TestWhatIsNotKnownIsNotSaid(t *testing.T) {
	res := write("GET", &Error{Status: 404, Detail: "Nothing here."})
	if res.Header.Get("Retry-After") != "" {
		t.Error("a Retry-After nobody asked for")
	}
	var got map[string]any
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got["type"] != "about:blank" {
		t.Errorf("type %v", got["type"])
	}
	if _, ok := got["violated-policies"]; ok {
		t.Error("violated-policies of nothing")
	}
}

func TestHEADGetsTheFieldsWithoutTheBody(t *testing.T) {
	get, head := write("GET", &Error{Status: 404, Detail: "x"}), write("HEAD", &Error{Status: 404, Detail: "x"})
	if head.Header.Get("Content-Length") != get.Header.Get("Content-Length") {
		t.Errorf("Content-Length %q, of a GET %q", head.Header.Get("Content-Length"), get.Header.Get("Content-Length"))
	}
	if n, _ := head.Body.Read(make([]byte, 1)); n != 0 {
		t.Error("HEAD got a body")
	}
}

// A client that waits this long must not be early, and "0" would mean "at once".
func TestSecondsRoundsUpAndIsNeverZero(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 1, time.Nanosecond: 1, 999 * time.Millisecond: 1, time.Second: 1,
		time.Second + time.Microsecond: 2, 90 * time.Minute: 5400,
	} {
		if got := Seconds(d); got != want {
			t.Errorf("Seconds(%v) = %d, want %d", d, got, want)
		}
	}
}

func TestTheContentLengthIsTrue(t *testing.T) {
	res := write("GET", &Error{Status: 400, Detail: "ü<>&\u2028 and a quote \""})
	body := make([]byte, 4096)
	n, _ := res.Body.Read(body)
	if res.Header.Get("Content-Length") != strconv.Itoa(n) {
		t.Errorf("Content-Length %s of %d bytes", res.Header.Get("Content-Length"), n)
	}
}

func TestAnErrorUnwrapsToItsCause(t *testing.T) {
	cause := errors.New("cause")
	if e := (&Error{Status: 502, Err: cause, Reason: "upstream"}); !errors.Is(e, cause) || e.Error() != "upstream: cause" {
		t.Errorf("%v", e)
	}
	if e := (&Error{Status: 502}); e.Error() != "Bad Gateway" {
		t.Errorf("%v", e)
	}
}
