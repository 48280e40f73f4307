package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A wire is a TCP proxy in front of one Redis that breaks in the ways a network
// does. It reads the commands on their way, so that it can tell a script call
// from a login and count what was really asked.
//
// It is for loopback and a few hundred calls a second.
type wire struct {
	addr   string
	target atomic.Pointer[string]
	state  atomic.Pointer[trouble]

	accepted atomic.Int64 // connections ever
	calls    atomic.Int64 // EVALSHA ever
	unknown  atomic.Int64 // of them those that the server did not know the script of

	mu       sync.Mutex // protects following fields
	listener net.Listener
	pipes    map[*pipe]struct{}
	asked    map[string]int // EVALSHA by the user in its keys
	arrivals []time.Time    // when connections came
	called   []time.Time    // when script calls were passed on
	pumps    sync.WaitGroup
}

// trouble is what a wire does to what passes. The zero value is a good network.
type trouble struct {
	delay   time.Duration // each reply is held so long
	dribble time.Duration // replies come byte by byte, one in this time
	reset   bool          // connections are accepted and cut at once
	garbage bool          // replies are something else
	lose    float64       // so many of the replies to script calls never arrive; others pass
	cut     float64       // so many of the replies to script calls break off in the middle
	hold    bool          // nothing is read from anybody any more
	over    chan struct{} // closed when this trouble is over
}

// A pipe is one connection through the wire.
type pipe struct {
	client, server net.Conn
	forgotten      atomic.Bool // swallows everything, as a firewall does that has forgotten it
	script         atomic.Bool // the last command was a script call
}

// newWire listens on a port that the kernel hands to nobody else, and passes on
// to target until it is closed.
func newWire(target string) (*wire, error) {
	w := &wire{pipes: map[*pipe]struct{}{}, asked: map[string]int{}}
	w.target.Store(&target)
	w.state.Store(&trouble{over: make(chan struct{})})
	var err error
	for range 100 {
		w.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(12000))) //nolint:gosec // not secret
		if err = w.open(); err == nil {
			return w, nil
		}
	}
	return nil, fmt.Errorf("listen for a wire: %w", err)
}

// open lets connections in, as at first.
func (w *wire) open() error {
	l, err := net.Listen("tcp", w.addr)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.listener = l
	w.mu.Unlock()
	w.pumps.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.accepted.Add(1)
			w.mu.Lock()
			w.arrivals = append(w.arrivals, time.Now())
			w.mu.Unlock()
			w.pumps.Go(func() { w.serve(c) })
		}
	})
	return nil
}

// refuse closes the port and cuts what there is: from now on the kernel refuses.
func (w *wire) refuse() {
	w.mu.Lock()
	if w.listener != nil {
		_ = w.listener.Close()
		w.listener = nil
	}
	w.mu.Unlock()
	w.cutAll()
}

// cutAll breaks every connection off.
func (w *wire) cutAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.pipes {
		p.cut()
	}
}

// forget makes every present connection swallow what it is sent, in silence;
// new ones are good.
func (w *wire) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.pipes {
		p.forgotten.Store(true)
	}
}

// set changes what happens to what passes from now on.
func (w *wire) set(t trouble) {
	t.over = make(chan struct{})
	close(w.state.Swap(&t).over)
}

// close ends everything and waits for it.
func (w *wire) close() {
	w.refuse()
	w.set(trouble{})
	w.pumps.Wait()
}

// askedBy is how many script calls had a key of this user.
func (w *wire) askedBy(user string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[user]
}

// busiest returns the most connections that came, and the most script calls that
// were passed on, within any second of [from, to).
func (w *wire) busiest(from, to time.Time) (connections, calls int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return busiestSecond(w.arrivals, from, to), busiestSecond(w.called, from, to)
}

// busiestSecond counts the most of times, which ascend, within any second.
func busiestSecond(times []time.Time, from, to time.Time) (most int) {
	first := 0
	for i, t := range times {
		switch {
		case t.Before(from):
			first = i + 1
			continue
		case !t.Before(to):
			return most
		}
		for t.Sub(times[first]) >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

func (w *wire) serve(c net.Conn) {
	if w.state.Load().reset {
		abort(c)
		return
	}
	p := &pipe{client: c}
	defer p.cut()
	for { // a peer that does not read does not connect any further either
		t := w.state.Load()
		if !t.hold {
			break
		}
		<-t.over
	}
	server, err := net.DialTimeout("tcp", *w.target.Load(), time.Second)
	if err != nil {
		return
	}
	p.server = server
	w.mu.Lock()
	closed := w.listener == nil
	if !closed {
		w.pipes[p] = struct{}{}
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.pipes, p)
		w.mu.Unlock()
	}()
	if closed {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { defer p.cut(); w.commands(p) })
	both.Go(func() { defer p.cut(); w.replies(p) })
	both.Wait()
}

// commands passes on what the client asks.
func (w *wire) commands(p *pipe) {
	r := bufio.NewReaderSize(p.client, 64<<10)
	for {
		raw, args, err := command(r)
		if err != nil {
			return
		}
		for t := w.state.Load(); t.hold; t = w.state.Load() {
			<-t.over
		}
		if p.forgotten.Load() {
			continue
		}
		name := strings.ToUpper(string(args[0]))
		p.script.Store(name == "EVALSHA" || name == "EVAL")
		if name == "EVALSHA" {
			w.count(args)
		}
		if _, err := p.server.Write(raw); err != nil {
			return
		}
	}
}

// count notes whose bucket a script call is about.
func (w *wire) count(args [][]byte) {
	w.calls.Add(1)
	w.mu.Lock()
	w.called = append(w.called, time.Now())
	w.mu.Unlock()
	for _, a := range args {
		if _, rest, ok := strings.Cut(string(a), "{user:"); ok {
			user, _, _ := strings.Cut(rest, "}")
			w.mu.Lock()
			w.asked[user]++
			w.mu.Unlock()
			return
		}
	}
}

// replies passes on what the server answers, as well as the trouble lets it.
func (w *wire) replies(p *pipe) {
	buf := make([]byte, 64<<10)
	for {
		n, err := p.server.Read(buf)
		if err != nil {
			return
		}
		b := buf[:n]
		if strings.HasPrefix(string(b), "-NOSCRIPT") {
			w.unknown.Add(1)
		}
		t := w.state.Load()
		script := p.script.Load()
		switch {
		case p.forgotten.Load(), script && t.lose > 0 && rand.Float64() < t.lose: //nolint:gosec // not secret
			continue
		case script && t.cut > 0 && rand.Float64() < t.cut: //nolint:gosec // not secret
			_, _ = p.client.Write(b[:n/2])
			return
		case t.garbage:
			b = []byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
		case t.delay > 0:
			time.Sleep(t.delay)
		}
		if t.dribble > 0 {
			for i := range b {
				time.Sleep(t.dribble)
				if _, err := p.client.Write(b[i : i+1]); err != nil {
					return
				}
			}
			continue
		}
		if _, err := p.client.Write(b); err != nil {
			return
		}
	}
}

// cut ends both sides at once, without a farewell.
func (p *pipe) cut() {
	abort(p.client)
	if p.server != nil {
		_ = p.server.Close()
	}
}

// abort closes a connection with RST.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// command reads one command, an array of bulk strings, as all clients send them.
func command(r *bufio.Reader) (raw []byte, args [][]byte, err error) {
	number := func(kind byte) (int, error) {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		raw = append(raw, line...)
		if len(line) < 4 || line[0] != kind {
			return 0, fmt.Errorf("want %c and a number, got %q", kind, line)
		}
		return strconv.Atoi(string(line[1 : len(line)-2]))
	}
	n, err := number('*')
	if err != nil {
		return nil, nil, err
	}
	if n < 1 || n > 1<<16 {
		return nil, nil, fmt.Errorf("a command of %d arguments", n)
	}
	for range n {
		size, err := number('$')
		if err != nil {
			return nil, nil, err
		}
		if size < 0 || size > 1<<20 {
			return nil, nil, fmt.Errorf("an argument of %d bytes", size)
		}
		arg := make([]byte, size+2)
		if _, err := io.ReadFull(r, arg); err != nil {
			return nil, nil, err
		}
		raw = append(raw, arg...)
		args = append(args, arg[:size])
	}
	return raw, args, nil
}

// A wall is an address whose backlog is full: whoever connects gets no answer,
// neither yes nor no.
type wall struct {
	socket int
	full   []net.Conn
}

// block puts a wall where the wire listened. Connections are cut.
func (w *wire) block() (*wall, error) {
	w.refuse()
	a, err := net.ResolveTCPAddr("tcp", w.addr)
	if err != nil {
		return nil, err
	}
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	b := &wall{socket: s}
	at := &syscall.SockaddrInet4{Port: a.Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := errors.Join(
		syscall.SetsockoptInt(s, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
		syscall.Bind(s, at), syscall.Listen(s, 0),
	); err != nil {
		b.close()
		return nil, err
	}
	for range 16 {
		c, err := net.DialTimeout("tcp", w.addr, 200*time.Millisecond)
		if err != nil {
			return b, nil // this one got no answer, nor will others
		}
		b.full = append(b.full, c)
	}
	b.close()
	return nil, errors.New("the backlog is never full")
}

// close takes the wall away.
func (b *wall) close() {
	_ = syscall.Close(b.socket)
	for _, c := range b.full {
		_ = c.Close()
	}
}
