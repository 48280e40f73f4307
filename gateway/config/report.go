package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Problem is one mistake, or one thing that is legal but dangerous, at its
// place in a file. Its texts never contain a secret.
type Problem struct {
	Pos
	// Path is where in the document it stands, as in "routes[2].upstream";
	// empty when the whole file is meant.
	Path string
	// Message says what is wrong and what is wanted instead.
	Message string
	// Warning marks what is legal but dangerous.
	Warning bool
}

// String writes the problem on one line, position first:
//
//	routes.yaml:9:12: routes[2].upstream: no upstream "weathr" (did you mean "weather"?)
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Pos.String())
	b.WriteString(": ")
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(p.Path)
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// String writes file:line:column; what is unknown is left out.
func (p Pos) String() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.Column == 0:
		return p.File + ":" + strconv.Itoa(p.Line)
	default:
		return p.File + ":" + strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column)
	}
}

// A Report is what [Load] found out besides the configuration.
type Report struct {
	// Problems are sorted by file, line and column.
	Problems []Problem
	// Files is every file that was read or tried, also when loading failed: a
	// change in any of them is worth another attempt. A file that could not be
	// read has a zero SHA256.
	Files []File

	docs map[string]*doc // by name: those whose lines may be shown
}

// Errors returns the problems that keep the configuration from being used.
func (r *Report) Errors() []Problem { return r.pick(false) }

// Warnings returns what is legal but dangerous.
func (r *Report) Warnings() []Problem { return r.pick(true) }

func (r *Report) pick(warning bool) []Problem {
	var ps []Problem
	for _, p := range r.Problems {
		if p.Warning == warning {
			ps = append(ps, p)
		}
	}
	return ps
}

// Err returns all errors as one, a line each, or nil if there are none.
func (r *Report) Err() error {
	es := r.Errors()
	if len(es) == 0 {
		return nil
	}
	lines := make([]string, len(es))
	for i, p := range es {
		lines[i] = p.String()
	}
	return errors.New(strings.Join(lines, "\n"))
}

// maxProblems bounds a report: a file of another kind given by mistake must
// not become a report of a million lines.
const maxProblems = 1000

// add records a problem.
func (r *Report) add(p Problem) { r.Problems = append(r.Problems, p) }

// finish sorts the problems, drops repetitions and cuts what is too much.
func (r *Report) finish() {
	slices.SortStableFunc(r.Problems, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column),
		)
	})
	r.Problems = slices.Compact(r.Problems)
	if extra := len(r.Problems) - maxProblems; extra > 0 {
		// Errors outlive warnings, so that a cut report still refuses.
		slices.SortStableFunc(r.Problems, func(a, b Problem) int {
			switch {
			case a.Warning == b.Warning:
				return 0
			case b.Warning:
				return -1
			default:
				return 1
			}
		})
		r.Problems = r.Problems[:maxProblems]
		r.Problems = append(r.Problems, Problem{
			Pos:     r.Problems[maxProblems-1].Pos,
			Warning: r.Problems[maxProblems-1].Warning,
			Message: fmt.Sprintf("and %d more; correct these first", extra),
		})
	}
}
