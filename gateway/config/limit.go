package config

import (
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"time"
)

// limitDecl is a limit and where its parts stand. The limit may be half read:
// ok says that all that decides what it can pay is there.
type limitDecl struct {
	Limit
	at, nameAt value
	// Where fields stand; given only where the field is.
	perAt, delayAt, rejectedAt, candidateAt, capAt value
	ok                                             bool
	misplaced                                      bool // has a field of another algorithm
	// Where the lease stands, and what it says or the lease itself.
	leaseAt, leaseSizeAt, leaseTTLAt value
}

const wantedLimit = "per, algorithm and limit"

// readLimits reads the named limits.
func (f *routesFile) readLimits(top *object) {
	f.limits = map[string]*limitDecl{}
	v, ok := top.get("limits", "named limits")
	if !ok {
		return
	}
	o, ok := v.object("named limits")
	if !ok {
		return
	}
	for _, v := range o.entries("a limit") {
		name := v.key.Value
		l := &limitDecl{Limit: Limit{Name: name, Pos: v.pos()}, at: v, nameAt: v}
		f.limits[name] = l
		f.order = append(f.order, l)
		if o, ok := v.object(wantedLimit); ok {
			l.read(o, true)
			o.done()
		}
	}
}

// algorithms are the words of algorithm, in the order of the documents.
var algorithms = []string{FixedWindow, SlidingWindowLog, SlidingWindowCounter, TokenBucket, LeakyBucket}

// ownFields says which algorithm has a field that the others do not.
var ownFields = map[string]string{
	"burst": TokenBucket, "queue": LeakyBucket, "max_delay": LeakyBucket,
	"anchor": FixedWindow, "timezone": FixedWindow, "week_start": FixedWindow,
}

// own gets a field of one algorithm, and refuses it beside another.
func (l *limitDecl) own(o *object, name, wanted string) (value, bool) {
	v, ok := o.get(name, wanted)
	if !ok || l.Algorithm == "" || l.Algorithm == ownFields[name] {
		return v, ok
	}
	takes := map[string]string{
		TokenBucket: "limit and burst", LeakyBucket: "limit, queue and max_delay", FixedWindow: "limit, anchor, timezone and week_start",
	}[l.Algorithm]
	if takes == "" {
		takes = "limit alone"
	}
	v.keyErrorf("only a %s has this; remove it (a %s takes %s)", ownFields[name], l.Algorithm, takes)
	l.misplaced = true
	return value{}, false
}

const (
	wantedBurst = "a whole number, 1 or more"
	wantedQueue = "a whole number, 0 or more"
	wantedDelay = "a duration such as 2s"
)

// read reads the fields that named limits and those of a plan share.
func (l *limitDecl) read(o *object, named bool) {
	get := o.get
	if named {
		get = o.need
	}
	const wantedPer = "ip, user, api_key, tenant, route, global or header:NAME, or a list of them"
	if v, ok := get("per", wantedPer); ok {
		l.Per, l.perAt = readPer(v), v
	} else if !named {
		l.Per = []Dimension{{Kind: PerUser}}
	}
	algorithm := false
	if v, ok := o.need("algorithm", oneOf(algorithms)); ok {
		l.Algorithm, algorithm = v.choice(algorithms)
	}
	rate, unit, limitAt := false, "", o.value
	if v, ok := o.need("limit", wantedRate); ok {
		limitAt = v
		l.Rate, unit, rate = v.rateOf()
	}
	shape, burstGiven, shapeAt := l.readShape(o, limitAt)
	calendar := l.readCalendar(o, limitAt, unit)
	l.CountRejected, l.rejectedAt = o.boolean("count_rejected", false), o.fields["count_rejected"]
	if v, ok := o.get("mode", "enforce or shadow"); ok {
		s, _ := v.choice([]string{"enforce", "shadow"})
		l.Shadow = s == "shadow"
	}
	if v, ok := o.get("candidate", "another limit"); ok {
		l.Candidate, l.candidateAt = l.readCandidate(v, rate, burstGiven), v
	}
	l.Lease = l.readLease(o)
	if v, ok := o.get("local_cap", wantedRate); ok {
		if named {
			l.LocalCap, l.capAt = v.cap(), v
		} else {
			v.keyErrorf("stands on a plan or on a named limit, not on a limit of a plan; move it to the plan")
		}
	}
	l.ok = algorithm && rate && shape && calendar && !l.misplaced && l.checkNumbers(limitAt, shapeAt)
	if l.ok {
		l.warnWait(shapeAt)
		l.warnNoWait(l.delayAt)
		l.checkLease()
	}
}

// readShape reads how much may come at once, or wait: burst, or queue and
// max_delay. It returns whether nothing was wrong, whether there is a burst,
// and where the number stands that is counted up to.
func (l *limitDecl) readShape(o *object, limitAt value) (good, burstGiven bool, at value) {
	good, at = true, limitAt
	if v, ok := l.own(o, "burst", wantedBurst); ok {
		if l.Burst, good = v.integer(1, maxQuota); good {
			burstGiven, at = true, v
		}
	}
	if v, ok := l.own(o, "queue", wantedQueue); ok {
		at = v
		var ok bool
		l.Queue, ok = v.integer(0, maxQuota-1)
		good = good && ok
	}
	if v, ok := l.own(o, "max_delay", wantedDelay); ok {
		var ok bool
		l.delayAt = v
		l.MaxDelay, ok = v.duration(time.Millisecond, maxWait)
		good = good && ok
		switch {
		case !good:
		case l.MaxDelay%time.Microsecond != 0:
			v.errorf("is no whole number of microseconds, which is what is counted in")
			good = false
		case l.Queue == 0:
			v.keyWarnf("has no effect: without a queue nothing waits; want queue beside it")
		}
	}
	switch {
	case l.Algorithm != TokenBucket:
		l.Burst = 0
	case l.Burst == 0:
		l.Burst = max(l.Rate.Quota, 1)
	}
	return good, burstGiven, at
}

// readPer reads what a limit is counted per: a dimension or a list of them.
func readPer(v value) []Dimension {
	vs, names, ok := v.words("dimensions", true)
	if ok && len(vs) == 0 {
		v.errorf("names nothing; want ip, user, api_key, tenant, route, global or header:NAME")
	}
	var per []Dimension
	for i, s := range names {
		d, ok := vs[i].dimension(s, dimensions)
		if !ok {
			continue
		}
		if slices.Contains(per, d) { // the same words are found before
			vs[i].errorf("header %s is given twice", d.Header)
			continue
		}
		per = append(per, d)
	}
	return per
}

// dimension is what s stands for: one of known, or a header.
func (v value) dimension(s string, known []string) (Dimension, bool) {
	name, ok := strings.CutPrefix(s, "header:")
	if !ok {
		if !slices.Contains(known, s) {
			v.errorf("unknown dimension %s; want %s or header:NAME%s", quote(s), strings.Join(known, ", "), suggest(s, known))
			return Dimension{}, false
		}
		return Dimension{Kind: DimensionKind(s)}, true
	}
	if !isToken(name) {
		v.errorf("%s is not the name of a header; want header: and letters, digits and -", quote(name))
		return Dimension{}, false
	}
	d := Dimension{Kind: PerHeader, Header: textproto.CanonicalMIMEHeaderKey(name)}
	if slices.Contains(notAKey, d.Header) {
		v.errorf("%s is about the connection or the message, not about who is calling; want a header that a trusted hop sets", d.Header)
		return Dimension{}, false
	}
	return d, true
}

// notAKey are the headers that no limit can be counted per: the server takes
// them out of the request, or every hop writes them anew.
var notAKey = []string{
	"Host", "Connection", "Content-Length", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

var dimensions = []string{
	string(PerIP), string(PerUser), string(PerAPIKey), string(PerTenant), string(PerRoute), string(PerGlobal),
}

// String writes the dimension as the files have it.
func (d Dimension) String() string {
	if d.Kind == PerHeader {
		return "header:" + d.Header
	}
	return string(d.Kind)
}

// cap reads a local cap: a rate, with a burst of its number.
func (v value) cap() *Rate {
	r, ok := v.rate()
	if !ok || !checkArithmetic(v, r, max(r.Quota, 1), true) {
		return nil
	}
	return &r
}

// Words is what l grants, without its algorithm: 100/minute, burst 20.
func (l *Limit) Words() string {
	s := l.Rate.String()
	if l.Calendar != nil {
		s += " (" + l.Calendar.String() + ")"
	}
	if l.Burst > 0 {
		s += fmt.Sprintf(", burst %d", l.Burst)
	}
	if l.Algorithm == LeakyBucket {
		s += fmt.Sprintf(", queue %d", l.Queue)
		if l.MaxDelay > 0 {
			s += fmt.Sprintf(", max_delay %s", l.MaxDelay)
		}
	}
	if l.CountRejected {
		s += ", counts rejected"
	}
	return s
}
