// Command floor is the bar that the gateway is measured against: the standard
// library's reverse proxy and nothing else. No limit, no authentication, no
// log, no metric.
//
// It is not a gateway. It is as fast as a few lines can make it without
// replacing the standard library: its transport keeps enough idle connections,
// which the default transport (two per host) does not. With -pool it reuses the
// buffers it copies bodies with, which the standard proxy does not by itself.
//
//	floor -listen 127.0.0.1:8000 -upstream http://127.0.0.1:9001
package main

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"sync"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8000", "address to listen on, host:port")
	upstream := flag.String("upstream", "", "where requests go, a URL")
	pool := flag.Bool("pool", false, "reuse the buffers that bodies are copied with")
	flag.Parse()
	if err := run(*listen, *upstream, *pool); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func run(listen, upstream string, pool bool) error {
	target, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.SetXForwarded()
		},
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 256,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		},
	}
	if pool {
		proxy.BufferPool = &buffers{}
	}
	srv := &http.Server{Addr: listen, Handler: proxy, ReadHeaderTimeout: 10 * time.Second}
	return srv.ListenAndServe()
}

// buffers implements httputil.BufferPool.
type buffers struct{ pool sync.Pool }

// Get returns a buffer of 32 KiB, the size that the proxy itself would make.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

// Put takes back what Get returned.
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
