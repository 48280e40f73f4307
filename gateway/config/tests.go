package config

import (
	"net/netip"
	"net/url"
	"time"
)

// A Test says what must happen to a schedule of requests: the tests of
// plans.yaml and of files like it. A gateway that serves does not look at it.
type Test struct {
	Name  string
	Steps []*Step // at least one, and at least one expectation among them
	Pos   Pos
}

// TestStart is when the clock of every test begins, a Monday at midnight: the
// same on every machine and every day, so that a test has one outcome.
var TestStart = time.Date(2026, time.January, 5, 0, 0, 0, 0, time.UTC)

// A Step sends requests, or moves the clock.
type Step struct {
	Text string    // the step as written: "send 30 at once", "wait 600ms"
	At   time.Time // when it begins; of one that moves the clock, where it moves it
	Send *Send     // nil: it only moves the clock
	Pos  Pos
}

// Send is the requests of a step: Count at the step's time and again every Every
// as long as For has not passed, after which the next step begins.
type Send struct {
	Count      int64         // >= 1
	Every, For time.Duration // 0: all at once
	Caller     *TestCaller   // never nil; the zero TestCaller is nobody
	Method     string
	URL        *url.URL // a path, with scheme and host if given
	Want       []Expectation
}

// Batches is how often the requests are sent.
func (s *Send) Batches() int64 {
	if s.Every <= 0 {
		return 1
	}
	return int64((s.For + s.Every - 1) / s.Every)
}

// Total is how many requests there are.
func (s *Send) Total() int64 { return s.Count * s.Batches() }

// A TestCaller is who sends. With a user, tenant, plan or key it has shown good
// credentials; without it shows what is among its headers.
type TestCaller struct {
	User, Tenant, Plan, KeyID string
	IP                        netip.Addr          // of the peer; the zero Addr if not given
	Headers                   map[string][]string // canonical names
	Pos                       Pos                 // zero if no caller is given
}

// Known reports whether it has shown credentials.
func (c *TestCaller) Known() bool { return c.User+c.Tenant+c.Plan+c.KeyID != "" }

// The fields of an expectation.
const (
	ExpectAllowed     = "allowed"      // how many were not refused
	ExpectDenied      = "denied"       // how many were refused, whatever by
	ExpectDeniedBy    = "denied_by"    // what refused, each time
	ExpectStatus      = "status"       // of every answer
	ExpectRetryAfter  = "retry_after"  // of the last refusal
	ExpectLongestWait = "longest_wait" // the largest Retry-After
	ExpectDelay       = "delay"        // the longest wait in a queue
	ExpectRemaining   = "remaining"    // of one limit, after the last request
)

// An Expectation is one thing that must be so after a step.
type Expectation struct {
	Field     string
	Limit     string   // of remaining: whose
	Low, High int64    // what is right, both inclusive; durations in nanoseconds
	None      bool     // retry_after: none
	Names     []string // of denied_by: limits or stages, any of them
	Text      string   // as written
	Pos       Pos
}

// What names what is expected: its field, and whose it is.
func (e *Expectation) What() string {
	if e.Limit != "" {
		return e.Field + " of " + e.Limit
	}
	return e.Field
}

// TestStages are what denied_by may name besides limits: the stages that refuse.
var TestStages = []string{"unauthorized", "failure_limit", "no_route", "method_not_allowed", "bad_path",
	"forbidden_ip", "missing_scope", "missing_claim", "forbidden_plan", "not_for_route", "cross_origin"}
