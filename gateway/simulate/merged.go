package simulate

import "container/heap"

// window is how many lines are held to be put in order: servers write a line
// when the answer is sent, and several of them share a file.
const window = 1 << 15

// merged reads several logs as one, in the order of time.
type merged struct {
	sources []*source
	counts  counts
	arrival bool
	last    int64
	// What is held: the lines whose time is not before that of the line read before
	// them stand in a row, from first on, and only the others in a heap. In most
	// logs these are few.
	row   []*record
	first int
	early byTime
}

// start reads the first line of each.
func (m *merged) start() error {
	for _, s := range m.sources {
		if err := s.next(&m.counts, m.arrival); err != nil {
			return err
		}
	}
	return nil
}

// next returns the next request; nil at the end.
func (m *merged) next() (*record, error) {
	for len(m.row)-m.first+len(m.early) < window {
		var s *source
		for _, other := range m.sources {
			if other.head != nil && (s == nil || other.head.at < s.head.at) {
				s = other
			}
		}
		if s == nil {
			break
		}
		m.hold(s.head)
		if err := s.next(&m.counts, m.arrival); err != nil {
			return nil, err
		}
	}
	r := m.pop()
	if r == nil {
		return nil, nil
	}
	if r.at < m.last {
		// Out of order by more than is held: it is decided at the time of the one
		// before, as a store would.
		m.counts.late++
		r.at = m.last
	}
	m.last = r.at
	return r, nil
}

// hold takes a line in.
func (m *merged) hold(r *record) {
	if n := len(m.row); n > m.first && r.at < m.row[n-1].at {
		heap.Push(&m.early, r)
		return
	}
	if len(m.row) == cap(m.row) && m.first >= window { // move up what is held, rather than grow
		m.row = append(m.row[:0], m.row[m.first:]...)
		m.first = 0
	}
	m.row = append(m.row, r)
}

// pop gives the earliest line out; nil if none is held.
func (m *merged) pop() *record {
	if m.first < len(m.row) && (len(m.early) == 0 || before(m.row[m.first], m.early[0])) {
		r := m.row[m.first]
		m.first++
		return r
	}
	if len(m.early) == 0 {
		return nil
	}
	r, _ := heap.Pop(&m.early).(*record)
	return r
}

func (m *merged) close() {
	for _, s := range m.sources {
		_ = s.close() // it was only read
	}
}

// before is the order of time; lines of one time are in the order they stand in.
func before(a, b *record) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// byTime is a heap of records, the earliest first.
type byTime []*record

func (h byTime) Len() int           { return len(h) }
func (h byTime) Less(i, j int) bool { return before(h[i], h[j]) }
func (h byTime) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byTime) Push(x any)        { r, _ := x.(*record); *h = append(*h, r) }
func (h *byTime) Pop() any {
	old := *h
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return r
}
