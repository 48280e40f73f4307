package simulate

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"percent": percent, "span": span, "clock": clock, "dash": dash, "printable": printable,
	"name": Limit.name, "wait": Limit.wait, "number": Limit.number, "before": (*Result).before,
	"count": count,
	"rows":  func(r *Result, rows []Limit) limitRows { return limitRows{r, rows} },
	"chart": func(t timeline, name string, bars []bar) chart {
		return chart{Name: name, Label: strings.TrimSpace(name + " " + t.Name), Most: t.Most, Columns: t.Columns, Bars: bars}
	},
}).Parse(pageText))

// maxQuiet is how many rows of limits that deny nobody are shown unfolded.
const maxQuiet = 8

// WriteHTML writes the result as one page that needs nothing else: no script, no
// network. It shows so many callers at most.
func (r *Result) WriteHTML(w io.Writer, top int) error {
	v := struct {
		*Result
		Top                      []Caller
		Denying, Quiet           []Limit // Quiet are folded away
		Timelines                []timeline
		Headline, Span, Patience string
	}{Result: r, Top: r.Callers[:min(top, len(r.Callers))], Timelines: r.timelines(), Headline: r.headline(), Span: r.span(), Patience: r.Patient.words()}
	for _, l := range r.Limits {
		if l.Denied > 0 || r.Against != nil && r.Against.denied(l) > 0 {
			v.Denying = append(v.Denying, l)
		} else {
			v.Quiet = append(v.Quiet, l)
		}
	}
	if len(v.Quiet) <= maxQuiet {
		v.Denying, v.Quiet = r.Limits, nil
	}
	return page.Execute(w, v)
}

// A timeline is the picture of one limit.
type timeline struct {
	Name, Rule    string
	Denied, Asked int64
	Most          int64
	Slot          string
	Now, Before   []bar
	HasBefore     bool
	Columns       int

	From, Middle, To string
}

// A bar is one slot, in a picture of timelineHeight.
type bar struct {
	X, AllowedY, AllowedH, DeniedY, DeniedH float64
	Title                                   string
}

// limitRows are some rows of the table of limits.
type limitRows struct {
	Result *Result
	Rows   []Limit
}

// A chart is the bars of one picture.
type chart struct {
	Name, Label string
	Most        int64
	Columns     int
	Bars        []bar
}

const (
	timelineHeight = 80
	// leastHeight is that of a bar of denied requests however few they are: they
	// are what the picture is looked at for.
	leastHeight = 3
)

// headline says the most important thing.
func (r *Result) headline() string {
	switch {
	case r.Requests == 0:
		return "Nothing to replay"
	case r.Against != nil && *r.NewlyDenied > 0:
		return count(*r.NewlyDenied, "request") + " would be newly denied"
	case r.Against != nil:
		return "No request that is allowed today would be denied"
	case r.Denied > 0:
		return fmt.Sprintf("%s of %d would be denied", count(r.Denied, "request"), r.Requests)
	default:
		return "Nobody would be denied"
	}
}

// moment is a time on the axis of the log, with the day where there are several.
func (r *Result) moment(t time.Time) string {
	if r.To.Sub(*r.From) >= 24*time.Hour || r.To.Day() != r.From.Day() {
		return t.Format("Jan 2 15:04")
	}
	return t.Format("15:04:05")
}

// timelines draws a limit once, however many routes ask it.
func (r *Result) timelines() []timeline {
	type key struct{ from, plan, name, mode string }
	of := func(l Limit) key {
		k := key{l.From, l.Plan, l.Limit, l.Mode}
		if l.From != "plan" {
			k.plan = ""
		}
		return k
	}
	at := map[key]int{}
	var all []timeline
	for _, l := range r.Limits {
		k := of(l)
		if i, ok := at[k]; ok {
			all[i].Denied += l.Denied
			all[i].Asked += l.Asked
			continue
		}
		t := timeline{Name: l.name(), Rule: l.Rule, Denied: l.Denied, Asked: l.Asked, Slot: r.slotWidth.String()}
		if k.plan != "" {
			t.Name = k.plan + " / " + t.Name
		}
		t.Most = most(l.slots)
		var before []slot
		if r.Against != nil {
			for _, b := range r.Against.Limits {
				if of(b) == k {
					before = b.slots
					t.Most = max(t.Most, most(before))
					t.HasBefore = true
					break
				}
			}
		}
		t.Columns = r.columns
		t.Now, t.Before = r.bars(l.slots, t.Most), r.bars(before, t.Most)
		if r.From != nil {
			t.From, t.To = r.moment(*r.From), r.moment(*r.To)
			t.Middle = r.moment(r.From.Add(r.To.Sub(*r.From) / 2))
		}
		at[k] = len(all)
		all = append(all, t)
	}
	return all
}

func most(s []slot) (n int64) {
	for _, x := range s {
		n = max(n, x.allowed+x.denied)
	}
	return n
}

func (r *Result) bars(s []slot, most int64) []bar {
	var bars []bar
	for i, x := range s {
		if x.allowed+x.denied == 0 {
			continue
		}
		a := timelineHeight * float64(x.allowed) / float64(most)
		d := timelineHeight * float64(x.denied) / float64(most)
		if x.denied > 0 && d < leastHeight {
			d = leastHeight
			a = min(a, timelineHeight-d)
		}
		bars = append(bars, bar{
			X: float64(i), AllowedY: timelineHeight - a, AllowedH: a, DeniedY: timelineHeight - a - d, DeniedH: d,
			Title: fmt.Sprintf("%s: %d allowed, %d denied", r.moment(r.From.Truncate(time.Second).Add(time.Duration(i)*r.slotWidth)), x.allowed, x.denied),
		})
	}
	return bars
}
