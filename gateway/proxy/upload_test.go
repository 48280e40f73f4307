package proxy

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSmallBodyCanGoOutAgain(t *testing.T) {
	const text = "a small body"
	r := &http.Request{ContentLength: int64(len(text))}
	b := newUpload(io.NopCloser(strings.NewReader(text)), r, nil, time.Hour)
	for _, read := range []int{0, 3, len(text), len(text)} {
		a, err := b.again()
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, read)
		if _, err := io.ReadFull(a, first); err != nil || string(first) != text[:read] {
			t.Fatalf("want %q, got %q %v", text[:read], first, err)
		}
	}
	for range 2 {
		a, _ := b.again()
		all, err := io.ReadAll(a)
		if string(all) != text || err != nil {
			t.Errorf("want all of it, got %q %v", all, err)
		}
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

// The attempt before may still wait for the client when the next one begins: what it
// gets then is the next one's, too, and it gets no more.
func TestAnAttemptThatIsOverTakesNothingAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, client := io.Pipe()
		b := newUpload(in, &http.Request{ContentLength: 6}, nil, time.Hour)
		old, _ := b.again()
		ended := make(chan error)
		go func() {
			_, err := io.ReadAll(old)
			ended <- err
		}()
		_, _ = client.Write([]byte("ab"))
		synctest.Wait()
		now, _ := b.again()
		go func() {
			_, _ = client.Write([]byte("cd"))
			_, _ = client.Write([]byte("ef"))
			_ = client.Close()
		}()
		all, err := io.ReadAll(now)
		if string(all) != "abcdef" || err != nil {
			t.Errorf("want all of it, got %q %v", all, err)
		}
		if err := <-ended; !errors.Is(err, errOver) {
			t.Errorf("the attempt that is over: want an error, got %v", err)
		}
		_, _ = b.settle()
	})
}

// Without its beginning a body of unknown length would pass for a whole one.
func TestABodyThatIsNotKeptGoesOutOnce(t *testing.T) {
	b := newUpload(io.NopCloser(strings.NewReader("text")), &http.Request{ContentLength: -1}, nil, time.Hour)
	for range 2 {
		if a, err := b.again(); err != nil || a == nil || !b.whole() {
			t.Fatalf("of which nothing was read: %v", err)
		}
	}
	if _, err := b.attempt.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.again(); err == nil || b.whole() {
		t.Error("it goes out again")
	}
	_, _ = b.settle()
}
