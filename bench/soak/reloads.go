package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"bouncer/bench/internal/rig"
)

const (
	reloadEvery = 100 * time.Millisecond
	// What may be more afterwards than before: pools that have become a little
	// fuller. A reload that left one thing behind would be hundreds above it.
	reloadMore       = 20
	reloadMoreMemory = 16 << 20
)

// reloads loads a new configuration again and again, under load and with a
// stream and a WebSocket open all the time.
func reloads(ctx context.Context, o options, r *report) error {
	length := time.Duration(o.of(60_000, 2000)) * time.Millisecond
	ctx, end := context.WithCancel(ctx)
	defer end()
	s, err := newSite(ctx, o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/events":
			events(ctx, w, r)
		case "/socket":
			echo(ctx, w, r)
		default:
			quick(w)
		}
	}))
	if err != nil {
		return err
	}
	defer s.stop()
	defer end()
	const connections = 16
	// Until everything has its usual size.
	if _, err := rig.Run(ctx, s.paced(connections, time.Millisecond, max(length/10, time.Second))); err != nil {
		return err
	}
	before, err := s.look(ctx)
	if err != nil {
		return err
	}

	streams, stop := context.WithCancel(ctx)
	defer stop()
	seen, said := make(chan error, 1), make(chan error, 1)
	counts := struct{ events, echoes int }{}
	go func() { seen <- s.follow(streams, &counts.events) }()
	go func() { said <- s.talk(streams, &counts.echoes) }()
	load := make(chan error, 1)
	var requests int
	go func() {
		got, err := rig.Run(ctx, s.paced(connections, time.Millisecond, length))
		requests = got.Requests
		load <- err
	}()
	asked := 0
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	var failed error
	for running := true; running; {
		select {
		case failed = <-load:
			running = false
		case <-tick.C:
			asked++
			if err := s.configure(asked); err != nil {
				return err
			}
			if err := s.process.Signal(syscall.SIGHUP); err != nil {
				return err
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	stop()
	cut := errors.Join(<-seen, <-said)

	applied, err := s.metric(ctx, `gateway_config_reloads_total{outcome="applied"}`)
	if err != nil {
		return err
	}
	rejected, err := s.metric(ctx, `gateway_config_reloads_total{outcome="rejected"}`)
	if err != nil {
		return err
	}
	after, err := s.settled(ctx, before)
	if err != nil {
		return err
	}
	r.add("reloads", fmt.Sprintf("configurations that came into force in %s, of %d asked for by signal, and what was noticed on the disk besides", length, asked), fmt.Sprintf("%.0f", applied), fmt.Sprint(asked*9/10), applied >= float64(asked*9/10))
	r.add("reloads", "rejected", fmt.Sprintf("%.0f", rejected), "0", rejected == 0)
	r.add("reloads", fmt.Sprintf("failures of %d requests meanwhile", requests), word(failed, "none"), "none", failed == nil)
	r.add("reloads", fmt.Sprintf("a stream of %d events and a WebSocket of %d echoes", counts.events, counts.echoes), word(cut, "whole"), "whole",
		cut == nil && counts.events > 0 && counts.echoes > 0)
	for _, x := range []struct {
		what                string
		before, after, more int64
		text                func(int64) string
	}{
		{"goroutines", before.goroutines, after.goroutines, reloadMore, count},
		{"open files", before.files, after.files, reloadMore, count},
		{"resident memory", before.memory, after.memory, reloadMoreMemory, mib},
	} {
		r.add("reloads", fmt.Sprintf("%s afterwards (before: %s)", x.what, x.text(x.before)), x.text(x.after), x.text(x.before+x.more), x.after <= x.before+x.more)
	}
	return nil
}

func count(n int64) string { return fmt.Sprint(n) }

func word(err error, none string) string {
	if err == nil {
		return none
	}
	return err.Error()
}

// A size is what the gateway's process has at a moment.
type size struct{ goroutines, files, memory int64 }

func (s *site) look(ctx context.Context) (size, error) {
	n, err := s.metric(ctx, "go_goroutines")
	if err != nil {
		return size{}, err
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.process.PID()))
	if err != nil {
		return size{}, err
	}
	resident, _, err := s.process.Memory()
	return size{int64(n), int64(len(files)), resident}, err
}

// settled looks until everything is within its bar, for ten seconds at most:
// what a former configuration needed goes when its last request is done.
func (s *site) settled(ctx context.Context, before size) (now size, err error) {
	for range 40 {
		now, err = s.look(ctx)
		if err != nil || now.goroutines <= before.goroutines+reloadMore && now.files <= before.files+reloadMore && now.memory <= before.memory+reloadMoreMemory {
			return now, err
		}
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return now, err
		}
	}
	return now, nil
}

// events sends one every 20 ms, numbered, until the client leaves or ctx ends.
func events(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for i := 0; ; i++ {
		_, err := fmt.Fprintf(w, "data: %d\n\n", i)
		if err == nil {
			err = http.NewResponseController(w).Flush()
		}
		if err != nil || r.Context().Err() != nil || pause(ctx, 20*time.Millisecond) != nil {
			return
		}
	}
}

// follow reads one stream of events until ctx ends. That it is whole until then
// is what it is for: any other end is an error, and so is a number left out.
func (s *site) follow(ctx context.Context, n *int) error {
	resp, err := rig.Get(ctx, s.address, "/events")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if lines.Text() == "" {
			continue
		}
		if want := fmt.Sprintf("data: %d", *n); lines.Text() != want {
			return fmt.Errorf("the stream has %q, want %q", lines.Text(), want)
		}
		*n++
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the stream was cut after %d events: %w", *n, errors.Join(lines.Err(), errShort))
}

// talk keeps one WebSocket until ctx ends.
func (s *site) talk(ctx context.Context, n *int) error {
	// Its own context ends a coder/websocket in the middle of a frame; what ends
	// it here is between two.
	c, _, err := websocket.Dial(context.WithoutCancel(ctx), "ws://"+s.address+"/socket", nil) //nolint:bodyclose // the body of a 101 is the socket
	if err != nil {
		return fmt.Errorf("the WebSocket: %w", err)
	}
	defer func() { _ = c.CloseNow() }()
	for pause(ctx, 20*time.Millisecond) == nil {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		err := c.Write(bounded, websocket.MessageText, fmt.Append(nil, *n))
		var data []byte
		if err == nil {
			_, data, err = c.Read(bounded)
		}
		cancel()
		if err == nil && string(data) != fmt.Sprint(*n) {
			err = errShort
		}
		if err != nil {
			return fmt.Errorf("the WebSocket was cut after %d echoes: %w", *n, err)
		}
		*n++
	}
	return nil
}
