// Command weather-api is the small API that stands behind the gateway in
// `make run`, in the compose file and in the documents: something real to put
// a limit in front of, with no dependency and no state.
//
// It is not a weather service. The forecast is computed from the city's
// latitude and the hour, the same for everybody, so that two answers can be
// compared. It does not check who is calling: it believes the X-Auth-* fields,
// as an API behind the gateway may, because the gateway drops them from clients.
//
//	GET  /api/weather?city=Pune   the next twelve hours, about 1 KiB of JSON
//	GET  /api/export/{n}          n hours (1 to 1000) for every city, an expensive request
//	POST /login                   {"user": "priya123", "password": "monsoon"} passes, anything else is 401
//	GET  /healthz                 ok
//
//	weather-api -listen 127.0.0.1:9001
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9001", "address to listen on, host:port")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "weather-api:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends, then lets what is in flight finish.
func run(ctx context.Context, listen string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("%w; choose another address with -listen", err)
	}
	srv := &http.Server{
		Handler:           handler(time.Now),
		ReadHeaderTimeout: 5 * time.Second,
		// The gateway keeps idle connections for 90 s: the side that opens a
		// connection should be the one that closes it, or requests meet a
		// connection that is just going away.
		IdleTimeout: 2 * time.Minute,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	slog.Info("weather-api listens", "address", l.Addr().String())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// The context that told us to stop has ended; finishing needs one of its own.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
