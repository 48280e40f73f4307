package admin

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// Whoever announces a body and does not send it is answered all the same, with a token
// and without, and does not hold a connection.
func TestABodyThatNeverComesHoldsNothing(t *testing.T) {
	t.Parallel()
	var resets []Reset
	o := withCallers(t, &resets)
	o.Loopback, o.Token = true, []byte("a token")
	server := httptest.NewServer(New(o))
	t.Cleanup(server.Close)
	for name, head := range map[string]string{
		"a path that takes none": "POST / HTTP/1.1\r\n",
		"a path that is not":     "POST /nothing HTTP/1.1\r\n",
		"a reset":                "POST /api/reset HTTP/1.1\r\nAuthorization: Bearer a token\r\nContent-Type: application/json\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(3 * bodyWithin)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, head+"Host: localhost\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			if resp.StatusCode < 400 {
				t.Errorf("status %d", resp.StatusCode)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Error(err)
			}
			if _, err := r.ReadByte(); err != io.EOF {
				t.Errorf("the connection is not closed: %v", err)
			}
		})
	}
}
