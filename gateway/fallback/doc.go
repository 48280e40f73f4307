// Package fallback is a store made of two stores: the shared one that counts
// for all instances, and a local one that stands in for it. When Redis fails,
// the API does not.
//
// Every error of the primary counts towards a breaker, except those that are
// the fault of one key. While the breaker is open the primary is not touched:
// what a request costs then, beyond the local decision, is one atomic read and a
// note of what it was admitted. One goroutine, the prober, asks the primary again
// every half second, and its first success closes the breaker; nothing else is
// needed for the traffic to return.
//
// Where the primary has [Nodes] that fail by themselves, as the masters of a cluster
// do, each has a breaker. A request asks the primary if all nodes that it needs are
// in use, and else none of them: it is decided as a whole. A node is known by its
// name, and what has which buckets may change at any time, so a request is held
// against the nodes that have its buckets when it comes. A probe asks for a bucket
// that failed, whoever has it by then: its breaker closes when those who failed are
// answered, by the node itself or by another one that took over, and if that one
// fails, it is away from then on in its place. One that takes over is asked at once,
// without a probe.
//
// What is decided without the primary is the route's choice, a [Mode]: a cap
// kept on this instance, a refusal, or a free pass. All modes share the breakers
// and one local store, and each is a plain [ratelimit.Store].
//
// What it admits meanwhile, by a cap or because a route fails open, is no free
// quota: it is noted by the request's own policies, whatever the cap was, and
// charged to the primary once that is back, in the background and in batches
// ([Options.Settle]). What is noted is a [ratelimit.Debt] for each bucket, kept by
// the core's own functions on this instance's monotonic clock. Nobody is charged
// twice: a request whose own attempt at the primary may have been charged
// ([Options.Ambiguous]) is left out, whatever the primary answers later, and so is
// a batch whose answer was lost; one that was refused is kept, and tried again, at
// the next return if the breaker opens meanwhile. What is owed to a node that is
// away holds up nobody else's. Denied and refused requests are not noted. Until a
// bucket is settled, which is some milliseconds to seconds, the primary admits as
// if it had not been spent. While the breaker is closed and the primary answers,
// nothing of this costs anything.
//
// It is not a retry. A primary that timed out may have charged all the same,
// so it is never asked twice for one request. It is not a health check either:
// while the breaker is closed the requests are the evidence, and nothing probes.
// It bounds no wait of its own: a request that finds the breaker closed waits
// as long as the primary lets it (a [ratelimit.Store] bounds its own wait), so
// of a hundred in flight when the store freezes each waits that long, once.
//
// What it promises when things fail:
//
//   - The primary is away, slow, broken, or answers nonsense: the mode decides.
//   - A node is: so it is for those who need it, and for nobody else.
//   - Nobody knows the nodes yet, since none was reached: it is all one.
//   - The caller leaves before the answer: Take returns an error that is
//     [context.Canceled], and charges nobody's local cap. The leaving is not
//     counted; what the store itself got wrong, or did not do in its time, is.
//   - One key holds what the primary cannot read ([Options.KeyFault]): the mode
//     decides for whoever needs that key, and for nobody else.
//   - A probe hangs, panics, is cancelled: it has failed, and the next one
//     follows after the same interval. The breaker cannot stay half-open,
//     because no request ever holds its one half-open place.
//   - More buckets are spent of than can be noted: the new ones are not, and are
//     counted.
//   - The process ends: [Fallback.Settle] charges what it can, if the primary is
//     back; [Fallback.Close] drops and counts the rest.
//   - The local store fails too: the request is refused with
//     [ratelimit.UnavailableError]; it is never admitted because nobody knew.
//
// The local store should serve nobody else: a limit keeps its own key in it,
// and would share a count with, say, an edge limit of the same name.
//
//	f, err := fallback.New(redisStore, memoryStore, fallback.Options{
//		Probe: redisStore.Probe, Settle: redisStore.Settle, Ambiguous: redisstore.Ambiguous,
//	})
//	...
//	f.Start() // an instance that starts without Redis knows it when this returns
//	defer f.Close()
//	decisions, err := f.Store(fallback.LocalCap).Take(ctx, charges, nil)
package fallback
