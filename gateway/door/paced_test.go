package door

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// pacedPipe returns a connection whose other end is client.
func pacedPipe(t *testing.T, bound time.Duration) (server *paced, client net.Conn, notRead *int) {
	theirs, ours := net.Pipe()
	t.Cleanup(func() { _ = theirs.Close(); _ = ours.Close() })
	notRead = new(int)
	return &paced{Conn: ours, o: &Options{BodyTimeout: bound, NotRead: func() { *notRead++ }}}, theirs, notRead
}

func TestAClientThatTakesNothingIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client, notRead := pacedPipe(t, time.Minute)
		go func() { _, _ = io.CopyN(io.Discard, client, 5) }()
		began := time.Now()
		n, err := server.Write(make([]byte, 100))
		// The five bytes were taken at once; it is known a slice of the time later.
		if waited := time.Since(began); n != 5 || !errors.Is(err, os.ErrDeadlineExceeded) || waited < time.Minute || waited > 75*time.Second || *notRead != 1 {
			t.Errorf("%d bytes and %v after %v, told %d times; want 5, a deadline after 1m0s to 1m15s, once", n, err, waited, *notRead)
		}
	})
}

// Whoever takes little, but takes it, keeps the connection, and so does one on which
// nothing was written for long.
func TestASlowClientIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client, notRead := pacedPipe(t, time.Minute)
		go func() {
			for {
				if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
					return
				}
				time.Sleep(50 * time.Second)
			}
		}()
		for range 3 {
			if n, err := server.Write(make([]byte, 10)); n != 10 || err != nil {
				t.Fatalf("%d bytes of 10, %v", n, err)
			}
			time.Sleep(time.Hour)
		}
		if *notRead != 0 {
			t.Errorf("told %d times of a client that reads", *notRead)
		}
	})
}

// TLS gives its farewell five seconds, and may.
func TestWhoBoundsAWriteHimselfMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _, notRead := pacedPipe(t, time.Minute)
		_ = server.SetWriteDeadline(time.Now().Add(5 * time.Second))
		began := time.Now()
		if _, err := server.Write([]byte("farewell")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 5*time.Second || *notRead != 0 {
			t.Errorf("%v after %v, told %d times; want a deadline after 5s", err, time.Since(began), *notRead)
		}
		_ = server.SetDeadline(time.Time{}) // as net/http does when a connection is taken over
		began = time.Now()
		if _, err := server.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) < time.Minute || time.Since(began) > 75*time.Second || *notRead != 1 {
			t.Errorf("%v after %v, told %d times; want a deadline after 1m0s to 1m15s, once", err, time.Since(began), *notRead)
		}
	})
}
