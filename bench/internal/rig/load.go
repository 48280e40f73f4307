package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Load is a closed loop: each connection sends its next request when the last
// one is answered.
type Load struct {
	// Address is the server, host:port.
	Address string
	// Next returns the i-th request of a connection, as bytes on the wire, in
	// HTTP/1.1 with keep-alive; nil ends the connection's loop. It is called
	// from many goroutines at once.
	Next func(connection, i int) []byte
	// Connections is how many there are at once.
	Connections int
	// Duration ends the loop; 0: it ends when Next says so.
	Duration time.Duration
	// Accept says which statuses are answers; nil means 200 alone. Any other
	// ends the run with an error.
	Accept func(status int) bool
}

// Result is what a Load has measured.
type Result struct {
	Requests int
	Elapsed  time.Duration
	P50, P99 time.Duration
	// Statuses counts the answers by status.
	Statuses map[int]int
}

// Run drives the load. The first failure of any connection ends it.
func Run(ctx context.Context, l Load) (Result, error) {
	if l.Accept == nil {
		l.Accept = func(status int) bool { return status == 200 }
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Bool
	if l.Duration > 0 {
		defer time.AfterFunc(l.Duration, func() { done.Store(true) }).Stop()
	}
	workers := make([]worker, l.Connections)
	var all sync.WaitGroup
	start := time.Now()
	for i := range workers {
		all.Go(func() {
			if err := workers[i].run(ctx, &l, i, &done); err != nil {
				cancel(fmt.Errorf("connection %d: %w", i, err))
			}
		})
	}
	all.Wait()
	elapsed := time.Since(start)
	if err := context.Cause(ctx); err != nil {
		return Result{}, err
	}
	r := Result{Elapsed: elapsed, Statuses: map[int]int{}}
	var took []time.Duration
	for i := range workers {
		took = append(took, workers[i].took...)
		for status, n := range workers[i].statuses {
			r.Statuses[status] += n
		}
	}
	r.Requests = len(took)
	if r.Requests == 0 {
		return Result{}, errors.New("no request was answered")
	}
	slices.Sort(took)
	r.P50, r.P99 = took[len(took)/2], took[len(took)*99/100]
	return r, nil
}

type worker struct {
	took     []time.Duration
	statuses map[int]int
}

func (w *worker) run(ctx context.Context, l *Load, connection int, done *atomic.Bool) error {
	w.statuses = map[int]int{}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.Address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	r := bufio.NewReaderSize(c, 8<<10)
	for i := 0; !done.Load(); i++ {
		request := l.Next(connection, i)
		if request == nil {
			return nil
		}
		start := time.Now()
		if _, err := c.Write(request); err != nil {
			return err
		}
		status, err := readAnswer(r)
		if err != nil {
			return err
		}
		w.took = append(w.took, time.Since(start))
		w.statuses[status]++
		if !l.Accept(status) {
			return fmt.Errorf("unexpected status %d", status)
		}
	}
	return nil
}

// readAnswer reads one answer with a Content-Length, and discards its body. It
// understands just enough of HTTP to know where an answer ends: a client that
// does more would compete with the server for the machine's cores.
func readAnswer(r *bufio.Reader) (status int, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < len("HTTP/1.1 200") {
		return 0, fmt.Errorf("bad status line %q", line)
	}
	status, err = strconv.Atoi(string(line[9:12]))
	if err != nil {
		return 0, fmt.Errorf("bad status line %q", line)
	}
	length := -1
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			break
		}
		if v, ok := contentLength(line); ok {
			length = v
		}
	}
	if length < 0 {
		return 0, errors.New("an answer without Content-Length")
	}
	if _, err := r.Discard(length); err != nil {
		return 0, io.ErrUnexpectedEOF
	}
	return status, nil
}

func contentLength(line []byte) (int, bool) {
	const name = "content-length:"
	if len(line) < len(name) {
		return 0, false
	}
	for i := range len(name) {
		if line[i]|0x20 != name[i]|0x20 {
			return 0, false
		}
	}
	n := 0
	for _, b := range line[len(name):] {
		if b >= '0' && b <= '9' {
			n = n*10 + int(b-'0')
		}
	}
	return n, true
}
