package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// The promises, as numbers.
const (
	// slack is what a request may take beyond the store's timeout.
	slack = 10 * time.Millisecond
	// openBar bounds what a gateway adds to a request while its breaker is open.
	openBar = time.Millisecond
	// returnBar bounds the time from a store that is well to its use.
	returnBar = 2 * time.Second
	// Beyond what there was before the fault: an idle connection has a goroutine
	// or two of its own, and requests wait at most the store's timeout.
	moreGoroutines = 300
	moreResident   = 64 << 20
	// lostUnits bounds what a replica on the same machine had not been told yet: what
	// was admitted in the last moment.
	lostUnits = 10
	// splitUnits bounds what a replaced master admits between waking up and being
	// told: what a caller asks in half a second.
	splitUnits = 30
	// disturbed is what a request to the upstream itself takes, at the 999th of a
	// thousand, on a machine that is too busy to measure on.
	disturbed = 5.0 // ms
)

// span is when what happened.
type span struct{ failed, openFrom, healing, shared time.Time }

func (r *result) broken(format string, args ...any) {
	r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
}

// judge notes each promise that the row has broken.
func (r *result) judge(row *row, samples []sample, at span) {
	r.judgeAnswers(row, samples, at)
	if added := r.Fault.P999 - r.Calm.P999; added > millis(defaultTimeout+slack) {
		r.broken("latency: p99.9 is %.1f ms above that of the calm; at most %v of the store's timeout and %v", added, defaultTimeout, slack)
	}
	switch {
	case row.opens == must && !r.Opens:
		r.broken("breaker: not open on every instance within %v", noticed)
	case r.Opens:
		// Two looks at the same: a client's, beside a client of the upstream, and the
		// gateway's own. What breaks the promise shows in both.
		if p50, p99 := r.openAdded(); (p50 >= millis(openBar) || p99 >= millis(openBar)) && r.OpenLittle < .99 {
			r.broken("breaker: while open it adds p50 %.2f ms, p99 %.2f ms, and more than %v to %.1f %% of the requests; want less to 99 %%",
				p50, p99, openBar, 100*(1-r.OpenLittle))
		}
	}
	if r.Return > returnBar.Seconds() {
		r.broken("return: %.1f s after the store was well; at most %v", r.Return, returnBar)
	}
	r.judgeOver(row, samples)
	r.judgeCharges(row)
	r.judgeErrors(row)
	if n := r.Goroutines[1] - r.Goroutines[0]; n > moreGoroutines {
		r.broken("bounds: %d goroutines more than before", n)
	}
	if n := r.Resident[1] - r.Resident[0]; n > moreResident {
		r.broken("bounds: %d MiB more than before", n>>20)
	}
	// Some are between the servers themselves, or this program's.
	if most := (instances*poolSize + 16) * r.Servers; r.Connections[1] > most {
		r.broken("bounds: %d connections to Redis; at most %d", r.Connections[1], most)
	}
}

// openAdded is what the gateway added while its breaker was open, in ms.
func (r *result) openAdded() (p50, p99 float64) {
	return r.Open.P50 - r.OpenControl.P50, r.Open.P99 - r.OpenControl.P99
}

// judgeAnswers checks that every route did what it says.
func (r *result) judgeAnswers(row *row, samples []sample, at span) {
	wrong := map[string]int{}
	degraded, strayed := 0, 0
	total, returnedTotal := 0, 0
	for i := range samples {
		s := &samples[i]
		if s.route == control || s.caller == "victim" || s.caller == "" {
			continue
		}
		if why := s.wrong(); why != "" {
			wrong[why]++
		}
		open := r.Opens && !s.at.Before(at.openFrom) && s.at.Add(s.took).Before(at.healing)
		// Whom Redis has denied until then, memory denies until then.
		told := (s.caller == hot || s.caller == late) && s.status == http.StatusTooManyRequests
		if open && !s.degraded() && !told {
			wrong[fmt.Sprintf("%s: %d while the breaker is open, not by the mode", s.route, s.status)]++
		}
		total++
		if s.degraded() {
			degraded++
		}
		if s.at.After(at.shared) {
			returnedTotal++
			if s.degraded() {
				strayed++
			}
		}
	}
	for _, why := range sortedKeys(wrong) {
		r.broken("answers: %d × %s", wrong[why], why)
	}
	// A decision now and then is late because this machine is busy.
	if row.opens == never && degraded*200 > total {
		r.broken("answers: %d of %d were made without the store, which was there", degraded, total)
	}
	if strayed*50 > returnedTotal {
		r.broken("return: %d of %d answers were made without the store when it was in use again", strayed, returnedTotal)
	}
}

// wrong says what is wrong with an answer, whatever the store does; "" for
// nothing.
func (s *sample) wrong() string {
	const reduced = "temporary-reduced-capacity"
	switch {
	case s.status == 0:
		return s.route + ": no answer: " + s.err
	case s.status == http.StatusOK:
		if s.route != "open" && s.policy == "" {
			return s.route + ": 200 without RateLimit fields"
		}
	case s.route == "capped" && s.status == http.StatusTooManyRequests:
		want := "quota-exceeded"
		if s.local() {
			want = reduced
		}
		if s.problem != want || s.retryAfter < 1 {
			return fmt.Sprintf("capped: 429 %s with Retry-After %d", s.problem, s.retryAfter)
		}
		if !s.local() && s.caller != hot && s.caller != late {
			return "capped: 429 for a caller within the limit"
		}
	case s.route == "closed" && s.status == http.StatusServiceUnavailable:
		if s.problem != reduced || s.retryAfter < 1 || s.policy != "" {
			return fmt.Sprintf("closed: 503 %s with Retry-After %d", s.problem, s.retryAfter)
		}
	default:
		return fmt.Sprintf("%s: %d %s", s.route, s.status, s.problem)
	}
	return ""
}

// judgeOver counts what the callers with the narrow limit were given beyond it:
// one who has used it up before the fault, and one who comes when it is there.
func (r *result) judgeOver(row *row, samples []sample) {
	admitted := map[string]int{}
	windows := map[string]int{}  // how often a caller was seen to begin anew
	local := map[[2]string]int{} // by instance and caller
	for i := range samples {
		s := &samples[i]
		if s.route != "capped" || s.status != http.StatusOK {
			continue
		}
		if s.local() {
			local[[2]string{strconv.Itoa(s.instance), s.caller}]++
		}
		admitted[s.caller]++
		if !s.local() && s.remaining == narrow-1 {
			windows[s.caller]++
		}
	}
	for _, caller := range []string{hot, late} {
		r.Over += max(0, admitted[caller]-narrow)
		forgotten := row.forget
		if forgotten < 0 {
			forgotten = max(0, windows[caller]-1)
		}
		r.OverRule += forgotten * narrow
		r.OverRule += row.loses
	}
	for at, n := range local {
		if n > localCap {
			r.broken("local cap: instance %s admitted %d of %s; at most %d", at[0], n, at[1], localCap)
		}
		if at[1] == hot || at[1] == late {
			r.OverRule += localCap
		}
	}
	if r.Over > r.OverRule {
		r.broken("over the limit: %d admitted; at most %d", r.Over, r.OverRule)
	}
}

// judgeCharges checks that nothing was asked or charged twice, and nothing was
// admitted that was not charged.
func (r *result) judgeCharges(row *row) {
	if r.Calls > r.Sent {
		r.broken("charged once: %d script calls for %d requests", r.Calls, r.Sent)
	}
	switch {
	case r.Used > r.Sent:
		r.broken("charged once: %d units for %d requests", r.Used, r.Sent)
	case row.forget == 0 && r.Used+len(deniers)*row.loses < r.OK:
		r.broken("charged once: %d units for %d requests that were admitted", r.Used, r.OK)
	}
}

// judgeErrors checks that the metric shows the fault.
func (r *result) judgeErrors(row *row) {
	sum := 0
	for _, n := range r.Errors {
		sum += n
	}
	switch {
	case len(row.kinds) == 0:
		// A decision now and then is late because this machine is busy.
		if row.opens == never && sum*200 > r.Fault.N {
			r.broken("metric: store errors of a store that did not fail: %s", kindsText(r.Errors))
		}
	case !slices.ContainsFunc(row.kinds, func(kind string) bool { return r.Errors[kind] > 0 }):
		r.broken("metric: gateway_store_errors_total shows %s, none of kind %v", kindsText(r.Errors), row.kinds)
	}
}

// disturbed says why figures of this run mean little; "" if they do not.
func (r *result) disturbed() string {
	switch {
	case r.Calm.P999 > millis(slack):
		return fmt.Sprintf("the calm was disturbed: p99.9 %.1f ms without any fault", r.Calm.P999)
	case r.Control.P999 > disturbed:
		return fmt.Sprintf("the machine was busy: p99.9 %.1f ms past the gateways", r.Control.P999)
	}
	return ""
}
