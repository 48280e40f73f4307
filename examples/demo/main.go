// Command demo is `make run`: it starts the sample API and the gateway on the
// shipped routes.yaml and plans.yaml, waits until both are ready, prints three
// lines to paste, and ends both on Ctrl-C.
//
// It is not a way to run the gateway in earnest; deploy/ shows those. It makes
// an API key of its own in bin/, because the shipped keys.yaml holds none. If
// either child ends by itself, it ends the other, shows the last lines of its log
// and exits 1; if demo itself is killed, both children end as well (on Linux).
//
// The three lines go to standard output, everything else to standard error.
// The environment says where to listen, as routes.yaml documents: HTTP_ADDR,
// ADMIN_ADDR and WEATHER_ADDR; REDIS_URL says where to count.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	// On Linux a child is told when the thread that started it ends, so that
	// thread must be one that lives as long as the program.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "make run:", err)
		stop()
		os.Exit(1)
	}
}

// readyWithin is how long the children may take to start.
const readyWithin = 15 * time.Second

func run(ctx context.Context) error {
	a, err := addressesFromEnv()
	if err != nil {
		return err
	}
	if err := a.free(ctx); err != nil {
		return err
	}
	const keysFile = "bin/keys.yaml"
	key, err := demoKey(ctx, keysFile, "bin/demo-key")
	if err != nil {
		return whenInterrupted(ctx, err)
	}

	api, err := start("weather-api", nil, "-listen", a.weather)
	if err != nil {
		return err
	}
	defer api.stop()
	gateway, err := start("gateway", []string{
		"KEYS_FILE=" + keysFile,
		"HTTP_ADDR=" + a.http,
		"ADMIN_ADDR=" + a.admin,
		"WEATHER_URL=http://" + a.weather,
	}, "run", "-routes", "routes.yaml", "-plans", "plans.yaml")
	if err != nil {
		return err
	}
	defer gateway.stop()

	waiting, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := waitFor(waiting, api, "http://"+a.weather+"/healthz"); err != nil {
		return whenInterrupted(ctx, err)
	}
	if err := waitFor(waiting, gateway, "http://"+local(a.admin)+"/readyz"); err != nil {
		return whenInterrupted(ctx, err)
	}

	fmt.Fprintf(os.Stderr, "Ready: one request that passes, a loop that runs into 429, the metrics.\n\n")
	target := "http://" + local(a.http) + "/api/weather?city=Pune"
	fmt.Printf("curl -i -H 'X-API-Key: %s' '%s'\n", key, target)
	fmt.Printf("for i in $(seq 30); do curl -s -o /dev/null -w '%%{http_code} ' -H 'X-API-Key: %s' '%s'; done; echo\n", key, target)
	fmt.Printf("curl -s http://%s/metrics\n", local(a.admin))
	fmt.Fprintf(os.Stderr, "\nCounting in %s. Logs: %s, %s. Ctrl-C ends both.\n", store(), gateway.log, api.log)

	select {
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr)
		return nil
	case <-api.ended:
		return api.failure()
	case <-gateway.ended:
		return gateway.failure()
	}
}

// whenInterrupted is err, unless the reason is that somebody pressed Ctrl-C.
func whenInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// store says where the gateway counts, without a password that may stand in the URL.
func store() string {
	if os.Getenv("REDIS_URL") == "" {
		return "memory: a restart forgets"
	}
	return "the Redis of REDIS_URL"
}

// addresses is where everything listens, host:port or :port.
type addresses struct{ http, admin, weather string }

func addressesFromEnv() (addresses, error) {
	get := func(name, fallback string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return fallback
	}
	a := addresses{
		http:    get("HTTP_ADDR", ":8080"),
		admin:   get("ADMIN_ADDR", "127.0.0.1:9090"),
		weather: get("WEATHER_ADDR", "127.0.0.1:9001"),
	}
	for name, v := range map[string]string{"HTTP_ADDR": a.http, "ADMIN_ADDR": a.admin, "WEATHER_ADDR": a.weather} {
		if _, _, err := net.SplitHostPort(v); err != nil {
			return a, fmt.Errorf("%s=%s: %w; want host:port or :port", name, v, err)
		}
	}
	return a, nil
}

// free reports which address is taken, and how to take another.
func (a addresses) free(ctx context.Context) error {
	var taken []error
	for _, x := range []struct{ name, address, other string }{
		{"HTTP_ADDR", a.http, ":8081"},
		{"ADMIN_ADDR", a.admin, "127.0.0.1:9091"},
		{"WEATHER_ADDR", a.weather, "127.0.0.1:9002"},
	} {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", x.address)
		if err != nil {
			taken = append(taken, fmt.Errorf("%w; end what listens there, or choose another: %s=%s make run", err, x.name, x.other))
			continue
		}
		if err := l.Close(); err != nil {
			taken = append(taken, err)
		}
	}
	return errors.Join(taken...)
}

// local is the address as this machine dials it.
func local(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// waitFor returns when url answers 200, and fails when the child ends first.
func waitFor(ctx context.Context, c *child, url string) error {
	client := &http.Client{Timeout: time.Second}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close() // only the status is of interest
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready after %v: %s\n%s", c.name, readyWithin, url, strings.TrimRight(tail(c.log), "\n"))
		case <-c.ended:
			return c.failure()
		case <-tick.C:
		}
	}
}
