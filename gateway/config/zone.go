package config

import (
	_ "embed" // for the names of the zones
	"strings"
	"sync"
	"time"
)

// zoneList are the names of the IANA time zone database that comes with Go.
//
// The package time can load a zone but not list them, and what it loads
// depends on the machine: "Local" is another place on each, and the files of
// some systems have names of their own such as right/UTC, which counts leap
// seconds. A limit must mean the same on every instance, so only these names
// are taken, and they are what a guess is made from.
//
//go:embed zones.txt
var zoneList string

var zones = sync.OnceValue(func() []string { return strings.Fields(zoneList) })

const wantedZone = "an IANA timezone such as UTC, Europe/Berlin or Asia/Kolkata"

// zone reads a time zone.
func (v value) zone() (*time.Location, bool) {
	s, ok := v.word(wantedZone)
	if !ok {
		return nil, false
	}
	return v.zoneNamed(s)
}

// zoneNamed returns the time zone s, of which v speaks.
func (v value) zoneNamed(s string) (*time.Location, bool) {
	for _, name := range zones() {
		if name != s {
			continue
		}
		location, err := time.LoadLocation(s)
		if err != nil {
			v.errorf("the data of timezone %s cannot be read: neither this machine nor the program has it", quote(s))
			return nil, false
		}
		return location, true
	}
	v.errorf("unknown timezone %s; want %s%s", quote(s), wantedZone, suggestZone(s))
	return nil, false
}

// suggestZone guesses the zone that was meant: one with nearly that name, or
// with nearly that city. Abbreviations are left alone, since IST is India,
// Ireland and Israel, and what looks like it is none of them.
func suggestZone(s string) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), " ", "_")
	for _, name := range zones() {
		if strings.EqualFold(name, s) {
			return suggest(s, []string{name})
		}
	}
	if len(s) < 5 || len(s) > maxName {
		return ""
	}
	if strings.Contains(s, "/") {
		if guess := suggest(s, zones()); guess != "" {
			return guess
		}
	}
	city := strings.ToLower(s[strings.LastIndexByte(s, '/')+1:])
	best, bestDistance := "", 2
	for _, name := range zones() {
		own := strings.ToLower(name[strings.LastIndexByte(name, '/')+1:])
		if d := distance(city, own, bestDistance); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return ` (did you mean "` + best + `"?)`
}
