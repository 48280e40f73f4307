package config

import (
	"errors"
	"math"
	"strings"
)

// readExpectations reads what must come of the requests.
func (t *testReader) readExpectations(o *object, s *Step) {
	add := func(e Expectation, v value) {
		e.Text, e.Pos = strings.Join(strings.Fields(e.Text), " "), v.pos()
		s.Send.Want = append(s.Send.Want, e)
		t.expected = true
	}
	for _, name := range []string{ExpectAllowed, ExpectDenied} {
		if v, ok := o.get(name, wantedCount); ok {
			t.expected = true // meant to, even if it is wrong
			if low, high, text, ok := v.between(wantedCount, parseCount); ok {
				add(Expectation{Field: name, Low: low, High: high, Text: text}, v)
			}
		}
	}
	if v, ok := o.get(ExpectDeniedBy, "the name of a limit"); ok {
		t.expected = true
		if vs, names, ok := v.words("names of limits", true); ok && len(names) > 0 {
			for i, n := range names {
				t.d.deniers = append(t.d.deniers, ref{n, vs[i]})
			}
			add(Expectation{Field: ExpectDeniedBy, Names: names, Text: strings.Join(names, " or ")}, v)
		} else if ok {
			v.errorf("names nothing; want the name of a limit")
		}
	}
	if v, ok := o.get(ExpectStatus, "a status from 400 to 599"); ok {
		t.expected = true
		if n, ok := v.integer(100, 599); ok {
			if n < 400 {
				v.errorf("no upstream answers in a test, so that only the gateway's own statuses can be told, 400 to 599; "+
					"want allowed: %d for requests that pass", s.Send.Total())
			} else {
				add(Expectation{Field: ExpectStatus, Low: n, High: n, Text: v.n.Value}, v)
			}
		}
	}
	parse := func(s string) (int64, error) {
		d, err := parseDuration(s)
		if err == nil && d < 0 {
			err = errors.New("a negative duration")
		}
		return int64(d), err
	}
	for _, name := range []string{ExpectRetryAfter, ExpectLongestWait, ExpectDelay} {
		v, ok := o.get(name, wantedSpan)
		if !ok {
			continue
		}
		t.expected = true
		if name == ExpectRetryAfter && v.n.Value == "none" {
			add(Expectation{Field: name, None: true, Text: "none"}, v)
		} else if low, high, text, ok := v.between(wantedSpan, parse); ok {
			add(Expectation{Field: name, Low: low, High: high, Text: text}, v)
		}
	}
	if v, ok := o.get(ExpectRemaining, "limits and what is left of them"); ok {
		t.expected = true
		if left, ok := v.object("limits and what is left of them, such as {per-minute: 0}"); ok {
			for _, v := range left.entries("a limit") {
				t.d.limits = append(t.d.limits, ref{v.key.Value, v.atKey()})
				if low, high, text, ok := v.between(wantedCount, parseCount); ok {
					add(Expectation{Field: ExpectRemaining, Limit: v.key.Value, Low: low, High: high, Text: text}, v)
				}
			}
		}
	}
}

// between reads a number or a comparison. What is right is low to high, both
// inclusive.
func (v value) between(wanted string, parse func(string) (int64, error)) (low, high int64, text string, ok bool) {
	text, ok = v.text(wanted)
	if !ok {
		return 0, 0, "", false
	}
	low, high = 0, math.MaxInt64
	operator, number := "", strings.TrimSpace(text)
	for _, op := range []string{"<=", ">=", "<", ">"} {
		if rest, found := strings.CutPrefix(number, op); found {
			operator, number = op, strings.TrimSpace(rest)
			break
		}
	}
	var n int64
	var err error
	if from, to, found := strings.Cut(number, ".."); found && operator == "" {
		if low, err = parse(strings.TrimSpace(from)); err == nil {
			high, err = parse(strings.TrimSpace(to))
		}
	} else {
		n, err = parse(number)
	}
	if err != nil {
		v.errorf("%s: %v; want %s", quote(text), err, wanted)
		return 0, 0, "", false
	}
	switch operator {
	case "<=":
		high = n
	case ">=":
		low = n
	case "<":
		high = n - 1
	case ">":
		low = n + 1
	default:
		if !strings.Contains(number, "..") {
			low, high = n, n
		}
	}
	if low > high || low < 0 {
		v.errorf("%s: nothing can be; want %s", quote(text), wanted)
		return 0, 0, "", false
	}
	return low, high, text, true
}
