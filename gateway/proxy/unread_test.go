package proxy

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"bouncer/gateway/scope"
)

// A stream of HTTP/2 whose client grants it no window is broken off, and with it the
// upstream's answer; one beside it, on the same connection, is not.
func TestAnAnswerThatNobodyTakesIsBrokenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 200 << 10
		n := newPiped(t)
		n.serve("api", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", size))
		})
		var broken atomic.Int32
		u := n.upstream(Options{ClientTimeout: 2 * time.Minute, Hooks: Hooks{NotRead: func() { broken.Add(1) }}}, "http://api")
		n.serve("gateway", func(w http.ResponseWriter, r *http.Request) {
			_ = u.Forward(w, r, &scope.Request{ID: "req-1"}, Forward{})
		})
		conn, err := n.dial(t.Context(), "tcp", "gateway:80")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		taken, reset := followFrames(conn)
		framer := http2.NewFramer(conn, nil)
		_, _ = io.WriteString(conn, http2.ClientPreface)
		_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		_ = framer.WriteWindowUpdate(0, 1<<20)
		for _, stream := range []uint32{1, 3} {
			var fields bytes.Buffer
			e := hpack.NewEncoder(&fields)
			for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "gateway"}, {":path", "/"}} {
				_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
			}
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: fields.Bytes(), EndHeaders: true, EndStream: true})
		}
		_ = framer.WriteWindowUpdate(3, size)
		pass(2*time.Minute - time.Second)
		if got := taken[1].Load(); got != size || broken.Load() != 0 {
			t.Fatalf("after less than the bound: %d bytes of the stream that is read, want %d; %d broken off, want 0", got, size, broken.Load())
		}
		pass(2 * time.Second)
		if code := reset[0].Load(); code == 0 || broken.Load() != 1 {
			t.Errorf("a stream at a standstill: reset with %d, %d broken off, want a reset and 1", code, broken.Load())
		}
		if code := reset[1].Load(); code != 0 {
			t.Errorf("the stream beside it was reset with %d", code)
		}
	})
}

// followFrames counts what comes on streams 1 and 3, and with what they are reset.
func followFrames(conn net.Conn) (taken *[2]atomic.Int64, reset *[2]atomic.Int64) {
	taken, reset = new([2]atomic.Int64), new([2]atomic.Int64)
	framer := http2.NewFramer(io.Discard, conn)
	go func() {
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.DataFrame:
				taken[f.StreamID/2].Add(int64(len(f.Data())))
			case *http2.RSTStreamFrame:
				reset[f.StreamID/2].Store(int64(f.ErrCode))
			}
		}
	}()
	return taken, reset
}
