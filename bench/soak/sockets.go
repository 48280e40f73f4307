package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

const (
	// socketsBar is for the gateway's process with ten thousand sockets open, and
	// socketBar what is left of it for each. What the kernel keeps for the
	// connections is not in them.
	socketsBar = 1 << 30
	socketBar  = 100 << 10
	// otherFiles are those that are open besides the sockets.
	otherFiles = 200
	// opening is how many handshakes are under way at once.
	opening = 64
)

// echo is a WebSocket that says what it hears until ctx ends.
func echo(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // the client says that it got none
	}
	defer func() { _ = c.CloseNow() }()
	for {
		kind, data, err := c.Read(ctx)
		if err != nil {
			return
		}
		if err := c.Write(ctx, kind, data); err != nil {
			return
		}
	}
}

// sockets opens many WebSockets, leaves them alone, and asks each whether it lives.
func sockets(ctx context.Context, o options, r *report) error {
	n := o.of(10_000, 50)
	// In the gateway a socket is two connections, and so it is here: the
	// client's end and the upstream's.
	files, err := raiseFiles(2*n + otherFiles)
	if err != nil {
		return err
	}
	note := ""
	if room := (files - otherFiles) / 2; room < n {
		note = fmt.Sprintf(" (%d take %d open files; %d was the hard limit, which root raises with ulimit -Hn)", n, 2*n+otherFiles, files)
		fmt.Fprintf(os.Stderr, "sockets: only %d%s\n", room, note)
		n = room
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	s, err := newSite(ctx, o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { echo(ctx, w, r) }))
	if err != nil {
		return err
	}
	defer s.stop()
	defer end() // the upstream's ends first
	before, _, err := s.process.Memory()
	if err != nil {
		return err
	}

	conns := make([]*websocket.Conn, n)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.CloseNow()
			}
		}
	}()
	each := func(what func(i int) error) error {
		var next atomic.Int64
		var all sync.WaitGroup
		var first atomic.Pointer[error]
		for range opening {
			all.Go(func() {
				for {
					i := int(next.Add(1)) - 1
					if i >= n || ctx.Err() != nil || first.Load() != nil {
						return
					}
					if err := what(i); err != nil {
						err = fmt.Errorf("socket %d: %w", i, err)
						first.CompareAndSwap(nil, &err)
					}
				}
			})
		}
		all.Wait()
		if err := first.Load(); err != nil {
			return *err
		}
		return ctx.Err()
	}
	start := time.Now()
	if err := each(func(i int) (err error) {
		conns[i], _, err = websocket.Dial(ctx, "ws://"+s.address+"/", nil) //nolint:bodyclose // the body of a 101 is the socket
		return err
	}); err != nil {
		return err
	}
	took := time.Since(start)
	if err := pause(ctx, time.Duration(o.of(20, 2))*time.Second); err != nil {
		return err
	}
	resident, peak, err := s.process.Memory()
	if err != nil {
		return err
	}
	goroutines, err := s.metric(ctx, "go_goroutines")
	if err != nil {
		return err
	}
	alive := "all"
	lives := each(func(i int) error {
		if err := conns[i].Write(ctx, websocket.MessageText, []byte("still there?")); err != nil {
			return err
		}
		_, data, err := conns[i].Read(ctx)
		if err == nil && string(data) != "still there?" {
			err = errShort
		}
		return err
	})
	if lives != nil {
		alive = lives.Error()
	}
	share := (resident - before) / int64(n)
	r.add("sockets", fmt.Sprintf("peak memory of the gateway with %d idle WebSockets%s, opened in %.1f s", n, note, took.Seconds()), mib(peak), mib(socketsBar), peak <= socketsBar)
	r.add("sockets", fmt.Sprintf("of it for each, with %.1f goroutines", goroutines/float64(n)), fmt.Sprintf("%.1f KiB", float64(share)/1024), fmt.Sprintf("%d KiB", socketBar>>10), share <= socketBar)
	r.add("sockets", "still echo after that", alive, "all", lives == nil)
	return nil
}
