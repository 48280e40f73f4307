package config

import (
	"fmt"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	wantedTests  = "tests: a list of tests"
	wantedSteps  = "a list of steps, each with send, wait or at"
	wantedSend   = `a number of requests such as 1, "30 at once" or "1 every 500ms for 2m"`
	wantedAt     = `a moment such as "23:59:50 Asia/Kolkata" or "2026-12-31 23:59:50 UTC"`
	wantedCount  = `a number, or a comparison in quotes such as "<= 20", "> 3" or "20..25"`
	wantedSpan   = `a duration, or a comparison in quotes such as "<= 1s", "> 500ms" or "1s..2s"`
	wantedTarget = "a method and a path such as GET /api/weather, or a path"

	maxTests    = 1000      // in one file
	maxSteps    = 1000      // of one test
	maxRequests = 1_000_000 // of one test
)

// testDecl is a test, and the limits that it names.
type testDecl struct {
	Test
	limits, deniers []ref
}

// readTests reads a list of tests.
func readTests(v value) []*testDecl {
	items, _ := v.list("a list of tests")
	if len(items) > maxTests {
		v.errorf("%d tests; want at most %d in one file, and others in files named *_test.yaml", len(items), maxTests)
		return nil
	}
	var out []*testDecl
	names := map[string]value{}
	for _, item := range items {
		o, ok := item.object("name, request and steps")
		if !ok {
			continue
		}
		d := &testDecl{Test: Test{Pos: item.pos()}}
		if v, ok := o.need("name", "a sentence that says what is tested"); ok {
			d.Name = v.identity("a sentence that says what is tested")
			if first, twice := names[d.Name]; twice && d.Name != "" {
				v.errorf("two tests have this name; the first one is at line %d, column %d", first.n.Line, first.n.Column)
			}
			names[d.Name] = v
		}
		t := &testReader{d: d, now: TestStart, caller: &TestCaller{}}
		if v, ok := o.get("caller", "who sends"); ok {
			t.caller = readCaller(v)
		}
		if v, ok := o.get("request", wantedTarget); ok {
			t.request, t.named = readTarget(v), true
		}
		if v, ok := o.need("steps", wantedSteps); ok {
			t.readSteps(v)
		}
		o.done()
		out = append(out, d)
	}
	return out
}

// testReader reads the steps of one test, and goes with its clock.
type testReader struct {
	d        *testDecl
	now      time.Time
	sent     int64
	caller   *TestCaller
	request  target
	named    bool // the test has a request, right or wrong
	expected bool // some step expects something
}

func (t *testReader) readSteps(v value) {
	items, ok := v.list(wantedSteps)
	if !ok {
		return
	}
	if len(items) > maxSteps {
		v.errorf("%d steps; want at most %d in one test", len(items), maxSteps)
		return
	}
	good := true
	for _, item := range items {
		o, ok := item.object("send, wait or at")
		if !ok {
			good = false
			continue
		}
		good = t.readStep(o) && good
		for _, name := range o.names { // it may have been meant as an expectation
			good = good && slices.Contains(o.known, name)
		}
		o.done()
	}
	if good && !t.expected {
		v.keyErrorf("expect nothing, so that the test could not fail; want allowed, denied or another expectation beside send")
	}
}

// besideSend are the fields that say who sends what, and what must come of it.
var besideSend = []string{
	"caller", "request", ExpectAllowed, ExpectDenied, ExpectDeniedBy, ExpectStatus, ExpectRetryAfter, ExpectLongestWait,
	ExpectDelay, ExpectRemaining,
}

// readStep reads one step. It returns whether nothing was wrong with its kind.
func (t *testReader) readStep(o *object) bool {
	var kinds []string
	for _, k := range []string{"send", "wait", "at"} {
		if o.has(k) {
			kinds = append(kinds, k)
		} else {
			o.known = append(o.known, k)
		}
	}
	if len(kinds) != 1 {
		o.known = append(append(o.known, kinds...), besideSend...)
		o.errorf("want exactly one of send, wait and at, got %d", len(kinds))
		return false
	}
	s := &Step{Pos: o.pos(), At: t.now}
	t.d.Steps = append(t.d.Steps, s)
	if kinds[0] == "send" {
		return t.readSend(o, s)
	}
	for _, name := range besideSend {
		if o.has(name) {
			o.fields[name].keyErrorf("stands beside send, and this step only moves the clock; move it to a step of its own")
		}
		o.known = append(o.known, name)
	}
	good := false
	if v, ok := o.get("wait", "a duration such as 600ms"); ok {
		if d, ok := v.duration(time.Microsecond, maxWindow); ok {
			t.now, good = t.now.Add(d), true
			s.Text = "wait " + formatDuration(d)
		}
	}
	if v, ok := o.get("at", wantedAt); ok {
		if at, ok := v.moment(t.now); ok {
			t.now, good = at, true
			s.Text = "at " + v.n.Value
		}
	}
	s.At = t.now
	return good
}

func (t *testReader) readSend(o *object, s *Step) bool {
	send := &Send{Count: 1, Caller: t.caller}
	s.Send = send
	good := false
	if v, ok := o.get("send", wantedSend); ok {
		good = send.read(v)
		s.Text = "send " + strings.Join(strings.Fields(v.n.Value), " ")
		t.sent += send.Total()
		if t.sent > maxRequests {
			v.errorf("the test sends %d requests up to here; want at most %d", t.sent, maxRequests)
			t.sent, good = 0, false
		}
	}
	if v, ok := o.get("caller", "who sends"); ok {
		send.Caller = readCaller(v)
	}
	to := t.request
	if v, ok := o.get("request", wantedTarget); ok {
		to = readTarget(v)
		s.Text += ", " + v.n.Value
	} else if !t.named && !o.has("request") {
		o.missing("request", wantedTarget+", here or beside steps")
		t.named = true // once is enough
	}
	send.Method, send.URL = to.method, to.url
	t.readExpectations(o, s)
	if good {
		send.checkCounts(o)
	}
	t.now = t.now.Add(send.For)
	return good
}

// read reads how many are sent, and when.
func (s *Send) read(v value) bool {
	text, ok := v.text(wantedSend)
	if !ok {
		return false
	}
	bad := func(why string, args ...any) bool {
		v.errorf("%s: %s; want %s", quote(text), fmt.Sprintf(why, args...), wantedSend)
		return false
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return bad("no number of requests")
	}
	n, err := parseCount(words[0])
	switch {
	case err != nil:
		return bad("%s: %v", quote(words[0]), err)
	case n < 1 || n > maxRequests:
		return bad("a number from 1 to %d is sent", maxRequests)
	}
	rest := words[1:]
	switch {
	case len(rest) == 0, slices.Equal(rest, []string{"at", "once"}):
		s.Count = n
		return true
	case len(rest) != 4 || rest[0] != "every" || rest[2] != "for":
		return bad("not understood")
	}
	every, err := parseDuration(rest[1])
	if err != nil {
		return bad("%s: %v", quote(rest[1]), err)
	}
	length, err := parseDuration(rest[3])
	switch {
	case err != nil:
		return bad("%s: %v", quote(rest[3]), err)
	case every < time.Microsecond || length < every:
		return bad("the time between must be above 0, and not longer than the whole")
	case length > maxWindow:
		return bad("longer than %s", formatDuration(maxWindow))
	case int64(length/every) >= maxRequests || n*int64(length/every) > maxRequests:
		return bad("more than %d requests", maxRequests)
	}
	s.Count, s.Every, s.For = n, every, length
	return true
}

// checkCounts finds numbers that no outcome could have.
func (s *Send) checkCounts(o *object) {
	var sum int64
	exact := 0
	for _, e := range s.Want {
		if e.Field != ExpectAllowed && e.Field != ExpectDenied {
			continue
		}
		if e.Low > s.Total() {
			o.fields[e.Field].errorf("%s of %d requests cannot be", e.Text, s.Total())
			return
		}
		if e.Low == e.High {
			exact++
			sum += e.Low
		}
	}
	if exact == 2 && sum != s.Total() {
		o.fields[ExpectDenied].errorf("allowed and denied make %d, and %d are sent", sum, s.Total())
	}
}

// moment reads a moment and returns when it is next after now.
func (v value) moment(now time.Time) (time.Time, bool) {
	text, ok := v.word(wantedAt)
	if !ok {
		return now, false
	}
	words := strings.Fields(text)
	var date time.Time
	var err error
	if len(words) > 0 && strings.Contains(words[0], "-") {
		if date, err = time.Parse(time.DateOnly, words[0]); err != nil || date.Year() > 2200 {
			v.errorf("%s: %s is no date; want %s", quote(text), quote(words[0]), wantedAt)
			return now, false
		}
		words = words[1:]
	}
	if len(words) < 1 || len(words) > 2 {
		v.errorf("%s: want %s", quote(text), wantedAt)
		return now, false
	}
	clock, err := time.Parse(time.TimeOnly, words[0])
	if err != nil {
		clock, err = time.Parse("15:04", words[0])
	}
	if err != nil {
		v.errorf("%s: %s is no time of day; want %s", quote(text), quote(words[0]), wantedAt)
		return now, false
	}
	location := time.UTC
	if len(words) == 2 {
		if location, ok = v.zoneNamed(words[1]); !ok {
			return now, false
		}
	}
	dated := !date.IsZero()
	if !dated {
		date = now.In(location)
	}
	on := func(days int) time.Time {
		return time.Date(date.Year(), date.Month(), date.Day()+days, clock.Hour(), clock.Minute(), clock.Second(), clock.Nanosecond(), location)
	}
	at := on(0)
	if !dated && !at.After(now) {
		at = on(1)
	}
	if at.Before(now) {
		v.errorf("%s is past: the clock of this test shows %s here, and time does not go back", quote(text), now.In(location).Format("2006-01-02 15:04:05 MST"))
		return now, false
	}
	return at, true
}

// target is what a request asks for.
type target struct {
	method string
	url    *url.URL // nil if it was wrong
}

// readTarget reads a method and a path, or a path.
func readTarget(v value) target {
	t := target{method: "GET"}
	text, ok := v.word(wantedTarget)
	if !ok {
		return t
	}
	words := strings.Fields(text)
	switch {
	case len(words) == 2:
		t.method = words[0]
	case len(words) != 1:
		v.errorf("%s: want %s", quote(text), wantedTarget)
		return t
	}
	if !isToken(t.method) || t.method != strings.ToUpper(t.method) {
		v.errorf("%s: %s is no method; want %s", quote(text), quote(t.method), wantedTarget)
		return t
	}
	u, err := url.ParseRequestURI(words[len(words)-1])
	if err != nil || u.Path == "" || u.Path[0] != '/' || u.Scheme != "" && u.Host == "" {
		v.errorf("%s: %s is no path; want %s", quote(text), quote(words[len(words)-1]), wantedTarget)
		return t
	}
	t.url = u
	return t
}

// readCaller reads who sends.
func readCaller(v value) *TestCaller {
	c := &TestCaller{Pos: v.pos()}
	o, ok := v.object("user, tenant, plan, key_id, ip or headers")
	if !ok {
		return c
	}
	for _, f := range []struct {
		name string
		to   *string
	}{{"user", &c.User}, {"tenant", &c.Tenant}, {"plan", &c.Plan}, {"key_id", &c.KeyID}} {
		if v, ok := o.get(f.name, "a name"); ok {
			*f.to = v.identity("a name")
		}
	}
	if v, ok := o.get("ip", "an address such as 203.0.113.9"); ok {
		if s, ok := v.word("an address such as 203.0.113.9"); ok {
			addr, err := netip.ParseAddr(s)
			if err != nil || addr.Zone() != "" {
				v.errorf("%s is no address; want one such as 203.0.113.9 or 2001:db8::1", quote(s))
			}
			c.IP = addr
		}
	}
	if v, ok := o.get("headers", "fields of the request"); ok {
		if fields, ok := v.object("fields of the request"); ok {
			c.Headers = map[string][]string{}
			for _, name := range fields.names {
				f := fields.fields[name]
				if !isToken(name) {
					f.keyErrorf("%s is not the name of a header", quote(name))
					continue
				}
				if s, ok := f.word("the value of the header"); ok {
					c.Headers[textproto.CanonicalMIMEHeaderKey(name)] = []string{s}
				}
			}
		}
	}
	o.done()
	return c
}
