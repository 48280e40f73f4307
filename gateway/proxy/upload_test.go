package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestSmallBodyCanGoOutAgain(t *testing.T) {
	const text = "a small body"
	r := &http.Request{ContentLength: int64(len(text))}
	b := newUpload(io.NopCloser(strings.NewReader(text)), r, nil, time.Hour)
	for _, read := range []int{0, 3, len(text), len(text)} {
		first := make([]byte, read)
		if _, err := io.ReadFull(b, first); err != nil || string(first) != text[:read] {
			t.Fatalf("want %q, got %q %v", text[:read], first, err)
		}
		if _, err := b.again(); err != nil {
			t.Fatal(err)
		}
	}
	all, err := io.ReadAll(b)
	if string(all) != text || err != nil {
		t.Errorf("want all of it, got %q %v", all, err)
	}
	if stalled, err := b.settle(); stalled || err != nil {
		t.Errorf("want nothing wrong, got %v %v", stalled, err)
	}
	if large := newUpload(nil, &http.Request{ContentLength: replayable + 1}, nil, time.Hour); large.keep {
		t.Error("want a large body not kept")
	}
	if chunked := newUpload(nil, &http.Request{ContentLength: -1}, nil, time.Hour); chunked.keep {
		t.Error("want a body of unknown length not kept")
	}
}
