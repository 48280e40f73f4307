package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

const aRunbook = `# Runbook

## Raise the limit, or find the noisy client?

See [Redis away](#redis-away) and [all of it](OPERATING.md#when). ![a picture](dashboard/x.png)

| a | b |
| --- | --- |
| <script>alert(1)</script> | ` + "`curl -H \"A: <b>\" x`" + ` |

## Redis away

Text.
`

// Whoever is called has the runbook beside the figures, without a script and without
// anything from elsewhere; its headings are where findings and alerts lead.
func TestTheRunbookIsAPage(t *testing.T) {
	t.Parallel()
	h := New(Options{Runbook: aRunbook, Token: []byte("a token")}) // off loopback, and nobody has signed in
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/runbook", nil))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("%d %s", w.Code, w.Header().Get("Content-Type"))
	}
	page := w.Body.String()
	if _, err := html.Parse(strings.NewReader(page)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`id="raise-the-limit-or-find-the-noisy-client"`, `id="redis-away"`, `href="#redis-away"`, "all of it", "<table>", "&lt;b&gt;",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in the page", want)
		}
	}
	for _, bad := range []string{"<script", "OPERATING.md", "<img", "http://", "https://", "style="} {
		if strings.Contains(page, bad) {
			t.Errorf("%s is in the page", bad)
		}
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/runbook", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
	w = httptest.NewRecorder()
	New(Options{Loopback: true}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/runbook", nil))
	if w.Code != http.StatusMisdirectedRequest && w.Code != http.StatusNotFound {
		t.Errorf("without a runbook: %d", w.Code)
	}
}
