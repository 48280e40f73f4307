package config

import (
	"math"
	"net/textproto"
	"slices"
	"strings"
)

// limitDecl is a limit and where its parts stand. The limit may be half read:
// ok says that all that decides what it can pay is there.
type limitDecl struct {
	Limit
	at, nameAt value
	ok         bool
}

// capacity is what the limit can pay at most.
func (l *Limit) capacity() int64 {
	if l.Algorithm == "token_bucket" && l.Rate.Quota > 0 {
		return l.Burst
	}
	return l.Rate.Quota
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

// read reads the fields that named limits and those of a plan share.
func (l *limitDecl) read(o *object, named bool) {
	get := o.get
	if named {
		get = o.need
	}
	const wantedPer = "ip, user, api_key, tenant, route, global or header:NAME, or a list of them"
	if v, ok := get("per", wantedPer); ok {
		l.Per = readPer(v)
	} else if !named {
		l.Per = []Dimension{{Kind: PerUser}}
	}
	algorithm := false
	if v, ok := o.need("algorithm", "token_bucket or fixed_window"); ok {
		l.Algorithm, algorithm = v.choice([]string{"token_bucket", "fixed_window"},
			[]string{"sliding_window_log", "sliding_window_counter", "leaky_bucket"})
	}
	rate, countAt := false, o.value
	if v, ok := o.need("limit", wantedRate); ok {
		countAt = v
		l.Rate, rate = v.rate()
	}
	burst := true
	most := l.Rate.Quota
	if v, ok := o.get("burst", "a whole number, 1 or more"); ok {
		if l.Algorithm == "fixed_window" {
			v.keyErrorf("only a token_bucket has a burst; remove it")
			burst = false
		} else if l.Burst, burst = v.integer(1, maxQuota); burst {
			most, countAt = l.Burst, v
		}
	}
	switch {
	case l.Algorithm != "token_bucket":
		l.Burst = 0
	case l.Burst == 0:
		l.Burst = max(l.Rate.Quota, 1)
	}
	const plain = "limit and burst"
	o.later("queue", plain)
	o.later("max_delay", plain)
	if v, ok := o.get("anchor", "first_request"); ok {
		v.choice([]string{"first_request"}, []string{"calendar"})
	}
	o.later("timezone", "anchor: first_request, which needs none")
	o.later("week_start", "anchor: first_request, which needs none")
	o.later("count_rejected", "false", "false", "no", "off")
	o.later("mode", "enforce", "enforce")
	o.later("candidate", plain)
	o.later("lease", plain)
	if v, ok := o.get("local_cap", wantedRate); ok {
		if named {
			l.LocalCap = v.cap()
		} else {
			v.keyErrorf("stands on a plan or on a named limit, not on a limit of a plan; move it to the plan")
		}
	}
	l.ok = algorithm && rate && burst &&
		checkArithmetic(countAt, l.Rate, most, l.Algorithm == "token_bucket")
}

// readPer reads what a limit is counted per: a dimension or a list of them.
func readPer(v value) []Dimension {
	vs, names, ok := v.words("dimensions", true)
	if ok && len(vs) == 0 {
		v.errorf("names nothing; want ip, user, api_key, tenant, route, global or header:NAME")
	}
	var per []Dimension
	for i, s := range names {
		if name, ok := strings.CutPrefix(s, "header:"); ok {
			if !isToken(name) {
				vs[i].errorf("%s is not the name of a header; want header: and letters, digits and -", quote(name))
				continue
			}
			d := Dimension{Kind: PerHeader, Header: textproto.CanonicalMIMEHeaderKey(name)}
			if slices.Contains(per, d) {
				vs[i].errorf("header %s is given twice", d.Header)
				continue
			}
			per = append(per, d)
			continue
		}
		if !slices.Contains(dimensions, s) {
			vs[i].errorf("unknown dimension %s; want %s or header:NAME%s",
				quote(s), strings.Join(dimensions, ", "), suggest(s, dimensions))
			continue
		}
		per = append(per, Dimension{Kind: DimensionKind(s)})
	}
	return per
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

// exact is where whole numbers end that the store's arithmetic tells apart.
const exact = 1 << 53

// checkArithmetic reports a rate whose spent units, at most so many, cannot be
// counted to the microsecond (a warning), or not at all (an error, and false).
//
// A bucket refills num/den units a microsecond and its state is spent × den.
// While that stays within 2^53 it is exact; beyond, each unit is rounded to
// whole microseconds, and most × ceil(window / quota) must stay below.
func checkArithmetic(v value, r Rate, most int64, bucket bool) bool {
	if r.Quota == 0 {
		return true // denies everything, counts nothing
	}
	window := r.Window.Microseconds()
	perUnit := (window + r.Quota - 1) / r.Quota
	if r.Quota >= exact || product(most, perUnit) >= exact {
		v.errorf("too large to be counted: so many units of %d µs each pass 2^53; want smaller numbers", perUnit)
		return false
	}
	den := window / gcd(window, r.Quota)
	if bucket && product(most, den) >= exact {
		v.warnf("more than the exact arithmetic holds: the refill of %s is rounded against the caller, by at most 1 µs a unit; "+
			"a number that divides the window better is exact", r)
	}
	return true
}

// product multiplies two numbers >= 0; too large a product is the largest number.
func product(a, b int64) int64 {
	if a != 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
