// Package simulate replays access logs against a configuration: who would be
// denied, by which limit, when first, how often and for how long, which number
// would deny nobody, and what a client that obeys Retry-After would have felt;
// of one configuration, or of two side by side.
//
// It decides nothing. Every line becomes a request of a gateway.Rehearsal, which
// walks through the code that a running gateway decides with, on the clock of
// the log. It rehearses one gateway that counts for all, as with a shared store;
// limits begin unspent at the first line.
//
// It is not a load test and not a forecast: callers that had been denied would
// have behaved otherwise. What stands in the log is taken as it is, also the
// requests that were refused then.
//
// A line that cannot be read is counted, shown with its place and skipped. A
// file that cannot be read is an error. Memory grows with callers and with what
// is open at one time, not with lines; where a bound is hit, Result.Notes says
// so, and no number stands where none is known.
//
//	result, err := simulate.Run(ctx, simulate.Options{Config: cfg, Logs: []string{"access.log"}})
//	result.WriteText(os.Stdout, 20)
package simulate
