package config

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	yaml "go.yaml.in/yaml/v4"
)

// text reads a scalar as text, expanded. Numbers and dates are taken as they
// are written, so that an id of digits needs no quotes; true, false and null
// are not text.
func (v value) text(wanted string) (string, bool) {
	s, _, ok := v.scalar(wanted)
	if !ok {
		return "", false
	}
	switch v.n.Tag {
	case "!!str", "!!int", "!!float", "!!timestamp":
		return s, true
	}
	v.errorf("want %s, got %s; quote it if it is meant as text", wanted, v.kind())
	return "", false
}

// scalar reads a scalar of any type, and says whether a variable was expanded
// in it: then its type is what the field wants.
func (v value) scalar(wanted string) (s string, expanded, ok bool) {
	if v.n.Kind != yaml.ScalarNode {
		v.errorf("want %s, got %s", wanted, v.kind())
		return "", false, false
	}
	switch v.n.Tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp", "!!merge":
	default:
		v.errorf("the tag %s is not known here; want %s without a tag", quote(v.n.Tag), wanted)
		return "", false, false
	}
	if v.d.raw || v.n.Tag != "!!str" {
		return v.n.Value, false, true
	}
	s, err := expand(v.n.Value, v.d.src.lookup)
	if err != nil {
		v.errorf("%v", err)
		return "", false, false
	}
	return s, s != v.n.Value, true
}

// word reads text that must not be empty nor hold control characters.
func (v value) word(wanted string) (string, bool) {
	s, ok := v.text(wanted)
	if !ok {
		return "", false
	}
	if s == "" {
		v.errorf("empty; want %s", wanted)
		return "", false
	}
	if strings.ContainsFunc(s, isControl) {
		v.errorf("holds a control character; want %s", wanted)
		return "", false
	}
	return s, true
}

// isControl reports whether r could end a line or a field somewhere, or stands
// for what was no character at all.
func isControl(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r == utf8.RuneError
}

// maxIdentity bounds users, tenants and the like, in bytes.
const maxIdentity = 256

// identity reads who somebody is; empty if it is nobody. It becomes a field of
// requests, whose receiver would cut white space around it, and so take one for
// another.
func (v value) identity(wanted string) string {
	s, ok := v.word(wanted)
	switch {
	case !ok:
	case len(s) > maxIdentity:
		v.errorf("%d bytes long; want %s of at most %d", len(s), wanted, maxIdentity)
	case strings.TrimSpace(s) != s:
		v.errorf("begins or ends with white space; want %s without it", wanted)
	default:
		return s
	}
	return ""
}

// words reads a list of words, or, if single, one word in place of a list.
func (v value) words(wanted string, single bool) ([]value, []string, bool) {
	if single && v.n.Kind == yaml.ScalarNode {
		s, ok := v.word(wanted)
		return []value{v}, []string{s}, ok
	}
	items, ok := v.list("a list of " + wanted)
	if !ok {
		return nil, nil, false
	}
	var vs []value
	var ss []string
	first := map[string]value{}
	for _, item := range items {
		s, good := item.word(wanted)
		if !good {
			ok = false
			continue
		}
		if f, twice := first[s]; twice {
			item.errorf("given twice; the first one is at line %d, column %d", f.n.Line, f.n.Column)
			ok = false
			continue
		}
		first[s] = item
		vs, ss = append(vs, item), append(ss, s)
	}
	return vs, ss, ok
}

var decimal = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)

// integer reads a whole number between low and high.
func (v value) integer(low, high int64) (int64, bool) {
	wanted := fmt.Sprintf("a whole number from %d to %d", low, high)
	if high == math.MaxInt64 {
		wanted = fmt.Sprintf("a whole number, %d or more", low)
	}
	s, expanded, ok := v.scalar(wanted)
	if !ok {
		return 0, false
	}
	switch {
	case v.n.Tag == "!!int" || expanded && v.n.Tag == "!!str":
	case v.n.Tag == "!!float":
		v.errorf("want %s, got %s", wanted, quote(s))
		return 0, false
	default:
		v.errorf("want %s, got %s", wanted, v.kind())
		return 0, false
	}
	n, err := parseCount(strings.TrimPrefix(s, "-"))
	if err != nil {
		v.errorf("%s: %v; want %s", quote(s), err, wanted)
		return 0, false
	}
	if strings.HasPrefix(s, "-") {
		n = -n
	}
	if n < low || n > high {
		v.errorf("want %s, got %d", wanted, n)
		return 0, false
	}
	return n, true
}

// parseCount reads a plain decimal number.
func parseCount(s string) (int64, error) {
	if !decimal.MatchString(s) {
		return 0, fmt.Errorf("not a plain decimal number")
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("too large a number")
	}
	return n, nil
}

// boolean reads true or false, or as YAML 1.1 wrote them: on, off, yes, no.
func (v value) boolean() (b, ok bool) {
	const wanted = "true or false"
	s, _, ok := v.scalar(wanted)
	if !ok {
		return false, false
	}
	switch strings.ToLower(s) {
	case "true", "on", "yes":
		return true, true
	case "false", "off", "no":
		return false, true
	}
	v.errorf("want %s, got %s", wanted, quote(s))
	return false, false
}

// choice reads one of words.
// Where on or off is a word, true and false stand for them, since that is what
// YAML 1.1 makes of them.
func (v value) choice(words []string) (string, bool) {
	wanted := oneOf(words)
	s, _, ok := v.scalar(wanted)
	if !ok {
		return "", false
	}
	if v.n.Tag == "!!bool" {
		switch {
		case strings.EqualFold(s, "true") && slices.Contains(words, "on"):
			s = "on"
		case strings.EqualFold(s, "false") && slices.Contains(words, "off"):
			s = "off"
		}
	}
	if slices.Contains(words, s) {
		return s, true
	}
	v.errorf("want %s, got %s%s", wanted, quote(s), suggest(s, words))
	return "", false
}

// duration reads a duration of at least low and at most high.
func (v value) duration(low, high time.Duration) (time.Duration, bool) {
	const wanted = "a duration with a unit such as 500ms, 30s, 5m, 1h or 1d"
	s, _, ok := v.scalar(wanted)
	if !ok {
		return 0, false
	}
	if v.n.Tag == "!!null" || v.n.Tag == "!!bool" {
		v.errorf("want %s, got %s", wanted, v.kind())
		return 0, false
	}
	d, err := parseDuration(s)
	switch {
	case err != nil:
		v.errorf("%s: %v; want %s", quote(s), err, wanted)
		return 0, false
	case d < 0:
		v.errorf("%s is negative; want %s", quote(s), wanted)
		return 0, false
	case d < low && d == 0:
		v.errorf("%s would leave no time at all; want %s or more", quote(s), formatDuration(low))
		return 0, false
	case d < low:
		v.errorf("%s is too short; want %s or more", quote(s), formatDuration(low))
		return 0, false
	case d > high:
		v.errorf("%s is too long; want %s at most", quote(s), formatDuration(high))
		return 0, false
	}
	return d, true
}

const day = 24 * time.Hour

var durationPart = regexp.MustCompile(`^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d)`)

// parseDuration reads Go's durations, and d for 24 hours. A bare number is not
// a duration, not even 0.
func parseDuration(s string) (time.Duration, error) {
	rest := strings.TrimPrefix(s, "-")
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("a number without a unit (did you mean %q?)", s+"s")
	}
	var sum time.Duration
	for first := true; first || rest != ""; first = false {
		m := durationPart.FindStringSubmatch(rest)
		if m == nil {
			if lower := strings.ToLower(strings.ReplaceAll(s, " ", "")); lower != s {
				if _, err := parseDuration(lower); err == nil {
					return 0, fmt.Errorf("not a duration (did you mean %q?)", lower)
				}
			}
			if weeks, err := strconv.Atoi(strings.TrimSuffix(s, "w")); err == nil && weeks > 0 && weeks < 1000 {
				return 0, fmt.Errorf("not a duration (did you mean %q?)", strconv.Itoa(7*weeks)+"d")
			}
			return 0, fmt.Errorf("not a duration")
		}
		rest = rest[len(m[0]):]
		unit, scale := m[2], time.Duration(1)
		if unit == "d" {
			unit, scale = "h", 24
		}
		part, err := time.ParseDuration(m[1] + unit)
		if err != nil || part > math.MaxInt64/scale || part*scale > math.MaxInt64-sum {
			return 0, fmt.Errorf("too long a duration")
		}
		sum += part * scale
	}
	if strings.HasPrefix(s, "-") {
		sum = -sum
	}
	return sum, nil
}

// formatDuration writes a duration as the files have it: whole days as d, and
// no zero parts.
func formatDuration(d time.Duration) string {
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// unit is a named window of a rate.
type unit struct {
	name   string
	window time.Duration
}

// units are the windows that have a name; a month has 30 days.
var units = []unit{
	{"second", time.Second},
	{"minute", time.Minute},
	{"hour", time.Hour},
	{"day", day},
	{"week", 7 * day},
	{"month", 30 * day},
}

// maxWindow bounds windows: more than a year is a mistake.
const maxWindow = 366 * day

// maxQuota bounds the number of a rate and a burst: clients read them as
// integers of a structured field, which have 15 digits (RFC 9651 section 3.3.1).
const maxQuota = 999_999_999_999_999

const wantedRate = "a rate such as 100/minute (second, minute, hour, day, week, month) or 100/10s"

// rate reads "N/unit".
func (v value) rate() (Rate, bool) {
	r, _, ok := v.rateOf()
	return r, ok
}

// rateOf reads "N/unit", and returns the unit as it is written: a month of the
// calendar is none of 30 days.
func (v value) rateOf() (r Rate, unit string, ok bool) {
	s, _, ok := v.scalar(wantedRate)
	if !ok {
		return Rate{}, "", false
	}
	if v.n.Tag != "!!str" && v.n.Tag != "!!int" && v.n.Tag != "!!float" {
		v.errorf("want %s, got %s", wantedRate, v.kind())
		return Rate{}, "", false
	}
	r, err := parseRate(s)
	if err != nil {
		v.errorf("%s: %v; want %s", quote(s), err, wantedRate)
		return Rate{}, "", false
	}
	_, unit, _ = strings.Cut(s, "/")
	return r, unit, true
}

func parseRate(s string) (Rate, error) {
	count, per, ok := strings.Cut(s, "/")
	if !ok {
		return Rate{}, fmt.Errorf("no unit")
	}
	if strings.HasPrefix(count, "-") {
		return Rate{}, fmt.Errorf("a negative number")
	}
	n, err := parseCount(count)
	if err == nil && n > maxQuota {
		err = fmt.Errorf("too large a number")
	}
	if err != nil {
		return Rate{}, fmt.Errorf("%q: %w", count, err)
	}
	names := make([]string, 0, len(units))
	for _, u := range units {
		if u.name == per {
			return Rate{Quota: n, Window: u.window}, nil
		}
		names = append(names, u.name)
	}
	w, err := parseDuration(per)
	switch {
	case err != nil:
		guess := suggest(per, names)
		if _, number := strconv.ParseFloat(per, 64); number == nil {
			guess = fmt.Sprintf(" (did you mean %q?)", per+"s")
		} else if guess == "" {
			if unit, ok := shortUnits[strings.ToLower(per)]; ok {
				guess = fmt.Sprintf(" (did you mean %q?)", unit)
			}
		}
		return Rate{}, fmt.Errorf("unknown unit %s%s", quote(per), guess)
	case w <= 0 || w%time.Second != 0:
		return Rate{}, fmt.Errorf("the window %s is not a whole number of seconds above 0", quote(per))
	case w > maxWindow:
		return Rate{}, fmt.Errorf("the window %s is longer than %s", quote(per), formatDuration(maxWindow))
	}
	return Rate{Quota: n, Window: w}, nil
}

// shortUnits are what people write for the units of a rate, and are too far from
// them to be guessed by their letters.
var shortUnits = map[string]string{
	"s": "second", "sec": "second", "secs": "second", "m": "minute", "min": "minute", "mins": "minute",
	"h": "hour", "hr": "hour", "hrs": "hour", "d": "day", "daily": "day", "w": "week", "wk": "week",
	"mo": "month", "mon": "month", "mth": "month",
}

// String writes the rate as the files have it: "100/minute", "5/15m".
func (r Rate) String() string {
	per := formatDuration(r.Window)
	for _, u := range units {
		if u.window == r.Window {
			per = u.name
		}
	}
	return strconv.FormatInt(r.Quota, 10) + "/" + per
}

// file resolves a path relative to the file that names it.
func (v value) file(wanted string) (string, bool) {
	s, ok := v.word(wanted)
	if !ok {
		return "", false
	}
	return v.beside(s), true
}

// beside resolves path s relative to the directory of the document.
func (v value) beside(s string) string {
	if filepath.IsAbs(s) {
		return filepath.Clean(s)
	}
	return filepath.Join(filepath.Dir(v.d.name), s)
}

// content reads the file that v names. It reports what is wrong at v, and
// returns the path as shown.
func (v value) content(wanted string) (path string, data []byte, ok bool) {
	return v.contentOf(wanted, false)
}

// contentOf is content; of a file that there is not, secret leaves out the name: who
// writes a secret where its file belongs would read it in the log.
func (v value) contentOf(wanted string, secret bool) (path string, data []byte, ok bool) {
	path, ok = v.file(wanted)
	if !ok {
		return "", nil, false
	}
	data, err := v.d.src.read(path)
	if err != nil && secret && errors.Is(err, errNoFile) {
		v.errorf("no such file; want the name of one that holds the secret (what stands here is not shown, since it may be the secret itself)")
		return path, nil, false
	}
	if err != nil {
		v.errorf("read %s: %v", path, err)
		return path, nil, false
	}
	if len(data) == 0 {
		v.errorf("%s is empty; want %s", path, wanted)
		return path, nil, false
	}
	return path, data, true
}

// maxSecret bounds secrets, in bytes.
const maxSecret = 64 << 10

// secretFile reads a secret from the file that v names and cuts one final
// newline, which an editor or a mounted file adds.
func (v value) secretFile(wanted string) (path string, secret Secret, ok bool) {
	path, s, ok := v.secretText(wanted)
	if !ok {
		return path, nil, false
	}
	v.warnSpace(path, s)
	return path, Secret(s), true
}

// warnSpace warns of white space around a secret that is taken as it stands.
func (v value) warnSpace(path, s string) {
	if strings.TrimSpace(s) != s {
		v.warnf("the secret in %s begins or ends with white space, which is taken as part of it", path)
	}
}

// secretText reads what a file of a secret holds, without its final newline.
func (v value) secretText(wanted string) (path, s string, ok bool) {
	path, data, ok := v.contentOf(wanted, true)
	if !ok {
		return path, "", false
	}
	s = string(data)
	if t, ok := strings.CutSuffix(s, "\r\n"); ok {
		s = t
	} else {
		s = strings.TrimSuffix(s, "\n")
	}
	switch {
	case s == "":
		v.errorf("%s is empty; want %s", path, wanted)
		return path, "", false
	case len(s) > maxSecret:
		v.errorf("%s holds more than %d KiB; is it the right file?", path, maxSecret>>10)
		return path, "", false
	}
	return path, s, true
}
