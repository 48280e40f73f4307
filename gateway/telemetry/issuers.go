package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Issuers says of which issuers keys are fetched. Series of new ones begin at 0,
// and those of others end; what is told of any other is not counted.
func (t *Telemetry) Issuers(names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := make(map[string]bool, len(names))
	for _, name := range names {
		next[name] = true
		if t.issuers[name] {
			continue
		}
		for _, outcome := range t.fetchOutcomes {
			t.keyFetches.WithLabelValues(clean(name), clean(outcome))
		}
		t.keys.WithLabelValues(clean(name)).Set(0)
		t.keysFrom.WithLabelValues(clean(name)).Set(0)
	}
	for name := range t.issuers {
		if !next[name] {
			t.keyFetches.DeletePartialMatch(prometheus.Labels{"issuer": clean(name)})
			t.keys.DeleteLabelValues(clean(name))
			t.keysFrom.DeleteLabelValues(clean(name))
		}
	}
	t.issuers = next
}

// IssuerFetched counts an attempt to fetch the keys of an issuer; outcome is one of
// Options.FetchOutcomes.
func (t *Telemetry) IssuerFetched(issuer, outcome string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.issuers[issuer] {
		t.keyFetches.WithLabelValues(clean(issuer), clean(outcome)).Inc()
	}
}

// IssuerKeys says how many keys of an issuer are in force, and when they were last
// fetched; the zero time: never.
func (t *Telemetry) IssuerKeys(issuer string, n int, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.issuers[issuer] {
		return
	}
	t.keys.WithLabelValues(clean(issuer)).Set(float64(n))
	seconds := 0.0
	if !at.IsZero() {
		seconds = float64(at.UnixMilli()) / 1e3
	}
	t.keysFrom.WithLabelValues(clean(issuer)).Set(seconds)
}

// IssuerTooOld says that no key of an issuer is in force any more, since they are
// too old.
func (t *Telemetry) IssuerTooOld(issuer string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.issuers[issuer] {
		t.keys.WithLabelValues(clean(issuer)).Set(0)
	}
}
