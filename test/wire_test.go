package test

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// A wire is a TCP proxy between a gateway and Redis that can lose what Redis
// replies. What it is sent always reaches Redis: the charge happens, and it is
// the answer that is lost, which is the one fault that tempts into charging
// twice.
type wire struct {
	listener net.Listener
	target   string
	calls    atomic.Int64 // decisions that passed on to Redis

	mu    sync.Mutex
	judge func() fate
	conns map[net.Conn]bool
}

// A fate is what becomes of the reply to one decision.
type fate struct {
	cut   bool            // the connection is closed instead
	hold  <-chan struct{} // if set: delivered when this is closed
	never bool            // the connection stays, silent
}

func newWire(t testing.TB, target string) *wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: l, target: target, conns: map[net.Conn]bool{}}
	w.deliver()
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { w.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.mu.Lock()
		for c := range w.conns {
			_ = c.Close()
		}
		w.conns = nil
		w.mu.Unlock()
		serving.Wait()
	})
	return w
}

// url is where the gateway finds Redis.
func (w *wire) url() string { return "redis://" + w.listener.Addr().String() + "/0" }

// lose decides the fate of replies from now on. f is called for one decision
// at a time, before it goes to Redis.
func (w *wire) lose(f func() fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge = f
}

// deliver lets every reply pass from now on.
func (w *wire) deliver() { w.lose(func() fate { return fate{} }) }

// keep remembers a connection, to be closed at the end; false when that has come.
func (w *wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		return false
	}
	w.conns[c] = true
	return true
}

func (w *wire) forget(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
}

func (w *wire) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", w.target)
	if err != nil {
		return
	}
	defer server.Close()
	for _, c := range []net.Conn{client, server} {
		if !w.keep(c) {
			return
		}
		defer w.forget(c)
	}

	var fated atomic.Pointer[fate] // of the call under way
	ended := make(chan struct{})   // the client has gone
	var forward sync.WaitGroup
	forward.Go(func() {
		defer close(ended)
		defer server.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if call := buf[:n]; bytes.Contains(call, []byte("\r\nevalsha\r\n")) || bytes.Contains(call, []byte("\r\neval\r\n")) {
				var f fate
				// What instances tell each other is no decision, nor is a call for no key,
				// which makes a connection ready.
				if bytes.Contains(call, []byte(":v1:{")) && !bytes.Contains(call, []byte("{gateway}")) {
					w.calls.Add(1)
					w.mu.Lock()
					f = w.judge()
					w.mu.Unlock()
				}
				fated.Store(&f)
			}
			if _, werr := server.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	})
	defer forward.Wait()
	defer client.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if f := fated.Load(); n > 0 && f != nil {
			switch {
			case f.cut:
				return
			case f.never:
				<-ended
				return
			case f.hold != nil:
				select {
				case <-f.hold:
				case <-ended:
					return
				}
			}
		}
		if _, werr := client.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}
