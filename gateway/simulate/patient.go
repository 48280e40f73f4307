package simulate

import (
	"container/heap"
	"net/http"
	"time"
)

// What a client that obeys Retry-After would have felt.
//
// A client is a caller: who a line names, or its address. It sends its requests one after
// another: one that is denied is sent again after the whole seconds that
// Retry-After says, and those that follow wait behind it. So none is lost, and
// what it feels is delay. All clients are patient at once, in the order of time,
// against a gateway of their own.

const (
	// maxWaiting bounds the requests that wait at one time, of all clients.
	maxWaiting = 1 << 17
	// moreTries bounds, with triesEach for each request so far, how often is tried.
	// A client that is alone needs two tries for a request at most. A crowd that
	// shares a limit which it exceeds for long comes back all at once, for a few
	// places, again and again; with count_rejected it keeps itself out for ever.
	moreTries = 1 << 14
	triesEach = 3
)

// A patience replays records as patient clients would have sent them.
type patience struct {
	ask *asker
	due byDue

	waiting, tries, requests int64
	delayed, lost, left      int64
	total, longest           float64 // seconds
}

// A client is one that waits.
type client struct {
	who   *caller
	until int64 // µs
	queue []record
}

// felt is the delay of one caller.
type felt struct {
	total, longest float64 // seconds
	waits          *client // nil while it does not
}

// decide replays a batch of which the ledger has found out who the callers are.
func (p *patience) decide(batch []*record, who []outcome) {
	for i, r := range batch {
		p.requests++
		p.wake(r.at)
		who := who[i].who
		if c := who.patient.waits; c != nil {
			p.queue(c, r)
			continue
		}
		if wait := p.send(r, who, r.at); wait > 0 {
			c := &client{who: who, until: r.at + wait}
			if p.queue(c, r) {
				who.patient.waits = c
				heap.Push(&p.due, c)
			}
		}
	}
}

func (p *patience) queue(c *client, r *record) bool {
	if p.waiting >= maxWaiting {
		p.left++
		return false
	}
	p.waiting++
	c.queue = append(c.queue, *r)
	return true
}

// wake lets those send whose wait is over by at.
func (p *patience) wake(at int64) {
	for len(p.due) > 0 && p.due[0].until <= at {
		c := p.due[0]
		now := c.until
		for len(c.queue) > 0 {
			if wait := p.send(&c.queue[0], c.who, now); wait > 0 {
				c.until = now + wait
				break
			}
			c.queue = c.queue[1:]
			p.waiting--
		}
		if len(c.queue) > 0 && p.tries < moreTries+triesEach*p.requests {
			heap.Fix(&p.due, 0)
			continue
		}
		p.left += int64(len(c.queue))
		p.waiting -= int64(len(c.queue))
		heap.Pop(&p.due)
		c.who.patient.waits = nil
	}
}

// send sends one request of a caller at a time and returns how long to wait, µs,
// before it is sent again; 0 if it is done.
func (p *patience) send(r *record, who *caller, at int64) int64 {
	p.tries++
	v := p.ask.do(r, at)
	if v.Refused != nil && v.Refused.Status == http.StatusTooManyRequests {
		if v.Refused.RetryAfter <= 0 { // no wait would help
			p.lost++
			return 0
		}
		return max(1, int64((v.Refused.RetryAfter+time.Second-1)/time.Second)) * 1e6
	}
	delay := float64(at-r.at)/1e6 + v.Delay.Seconds()
	if delay <= 0 {
		return 0
	}
	p.delayed++
	p.total += delay
	p.longest = max(p.longest, delay)
	f := &who.patient
	f.total += delay
	f.longest = max(f.longest, delay)
	return 0
}

// finish lets all that wait come to their end.
func (p *patience) finish() { p.wake(1<<63 - 1) }

// byDue is a heap of clients, the first to send again first.
type byDue []*client

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].until < h[j].until }
func (h byDue) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byDue) Push(x any)        { c, _ := x.(*client); *h = append(*h, c) }
func (h *byDue) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return c
}
