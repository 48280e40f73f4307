package proxy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bouncer/gateway/proxy"
	"bouncer/gateway/scope"
)

// cannedUpstream answers every request head with the same bytes. It does as
// little as it can, so that what is measured is the proxy.
func cannedUpstream(b *testing.B, answer string) *url.URL {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 16<<10)
				for {
					n := 0
					for !strings.HasSuffix(string(buf[:n]), "\r\n\r\n") {
						m, err := c.Read(buf[n:])
						if err != nil {
							return
						}
						n += m
					}
					if _, err := io.WriteString(c, answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return &url.URL{Scheme: "http", Host: l.Addr().String()}
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const benchRequest = "GET /v1/forecast/berlin?units=metric HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench/1.0\r\n" +
	"Accept: application/json\r\nAccept-Encoding: gzip\r\nX-Api-Key: 0123456789abcdef0123456789abcdef\r\nCookie: theme=dark\r\n\r\n"

// BenchmarkForward compares Forward with a bare httputil.ReverseProxy on the
// same transport settings, as it is and with a buffer pool: 64 connections, a 1 KiB answer of known length and
// one in chunks. cpu-µs/op is that of the whole process, client and upstream
// included, which are the same for both.
func BenchmarkForward(b *testing.B) {
	body := strings.Repeat("x", 1024)
	const head = "HTTP/1.1 200 OK\r\nDate: Mon, 30 Nov 2026 12:00:00 GMT\r\nContent-Type: application/json\r\nEtag: \"abc\"\r\n"
	for _, answer := range []struct{ name, bytes string }{
		{"length", head + "Content-Length: 1024\r\n\r\n" + body},
		{"chunked", head + "Transfer-Encoding: chunked\r\n\r\n400\r\n" + body + "\r\n0\r\n\r\n"},
	} {
		b.Run("answer="+answer.name, func(b *testing.B) {
			target := cannedUpstream(b, answer.bytes)
			bare := &httputil.ReverseProxy{
				Rewrite: func(p *httputil.ProxyRequest) {
					p.SetURL(target)
					p.SetXForwarded()
				},
				Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true, ResponseHeaderTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second},
			}
			pooled := *bare
			pooled.BufferPool = new(pool)
			u, err := proxy.New(proxy.Options{Name: "bench", Targets: []proxy.Target{{URL: target}}})
			if err != nil {
				b.Fatal(err)
			}
			defer u.Close()
			ip := netip.MustParseAddr("203.0.113.7")
			forward := func(w http.ResponseWriter, r *http.Request) {
				s := &scope.Request{ID: "0123456789abcdef", ClientIP: ip, Forwarded: "203.0.113.7", User: "priya123", Plan: "free", KeyID: "k1"}
				if e := u.Forward(w, r, s, proxy.Forward{}); e != nil {
					panic(e)
				}
			}
			for _, via := range []struct {
				name    string
				handler http.Handler
			}{{"bare", bare}, {"bare+pool", &pooled}, {"forward", http.HandlerFunc(forward)}} {
				b.Run("via="+via.name, func(b *testing.B) { benchHandler(b, via.handler) })
			}
		})
	}
}

// pool is the simplest httputil.BufferPool.
type pool struct{ p sync.Pool }

func (p *pool) Get() []byte {
	if b, ok := p.p.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *pool) Put(b []byte) { p.p.Put(&b) }

func benchHandler(b *testing.B, h http.Handler) {
	front := httptest.NewServer(h)
	defer front.Close()
	const clients = 64
	var conns []net.Conn
	for range clients {
		c, err := net.Dial("tcp", front.Listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu()
	for _, c := range conns {
		wg.Go(func() {
			in := bufio.NewReader(c)
			for left.Add(-1) >= 0 {
				if _, err := io.WriteString(c, benchRequest); err != nil {
					b.Error(err)
					return
				}
				res, err := http.ReadResponse(in, nil)
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
				}
				if err != nil || res.StatusCode != 200 {
					b.Errorf("want 200, got %v %v", res, err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/op")
}
