package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// answers stands in for the network: it answers with one status after the
// other, the last one for ever, and notes when it was asked.
type answers struct {
	statuses   []int
	retryAfter string
	asked      []time.Time
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	status := a.statuses[min(len(a.asked), len(a.statuses)-1)]
	a.asked = append(a.asked, time.Now())
	resp := &http.Response{Status: http.StatusText(status), StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(r.Header.Get("X-API-Key")))}
	if status != http.StatusOK && a.retryAfter != "" {
		resp.Header.Set("Retry-After", a.retryAfter)
	}
	return resp, nil
}

// answering makes a the network of http.DefaultClient until the test ends.
func answering(t *testing.T, a *answers) {
	old := http.DefaultClient.Transport
	http.DefaultClient.Transport = a
	t.Cleanup(func() { http.DefaultClient.Transport = old })
}

func TestWaitsAsLongAsItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{statuses: []int{429, 503, 200}, retryAfter: "7"}
		answering(t, a)
		resp, err := get(t.Context(), "http://api.example.com/", "secret")
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v, %v", resp, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != "secret" {
			t.Errorf("the server saw key %q, %v", body, err)
		}
		if len(a.asked) != 3 {
			t.Fatalf("asked %d times", len(a.asked))
		}
		for i := 1; i < 3; i++ {
			if wait := a.asked[i].Sub(a.asked[i-1]); wait < 7*time.Second || wait > 7200*time.Millisecond {
				t.Errorf("waited %v, was told 7 s", wait)
			}
		}
	})
}

func TestGivesUpWhereNoWaitHelps(t *testing.T) {
	a := &answers{statuses: []int{429}}
	answering(t, a)
	if _, err := get(t.Context(), "http://api.example.com/", ""); err == nil || len(a.asked) != 1 {
		t.Errorf("%v after %d attempts, want an error after one", err, len(a.asked))
	}
}

func TestOtherAnswersAreAnswers(t *testing.T) {
	for _, status := range []int{200, 401, 404, 502} {
		answering(t, &answers{statuses: []int{status}, retryAfter: "7"})
		if resp, err := get(t.Context(), "http://api.example.com/", ""); err != nil || resp.StatusCode != status {
			t.Errorf("%d: %v, %v", status, resp, err)
		}
	}
}

func TestStopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answering(t, &answers{statuses: []int{429}, retryAfter: "3600"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := get(ctx, "http://api.example.com/", ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// TestDocumentShowsThisCode keeps what people copy from the document the code
// that is tested here.
func TestDocumentShowsThisCode(t *testing.T) {
	code, err := os.ReadFile("polite.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/CLIENTS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, function, ok := strings.Cut(string(code), "// get asks")
	if !ok || !strings.Contains(string(doc), "// get asks"+function) {
		t.Error("docs/CLIENTS.md does not show the function get as it is in polite.go")
	}
}
