package pulse

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// What a Finding is the doing of.
const (
	CauseClient   = "client"
	CauseLimit    = "limit"
	CauseRedis    = "redis"
	CauseUpstream = "upstream"
	CauseGateway  = "gateway"
	CauseConfig   = "config"
)

// How soon somebody is to do something about a Finding.
const (
	Act  = "act"  // now: callers notice
	Look = "look" // by day, or it becomes worse
)

// A Finding says in words what is wrong, and what to do next.
type Finding struct {
	Cause    string    `json:"cause"`
	Severity string    `json:"severity"`
	Title    string    `json:"title"`
	Text     string    `json:"text"`
	Subject  Subject   `json:"subject"`
	Since    time.Time `json:"since"`
	// Runbook is the heading of docs/RUNBOOK.md that says more.
	Runbook string `json:"runbook"`
}

// A Subject is what a Finding is about; what does not apply is empty.
type Subject struct {
	Key      string `json:"key"`
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Limit    string `json:"limit"`
	Plan     string `json:"plan"`
	Route    string `json:"route"`
	Upstream string `json:"upstream"`
}

// Circumstances are the figures that findings follow from. Rates are per second, over
// the last seconds; durations in seconds; NaN is one that is not known.
type Circumstances struct {
	Requests, AddedP90   float64 // AddedP90: nine requests of ten are held up less
	Limits               []LimitRates
	Denied, Near         []Caller
	LogDropped, Overflow float64
	OpenFiles, MaxFiles  float64 // MaxFiles 0: not known
	// Waits: a request may be held back by a limit, or wait for a place at an
	// upstream, which counts as the gateway's latency and is none of its faults.
	Waits bool

	Store     StoreState
	Upstreams []UpstreamState
	// Rejected are the mistakes of the last configuration, if it was not taken.
	Rejected []string
	// Hashes are how many instances have which configuration; Hash is the own one.
	Hashes map[string]int
	Hash   string
}

// A Caller is an entry of a list of the heaviest, and what it gains per second.
type Caller struct {
	Key, Kind, Name, Limit string
	PerSecond              float64
}

// StoreState is how the limit store does.
type StoreState struct {
	Shared, Away bool
	AwayNodes    []string
	Modes        []string // what routes do without it
	P90, Timeout float64  // nine decisions of ten take less
	Errors       map[string]float64
}

// UpstreamState is how an upstream does.
type UpstreamState struct {
	Upstream         string
	CircuitOpen      bool
	Targets          int
	Out              []string // the targets that are left out
	Requests, Errors float64
	// Nine attempts of ten take less than P90, and usually 99 of a hundred less than
	// Usual. Wait is how long it is waited for an answer at most.
	P50, P90, Usual, Wait float64
	Refused               float64
}

// The figures from which on something is worth a word.
const (
	leastDenied   = 0.5  // denials per second of a limit
	dominates     = 0.5  // the part of one caller of them
	severalDenied = 5    // callers
	tightRate     = 0.1  // the part of verdicts that are denials
	verySevere    = 0.5  // the same, so that somebody has to act
	manyNear      = 10   // callers
	nearRate      = 0.1  // the part of what is admitted
	storeSlow     = 0.5  // the part of its timeout that it takes
	storeTooSlow  = 0.8  // the same, so that somebody has to act
	upstreamFails = 0.05 // the part of attempts
	failsBadly    = 0.25
	slower        = 5    // times as slow as usual
	slowLeast     = 0.25 // seconds
	gatewaySlow   = 0.1  // seconds
	gatewayStands = 0.5  // seconds
	filesNear     = 0.8  // the part of what may be open
)

// Conditions are the findings that hold at a moment. It looks at nothing but c.
func Conditions(c *Circumstances) (list []Finding) {
	list = append(list, aboutLimits(c)...)
	list = append(list, aboutStore(&c.Store)...)
	for i := range c.Upstreams {
		list = append(list, aboutUpstream(&c.Upstreams[i])...)
	}
	list = append(list, aboutGateway(c)...)
	return append(list, aboutConfig(c)...)
}

// An evened limit is one by its name, over all plans and routes.
type evened struct {
	name            string
	plans, routes   []string // where it denies, or where it does not anywhere, all
	allowed, denied float64
	denials, near   []Caller
}

func (l *evened) subject() Subject {
	s := Subject{Limit: l.name}
	if len(l.plans) == 1 {
		s.Plan = l.plans[0]
	}
	if len(l.routes) == 1 {
		s.Route = l.routes[0]
	}
	return s
}

func byName(c *Circumstances) []*evened {
	limits := map[string]*evened{}
	denies := map[string]bool{}
	for i := range c.Limits {
		if c.Limits[i].Denied > 0 {
			denies[c.Limits[i].Limit.Limit] = true
		}
	}
	var list []*evened
	of := func(name string) *evened {
		l := limits[name]
		if l == nil {
			l = &evened{name: name}
			limits[name] = l
			list = append(list, l)
		}
		return l
	}
	for i := range c.Limits {
		r := &c.Limits[i]
		l := of(r.Limit.Limit)
		l.allowed, l.denied = l.allowed+r.Allowed, l.denied+r.Denied
		if r.Denied == 0 && denies[l.name] {
			continue
		}
		if !slices.Contains(l.plans, r.Plan) {
			l.plans = append(l.plans, r.Plan)
		}
		if !slices.Contains(l.routes, r.Route) {
			l.routes = append(l.routes, r.Route)
		}
	}
	for _, who := range c.Denied {
		if who.PerSecond > 0 {
			l := of(who.Limit)
			l.denials = append(l.denials, who)
		}
	}
	for _, who := range c.Near {
		if who.PerSecond > 0 {
			l := of(who.Limit)
			l.near = append(l.near, who)
		}
	}
	busiest := func(a, b Caller) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), strings.Compare(a.Key, b.Key))
	}
	for _, l := range list {
		slices.SortFunc(l.denials, busiest)
		slices.SortFunc(l.near, busiest)
	}
	return list
}

func aboutLimits(c *Circumstances) (list []Finding) {
	for _, l := range byName(c) {
		if l.denied < leastDenied {
			list = append(list, aboutNear(l)...)
			continue
		}
		if len(l.denials) == 0 {
			continue // who it is will be known in a moment
		}
		// Who is denied how often and how often the limit denies are measured over
		// different times: a part is not more than the whole.
		top := l.denials[0]
		top.PerSecond = min(top.PerSecond, l.denied)
		share := top.PerSecond / l.denied
		rate := l.denied / (l.allowed + l.denied)
		switch {
		case sharedByAll(&top):
			list = append(list, tooTight(l, rate, fmt.Sprintf(
				"All callers share one budget of the limit %s, and it is spent: %s are denied a request. ", l.name, often(l.denied)))...)
		case share >= dominates:
			f := Finding{Cause: CauseClient, Severity: Look, Runbook: "noisy-client", Subject: l.subject()}
			f.Subject.Key, f.Subject.Kind, f.Subject.Name = top.Key, top.Kind, top.Name
			f.Title = fmt.Sprintf("One caller makes %s of the denials of %s", percent(share), l.name)
			f.Text = fmt.Sprintf("%s is denied %s by the limit %s, of %s in all. The limit does what it is there for. %s"+
				"Open the caller's page: if it retries without waiting, ask its owner to honour Retry-After; if it has a good reason, give it a plan with more.",
				who(&top), often(top.PerSecond), l.name, often(l.denied), perhapsMany(&top))
			list = append(list, f)
		case len(l.denials) < severalDenied:
			f := Finding{Cause: CauseClient, Severity: Look, Runbook: "noisy-client", Subject: l.subject()}
			f.Subject.Key, f.Subject.Kind, f.Subject.Name = top.Key, top.Kind, top.Name
			f.Title = fmt.Sprintf("%s the denials of %s", makes(len(l.denials)), l.name)
			f.Text = fmt.Sprintf("The limit %s denies %s. %s is denied most: %s. These few are noisy rather than the limit tight. Open their pages, and see what they do.",
				l.name, often(l.denied), who(&top), often(top.PerSecond))
			list = append(list, f)
		default:
			list = append(list, tooTight(l, rate, fmt.Sprintf(
				"%s callers are held back by the limit %s, %s in all, and none makes more than %s of it. So it is the limit, or a crowd, rather than one client. ",
				atLeast(len(l.denials)), l.name, often(l.denied), percent(share)))...)
		}
	}
	return list
}

// tooTight is about a limit that denies a good part of what it is asked.
func tooTight(l *evened, rate float64, what string) []Finding {
	if rate < tightRate {
		return nil
	}
	f := Finding{Cause: CauseLimit, Severity: Look, Runbook: "limit-too-tight", Subject: l.subject()}
	if rate >= verySevere {
		f.Severity = Act
	}
	f.Title = fmt.Sprintf("%s denies %s of what it is asked", l.name, percent(rate))
	f.Text = what + "See when it began and what was changed then; gateway simulate says what another number would do, and a candidate tries it beside the live one."
	return []Finding{f}
}

// sharedByAll reports whether a bucket is nobody's own.
func sharedByAll(c *Caller) bool {
	return c.Kind == "other" && (strings.HasPrefix(c.Name, "{global") || strings.HasPrefix(c.Name, "{route"))
}

// perhapsMany warns of an address, behind which there may be many people.
func perhapsMany(c *Caller) string {
	if c.Kind != "ip" {
		return ""
	}
	return "An address may be many people: its page says how many users were seen behind it. "
}

// aboutNear is about callers who are admitted, and soon may not be.
func aboutNear(l *evened) []Finding {
	spent := 0.0
	for i := range l.near {
		spent += l.near[i].PerSecond
	}
	if len(l.near) < manyNear || l.allowed == 0 || spent < nearRate*l.allowed {
		return nil
	}
	f := Finding{Cause: CauseLimit, Severity: Look, Runbook: "near-limit", Subject: l.subject()}
	f.Title = fmt.Sprintf("%s callers are close to %s", atLeast(len(l.near)), l.name)
	f.Text = fmt.Sprintf("%s of the requests that the limit %s admits leave their caller a tenth of it or less. A little more, and they are denied. "+
		"If the traffic is wanted, raise the limit before that; the list of callers near a limit says who they are.", percent(min(spent/l.allowed, 1)), l.name)
	return []Finding{f}
}

// atLeast is a number of callers, of which no more than Trended are told apart.
func atLeast(n int) string {
	if n >= Trended-5 {
		return fmt.Sprintf("More than %d", n-1)
	}
	return fmt.Sprint(n)
}

// without says what routes do without the store.
func without(modes []string) string {
	var says []string
	for _, m := range modes {
		switch m {
		case "local_cap":
			says = append(says, "each instance counts by itself, up to its share (local_cap)")
		case "deny":
			says = append(says, "requests are answered with 503 (deny)")
		case "allow":
			says = append(says, "nothing is limited (allow)")
		}
	}
	return strings.Join(says, "; ")
}

func aboutStore(s *StoreState) (list []Finding) {
	failed, worst, worstRate := 0.0, "", 0.0
	for kind, n := range s.Errors {
		failed += n
		if n > worstRate || n == worstRate && kind < worst {
			worst, worstRate = kind, n
		}
	}
	switch {
	case !s.Shared:
	case s.Away:
		f := Finding{Cause: CauseRedis, Severity: Act, Runbook: "redis-away", Title: "Redis is away"}
		who := "Redis does not answer"
		if n := len(s.AwayNodes); n > 0 {
			f.Title = "A part of Redis is away"
			who = "These nodes do not answer: " + someOf(s.AwayNodes)
		}
		if worst != "" {
			who += fmt.Sprintf(" (%s, %s)", worst, often(worstRate))
		}
		f.Text = who + ". Meanwhile, by the on_store_failure of the routes: " + without(s.Modes) +
			". See that Redis runs and that this machine reaches it: gateway doctor asks it. What was counted meanwhile is settled when it is back."
		list = append(list, f)
	case s.P90 >= storeSlow*s.Timeout && s.Timeout > 0:
		f := Finding{Cause: CauseRedis, Severity: Look, Runbook: "redis-slow", Title: "Redis is slow"}
		if s.P90 >= storeTooSlow*s.Timeout {
			f.Severity = Act
		}
		f.Text = fmt.Sprintf("One decision in ten takes Redis %s or longer, of the %s that store.redis.timeout allows; calls fail %s. Beyond it a request is decided without Redis. "+
			"See the load of Redis and its slow log (SLOWLOG GET), and the network between.", seconds(s.P90), seconds(s.Timeout), often(failed))
		list = append(list, f)
	case failed >= leastDenied:
		list = append(list, Finding{
			Cause: CauseRedis, Severity: Look, Runbook: "redis-slow", Title: "Calls of Redis fail",
			Text: fmt.Sprintf("They fail %s, most with %s (%s), and Redis is not taken to be away. The log of the gateway has the errors; gateway doctor asks Redis.",
				often(failed), worst, often(worstRate)),
		})
	}
	return list
}

func aboutUpstream(u *UpstreamState) (list []Finding) {
	find := func(severity, runbook, title, text string) {
		list = append(list, Finding{
			Cause: CauseUpstream, Severity: severity, Runbook: runbook, Title: title, Text: text, Subject: Subject{Upstream: u.Upstream},
		})
	}
	part := 0.0
	if u.Requests > 0 {
		part = u.Errors / u.Requests
	}
	switch {
	case u.CircuitOpen:
		find(Act, "circuit-open", fmt.Sprintf("The upstream %s is left alone, since it fails", u.Upstream),
			fmt.Sprintf("Its circuit is open: requests are answered with 503, %s, but for a few that try whether it is well. It closes by itself. See the log of the upstream, and what it depends on.", often(u.Refused)))
	case u.Targets > 0 && len(u.Out) == u.Targets:
		find(Act, "upstream-failing", fmt.Sprintf("No target of %s is well", u.Upstream),
			fmt.Sprintf("All of them cannot be reached or fail their checks (%s), and requests go to them all the same. It is not the gateway and not Redis: see that the upstream runs, and that this machine reaches it.", someOf(u.Out)))
	case u.Requests >= leastDenied && part >= upstreamFails:
		severity := Look
		if part >= failsBadly {
			severity = Act
		}
		find(severity, "upstream-failing", fmt.Sprintf("%s of the answers of %s are errors", percent(part), u.Upstream),
			fmt.Sprintf("Of %s attempts a second, %s get no answer or one of 500 and above. It is the upstream, not the gateway: see its log; the targets of the list say whether it is one of them or all.", number(u.Requests), number(u.Errors)))
	case len(u.Out) > 0:
		find(Look, "upstream-failing", fmt.Sprintf("%d of %d targets of %s are left out", len(u.Out), u.Targets, u.Upstream),
			fmt.Sprintf("They cannot be reached or fail their checks: %s. The others get their requests. See whether they are enough, and what is wrong with these.", someOf(u.Out)))
	}
	slow := u.P90 >= slowLeast && u.P90 >= slower*u.Usual // false if one is not known
	if u.Requests >= leastDenied && (slow || u.Wait > 0 && u.P50 >= u.Wait/2) {
		severity := Look
		usual := "How long it usually takes is not known yet"
		if !math.IsNaN(u.Usual) {
			usual = "Usually it is one in a hundred that takes " + seconds(u.Usual)
		}
		if u.P90 >= 4*slowLeast {
			severity = Act
		}
		find(severity, "upstream-slow", fmt.Sprintf("The upstream %s is slow", u.Upstream),
			fmt.Sprintf("One answer in ten takes %s or longer. %s. What the gateway adds is shown by itself. See the upstream's own metrics and what it depends on; with max_in_flight it does not drag the others along.", seconds(u.P90), usual))
	}
	return list
}

func aboutGateway(c *Circumstances) (list []Finding) {
	find := func(severity, runbook, title, text string) {
		list = append(list, Finding{Cause: CauseGateway, Severity: severity, Runbook: runbook, Title: title, Text: text})
	}
	s := &c.Store
	storeIsQuick := !s.Away && !(s.P90 >= c.AddedP90/2) && !(s.P90 >= storeSlow*s.Timeout) // also where it is not asked
	if c.AddedP90 >= gatewaySlow && storeIsQuick && c.Requests >= 1 && !c.Waits {
		severity := Look
		if c.AddedP90 >= gatewayStands {
			severity = Act
		}
		find(severity, "gateway-slow", "The gateway itself is slow",
			fmt.Sprintf("One request in ten takes %s or longer besides what its upstream takes, and it is not Redis that takes it. See the CPU of this process and of its machine, and whether its container is throttled; another instance shares the load.", seconds(c.AddedP90)))
	}
	if c.LogDropped > 0 {
		find(Look, "log-dropped", "Lines of the log are lost",
			fmt.Sprintf("Whatever reads standard output is too slow or gone: lines are lost, %s. Requests go on. See the collector of the log, or log fewer lines.", often(c.LogDropped)))
	}
	if c.Overflow > 0 {
		find(Act, "overflow", "A table of callers is full",
			fmt.Sprintf("More callers are counted in memory than store.memory.max_keys: what does not fit shares one budget, %s. See whether somebody makes up names or addresses; otherwise raise it.", often(c.Overflow)))
	}
	if c.MaxFiles > 0 && c.OpenFiles >= filesNear*c.MaxFiles {
		find(Act, "gateway-slow", "The gateway has nearly as many files open as it may",
			fmt.Sprintf("%.0f of %.0f. Beyond that it takes no connections. Raise the limit (LimitNOFILE=, ulimit -n), and see who has so many connections open.", c.OpenFiles, c.MaxFiles))
	}
	return list
}

func aboutConfig(c *Circumstances) (list []Finding) {
	if n := len(c.Rejected); n > 0 {
		list = append(list, Finding{
			Cause: CauseConfig, Severity: Act, Runbook: "config-rejected", Title: "The new configuration was not taken",
			Text: fmt.Sprintf("It has %s, and the one before stays in force. A restart would fail. The first: %s. Correct the files; gateway check says the same before a reload does.", countOf(n, "mistake"), cutText(c.Rejected[0])),
		})
	}
	if len(c.Hashes) > 1 {
		var says []string
		for hash, n := range c.Hashes {
			own := ""
			if hash == c.Hash {
				own = " (this one)"
			}
			has := "have"
			if n == 1 {
				has = "has"
			}
			says = append(says, fmt.Sprintf("%s %s %s%s", countOf(n, "instance"), has, hash, own))
		}
		slices.Sort(says)
		list = append(list, Finding{
			Cause: CauseConfig, Severity: Look, Runbook: "config-differs", Title: "Instances have different configurations",
			Text: someOf(says) + ". While a change is rolled out that passes. Otherwise one of them did not take it, or was not given it: the list of instances says which, and its own page why.",
		})
	}
	return list
}

// someOf names a few, and says how many more there are.
func someOf(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func who(c *Caller) string {
	kinds := map[string]string{"user": "The user ", "key": "The key ", "ip": "The address "}
	if k, ok := kinds[c.Kind]; ok {
		return k + c.Name
	}
	return "The caller " + c.Name
}

func makes(callers int) string {
	if callers == 1 {
		return "One caller makes"
	}
	return fmt.Sprintf("%d callers make", callers)
}

func percent(part float64) string {
	p := 100 * part
	if p < 1 {
		return fmt.Sprintf("%.1f %%", p)
	}
	return fmt.Sprintf("%.0f %%", p)
}

// often says how often, in what is easiest to picture.
func often(perSecond float64) string {
	switch {
	case perSecond >= 10:
		return fmt.Sprintf("%.0f times a second", perSecond)
	case perSecond >= 1:
		return fmt.Sprintf("%.1f times a second", perSecond)
	default:
		return fmt.Sprintf("%.0f times a minute", math.Ceil(60*perSecond))
	}
}

func number(n float64) string {
	if n >= 10 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.1f", n)
}

func seconds(s float64) string {
	switch {
	case s >= 1:
		return fmt.Sprintf("%.1f s", s)
	case s >= 0.01:
		return fmt.Sprintf("%.0f ms", 1000*s)
	default:
		return fmt.Sprintf("%.1f ms", 1000*s)
	}
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// cutText bounds a mistake's text: it may quote the file.
func cutText(s string) string {
	const most = 300
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
