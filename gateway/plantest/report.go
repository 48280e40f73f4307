package plantest

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"bouncer/gateway/config"
)

// The shapes of -json.
type (
	jsonReport struct {
		OK      bool       `json:"ok"`
		Tests   int        `json:"tests"`
		Failed  int        `json:"failed"`
		Results []jsonTest `json:"results"`
	}
	jsonTest struct {
		Name string `json:"name"`
		jsonPos
		OK      bool       `json:"ok"`
		Seconds float64    `json:"seconds"`
		Error   string     `json:"error,omitempty"`
		Steps   []jsonStep `json:"steps"`
	}
	jsonPos struct {
		File   string `json:"file"`
		Line   int    `json:"line"`
		Column int    `json:"column"`
	}
	jsonStep struct {
		Step string `json:"step"`
		jsonPos
		At           time.Time        `json:"at"`
		OK           bool             `json:"ok"`
		Sent         int64            `json:"sent"`
		Allowed      int64            `json:"allowed"`
		Denied       int64            `json:"denied"`
		DeniedBy     map[string]int64 `json:"denied_by,omitempty"`
		Statuses     map[string]int64 `json:"statuses,omitempty"`
		LongestWaitS float64          `json:"longest_wait_s"`
		DelayS       float64          `json:"delay_s"`
		Failures     []jsonFailure    `json:"failures,omitempty"`
		FirstDenial  *jsonRequest     `json:"first_denial,omitempty"`
	}
	jsonFailure struct {
		Expectation string `json:"expectation"`
		jsonPos
		Want string `json:"want"`
		Got  string `json:"got"`
	}
	jsonRequest struct {
		Request     int64       `json:"request"`
		At          time.Time   `json:"at"`
		Status      int         `json:"status"`
		By          []string    `json:"by"`
		Why         string      `json:"why,omitempty"`
		RetryAfterS float64     `json:"retry_after_s,omitempty"` // left out: no wait would help
		Plan        string      `json:"plan,omitempty"`
		PlanFrom    string      `json:"plan_from,omitempty"`
		Limits      []jsonLimit `json:"limits"`
	}
	jsonLimit struct {
		Limit     string `json:"limit"`
		Mode      string `json:"mode"`
		Allows    bool   `json:"allows"`
		Cost      int64  `json:"cost"`
		Remaining int64  `json:"remaining"`
		Capacity  int64  `json:"capacity"`
	}
)

func posOf(p config.Pos) jsonPos { return jsonPos{p.File, p.Line, p.Column} }

// MarshalJSON writes the results for a script. The document is an object with
// ok, tests, failed and results; docs/CONFIGURATION.md describes it.
func (rs Results) MarshalJSON() ([]byte, error) {
	out := jsonReport{OK: rs.Failed() == 0, Tests: len(rs), Failed: rs.Failed(), Results: []jsonTest{}}
	for _, r := range rs {
		t := jsonTest{Name: r.Test.Name, jsonPos: posOf(r.Test.Pos), OK: r.OK(), Seconds: r.Took.Seconds(), Steps: []jsonStep{}}
		if r.Err != nil {
			t.Error = r.Err.Error()
		}
		for _, s := range r.Steps {
			t.Steps = append(t.Steps, s.json())
		}
		out.Results = append(out.Results, t)
	}
	return json.Marshal(out)
}

func (sr *StepResult) json() jsonStep {
	out := jsonStep{
		Step: sr.Step.Text, jsonPos: posOf(sr.Step.Pos), At: sr.Step.At.UTC(), OK: len(sr.Failures) == 0,
		Sent: sr.Sent, Allowed: sr.Allowed, Denied: sr.Denied, DeniedBy: sr.By,
		LongestWaitS: sr.LongestWait.Seconds(), DelayS: sr.Delay.Seconds(),
	}
	for s, n := range sr.Statuses {
		if out.Statuses == nil {
			out.Statuses = map[string]int64{}
		}
		out.Statuses[strconv.Itoa(s)] = n
	}
	for _, f := range sr.Failures {
		out.Failures = append(out.Failures, jsonFailure{f.Expectation.What(), posOf(f.Expectation.Pos), f.Expectation.Text, f.Got})
	}
	if d := sr.FirstDenial; d != nil {
		j := &jsonRequest{
			Request: d.Number, At: d.At, Status: d.Status, By: d.By, Why: d.Why, RetryAfterS: max(d.RetryAfter, 0).Seconds(),
			Plan: d.Plan, PlanFrom: d.From, Limits: []jsonLimit{},
		}
		for _, l := range d.Limits {
			j.Limits = append(j.Limits, jsonLimit{l.Name, l.Mode, l.Allows, l.Cost, l.Remaining, l.Capacity})
		}
		out.FirstDenial = j
	}
	return out
}

// The shapes of JUnit's XML, as far as the programs that read it agree on them.
type (
	xmlReport struct {
		XMLName xml.Name `xml:"testsuites"`
		xmlCounts
		Suites []*xmlSuite `xml:"testsuite"`
	}
	xmlCounts struct {
		Tests    int     `xml:"tests,attr"`
		Failures int     `xml:"failures,attr"`
		Errors   int     `xml:"errors,attr"`
		Time     seconds `xml:"time,attr"`
	}
	xmlSuite struct {
		Name string `xml:"name,attr"`
		xmlCounts
		Cases []xmlCase `xml:"testcase"`
	}
	xmlCase struct {
		Name      string      `xml:"name,attr"`
		Classname string      `xml:"classname,attr"`
		Time      seconds     `xml:"time,attr"`
		Failure   *xmlProblem `xml:"failure,omitempty"`
		Error     *xmlProblem `xml:"error,omitempty"`
	}
	xmlProblem struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
)

// seconds is a time as JUnit writes it, without an exponent.
type seconds time.Duration

// MarshalText implements encoding.TextMarshaler.
func (s seconds) MarshalText() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Seconds(), 'f', 6, 64), nil
}

// WriteJUnit writes the results as JUnit's XML: a suite for each file, a case
// for each test.
func (rs Results) WriteJUnit(w io.Writer) error {
	var report xmlReport
	suites := map[string]*xmlSuite{}
	for _, r := range rs {
		file := r.Test.Pos.File
		suite := suites[file]
		if suite == nil {
			suite = &xmlSuite{Name: file}
			suites[file] = suite
			report.Suites = append(report.Suites, suite)
		}
		c := xmlCase{Name: r.Test.Name, Classname: file, Time: seconds(r.Took)}
		one := xmlCounts{Tests: 1, Time: seconds(r.Took)}
		switch {
		case r.Err != nil:
			c.Error, one.Errors = &xmlProblem{r.Err.Error(), "error", ""}, 1
		case !r.OK():
			c.Failure, one.Failures = r.problem(), 1
		}
		suite.Cases = append(suite.Cases, c)
		suite.add(one)
		report.add(one)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(report); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func (c *xmlCounts) add(o xmlCounts) {
	c.Tests, c.Failures, c.Errors, c.Time = c.Tests+o.Tests, c.Failures+o.Failures, c.Errors+o.Errors, c.Time+o.Time
}

// problem is how a test failed: the first failure in a line, and all of them.
func (r *Result) problem() *xmlProblem {
	p := &xmlProblem{Type: "failure"}
	var text strings.Builder
	for i, s := range r.Steps {
		for _, f := range s.Failures {
			if p.Message == "" {
				p.Message = fmt.Sprintf("%s: step %d: %s: want %s, got %s", s.Step.Pos, i+1, f.Expectation.What(), f.Expectation.Text, f.Got)
			}
		}
		if len(s.Failures) > 0 {
			s.write(&text, i+1)
		}
	}
	p.Text = text.String()
	return p
}
