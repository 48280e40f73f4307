package door

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// frame is the head of one with n bytes to come.
func frame(n int, kind, flags byte) string {
	return string([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags, 0, 0, 0, 1})
}

// What is under way on a connection of HTTP/2 is bounded, and what is not may be idle
// as long as net/http likes.
func TestAFrameHasItsTime(t *testing.T) {
	type step struct {
		text  string
		pause time.Duration // after it
	}
	const s, head, body = time.Second, 10 * time.Second, time.Minute // the last two as in usual
	settings, ping := frame(0, 4, 0), frame(0, 6, 0)
	begin := preface + settings
	for name, row := range map[string]struct {
		steps []step
		ends  time.Duration // 0: it goes on
	}{
		"half a preface":            {[]step{{preface[:9], 5 * s}, {preface[9:12], time.Hour}}, head},
		"a preface and no more":     {[]step{{preface, time.Hour}}, head},
		"a slow first frame":        {[]step{{preface[:9], 5 * s}, {preface[9:], 4 * s}, {settings[:5], time.Hour}}, head},
		"a good beginning":          {[]step{{begin, time.Hour}}, 0},
		"half the head of a frame":  {[]step{{begin, 30 * s}, {ping[:4], time.Hour}}, 30*s + head},
		"half a frame":              {[]step{{begin, 30 * s}, {frame(8, 6, 0) + "abc", time.Hour}}, 30*s + head},
		"a frame in drops":          {[]step{{begin, 0}, {ping[:1], 4 * s}, {ping[1:2], 4 * s}, {ping[2:3], 4 * s}}, head},
		"a frame soon after others": {[]step{{begin, 0}, {ping[:3], 8 * s}, {ping[3:] + ping[:3], 8 * s}, {ping[3:], time.Hour}}, 0},
		"a block without its end":   {[]step{{begin + frame(3, frameHeaders, 0) + "abc", time.Hour}}, head},
		"a block in drops": {[]step{
			{begin + frame(1, frameHeaders, 0) + "a", 6 * s}, {frame(1, frameContinuation, 0) + "b", 6 * s}, {"", 0},
		}, head},
		"a block with its end": {[]step{
			{begin + frame(1, frameHeaders, 0) + "a", 6 * s}, {frame(1, frameContinuation, flagEndHeaders) + "b", time.Hour},
		}, 0},
		"a part of a body in drops":     {[]step{{begin + frame(3, frameData, 0), 50 * s}, {"a", 50 * s}, {"b", 50 * s}, {"c", time.Hour}}, 0},
		"a part of a body stands still": {[]step{{begin + frame(3, frameData, 0), 50 * s}, {"a", time.Hour}}, 50*s + body},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				c := newConn(server, &usual)
				began, over := time.Now(), make(chan struct{})
				go func() {
					defer client.Close()
					for _, step := range row.steps {
						if _, err := io.WriteString(client, step.text); err != nil {
							return
						}
						time.Sleep(step.pause)
					}
				}()
				var err error
				go func() {
					defer close(over)
					p := make([]byte, 9) // as net/http reads the head of a frame
					for err == nil {
						_, err = c.Read(p)
					}
				}()
				<-over
				_ = c.Close()
				timedOut := errors.Is(err, os.ErrDeadlineExceeded)
				if timedOut != (row.ends != 0) || timedOut && time.Since(began) != row.ends {
					t.Errorf("ended after %v with %v; want %v (0: never)", time.Since(began), err, row.ends)
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// A deadlined is a writer whose request's body ends at a deadline.
type deadlined struct {
	http.ResponseWriter
	body *io.PipeReader
}

func (d deadlined) SetReadDeadline(at time.Time) error {
	time.AfterFunc(time.Until(at), func() { _ = d.body.CloseWithError(os.ErrDeadlineExceeded) })
	return nil
}

// slow is a reader whose end is the deadline of its writer.
type slow struct{ *io.PipeReader }

func (s slow) Read(p []byte) (int, error) {
	n, err := s.PipeReader.Read(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// A body of HTTP/2 that stands still ends; after the answer has begun it may.
func TestABodyOfHTTP2MayNotStandStill(t *testing.T) {
	for _, answered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			in, out := io.Pipe()
			r := httptest.NewRequest("POST", "/", slow{in})
			r.ProtoMajor = 2
			r = r.WithContext(context.WithValue(t.Context(), connKey{}, &conn{o: &usual}))
			b := Follow(deadlined{httptest.NewRecorder(), in}, r)
			go func() {
				for range 3 {
					time.Sleep(usual.BodyTimeout - time.Second)
					_, _ = out.Write([]byte("a"))
				}
				if answered {
					b.Answered()
				}
				time.Sleep(time.Hour)
				_ = out.Close()
			}()
			began := time.Now()
			got, err := io.ReadAll(r.Body)
			want := 3*(usual.BodyTimeout-time.Second) + usual.BodyTimeout
			if answered {
				want += time.Hour - usual.BodyTimeout
			}
			if string(got) != "aaa" || errors.Is(err, os.ErrDeadlineExceeded) == answered || time.Since(began) != want {
				t.Errorf("answered %v: %q, %v after %v, want %v", answered, got, err, time.Since(began), want)
			}
			time.Sleep(2 * time.Hour)
		})
	}
}

// What is followed costs no allocation.
func TestFollowingFramesAllocatesNothing(t *testing.T) {
	var f frames
	text := []byte(frame(3, frameData, 0) + "abc" + frame(8, 6, 0) + "12345678")
	if n := testing.AllocsPerRun(100, func() { f.follow(text); _ = f.due(time.Time{}, &usual) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
