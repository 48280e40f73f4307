package explain

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText prints the answer for a person.
func (a *Answer) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("request", "%s", a.Request)
	row("client", "%s: %s%s", a.Client.IP, a.Client.Why, counted(a.Client))
	if rt := a.Route; rt == nil {
		row("route", "none matches")
	} else {
		row("route", "%s (%s%s), %s", rt.Name, rt.Host, rt.Path, rt.Why)
		if rt.At != "" {
			row("", "%s: auth %s, cost %d, on_store_failure %s, upstream %s", rt.At, rt.Auth, a.Cost, rt.OnStoreFailure, rt.Upstream)
		}
	}
	if a.Route != nil && a.Route.Target != "" {
		row("", "the upstream is asked for %s", a.Route.Target)
	}
	row("caller", "%s", a.Caller.words())
	for _, why := range a.Keys {
		row("", "keys could not be fetched: %s", why)
	}
	if a.Plan != nil {
		row("plan", "%s, from %s", a.Plan.Name, a.Plan.From)
	} else {
		row("plan", "none")
	}
	name := "wants"
	for _, want := range a.Wants {
		row(name, "%s: %s", printable(want.What), want.words())
		name = ""
	}
	if err := t.Flush(); err != nil {
		return err
	}

	if len(a.Limits) == 0 {
		fmt.Fprintln(w, "\nno limit is asked")
	} else {
		state := "a caller who has spent nothing; -redis asks the store"
		if a.Live {
			state = "as Redis has it now; the edge is each instance's own"
		}
		fmt.Fprintf(w, "\nlimits, in order (%s)\n\n", state)
		t = tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(t, "  \tLIMIT\tFROM\tRULE\tASKS\tLEFT\tMORE IN\tKEY")
		for _, l := range a.Limits {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d of %d\t%s\t%s\n",
				l.mark(), l.Name, l.from(), l.Rule, l.Cost, l.Remaining, l.Capacity, l.more(), l.Key)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for _, l := range a.Limits {
			if l.Note != "" {
				fmt.Fprintf(w, "%s: %s\n", l.Name, l.Note)
			}
		}
		fmt.Fprintln(w, "(> decides, x denies)")
	}
	if a.Store != "" {
		fmt.Fprintf(w, "\nthe store could not be asked: %s\n", a.Store)
	}
	switch {
	case a.Verdict.Allowed:
		_, err := fmt.Fprintf(w, "\nallowed: %s\n", a.Verdict.Why)
		return err
	default:
		_, err := fmt.Fprintf(w, "\nrefused with %d by %s: %s\n", a.Verdict.Status, a.Verdict.By, a.Verdict.Why)
		return err
	}
}

func counted(c Client) string {
	if c.Bucket == c.IP {
		return ""
	}
	return "; counted as " + c.Bucket
}

func (c Caller) words() string {
	var parts []string
	for _, p := range []struct{ name, value string }{{"user", c.User}, {"tenant", c.Tenant}, {"key", c.KeyID}} {
		if p.value != "" {
			parts = append(parts, fmt.Sprintf("%s %s", p.name, printable(p.value)))
		}
	}
	if len(parts) == 0 {
		return c.How
	}
	return strings.Join(parts, ", ") + " (" + c.How + ")"
}

func (w Want) words() string {
	switch {
	case w.Has == nil:
		return "not looked at"
	case *w.Has:
		return "yes"
	default:
		return "no"
	}
}

func (l Limit) mark() string {
	switch {
	case !l.Allows && l.Mode == "enforce":
		return "x"
	case l.Binds:
		return ">"
	default:
		return ""
	}
}

func (l Limit) from() string {
	if l.Mode == "enforce" {
		return l.From
	}
	return l.From + ", " + l.Mode
}

func (l Limit) more() string {
	if l.ResetS == 0 {
		return "-"
	}
	return time.Duration(l.ResetS * float64(time.Second)).Round(time.Millisecond).String()
}

// printable shows what a terminal would obey or hide.
func printable(s string) string {
	if q := fmt.Sprintf("%+q", s); q != `"`+s+`"` {
		return q
	}
	return s
}
