package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A sample is one request and what became of it.
type sample struct {
	instance int
	route    string
	caller   string
	at       time.Time     // when it was to be sent
	took     time.Duration // from then until its answer was complete
	status   int           // 0: no answer, see err
	err      string

	policy     string // the name of the first limit in RateLimit-Policy; empty without the field
	remaining  int    // of that limit; -1 if it is not told
	retryAfter int    // -1 without the field
	problem    string // the fragment of the problem's type, on an error
}

// local reports that the local cap answered.
func (s *sample) local() bool { return s.policy == "local-cap" }

// degraded reports that the answer was made without the store.
func (s *sample) degraded() bool {
	switch s.route {
	case "capped":
		return s.local()
	case "closed":
		return s.status == http.StatusServiceUnavailable
	default:
		return s.status == http.StatusOK && s.policy == ""
	}
}

// A client is one connection that sends a request in every interval, whatever
// became of the one before: an answer that is late delays nobody's clock.
type client struct {
	address  string
	request  []byte
	instance int
	route    string
	caller   string
	interval time.Duration
	offset   time.Duration // of its first request
	patience time.Duration // 0: it waits for the answer; else it hangs up
}

// A load is many clients.
type load struct {
	stopping atomic.Bool
	all      sync.WaitGroup
	cancel   context.CancelFunc

	mu      sync.Mutex // protects samples
	samples []sample
}

// drive starts the clients. They end with stop, or with ctx.
func drive(ctx context.Context, clients []client) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel}
	start := time.Now()
	for _, c := range clients {
		l.all.Go(func() { l.client(ctx, &c, start.Add(c.offset)) })
	}
	return l
}

// stop lets every client finish its request, and returns all samples.
func (l *load) stop() []sample {
	l.stopping.Store(true)
	timer := time.AfterFunc(10*time.Second, l.cancel)
	defer timer.Stop()
	l.all.Wait()
	l.cancel()
	return l.samples
}

// since returns the samples so far that were sent at from or later.
func (l *load) since(from time.Time) (out []sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.samples {
		if !s.at.Before(from) {
			out = append(out, s)
		}
	}
	return out
}

func (l *load) client(ctx context.Context, c *client, next time.Time) {
	var conn net.Conn
	var r *bufio.Reader
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	free := time.Now() // when the connection was last idle
	for !l.stopping.Load() && ctx.Err() == nil {
		if d := time.Until(next); d > 0 {
			timer := time.NewTimer(d)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
		// This process may have woken up late, which is no fault of the gateway; an
		// answer that came late is.
		at := time.Now()
		if free.After(next) {
			at = next
		}
		s := sample{instance: c.instance, route: c.route, caller: c.caller, at: at, remaining: -1, retryAfter: -1}
		err := func() (err error) {
			if conn == nil {
				if conn, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", c.address); err != nil {
					return err
				}
				r = bufio.NewReader(conn)
			}
			wait := 10 * time.Second
			if c.patience > 0 {
				wait = c.patience
			}
			if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
				return err
			}
			if _, err := conn.Write(c.request); err != nil {
				return err
			}
			return s.read(r)
		}()
		free = time.Now()
		s.took = free.Sub(at)
		if err != nil {
			s.status, s.err = 0, err.Error()
			if conn != nil {
				_ = conn.Close()
				conn = nil
			}
			if ctx.Err() != nil {
				return
			}
		}
		l.mu.Lock()
		l.samples = append(l.samples, s)
		l.mu.Unlock()
		for next = next.Add(c.interval); next.Before(free.Add(-c.interval)); {
			next = next.Add(c.interval) // what could not be sent in time at all is not sent in a heap
		}
	}
}

// read reads an answer.
func (s *sample) read(r *bufio.Reader) error {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	s.status = resp.StatusCode
	if p := resp.Header.Get("RateLimit-Policy"); p != "" {
		name, _, _ := strings.Cut(strings.TrimPrefix(p, `"`), `"`)
		s.policy = name
		if _, rest, ok := strings.Cut(resp.Header.Get("RateLimit"), `"`+name+`";r=`); ok {
			digits, _, _ := strings.Cut(rest, ";")
			digits, _, _ = strings.Cut(digits, ",")
			if n, err := strconv.Atoi(digits); err == nil {
				s.remaining = n
			}
		}
	}
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		s.retryAfter = n
	}
	if resp.StatusCode >= 400 {
		var p struct{ Type string }
		if err := json.Unmarshal(body, &p); err == nil {
			_, s.problem, _ = strings.Cut(p.Type, "#")
		}
	}
	return nil
}

func newReader(c net.Conn) *bufio.Reader { return bufio.NewReader(c) }

func write(c net.Conn, b []byte) error {
	_, err := c.Write(b)
	return err
}
