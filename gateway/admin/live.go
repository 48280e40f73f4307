package admin

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"bouncer/gateway/httperr"
)

// The bounds of streams of the live state.
const (
	// maxStreams is how many there may be at the same time.
	maxStreams = 64
	// readWithin is how long a reader has to take one event.
	readWithin = 10 * time.Second
)

// A Feed hands the live state to whoever watches. It is made once, outlives the
// handlers, and is safe for concurrent use.
type Feed struct {
	state func() (seq uint64, line []byte)

	mu      sync.Mutex // protects the following fields
	streams int
	next    chan struct{} // closed when there is another state
	end     chan struct{} // closed when the streams there are have to end
	ended   bool
}

// NewFeed returns a Feed of the states that state returns: each with its number,
// which grows, and as one line of JSON. It is called for each event, so it is to be
// cheap where the number is as before.
func NewFeed(state func() (seq uint64, line []byte)) *Feed {
	return &Feed{state: state, next: make(chan struct{}), end: make(chan struct{})}
}

// Publish says that there is another state.
func (f *Feed) Publish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.next)
	f.next = make(chan struct{})
}

// Streams is how many watch.
func (f *Feed) Streams() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.streams
}

// Restart ends all streams, so that those who may still watch come again.
func (f *Feed) Restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended {
		close(f.end)
		f.end = make(chan struct{})
	}
}

// Close ends all streams, and takes no more.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended {
		f.ended = true
		close(f.end)
	}
}

// enter counts a stream in, unless there are as many as may be, or none may be.
func (f *Feed) enter() (end <-chan struct{}, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams >= maxStreams || f.ended {
		return nil, false
	}
	f.streams++
	return f.end, true
}

func (f *Feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams--
}

// another is closed when there is a state after the one that is asked for then.
func (f *Feed) another() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next
}

// live sends the state at once, and each that follows, until the client leaves, does
// not read, or the feed ends: as server-sent events (HTML Living Standard, section
// 9.2), or once, as JSON.
func (h *handler) live(w http.ResponseWriter, r *http.Request, id string) {
	f := h.o.Live
	if r.URL.Query().Has("once") {
		_, line := f.state()
		write(w, r, http.StatusOK, "application/json", append(slices.Clip(line), '\n'))
		return
	}
	if r.Method == http.MethodHead {
		write(w, r, http.StatusOK, "text/event-stream", nil)
		return
	}
	end, ok := f.enter()
	if !ok {
		httperr.Write(w, r, id, &httperr.Error{
			Status: http.StatusServiceUnavailable, Reason: "streams", RetryAfter: 5 * time.Second,
			Detail: "as many pages watch this gateway as may, or it is being stopped; close one, or ask for /api/live?once now and then",
		})
		return
	}
	defer f.leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // for a proxy of nginx's that would hold it back
	c := http.NewResponseController(w)
	var event []byte
	for {
		next := f.another()
		seq, line := f.state()
		event = append(event[:0], "event: state\nid: "...)
		event = strconv.AppendUint(event, seq, 10)
		event = append(event, "\ndata: "...)
		event = append(append(event, line...), "\n\n"...)
		if c.SetWriteDeadline(time.Now().Add(readWithin)) != nil {
			return
		}
		if _, err := w.Write(event); err != nil || c.Flush() != nil {
			return
		}
		select {
		case <-next:
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// history answers with one window of what is kept.
func (h *handler) history(w http.ResponseWriter, r *http.Request, id string) {
	name := r.URL.Query().Get("window")
	if name == "" {
		name = "5m"
	}
	body, ok := h.o.History(name)
	if !ok {
		httperr.Write(w, r, id, &httperr.Error{
			Status: http.StatusBadRequest, Reason: "window",
			Detail: "window is what is wanted of the past: 5m, 1h or 24h",
		})
		return
	}
	write(w, r, http.StatusOK, "application/json", append(body, '\n'))
}
