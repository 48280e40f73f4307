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
		u, err := New(Options{Name: "weather", Targets: []Target{{URL: address}}, TLS: &tls.Config{RootCAs: roots}})
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		dial := u.targets[0].transport.DialContext
		u.targets[0].transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, upstream.Listener.Addr().String())
		}

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
