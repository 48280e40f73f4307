// Command upstream is the server behind the benchmarks: 1 KiB of JSON, always
// the same, so that whatever stands in front of it is what is measured.
//
//	upstream -listen 127.0.0.1:9001
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9001", "address to listen on, host:port")
	flag.Parse()
	const head, tail = `{"city":"Pune","padding":"`, "\"}\n"
	body := []byte(head + strings.Repeat("x", 1024-len(head)-len(tail)) + tail)
	srv := &http.Server{
		Addr: *listen,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body) // a client that left needs no answer
		}),
		ReadHeaderTimeout: 10 * time.Second,
	}
	fmt.Fprintln(os.Stderr, "upstream:", srv.ListenAndServe())
	os.Exit(1)
}
