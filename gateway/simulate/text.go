package simulate

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// WriteText prints the result for a person, with so many callers at most.
func (r *Result) WriteText(w io.Writer, top int) error {
	p := func(format string, a ...any) { fmt.Fprintf(w, format+"\n", a...) }
	p("%s: %s, %d malformed%s", count(r.Lines, "line"), count(r.Requests, "request"), r.Malformed, r.span())
	p("%s", r.summary("would be"))
	if b := r.Against; b != nil {
		p("before: %s", b.summary("are"))
		p("%s newly denied, %d newly allowed", count(*r.NewlyDenied, "request"), *r.NewlyAllowed)
	}
	if r.Patient.Delayed+r.Patient.Lost > 0 {
		p("obeying Retry-After: %s", r.Patient.words())
	}

	if len(r.Limits) > 0 {
		p("\nlimits (what a number of its own would have to be to deny nobody, or at most 1 caller in 100)\n")
		t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		head := "DENIED\tOF\tCALLERS\tLIMIT\tROUTE\tPLAN\tRULE\tFIRST\tLONGEST WAIT\tDENIES NOBODY\t99 OF 100"
		if r.Against != nil {
			head = "BEFORE\t" + head
		}
		fmt.Fprintln(t, head)
		for _, l := range r.Limits {
			if r.Against != nil {
				fmt.Fprintf(t, "%s\t", r.Against.before(l))
			}
			fmt.Fprintf(t, "%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Denied, l.Asked, l.DeniedCallers,
				l.name(), l.Route, dash(l.Plan), l.Rule, clock(l.FirstDenied), l.wait(), l.number(l.SmallestOK), l.number(l.Smallest99))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if n := min(top, len(r.Callers)); n > 0 {
		p("\ncallers (%d of %d)\n", n, len(r.Callers))
		t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		head := "CALLER\tPLAN\tREQUESTS\tDENIED\tSHARE\tFIRST\tPATIENT: LONGEST\tIN ALL"
		if r.Against != nil {
			head += "\tNEWLY DENIED"
		}
		fmt.Fprintln(t, head)
		for _, c := range r.Callers[:n] {
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s", short(printable(c.Caller)), dash(c.Plan), c.Requests, c.Denied,
				percent(c.Denied, c.Requests), clock(c.FirstDenied), span(c.LongestDelayS), span(c.TotalDelayS))
			if r.Against != nil {
				fmt.Fprintf(t, "\t%d", c.NewlyDenied)
			}
			fmt.Fprintln(t)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(r.MalformedLines) > 0 {
		p("\nmalformed (%d of %d)\n", len(r.MalformedLines), r.Malformed)
		for _, m := range r.MalformedLines {
			p("%s: %s", printable(m.At), m.Why)
		}
	}
	for _, n := range r.Notes {
		p("\nnote: %s", n)
	}
	return nil
}

func (r *Result) span() string {
	if r.From == nil {
		return ""
	}
	return fmt.Sprintf("; %s to %s", r.From.Format("2006-01-02 15:04:05"), r.To.Format("2006-01-02 15:04:05 MST"))
}

func (r *Result) summary(be string) string {
	s := fmt.Sprintf("%d %s allowed, %d denied (%s); %d of %s denied", r.Allowed, be, r.Denied, percent(r.Denied, r.Requests), r.DeniedCallers, count(int64(r.CallerCount), "caller"))
	if r.Refused > 0 {
		s += fmt.Sprintf("; %d refused otherwise, %d of them without a route", r.Refused, r.Unmatched)
	}
	if r.FirstDenied != nil {
		s += "; first denied " + r.FirstDenied.Format("15:04:05.000") + ", longest wait " + span(r.LongestWaitS)
	}
	return s
}

func (p Patient) words() string {
	s := fmt.Sprintf("%s later, by %s at most, %s in all", count(p.Delayed, "request"), span(p.LongestDelayS), span(p.TotalDelayS))
	if p.Lost == 0 && p.NotFollowed == 0 {
		return s + "; none lost"
	}
	if p.Lost > 0 {
		s += fmt.Sprintf("; %d that no wait helps", p.Lost)
	}
	if p.NotFollowed > 0 {
		s += fmt.Sprintf("; %d more not followed", p.NotFollowed)
	}
	return s
}

// before is what the same limit denied in r, in words.
func (r *Result) before(l Limit) string {
	if n := r.denied(l); n >= 0 {
		return strconv.FormatInt(n, 10)
	}
	return "-"
}

// denied is what the same limit denied in r; -1 if there is none.
func (r *Result) denied(l Limit) int64 {
	for _, b := range r.Limits {
		if b.Plan == l.Plan && b.Route == l.Route && b.Limit == l.Limit && b.Mode == l.Mode && b.From == l.From {
			return b.Denied
		}
	}
	return -1
}

// count says how many there are of something.
func count(n int64, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return strconv.FormatInt(n, 10) + " " + of + "s"
}

func (l Limit) name() string {
	switch {
	case l.Mode != "enforce":
		return l.Limit + " (" + l.Mode + ")"
	case l.From == "edge":
		return l.Limit + " (edge)"
	default:
		return l.Limit
	}
}

func (l Limit) wait() string {
	if l.Never {
		return "for ever"
	}
	return span(l.LongestWaitS)
}

func (l Limit) number(n *int64) string {
	switch {
	case n != nil:
		return fmt.Sprintf("%d/%s", *n, l.Unit)
	case l.SmallestBurst > 0:
		return fmt.Sprintf("none; burst %d", l.SmallestBurst)
	default:
		return "none"
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func percent(n, of int64) string {
	if n == 0 || of == 0 {
		return "0 %"
	}
	return strconv.FormatFloat(100*float64(n)/float64(of), 'f', 1, 64) + " %"
}

func clock(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format("Jan 2 15:04:05")
}

// span writes seconds as a duration; a century is where that ends.
func span(s float64) string {
	switch {
	case s == 0:
		return "-"
	case s > 3e9:
		return fmt.Sprintf("%.0f days", s/86400)
	case s < 10:
		return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
	default:
		return time.Duration(s * float64(time.Second)).Round(time.Second).String()
	}
}

// printable shows what a terminal would obey or hide.
func printable(s string) string {
	if q := fmt.Sprintf("%+q", s); q != `"`+s+`"` {
		return q
	}
	return s
}

// short cuts what would push all other columns off the screen.
func short(s string) string {
	const most = 48
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}
