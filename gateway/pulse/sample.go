package pulse

import "time"

// A Sample is what was counted since the sample before. Lists hold what moved, and
// nothing twice.
type Sample struct {
	// At is the time of day, and Since that of a clock which never steps, from any
	// fixed moment. Every is how long the next sample is meant to be away, > 0.
	At    time.Time
	Since time.Duration
	Every time.Duration

	Routes    []RouteCounts
	Limits    []LimitCounts
	Targets   []TargetCounts
	Upstreams []UpstreamCounts

	// Total is how long requests took, streams of events and upgraded connections
	// excepted, Added the part that was not the upstream's,
	// Store how long the store took to decide.
	Total, Added, Store Latencies
	// StoreErrors are the failed calls of the store, by what went wrong.
	StoreErrors map[string]float64
	// Overflow is what was counted in a budget shared with others, LogDropped lines
	// of the log that were lost.
	Overflow, LogDropped float64

	// The following are as they stand.
	InFlight         float64
	StoreAway        bool
	LeaseBlocks      float64
	DenyCacheEntries float64
}

// RouteCounts are requests that have ended, and those that are being served.
type RouteCounts struct {
	Route string
	// Allowed were carried, or answered as they asked for. Denied by a limit, or for
	// want of one that can be checked. Failed with 500 or above, by whomever. Refused
	// with another 4xx of the gateway's own. Those whose client left are in none.
	Allowed, Denied, Failed, Refused, Left float64
	InFlight                               float64
	// Total is how long they took, streams excepted as above; nil where it was not looked at.
	Total *Latencies
}

// Requests is how many have ended.
func (r *RouteCounts) Requests() float64 {
	return r.Allowed + r.Denied + r.Failed + r.Refused + r.Left
}

// A Limit names what verdicts are counted by. Plan is empty where the limit is the
// route's own, or the edge's.
type Limit struct{ Plan, Limit, Route string }

// Sources are who decides, in the order of LimitCounts.Sources.
var Sources = [...]string{"other", "redis", "memory", "lease", "deny_cache", "local_cap", "none"}

const denyCache = 4 // of Sources

// LimitCounts are the verdicts of one limit.
type LimitCounts struct {
	Limit

	Allowed, Denied                                                float64
	ShadowAllowed, ShadowDenied, CandidateAllowed, CandidateDenied float64
	Sources                                                        [len(Sources)]float64
}

// A Target names one server of an upstream.
type Target struct{ Upstream, Target string }

// TargetCounts are the attempts at one target: by the class of the status, from 1xx
// at 0 to 5xx at 4; Errors got no answer, Canceled had no client any more.
type TargetCounts struct {
	Target

	Classes          [5]float64
	Errors, Canceled float64
}

// UpstreamCounts are those of an upstream as a whole.
type UpstreamCounts struct {
	Upstream string
	// Refused were not sent, Retries were sent once more.
	Refused, Retries float64
	// Took is how long attempts took, to the end of their answers; nil: none ended.
	Took *Latencies
}
