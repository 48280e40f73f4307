package pulse

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// This file is when a finding is told: not before it has held for a moment, and not
// without its cause before it.

const (
	// holdsFor is how long a finding has to hold before it is told, but for those that
	// are no matter of figures; lingers how long it is told after it held last.
	holdsFor = 3 * time.Second
	lingers  = 15 * time.Second
	// rollout is how long instances may differ before it is told.
	rollout = 30 * time.Second
	// maxFindings bounds how many are told, and twice as many are remembered.
	maxFindings = 50
)

// depth is how far down a cause lies: what is on top is often the effect of what is
// below, so the deepest is told first.
var depth = map[string]int{CauseRedis: 0, CauseUpstream: 1, CauseConfig: 2, CauseGateway: 3, CauseLimit: 4, CauseClient: 5}

// Findings remembers since when findings hold, so that one on the edge does not come
// and go. It is not safe for concurrent use.
type Findings struct {
	held map[heldKey]*heldFinding
}

type heldKey struct {
	runbook string
	subject Subject
}

type heldFinding struct {
	Finding
	first, last time.Duration
	told        bool
}

// NewFindings returns one that has seen none.
func NewFindings() *Findings { return &Findings{held: map[heldKey]*heldFinding{}} }

// Judge returns the findings to be told: list holds now, at the time of day at, and at
// since by a clock that never steps. What is to be acted on comes first.
func (f *Findings) Judge(since time.Duration, at time.Time, list []Finding) []Finding {
	for _, found := range list {
		key := heldKey{found.Runbook, found.Subject}
		h := f.held[key]
		if h == nil {
			if len(f.held) >= 2*maxFindings {
				continue
			}
			h = &heldFinding{first: since}
			h.Since = at.UTC().Truncate(time.Second)
			f.held[key] = h
		}
		from := h.Since
		h.Finding, h.last = found, since
		h.Since = from
	}
	told := []Finding{}
	for key, h := range f.held {
		quiet := since - h.last
		if quiet > lingers || quiet > holdsFor && !h.told || quiet > 0 && h.Runbook == "config-rejected" { // taken now, or not
			delete(f.held, key)
			continue
		}
		wait := holdsFor
		switch h.Runbook {
		case "redis-away", "circuit-open", "config-rejected":
			wait = 0 // somebody has decided that already
		case "config-differs":
			wait = rollout
		}
		h.told = h.told || h.last-h.first >= wait
		if h.told {
			told = append(told, h.Finding)
		}
	}
	slices.SortFunc(told, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Severity, b.Severity), // act before look
			cmp.Compare(depth[a.Cause], depth[b.Cause]), a.Since.Compare(b.Since), strings.Compare(a.Runbook, b.Runbook), strings.Compare(a.Title, b.Title))
	})
	return told[:min(len(told), maxFindings)]
}
