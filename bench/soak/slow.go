package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bouncer/bench/internal/rig"
)

const (
	// With slow clients beside them, others may wait so much longer at the 99th
	// percentile, or by so much, or as long as in a quarter of the rounds without
	// any: on a machine with other work, rounds differ by themselves.
	slowRatio = 1.25
	slowMost  = 500 * time.Microsecond
)

// slow compares rounds with and without slow clients, interleaved.
func slow(ctx context.Context, o options, r *report) error {
	n := o.of(200, 20)
	rounds, length := o.of(20, 3), time.Duration(o.of(1500, 500))*time.Millisecond
	s, err := newSite(ctx, o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		quick(w)
	}))
	if err != nil {
		return err
	}
	defer s.stop()
	p99 := map[bool][]time.Duration{}
	requests := 0
	var count slowCount
	for i := range 2 * rounds {
		withSlow := i%2 == 1
		end := func() {}
		if withSlow {
			end = s.crawl(ctx, n, &count)
		}
		got, err := rig.Run(ctx, s.paced(16, 8*time.Millisecond, length))
		end()
		if err != nil {
			return err // any answer but 200 among them
		}
		requests += got.Requests
		p99[withSlow] = append(p99[withSlow], got.P99)
	}
	without, with := quantile(p99[false], 0.5), quantile(p99[true], 0.5)
	bar := max(time.Duration(float64(without)*slowRatio), without+slowMost, quantile(p99[false], 0.75))
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f ms", d.Seconds()*1000) }
	r.add("slow", fmt.Sprintf("p99 of others beside %d slow clients (without: %s, %s–%s; medians of %d rounds of each)",
		n, ms(without), ms(slices.Min(p99[false])), ms(slices.Max(p99[false])), rounds), ms(with), ms(bar), with <= bar)
	r.add("slow", "of others' requests answered 200", fmt.Sprint(requests), "all", true)
	fair := fmt.Sprintf("%d heads, %d bodies", count.heads.Load(), count.bodies.Load())
	r.add("slow", "slow clients that were under way", fair, "both", count.heads.Load() > 0 && count.bodies.Load() > 0)
	return nil
}

func quantile(ds []time.Duration, q float64) time.Duration {
	ds = slices.Sorted(slices.Values(ds))
	return ds[min(int(q*float64(len(ds))), len(ds)-1)]
}

type slowCount struct{ heads, bodies atomic.Int64 }

// crawl opens n connections, half of which never come to the end of a head, and
// half to that of a body, until end is called. One that the gateway ends is
// opened again.
func (s *site) crawl(ctx context.Context, n int, count *slowCount) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var opened sync.WaitGroup
	opened.Add(n)
	for i := range n {
		all.Go(func() {
			var once sync.Once
			defer once.Do(opened.Done)
			for ctx.Err() == nil {
				say, of := "GET /slow HTTP/1.1\r\nHost: a\r\n", &count.heads
				if i%2 == 1 {
					say, of = "POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n", &count.bodies
				}
				c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.address)
				if err != nil {
					continue
				}
				_, err = io.WriteString(c, say)
				of.Add(1)
				once.Do(opened.Done)
				for err == nil && pause(ctx, 200*time.Millisecond) == nil {
					_, err = io.WriteString(c, "x")
				}
				_ = c.Close()
			}
		})
	}
	opened.Wait()
	return func() { cancel(); all.Wait() }
}
