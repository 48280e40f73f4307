package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/scope"
)

// An https upstream is spoken to over HTTP/2 where it can, under its own name.
func TestHTTPSUpstream(t *testing.T) {
	for _, h2 := range []bool{true, false} {
		upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/dies" {
				_, _ = io.WriteString(w, "half")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			body, err := io.ReadAll(r.Body)
			w.Header().Set("Trailer", "X-Sum")
			w.Header().Set("X-Seen", strings.Join([]string{r.Proto, r.Host, r.TLS.ServerName, r.Header.Get("X-Forwarded-Host"), r.Header.Get("X-Auth-User"), r.Trailer.Get("X-Client-Sum")}, " "))
			if err == nil {
				_, _ = w.Write(body)
				// Without a length: beside one, HTTP/1.1 has no place for trailers.
				_ = http.NewResponseController(w).Flush()
			}
			w.Header().Set("X-Sum", "42")
		}))
		upstream.EnableHTTP2 = h2
		upstream.StartTLS()
		defer upstream.Close()
		address, err := url.Parse(upstream.URL)
		if err != nil {
			t.Fatal(err)
		}
		address.Host = "example.com:" + address.Port() // a name in the test server's certificate
		roots := x509.NewCertPool()
		roots.AddCert(upstream.Certificate())
		u, err := New(Options{
			Name: "weather", Targets: []Target{{URL: address}}, TLS: &tls.Config{RootCAs: roots},
			dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, upstream.Listener.Addr().String())
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()

		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if e := u.Forward(w, r, &scope.Request{User: "priya123"}, Forward{}); e != nil {
				t.Error(e)
			}
		}))
		defer front.Close()
		r, _ := http.NewRequest("POST", front.URL+"/a", struct{ io.Reader }{strings.NewReader("hello")})
		r.Host = "api.example.org"
		r.Trailer = http.Header{"X-Client-Sum": {"41"}}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		proto := "HTTP/1.1"
		if h2 {
			proto = "HTTP/2.0"
		}
		want := proto + " " + address.Host + " example.com api.example.org priya123 41"
		if got := res.Header.Get("X-Seen"); string(body) != "hello" || err != nil || got != want || res.Trailer.Get("X-Sum") != "42" {
			t.Errorf("want %q, got %q, body %q %v, trailers %v", want, got, body, err, res.Trailer)
		}
		res, err = http.Get(front.URL + "/dies")
		if err != nil {
			t.Fatal(err)
		}
		body, err = io.ReadAll(res.Body)
		res.Body.Close()
		if string(body) != "half" || err == nil {
			t.Errorf("want half and an error, got %q %v", body, err)
		}
	}
}

// A server that would rather speak HTTP/2 is asked for a WebSocket over HTTP/1.1.
func TestAWebSocketToAnHTTPSUpstream(t *testing.T) {
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			_, _ = io.WriteString(w, r.Proto)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
	}))
	upstream.EnableHTTP2 = true
	upstream.StartTLS()
	defer upstream.Close()
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(upstream.Certificate())
	u, err := New(Options{Name: "weather", Targets: []Target{{URL: address}}, TLS: &tls.Config{RootCAs: roots}})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if got := forward(u, Forward{}); got != "200 HTTP/2.0 at "+address.Host {
		t.Fatal(got)
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e := u.Forward(w, r, &scope.Request{}, Forward{}); e != nil {
			t.Error(e)
		}
	}))
	defer front.Close()
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	all, err := io.ReadAll(conn)
	if !strings.HasPrefix(string(all), "HTTP/1.1 101 ") || !strings.HasSuffix(string(all), "\r\n\r\nhello") {
		t.Errorf("%q, %v", all, err)
	}
}
