package gateway

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"bouncer/gateway/door"
)

// drain ends the public listeners in good order, in three steps: the instance
// reports itself not ready and asks clients to go elsewhere, for drain_delay;
// then the listeners close, WebSockets are told to go elsewhere, and what is in
// flight has shutdown_timeout, which ends as soon as nothing is left; what that does not suffice for is cut.
func (g *Gateway) drain(ctx context.Context, public []*front, cut context.CancelCauseFunc) {
	cfg := g.current.Load().cfg
	g.draining.Store(true)
	g.log.Info("shutting down", "drain_delay", cfg.DrainDelay.String(), "shutdown_timeout", cfg.ShutdownTimeout.String())
	if cfg.DrainDelay > 0 {
		time.Sleep(cfg.DrainDelay)
	}
	inTime, cancel := context.WithTimeout(ctx, cfg.ShutdownTimeout)
	defer cancel()
	g.leaveBy = time.Now().Add(cfg.ShutdownTimeout)
	g.leave()
	hearOut(public, min(hearing, cfg.ShutdownTimeout))
	var ending sync.WaitGroup
	for _, d := range public {
		ending.Go(func() { _ = d.server.Shutdown(inTime) }) // what it leaves behind is counted below
	}
	ending.Wait()
	// Shutdown knows nothing of connections that became WebSockets.
	if g.flightsEnd(inTime) {
		return
	}
	g.log.Warn("requests are still in flight after shutdown_timeout and are cut", "requests", g.flights.Load())
	// Those that have no answer yet get one that says so.
	cut(errCut)
	answered, cancelAnswers := context.WithTimeout(ctx, cutGrace/4)
	defer cancelAnswers()
	g.flightsEnd(answered)
	for _, d := range public {
		ending.Go(func() { _ = d.server.Shutdown(answered) }) // what was answered is sent
	}
	ending.Wait()
	g.closed.Store(true)
	for _, d := range public {
		_ = d.server.Close()
	}
	// Cut requests still leave their line in the log.
	cleared, cancelGrace := context.WithTimeout(ctx, cutGrace)
	defer cancelGrace()
	g.flightsEnd(cleared)
}

// errCut is why the contexts of requests end that shutdown_timeout did not suffice for.
var errCut = errors.New("the gateway is being stopped")

// hearOut stops taking connections, and waits a moment for the first requests of those
// that were taken. net/http's Shutdown gives them up: also when it has read the
// request already, which the client has sent in good faith. The idle ones are closed, and
// in the end those that have said nothing.
func hearOut(public []*front, hearing time.Duration) {
	defer func() {
		for _, d := range public {
			if d.census != nil {
				d.census.Close()
			}
		}
	}()
	for _, d := range public {
		door.Stop(d.listener)
		d.server.SetKeepAlivesEnabled(false)
	}
	over := time.NewTimer(hearing)
	defer over.Stop()
	poll := time.NewTicker(flightsPoll)
	defer poll.Stop()
	for _, d := range public {
		select {
		case <-d.ended:
		case <-over.C:
			return
		}
		// Once more after the last has spoken: it is counted out just before net/http
		// looks whether it is to give the request up.
		for more := d.census.Silent() > 0; more; {
			more = d.census.Silent() > 0
			select {
			case <-poll.C:
			case <-over.C:
				return
			}
		}
	}
	runtime.Gosched()
}

const (
	// hearing is how long connections that were taken have for their first request.
	hearing = time.Second
	// flightsPoll is how often drain looks whether anything is left.
	flightsPoll = 10 * time.Millisecond
	// cutGrace is how long requests that were cut have to end, and at least how
	// long a limit store that is let go of is charged with what it is owed.
	cutGrace = time.Second
)

// flightsEnd waits until no request is in flight; false means that ctx ended first.
func (g *Gateway) flightsEnd(ctx context.Context) bool {
	poll := time.NewTicker(flightsPoll)
	defer poll.Stop()
	for g.flights.Load() > 0 {
		select {
		case <-ctx.Done():
			return false
		case <-poll.C:
		}
	}
	return true
}
