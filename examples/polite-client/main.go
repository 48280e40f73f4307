// Command polite-client calls an API behind the gateway as often as asked and as
// fast as its plan allows: it waits when it is told to, and never gives up for
// being early. The function that does it, get, is the one that
// docs/CLIENTS.md shows.
//
// It is an example to copy, not a library: it repeats GET only, because a
// repeated GET does no harm.
//
//	go run ./examples/polite-client -key bn_live_… -n 40 'http://127.0.0.1:8080/api/weather?city=Pune'
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

func main() {
	key := flag.String("key", os.Getenv("API_KEY"), "the API key; default: $API_KEY")
	n := flag.Int("n", 1, "how many requests")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: polite-client [-key KEY] [-n N] URL")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Arg(0), *key, *n); err != nil {
		fmt.Fprintln(os.Stderr, "polite-client:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, url, key string, n int) error {
	start := time.Now()
	for i := range n {
		resp, err := get(ctx, url, key)
		if err != nil {
			return err
		}
		size, err := io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return err
		}
		fmt.Printf("%3d  %6.2fs  %s  %d bytes  %s\n", i+1, time.Since(start).Seconds(), resp.Status, size, resp.Header.Get("RateLimit"))
	}
	return nil
}
