// Package telemetry is what the gateway says about itself: Prometheus metrics,
// one access-log line per request, and the process log.
//
// It is not a judge and holds no state that a decision depends on. No stage
// imports it: stages report through hooks, and the root of the gateway wires
// those to a [Telemetry].
//
// What it promises when things go wrong:
//   - No caller can make a time series. Every label value comes from the
//     configuration ([Telemetry.Configure]) or from a fixed list; anything else
//     counts under "unmatched" or "other".
//   - No caller can stall it or forge a line. Log lines go through a bounded
//     buffer; when whatever reads standard output stands still, lines are dropped
//     and counted (gateway_log_dropped_total) and requests go on. Values that
//     callers send are escaped, and cut at [MaxValue] bytes.
//   - No secret is written: neither query strings nor header fields are logged.
//
// A Telemetry is made once per process and outlives reloads, so counters do
// not start anew:
//
//	t := telemetry.New(telemetry.Options{Out: os.Stdout})
//	defer t.Close()
//	t.Configure(telemetry.Labels{Routes: []string{"weather"}})
//	t.Logger().Info("listening", "address", addr)
//	…
//	flight := t.InFlight("weather")
//	serve(w, r)
//	flight.Done()
//	t.Request(r, sc)
package telemetry
