package door

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// Whoever has said nothing is let go; whoever has, is not.
func TestSilentConnectionsAreClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: time.Minute}
	census := Attach(server)
	go func() { _ = server.Serve(Over(l, usual)) }()
	defer server.Close()
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		return c, bufio.NewReader(c)
	}
	spoken, answers := dial()
	ask := func() {
		t.Helper()
		if _, err := io.WriteString(spoken, get); err != nil {
			t.Fatal(err)
		}
		if res, err := http.ReadResponse(answers, nil); err != nil || res.StatusCode != 200 {
			t.Fatalf("%v, %v", res, err)
		}
	}
	ask()
	silent, _ := dial()
	for census.Silent() != 1 {
		time.Sleep(time.Millisecond)
	}
	census.Close()
	if n, err := silent.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the silent one read %d, %v; want its end", n, err)
	}
	ask()
}
