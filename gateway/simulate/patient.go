package simulate

import (
	"container/heap"
	"net/http"
	"time"
)

// What a client that obeys Retry-After would have felt.
//
// A client is who a line names, or its address. It sends its requests one after
// another: one that is denied is sent again after the whole seconds that
// Retry-After says, and those that follow wait behind it. So none is lost, and
// what it feels is delay. All clients are patient at once, in the order of time,
// against a gateway of their own.

const (
	// maxWaiting bounds the requests that wait at one time, of all clients.
	maxWaiting = 1 << 17
	// moreTries bounds, with eight for each request, how often is tried again: a
	// crowd that shares a limit with count_rejected can keep itself out for ever.
	moreTries = 1 << 14
)

// A patience replays records as patient clients would have sent them.
type patience struct {
	ask     *asker
	blocked map[clientKey]*client
	due     byDue
	felt    map[callerKey]*felt

	waiting, tries, requests int64
	delayed, lost, left      int64
	total, longest           float64 // seconds
}

// A clientKey is who sends.
type clientKey struct{ user, key, tenant, remote, forwarded string }

// A client is one that waits.
type client struct {
	key   clientKey
	until int64 // µs
	queue []record
}

// felt is the delay of one caller.
type felt struct {
	delayed        int64
	total, longest float64 // seconds
}

func newPatience(o *Options, a *asker) *patience {
	return &patience{ask: a, blocked: map[clientKey]*client{}, felt: map[callerKey]*felt{}}
}

func (p *patience) decide(batch []*record) {
	for _, r := range batch {
		p.requests++
		p.wake(r.at)
		key := clientKey{user: r.user, key: r.key, tenant: r.tenant}
		if r.user == "" && r.key == "" && r.tenant == "" {
			key.remote, key.forwarded = r.remote, r.forwarded
		}
		if c := p.blocked[key]; c != nil {
			p.queue(c, r)
			continue
		}
		if wait := p.send(r, r.at); wait > 0 {
			c := &client{key: key, until: r.at + wait}
			if p.queue(c, r) {
				p.blocked[key] = c
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
			if wait := p.send(&c.queue[0], now); wait > 0 {
				c.until = now + wait
				break
			}
			c.queue = c.queue[1:]
			p.waiting--
		}
		if len(c.queue) > 0 && p.tries < moreTries+8*p.requests {
			heap.Fix(&p.due, 0)
			continue
		}
		p.left += int64(len(c.queue))
		p.waiting -= int64(len(c.queue))
		heap.Pop(&p.due)
		delete(p.blocked, c.key)
	}
}

// send sends one request at a time and returns how long to wait, µs, before it
// is sent again; 0 if it is done.
func (p *patience) send(r *record, at int64) int64 {
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
	key := p.ask.keyOf(r, &v)
	f := p.felt[key]
	if f == nil {
		f = &felt{}
		p.felt[key] = f
	}
	f.delayed++
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
