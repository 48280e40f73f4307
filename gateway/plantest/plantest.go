// Package plantest runs the tests that stand beside the plans: a caller, a
// schedule of requests, and what must come of them. It is what "gateway test"
// is made of.
//
// Each test has a [gateway.Rehearsal] of its own, so the decisions are those of
// a running gateway with the same files, on a clock that is the test's: a month
// passes in milliseconds, and the outcome is the same on every machine and every
// day. Nothing listens, nothing is connected to; no Redis is asked, and no
// upstream: a request that passes is allowed, whatever would be answered to it.
//
// It rehearses one instance with a store that never fails. It is not for what
// happens while Redis is away, nor for two instances, whose edge limits are each
// its own; and it sends one request after the other, never two in the same
// microsecond.
//
//	results, err := plantest.Run(cfg, cfg.Tests)
//	if err != nil {
//		… // cfg cannot be built
//	}
//	err = results.WriteText(os.Stdout, false)
package plantest

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"bouncer/gateway"
	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit"
)

// Results is what came of some tests, in their order.
type Results []*Result

// Failed is how many did not come out as they should.
func (rs Results) Failed() int {
	n := 0
	for _, r := range rs {
		if !r.OK() {
			n++
		}
	}
	return n
}

// A Result is what came of one test.
type Result struct {
	Test  *config.Test
	Took  time.Duration // of real time
	Steps []*StepResult // one for each step, unless Err is set
	// Err says why the test could not be run, and where that stands; nil if it was.
	Err error
}

// OK reports whether everything was as expected.
func (r *Result) OK() bool {
	if r.Err != nil {
		return false
	}
	for _, s := range r.Steps {
		if len(s.Failures) > 0 {
			return false
		}
	}
	return true
}

// A StepResult is what came of one step. Of one that only moves the clock
// nothing does.
type StepResult struct {
	Step                  *config.Step
	Sent, Allowed, Denied int64
	// By is how many were refused by each limit or stage. Those that several limits
	// denied together stand under all their names: "per-minute and per-day".
	By          map[string]int64
	Statuses    map[int]int64 // how often each status of the gateway's own was answered
	LongestWait time.Duration // the largest Retry-After
	// NoWait is how many were refused without a Retry-After: no wait would help.
	NoWait   int64
	Delay    time.Duration // the longest wait in a queue
	Failures []Failure
	// FirstDenial and Last are the first request that was refused, if any, and the
	// last of all; nil in a step that sends none.
	FirstDenial, Last *Request

	lastRetryAfter time.Duration
	remaining      map[string]int64
}

// A Failure is an expectation that did not come true.
type Failure struct {
	Expectation *config.Expectation
	Got         string
}

// A Request is one of those that were sent, and the whole decision on it.
type Request struct {
	Number     int64 // within its step, from 1
	At         time.Time
	Status     int      // of the gateway's own answer; 0 if it passed
	By         []string // the limits or the stage that refused
	Why        string   // why the credentials were refused, if they were
	RetryAfter time.Duration
	Plan, From string // the caller's plan and who says so; empty if there is none
	Limits     []Limit
}

// A Limit is what one limit said to a request.
type Limit struct {
	Name                      string
	Mode                      string // enforce, shadow or candidate
	Allows                    bool
	Cost, Remaining, Capacity int64
	RetryAfter                time.Duration // ratelimit.Never: no wait would help
}

// Run runs tests under cfg. An error means that cfg cannot be built.
func Run(cfg *config.Config, tests []*config.Test) (Results, error) {
	var rs Results
	for _, t := range tests {
		begin := time.Now()
		r := &Result{Test: t}
		if err := r.run(cfg); err != nil {
			return nil, err
		}
		r.Took = time.Since(begin)
		rs = append(rs, r)
	}
	return rs, nil
}

func (r *Result) run(cfg *config.Config) error {
	h, err := gateway.Rehearse(cfg, gateway.RehearsalOptions{})
	if err != nil {
		return err
	}
	defer h.Close() //nolint:errcheck // it logs to nobody
	for _, s := range r.Test.Steps {
		sr := &StepResult{Step: s, By: map[string]int64{}, Statuses: map[int]int64{}, remaining: map[string]int64{}}
		if s.Send != nil {
			as, err := caller(cfg, s.Send.Caller)
			if err != nil {
				r.Err, r.Steps = err, nil
				return nil
			}
			sr.send(h, as)
			for i := range s.Send.Want {
				e := &s.Send.Want[i]
				if got, ok := sr.check(e); !ok {
					sr.Failures = append(sr.Failures, Failure{e, got})
				}
			}
		}
		r.Steps = append(r.Steps, sr)
	}
	return nil
}

// caller is who a test says is sending; nil if nobody is known.
func caller(cfg *config.Config, c *config.TestCaller) (*gateway.Caller, error) {
	if !c.Known() {
		return nil, nil //nolint:nilnil // nobody
	}
	as := gateway.Caller{User: c.User, Tenant: c.Tenant, KeyID: c.KeyID, Plan: c.Plan}
	if c.KeyID == "" {
		return &as, nil
	}
	key := gateway.KeyCaller(cfg, c.KeyID)
	if key == nil {
		if c.User+c.Plan == "" {
			return nil, fmt.Errorf("%s: the key file has no key %q (gateway keys list shows them); want one that it has, or user or plan beside key_id",
				c.Pos, c.KeyID)
		}
		key = &gateway.Caller{User: "key:" + c.KeyID, Unsaid: true}
	}
	as.User, as.Tenant, as.Plan = cmp.Or(c.User, key.User), cmp.Or(c.Tenant, key.Tenant), cmp.Or(c.Plan, key.Plan)
	as.Routes, as.AllowIPs, as.Scopes, as.Unsaid = key.Routes, key.AllowIPs, key.Scopes, key.Unsaid
	return &as, nil
}

// defaultIP is the address of callers that have none of their own (RFC 5737).
const defaultIP = "192.0.2.1"

// request is what the step sends.
func request(s *config.Send) *http.Request {
	u := &url.URL{Path: s.URL.Path, RawPath: s.URL.RawPath, RawQuery: s.URL.RawQuery}
	ip := defaultIP
	if s.Caller.IP.IsValid() {
		ip = s.Caller.IP.String()
	}
	header := http.Header{}
	maps.Copy(header, s.Caller.Headers)
	return &http.Request{
		Method: s.Method, URL: u, Host: cmp.Or(header.Get("Host"), s.URL.Host, "localhost"), Header: header, RequestURI: u.RequestURI(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: net.JoinHostPort(ip, "0"), Body: http.NoBody,
	}
}

// send sends what the step says.
func (sr *StepResult) send(h *gateway.Rehearsal, as *gateway.Caller) {
	s := sr.Step.Send
	r := request(s)
	for batch := range s.Batches() {
		at := sr.Step.At.Add(time.Duration(batch) * s.Every)
		for range s.Count {
			v := h.Do(gateway.Attempt{At: at, Request: r, As: as})
			sr.count(&v)
			if last := sr.Sent == s.Total(); last {
				sr.Last = sr.look(&v)
			}
		}
	}
}

// count adds up one verdict.
func (sr *StepResult) count(v *gateway.Verdict) {
	sr.Sent++
	for _, asked := range [2][]gateway.Asked{v.Edge, v.Limits} {
		for i := range asked {
			if p := asked[i].Charge.Policy; p.Role != ratelimit.Candidate {
				sr.remaining[p.Name] = asked[i].Decision.Remaining
			}
		}
	}
	if v.Refused == nil {
		sr.Allowed++
		sr.Delay = max(sr.Delay, v.Delay)
		return
	}
	sr.Denied++
	sr.By[strings.Join(refusedBy(v), together)]++
	sr.Statuses[v.Refused.Status]++
	sr.lastRetryAfter = v.Refused.RetryAfter
	sr.LongestWait = max(sr.LongestWait, v.Refused.RetryAfter)
	if v.Refused.RetryAfter <= 0 {
		sr.NoWait++
	}
	if sr.FirstDenial == nil {
		sr.FirstDenial = sr.look(v)
	}
}

// together stands between the names of limits that denied the same request.
const together = " and "

// refusedBy are the limits that denied, or the stage that refused.
func refusedBy(v *gateway.Verdict) []string {
	if len(v.Refused.Violated) > 0 {
		return v.Refused.Violated
	}
	return []string{v.Request.DeniedBy}
}

// look keeps a verdict, which is good only until the next.
func (sr *StepResult) look(v *gateway.Verdict) *Request {
	r := &Request{Number: sr.Sent, At: v.Request.Arrived.UTC(), Plan: v.Request.Plan, From: v.PlanFrom}
	if v.Refused != nil {
		r.Status, r.By, r.RetryAfter = v.Refused.Status, refusedBy(v), v.Refused.RetryAfter
		if v.Request.AuthError != nil {
			r.Why = v.Request.AuthError.Error()
		}
	}
	for _, asked := range [2][]gateway.Asked{v.Edge, v.Limits} {
		for i := range asked {
			p, d := asked[i].Charge.Policy, &asked[i].Decision
			r.Limits = append(r.Limits, Limit{
				Name: p.Name, Mode: p.Role.String(), Allows: d.Allowed, Cost: asked[i].Charge.Cost,
				Remaining: d.Remaining, Capacity: p.Capacity(), RetryAfter: d.RetryAfter,
			})
		}
	}
	return r
}

// check holds one expectation against what came. got is what came, in words.
func (sr *StepResult) check(e *config.Expectation) (got string, ok bool) {
	number := func(n int64) (string, bool) { return fmt.Sprint(n), e.Low <= n && n <= e.High }
	span := func(d time.Duration) (string, bool) {
		return d.String(), e.Low <= int64(d) && int64(d) <= e.High
	}
	switch e.Field {
	case config.ExpectAllowed:
		return number(sr.Allowed)
	case config.ExpectDenied:
		return number(sr.Denied)
	case config.ExpectDelay:
		if sr.Allowed == 0 {
			return "no request that passed", false
		}
		return span(sr.Delay)
	case config.ExpectRemaining:
		n, asked := sr.remaining[e.Limit]
		if !asked {
			return "no request that this limit was asked for", false
		}
		return number(n)
	case config.ExpectLongestWait:
		if sr.NoWait > 0 {
			return fmt.Sprintf("%s for which no wait helps", count(sr.NoWait, "refusal")), false
		}
		return span(sr.LongestWait)
	}
	// The others speak of refusals.
	if sr.Denied == 0 {
		return "no refusal", false
	}
	switch e.Field {
	case config.ExpectStatus:
		n := sr.Statuses[int(e.Low)]
		return sr.statuses(), n == sr.Sent
	case config.ExpectRetryAfter:
		none := sr.lastRetryAfter <= 0
		switch {
		case none:
			return "none: no wait helps", e.None
		case e.None:
			return sr.lastRetryAfter.String(), false
		}
		return span(sr.lastRetryAfter)
	case config.ExpectDeniedBy:
		return sr.by(), sr.deniedOnlyBy(e.Names)
	}
	return "an expectation that nobody knows", false
}

// deniedOnlyBy reports whether each refusal was by at least one of names.
func (sr *StepResult) deniedOnlyBy(names []string) bool {
	for by := range sr.By {
		if !slices.ContainsFunc(strings.Split(by, together), func(s string) bool { return slices.Contains(names, s) }) {
			return false
		}
	}
	return true
}

// by says what refused, and how often.
func (sr *StepResult) by() string {
	var parts []string
	for _, by := range slices.Sorted(maps.Keys(sr.By)) {
		parts = append(parts, fmt.Sprintf("%d by %s", sr.By[by], by))
	}
	return strings.Join(parts, ", ")
}

// statuses says what was answered, and how often.
func (sr *StepResult) statuses() string {
	var parts []string
	for _, s := range slices.Sorted(maps.Keys(sr.Statuses)) {
		parts = append(parts, fmt.Sprintf("%d times %d", sr.Statuses[s], s))
	}
	if sr.Allowed > 0 {
		parts = append(parts, fmt.Sprintf("%d allowed", sr.Allowed))
	}
	return strings.Join(parts, ", ")
}
