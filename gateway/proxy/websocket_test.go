package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// frame is one frame of a WebSocket, masked with zeros if at all.
func frame(first byte, payload string, masked bool) []byte {
	b := []byte{first}
	mask := byte(0)
	if masked {
		mask = 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, mask|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, mask|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, mask|127), uint64(n))
	}
	if masked {
		b = append(b, 0, 0, 0, 0)
	}
	return append(b, payload...)
}

// However the bytes of frames are cut, they end in the same places.
func TestFramesEndWhereTheyEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		var ends []int
		closed := false
		for range rapid.IntRange(1, 8).Draw(t, "frames") {
			first := rapid.SampledFrom([]byte{0x01, 0x82, 0x00, 0x89, 0x8a, 0x88, 0xc1}).Draw(t, "first")
			n := rapid.SampledFrom([]int{0, 1, 125, 126, 300, 65535, 65536, 70000}).Draw(t, "length")
			stream = append(stream, frame(first, strings.Repeat("\x88", n), rapid.Bool().Draw(t, "masked"))...)
			ends = append(ends, len(stream))
			closed = closed || first == 0x88
		}
		var f frames
		for at, left := 0, stream; len(left) > 0; {
			n := f.step(left[:min(len(left), rapid.IntRange(1, 5000).Draw(t, "piece"))])
			at, left = at+n, left[n:]
			if f.between() != slices.Contains(ends, at) {
				t.Fatalf("after %d bytes between frames: %v; they end at %v", at, f.between(), ends)
			}
		}
		if f.closed != closed {
			t.Fatalf("closed %v, want %v", f.closed, closed)
		}
	})
}

func TestWhatIsNoFrameDoesNoHarm(t *testing.T) {
	var f frames
	for left := bytes.Repeat([]byte{0xff}, 1<<16); len(left) > 0; {
		left = left[f.step(left):]
	}
	if f.between() {
		t.Error("half of nonsense is taken for a whole frame")
	}
}

// readClose reads what is left up to a Close frame, and returns what is in it.
func readClose(t *testing.T, b []byte, masked bool) (before []byte, code uint16, reason string) {
	t.Helper()
	i := bytes.IndexByte(b, 0x88)
	if i < 0 || len(b) < i+4 || b[i+1]&0x80 != 0 != masked {
		t.Fatalf("no Close frame, or one of the wrong side: %q", b)
	}
	body := b[i+2:]
	if masked {
		key := body[:4]
		body = slices.Clone(body[4:])
		for j := range body {
			body[j] ^= key[j%4]
		}
	}
	if len(body) != int(b[i+1]&0x7f) {
		t.Fatalf("something follows the Close frame: %q", b[i:])
	}
	return b[:i], binary.BigEndian.Uint16(body), string(body[2:])
}

// A rig is a tunnel whose two ends the test holds, carried as ReverseProxy does it.
type rig struct {
	client, upstream net.Conn
	stop             context.CancelFunc
	mu               sync.Mutex
	told             []string
	carried          chan struct{}
}

func newRig(bounds WebSocket) *rig { return newRigUntil(context.Background(), bounds) }

func newRigUntil(leaving context.Context, bounds WebSocket) *rig {
	r := &rig{carried: make(chan struct{})}
	client, in := net.Pipe()
	upstream, out := net.Pipe()
	r.client, r.upstream = client, upstream
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	t := newTunnel(ctx, out, bounds, func(why string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, why)
	})
	t.leaving = leaving
	user, backend := t.open(in), upstreamSide{t}
	errs := make(chan error, 2)
	half := func(to io.Writer, from io.Reader) {
		_, err := io.Copy(to, from)
		if err == nil {
			err = to.(interface{ CloseWrite() error }).CloseWrite()
		}
		errs <- err
	}
	over := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
		case <-over:
		}
		_ = backend.Close()
	}()
	go half(backend, user)
	go half(user, backend)
	go func() {
		if <-errs == nil {
			<-errs //nolint:errcheck // why it ended does not matter
		}
		_ = user.Close()
		close(over)
		close(r.carried)
	}()
	return r
}

func (r *rig) end() {
	r.stop()
	_ = r.client.Close()
	_ = r.upstream.Close()
	<-r.carried
	time.Sleep(time.Second) // of the bubble: nothing is left to fire
}

// hear reads a side to its end.
func hear(c net.Conn) chan []byte {
	heard := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(c)
		heard <- b
	}()
	return heard
}

func TestAWebSocketEndsAtItsBounds(t *testing.T) {
	for name, c := range map[string]struct {
		bounds func(now time.Time) WebSocket
		after  time.Duration
		why    string
		code   uint16
	}{
		"idle":       {func(time.Time) WebSocket { return WebSocket{Idle: time.Minute} }, time.Minute, "idle", 1001},
		"lifetime":   {func(time.Time) WebSocket { return WebSocket{Lifetime: time.Hour, Idle: 2 * time.Hour} }, time.Hour, "lifetime", 1001},
		"credential": {func(now time.Time) WebSocket { return WebSocket{Until: now.Add(90 * time.Second)} }, 90 * time.Second, "credential", 1008},
		"long since": {func(now time.Time) WebSocket { return WebSocket{Until: now.Add(-time.Second)} }, 0, "credential", 1008},
		"a long one": {func(time.Time) WebSocket { return WebSocket{Lifetime: 72 * time.Hour} }, 72 * time.Hour, "lifetime", 1001},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				r := newRig(c.bounds(began))
				defer r.end()
				client, upstream := hear(r.client), hear(r.upstream)
				toClient, toUpstream := <-client, <-upstream // neither answers: it is cut
				if took := time.Since(began); took != c.after+farewell {
					t.Errorf("it ended after %v, want %v and %v for farewell", took, c.after, farewell)
				}
				if c.after == 0 {
					return // nothing had been carried: it may be cut without a word
				}
				for side, masked := range map[*[]byte]bool{&toClient: false, &toUpstream: true} {
					if before, code, reason := readClose(t, *side, masked); code != c.code || reason == "" || len(before) > 0 {
						t.Errorf("%q, then %d %q", before, code, reason)
					}
				}
				if len(r.told) != 1 || r.told[0] != c.why {
					t.Errorf("told %q, want %q once", r.told, c.why)
				}
			})
		})
	}
}

// A ping now and then keeps a WebSocket open, whoever sends it.
func TestAPingIsSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(WebSocket{Idle: time.Minute})
		defer r.end()
		ping, pong := frame(0x89, "", true), frame(0x8a, "", false)
		b := make([]byte, 100)
		for i := range 20 {
			time.Sleep(59 * time.Second)
			from, to, sent := r.client, r.upstream, ping
			if i%2 == 1 {
				from, to, sent = r.upstream, r.client, pong
			}
			go from.Write(sent) //nolint:errcheck // seen on the other side
			if n, err := to.Read(b); err != nil || !bytes.Equal(b[:n], sent) {
				t.Fatalf("ping %d: %q, %v", i, b[:n], err)
			}
		}
		if r.told != nil {
			t.Errorf("ended: %q", r.told)
		}
	})
}

// What is on its way when the end comes is not torn: the frame goes to its end, and
// the Close frame stands behind it. What comes after that goes nowhere.
func TestTheEndStandsBehindAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(WebSocket{Lifetime: time.Minute})
		defer r.end()
		client, upstream := hear(r.client), hear(r.upstream)
		message := frame(0x81, strings.Repeat("x", 1000), false)
		if _, err := r.upstream.Write(message[:500]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := r.upstream.Write(append(message[500:], frame(0x81, "late", false)...)); err != nil {
			t.Fatal(err)
		}
		if before, code, _ := readClose(t, <-client, false); !bytes.Equal(before, message) || code != 1001 {
			t.Errorf("%d bytes, then %d; want the %d of the frame", len(before), code, len(message))
		}
		if _, code, _ := readClose(t, <-upstream, true); code != 1001 {
			t.Errorf("the upstream is told %d", code)
		}
	})
}

// Peers that answer the Close frame are not kept waiting.
func TestFarewellEndsWhenBothHaveAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(WebSocket{Lifetime: time.Minute})
		defer r.end()
		answer := func(c net.Conn, masked bool) {
			b := make([]byte, 200)
			if _, err := c.Read(b); err != nil {
				t.Errorf("no Close frame: %v", err)
			}
			_, _ = c.Write(closeFrame(1001, "", masked))
		}
		began := time.Now()
		go answer(r.client, true)
		go answer(r.upstream, false)
		<-r.carried
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it took %v, want a minute and no more", took)
		}
	})
}

// The answer of the one side comes while the other has not been told yet.
func TestAQuickAnswerIsNotTakenForTheFarewell(t *testing.T) {
	var upstream bytes.Buffer
	tn := &tunnel{}
	tn.toUpstream.t, tn.toUpstream.to, tn.toUpstream.masked = tn, &upstream, true
	tn.why.Store(endLifetime)
	answer := closeFrame(1000, "", true)
	if n, err := tn.toUpstream.Write(answer); n != len(answer) || err != nil {
		t.Fatal(n, err)
	}
	if before, code, _ := readClose(t, upstream.Bytes(), true); code != 1001 || len(before) > 0 {
		t.Errorf("the upstream is told %d", code)
	}
	if !tn.toUpstream.over() {
		t.Error("more is awaited of a client that has said farewell")
	}
}

// Whoever does not read holds up nobody's end but its own.
func TestASideThatStandsStillIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(WebSocket{Idle: time.Minute})
		defer r.end()
		began := time.Now()
		client := hear(r.client)
		go r.client.Write(frame(0x82, "nobody reads this", true)) //nolint:errcheck // it is stuck
		if _, code, _ := readClose(t, <-client, false); code != 1001 {
			t.Errorf("the client is told %d", code)
		}
		<-r.carried
		if took := time.Since(began); took != time.Minute+farewell {
			t.Errorf("it took %v", took)
		}
	})
}

// When a gateway begins to stop its WebSockets end, and those that are opened then as
// soon as their handshakes are answered.
func TestALeavingGatewayEndsWebSockets(t *testing.T) {
	for _, opened := range []string{"before", "meanwhile"} {
		synctest.Test(t, func(t *testing.T) {
			leaving, leave := context.WithCancel(t.Context())
			defer leave()
			if opened == "meanwhile" {
				leave()
			}
			r := newRigUntil(leaving, WebSocket{})
			client, upstream := hear(r.client), hear(r.upstream)
			synctest.Wait()
			leave()
			for _, got := range []uint16{second(readClose(t, <-client, false)), second(readClose(t, <-upstream, true))} {
				if got != 1001 {
					t.Errorf("opened %s, told %d", opened, got)
				}
			}
			r.end()
			if len(r.told) != 1 || r.told[0] != "shutdown" {
				t.Errorf("opened %s: told %q", opened, r.told)
			}
		})
	}
}

// A gateway that stops says so; one side's own end is told to the other by nobody
// but itself.
func TestWhoEndsAWebSocketSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(WebSocket{})
		client, upstream := hear(r.client), hear(r.upstream)
		synctest.Wait()
		r.stop()
		for _, got := range []uint16{second(readClose(t, <-client, false)), second(readClose(t, <-upstream, true))} {
			if got != 1001 {
				t.Errorf("at shutdown %d is told", got)
			}
		}
		r.end()
		if len(r.told) != 1 || r.told[0] != "shutdown" {
			t.Errorf("told %q", r.told)
		}

		r = newRig(WebSocket{Idle: time.Minute, Lifetime: time.Hour})
		upstream = hear(r.upstream)
		own := closeFrame(1000, "bye", true)
		_, _ = r.client.Write(own)
		_ = r.client.Close()
		if got := <-upstream; !bytes.Equal(got, own) {
			t.Errorf("the upstream gets %q, want the client's own farewell alone", got)
		}
		r.end()
		time.Sleep(2 * time.Hour)
		if r.told != nil {
			t.Errorf("one that ended by itself is told as %q", r.told)
		}
	})
}

func second(_ []byte, code uint16, _ string) uint16 { return code }

// A farewell that would stand before the answer to the handshake is left out.
func TestNoFrameComesBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, in := net.Pipe()
		upstream, out := net.Pipe()
		tn := newTunnel(context.Background(), out, WebSocket{Lifetime: time.Second}, nil)
		tn.open(in)
		toClient, toUpstream := hear(client), hear(upstream)
		if a, b := <-toClient, <-toUpstream; len(a)+len(b) > 0 {
			t.Errorf("%q, %q were written", a, b)
		}
	})
}

// A quiet WebSocket holds little, whatever went through it before.
func TestALargeMessageLeavesNoRoomBehind(t *testing.T) {
	var w bytes.Buffer
	tn := &tunnel{}
	tn.toClient.t, tn.toClient.to = tn, &w
	big := frame(0x82, strings.Repeat("x", 200<<10), false)
	reads := &countingReader{r: io.MultiReader(bytes.NewReader(big), &quiet{})}
	if _, err := tn.toClient.carry(reads); !errors.Is(err, errQuiet) {
		t.Fatal(err)
	}
	if !bytes.Equal(w.Bytes()[:len(big)], big) {
		t.Error("what came out is not what went in")
	}
	if got := reads.rooms; got[0] != idleCopy || slices.Max(got) != copySize || got[len(got)-1] != idleCopy {
		t.Errorf("rooms of %v; want a small one, large ones, and a small one at last", got)
	}
}

var errQuiet = errors.New("nothing more")

// quiet has a byte, and then nothing.
type quiet struct{ n int }

func (q *quiet) Read(p []byte) (int, error) {
	if q.n++; q.n > 1 {
		return 0, errQuiet
	}
	p[0] = 0
	return 1, nil
}

type countingReader struct {
	r     io.Reader
	rooms []int
}

func (c *countingReader) Read(p []byte) (int, error) {
	c.rooms = append(c.rooms, len(p))
	return c.r.Read(p)
}
