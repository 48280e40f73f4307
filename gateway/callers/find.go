package callers

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Find returns the callers whose name is q, begins with it, or has it within, in
// this order and those seen last first; at most most of them, and whether there are
// more. Letters match whatever their case. It takes time in the number of callers,
// and holds each lock for a part of it.
func (t *Table) Find(q string, most int, now time.Time) (found []Caller, more bool) {
	if t == nil || q == "" {
		return nil, false
	}
	type match struct {
		rank   int
		caller Caller
	}
	q = strings.ToLower(q)
	var all []match
	for k := range t.shards {
		for i := range t.shards[k] {
			s := &t.shards[k][i]
			s.mu.Lock()
			for _, e := range s.lru.Values() {
				if rank := Rank(e.name, q); rank > 0 {
					all = append(all, match{rank, e.tell(Kind(k), now)})
				}
			}
			s.mu.Unlock()
			// The best so far, so that a query that all match keeps no more.
			if len(all) > most {
				slices.SortStableFunc(all, func(a, b match) int {
					return cmp.Or(a.rank-b.rank, b.caller.LastSeen.Compare(a.caller.LastSeen), strings.Compare(a.caller.Name, b.caller.Name))
				})
				more = true
				clear(all[most:])
				all = all[:most]
			}
		}
	}
	slices.SortStableFunc(all, func(a, b match) int {
		return cmp.Or(a.rank-b.rank, b.caller.LastSeen.Compare(a.caller.LastSeen), strings.Compare(a.caller.Name, b.caller.Name))
	})
	for _, m := range all {
		found = append(found, m.caller)
	}
	return found, more
}

// Rank is how well a name matches q, which is in lower case: 1 is q itself, 2 begins
// with it, 3 has it within, and 0 does not match.
func Rank(name, q string) int {
	name = strings.ToLower(name)
	switch {
	case name == q:
		return 1
	case strings.HasPrefix(name, q):
		return 2
	case strings.Contains(name, q):
		return 3
	}
	return 0
}
