package plantest

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	"bouncer/gateway/ratelimit"
)

// WriteText prints the results for a person: a line for each test, of one that
// failed the steps at which it did, and of all of them every step if verbose.
func (rs Results) WriteText(w io.Writer, verbose bool) error {
	b := bufio.NewWriter(w)
	for _, r := range rs {
		word := "ok  "
		if !r.OK() {
			word = "FAIL"
		}
		fmt.Fprintf(b, "%s  %s (%s)\n", word, r.Test.Name, took(r.Took))
		if r.Err != nil {
			fmt.Fprintf(b, "      %s\n", r.Err)
		}
		for i, s := range r.Steps {
			if verbose || len(s.Failures) > 0 {
				s.write(b, i+1)
			}
		}
	}
	if failed := rs.Failed(); failed > 0 {
		fmt.Fprintf(b, "FAIL: %d of %s\n", failed, count(int64(len(rs)), "test"))
	} else {
		fmt.Fprintf(b, "ok: %s\n", count(int64(len(rs)), "test"))
	}
	return b.Flush()
}

// write prints step number n.
func (sr *StepResult) write(w io.Writer, n int) {
	s := sr.Step
	fmt.Fprintf(w, "      %s: step %d: %s", s.Pos, n, s.Text)
	if s.Send == nil {
		fmt.Fprintf(w, ": it is %s\n", moment(s.At))
		return
	}
	fmt.Fprintf(w, ": %s\n", sr.outcome())
	for _, f := range sr.Failures {
		fmt.Fprintf(w, "          %s: want %s, got %s\n", f.Expectation.What(), f.Expectation.Text, f.Got)
	}
	if len(sr.Failures) == 0 {
		return
	}
	if sr.FirstDenial != nil {
		sr.FirstDenial.write(w, "first refusal")
	} else {
		sr.Last.write(w, "nothing was refused; last")
	}
}

// outcome is what came of the step in a few words.
func (sr *StepResult) outcome() string {
	parts := []string{fmt.Sprintf("%d allowed", sr.Allowed)}
	if sr.Denied > 0 {
		parts = append(parts, fmt.Sprintf("%d denied (%s)", sr.Denied, sr.by()))
	}
	if sr.LongestWait > 0 {
		parts = append(parts, fmt.Sprintf("longest wait %s", sr.LongestWait))
	}
	if sr.Delay > 0 {
		parts = append(parts, fmt.Sprintf("up to %s in the queue", sr.Delay))
	}
	return strings.Join(parts, ", ")
}

// write prints the whole decision on one request.
func (r *Request) write(w io.Writer, what string) {
	fmt.Fprintf(w, "          %s: request %d, at %s", what, r.Number, moment(r.At))
	if r.Status > 0 {
		fmt.Fprintf(w, ": %d by %s", r.Status, strings.Join(r.By, together))
		switch {
		case r.Why != "":
			fmt.Fprintf(w, " (%s)", r.Why)
		case r.RetryAfter > 0:
			fmt.Fprintf(w, ", retry after %s", r.RetryAfter)
		case len(r.Limits) > 0:
			fmt.Fprint(w, ", and no wait would help")
		}
	}
	if r.Plan != "" {
		fmt.Fprintf(w, "; plan %s, from %s", r.Plan, r.From)
	}
	fmt.Fprintln(w)
	for _, l := range r.Limits {
		fmt.Fprintf(w, "            %s\n", l.words())
	}
}

// words is what the limit said.
func (l Limit) words() string {
	s := fmt.Sprintf("%s: %d of %d left, asked for %d: ", l.Name, l.Remaining, l.Capacity, l.Cost)
	switch {
	case l.Allows:
		s += "yes"
	case l.RetryAfter == ratelimit.Never:
		s += "never"
	default:
		s += "no, for " + l.RetryAfter.String()
	}
	if l.Mode != "enforce" {
		s += " (" + l.Mode + ": denies nobody)"
	}
	return s
}

// moment is a time of the test's clock.
func moment(t time.Time) string { return t.UTC().Format("Mon 2006-01-02 15:04:05.999 MST") }

// took is a real time, as precise as anybody wants it.
func took(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
