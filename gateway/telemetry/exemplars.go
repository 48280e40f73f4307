package telemetry

import (
	encoding "encoding/hex"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bouncer/gateway/scope"
)

// exemplarEvery is how often a bucket of a route is told a trace. It shows the last
// one when it is scraped, and each costs some microseconds.
const exemplarEvery = time.Second

// A latency is a histogram of how long requests of a route took, which remembers
// traces of some of them.
type latency struct {
	prometheus.Observer
	told [len(latencyBuckets) + 1]atomic.Int64 // by bucket: when it was last told a trace, Unix time in ns
}

// observe counts how long a request of r took, and the part of it that was not the
// upstream's.
func (r *route) observe(s *scope.Request, took time.Duration) {
	added := max(took-s.UpstreamDuration, 0)
	if !hasTrace(s) {
		r.duration.Observe(took.Seconds())
		r.added.Observe(added.Seconds())
		return
	}
	now := s.Arrived.Add(took).UnixNano()
	r.duration.observe(took.Seconds(), s, now)
	r.added.observe(added.Seconds(), s, now)
}

// hasTrace reports whether the trace of s is worth being told of: somebody keeps it,
// and the word for that is not a stranger's.
func hasTrace(s *scope.Request) bool {
	ours := s.SpanID != [8]byte{}
	return s.TraceSampled && s.TraceID != [16]byte{} && (ours || s.PeerTrusted)
}

// observe is Observe with the trace of s, if its bucket is due to be told one.
func (l *latency) observe(seconds float64, s *scope.Request, now int64) {
	bucket, _ := slices.BinarySearch(latencyBuckets[:], seconds)
	told := &l.told[bucket]
	last := told.Load()
	e, ok := l.Observer.(prometheus.ExemplarObserver) // all histograms of the library are
	if !ok || now-last < int64(exemplarEvery) || !told.CompareAndSwap(last, now) {
		l.Observe(seconds)
		return
	}
	e.ObserveWithExemplar(seconds, prometheus.Labels{"trace_id": encoding.EncodeToString(s.TraceID[:])})
}
