package telemetry

import (
	encoding "encoding/hex"
	"net/http"
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
// upstream's. How long two parties talked over a stream or an upgraded connection says
// nothing about latency, and hours of it would drown what does: it is counted apart.
func (r *route) observe(s *scope.Request, took time.Duration) {
	added, told, now := max(took-s.UpstreamDuration, 0), hasTrace(s), s.Arrived.Add(took).UnixNano()
	if s.Stream {
		r.streams.Observe(took.Seconds())
	} else {
		r.duration.observe(took.Seconds(), told, s, now)
	}
	if s.Status != http.StatusSwitchingProtocols {
		r.added.observe(added.Seconds(), told, s, now)
	}
}

// hasTrace reports whether the trace of s is worth being told of: somebody keeps it,
// and the word for that is not a stranger's.
func hasTrace(s *scope.Request) bool {
	ours := s.SpanID != [8]byte{}
	return s.TraceSampled && s.TraceID != [16]byte{} && (ours || s.PeerTrusted)
}

// observe is Observe with the trace of s, if there is one to tell and its bucket is
// due to be told.
func (l *latency) observe(seconds float64, tell bool, s *scope.Request, now int64) {
	if !tell {
		l.Observe(seconds)
		return
	}
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
