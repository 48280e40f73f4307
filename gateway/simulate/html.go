package simulate

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"percent": percent, "span": span, "clock": clock, "dash": dash, "printable": printable,
	"name": Limit.name, "wait": Limit.wait, "number": Limit.number, "before": (*Result).before,
	"chart": func(columns int, bars []bar) chart { return chart{columns, bars} },
}).Parse(pageText))

// WriteHTML writes the result as one page that needs nothing else: no script, no
// network. It shows so many callers at most.
func (r *Result) WriteHTML(w io.Writer, top int) error {
	v := struct {
		*Result
		Top       []Caller
		Timelines []timeline
		Summary   string
		Before    string
		Span      string
		Patience  string
	}{Result: r, Top: r.Callers[:min(top, len(r.Callers))], Timelines: r.timelines(), Summary: r.summary("would be"), Span: r.span(), Patience: r.Patient.words()}
	if r.Against != nil {
		v.Before = r.Against.summary("are")
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
	From, To      string
	Columns       int
}

// A bar is one slot, in a picture of timelineHeight.
type bar struct {
	X, AllowedY, AllowedH, DeniedY, DeniedH float64
	Title                                   string
}

// A chart is the bars of one picture.
type chart struct {
	Columns int
	Bars    []bar
}

const timelineHeight = 80

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
			t.From, t.To = r.From.Format("15:04:05"), r.To.Format("15:04:05")
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
		bars = append(bars, bar{
			X: float64(i), AllowedY: timelineHeight - a, AllowedH: a, DeniedY: timelineHeight - a - d, DeniedH: d,
			Title: fmt.Sprintf("%s: %d allowed, %d denied", r.From.Truncate(time.Second).Add(time.Duration(i)*r.slotWidth).Format("15:04:05"), x.allowed, x.denied),
		})
	}
	return bars
}
