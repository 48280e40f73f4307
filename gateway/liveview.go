package gateway

import (
	"cmp"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"bouncer/gateway/admin"
	"bouncer/gateway/config"
	"bouncer/gateway/proxy"
	"bouncer/gateway/pulse"
)

// shownKeys is how many of the heaviest are shown.
const shownKeys = 20

// liveState is what /api/live says. Rates are per second.
type liveState struct {
	At        time.Time              `json:"at"`
	Seq       uint64                 `json:"seq"`
	Instance  liveSelf               `json:"instance"`
	Ready     bool                   `json:"ready"`
	Reason    string                 `json:"reason"`
	Degraded  []admin.Degraded       `json:"degraded"`
	Config    liveConfig             `json:"config"`
	Findings  []pulse.Finding        `json:"findings"`
	Now       map[string]pulse.Value `json:"now"`
	Routes    []liveRoute            `json:"routes"`
	Limits    []liveLimit            `json:"limits"`
	TopDenied []liveKey              `json:"top_denied"`
	TopNear   []liveKey              `json:"top_near"`
	Store     liveStore              `json:"store"`
	Upstreams []liveUpstream         `json:"upstreams"`
	Instances []liveInstance         `json:"instances"`
	Process   liveProcess            `json:"process"`
	Streams   int                    `json:"streams"`
	More      map[string]int         `json:"more,omitempty"`
}

type liveSelf struct {
	ID        string    `json:"id"`
	Hostname  string    `json:"hostname"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
}

type liveConfig struct {
	Hash     string                `json:"hash"`
	LoadedAt time.Time             `json:"loaded_at"`
	Rejected *admin.RejectedReload `json:"rejected"`
	Reloads  liveReloads           `json:"reloads"`
}

type liveReloads struct {
	Applied  int `json:"applied"`
	Rejected int `json:"rejected"`
}

type liveRoute struct {
	Route    string      `json:"route"`
	Requests pulse.Value `json:"requests"`
	Denied   pulse.Value `json:"denied"`
	Failed   pulse.Value `json:"failed"`
	P50      pulse.Value `json:"p50_ms"`
	P99      pulse.Value `json:"p99_ms"`
	InFlight pulse.Value `json:"in_flight"`
}

type liveLimit struct {
	Plan            string                 `json:"plan"`
	Limit           string                 `json:"limit"`
	Route           string                 `json:"route"`
	Allowed         pulse.Value            `json:"allowed"`
	Denied          pulse.Value            `json:"denied"`
	DenyRate        pulse.Value            `json:"deny_rate"`
	ShadowDenied    pulse.Value            `json:"shadow_denied"`
	CandidateDenied pulse.Value            `json:"candidate_denied"`
	Source          map[string]pulse.Value `json:"source"`
}

type liveKey struct {
	Key       string        `json:"key"`
	Limit     string        `json:"limit"`
	Partition string        `json:"partition"`
	Kind      string        `json:"kind"`
	Name      string        `json:"name"`
	Count     pulse.Value   `json:"count"`
	Error     pulse.Value   `json:"error"`
	PerMinute pulse.Value   `json:"per_minute"`
	Share     pulse.Value   `json:"share"`
	Trend     []pulse.Value `json:"trend"`
}

type liveStore struct {
	Kind      string                 `json:"kind"`
	Away      bool                   `json:"away"`
	AwayNodes []string               `json:"away_nodes"`
	Since     *time.Time             `json:"since"`
	Modes     []string               `json:"modes"`
	Errors    map[string]pulse.Value `json:"errors"`
	Blocks    pulse.Value            `json:"lease_blocks"`
	Denials   pulse.Value            `json:"deny_cache_entries"`
	Overflow  pulse.Value            `json:"overflow"`
}

type liveUpstream struct {
	Upstream    string       `json:"upstream"`
	CircuitOpen bool         `json:"circuit_open"`
	InFlight    int64        `json:"in_flight"`
	MaxInFlight *int         `json:"max_in_flight"`
	Refused     pulse.Value  `json:"refused"`
	Retries     pulse.Value  `json:"retries"`
	P50         pulse.Value  `json:"p50_ms"`
	P99         pulse.Value  `json:"p99_ms"`
	Targets     []liveTarget `json:"targets"`
}

type liveTarget struct {
	Target   string                 `json:"target"`
	Up       bool                   `json:"up"`
	Since    *time.Time             `json:"since"`
	Requests pulse.Value            `json:"requests"`
	Errors   pulse.Value            `json:"errors"`
	Status   map[string]pulse.Value `json:"status"`
}

type liveInstance struct {
	ID         string      `json:"id"`
	Self       bool        `json:"self"`
	Hostname   string      `json:"hostname"`
	Version    string      `json:"version"`
	Since      time.Time   `json:"since"`
	StartedAt  time.Time   `json:"started_at"`
	ConfigHash string      `json:"config_hash"`
	Requests   pulse.Value `json:"requests"`
	Denied     pulse.Value `json:"denied"`
	Failed     pulse.Value `json:"failed"`
	P99        pulse.Value `json:"p99_ms"`
	InFlight   pulse.Value `json:"in_flight"`
	StoreAway  *bool       `json:"store_away"`
}

type liveProcess struct {
	Goroutines int         `json:"goroutines"`
	RSS        pulse.Value `json:"rss_bytes"`
	Heap       pulse.Value `json:"heap_bytes"`
	OpenFiles  pulse.Value `json:"open_files"`
	CPU        pulse.Value `json:"cpu"`
	LogDropped pulse.Value `json:"log_dropped"`
}

// composeLocked puts the live state together.
func (o *overview) composeLocked() *liveState {
	g := o.gw
	rates := o.pulse.Rates()
	st := &liveState{
		At: time.Now().UTC(), Seq: o.seq, Findings: o.found, Now: o.pulse.Now(), Streams: o.feed.Streams(),
		Routes: []liveRoute{}, Limits: []liveLimit{}, More: map[string]int{},
	}
	if st.Findings == nil {
		st.Findings = []pulse.Finding{}
	}
	r := g.readiness()
	st.Ready, st.Reason, st.Degraded = r.Ready, r.Reason, r.Degraded
	if st.Degraded == nil {
		st.Degraded = []admin.Degraded{}
	}
	status := g.status()
	self := g.announcement()
	st.Instance = liveSelf{ID: g.instance, Hostname: self.Hostname, Version: g.options.Version, StartedAt: g.started.UTC()}
	st.Config = liveConfig{Hash: status.ConfigHash, LoadedAt: status.ConfigLoadedAt.UTC(), Rejected: status.RejectedReload}
	st.Config.Reloads.Applied, st.Config.Reloads.Rejected = g.telemetry.Reloads()

	for _, one := range rates.Routes {
		st.Routes = append(st.Routes, liveRoute{
			Route: one.Route, Requests: pulse.Value(one.Requests), Denied: pulse.Value(one.Denied), Failed: pulse.Value(one.Failed),
			P50: ms(one.P50), P99: ms(one.P99), InFlight: pulse.Value(one.InFlight),
		})
	}
	for _, one := range rates.Limits {
		l := liveLimit{
			Plan: one.Plan, Limit: one.Limit.Limit, Route: one.Route, Allowed: pulse.Value(one.Allowed), Denied: pulse.Value(one.Denied),
			DenyRate:     pulse.Value(one.Denied / (one.Allowed + one.Denied)), // NaN of none
			ShadowDenied: pulse.Value(one.ShadowDenied), CandidateDenied: pulse.Value(one.CandidateDenied), Source: valuesOf(one.Sources),
		}
		st.Limits = append(st.Limits, l)
	}
	st.TopDenied = o.keysLocked(o.denied, g.topDenied.Top(shownKeys), g.topDenied.Total())
	st.TopNear = o.keysLocked(o.near, g.topNear.Top(shownKeys), g.topNear.Total())
	st.Store = liveStore{
		Kind: status.Fallback.Store, Away: status.Fallback.Active, AwayNodes: orEmpty(status.Fallback.Away), Modes: orEmpty(status.Fallback.Modes),
		Errors: valuesOf(rates.StoreErrors), Blocks: st.Now["leases.blocks"], Denials: st.Now["deny_cache.entries"], Overflow: pulse.Value(rates.Overflow),
	}
	if status.Fallback.Active {
		since := status.Fallback.Since.UTC()
		st.Store.Since = &since
	}
	var more int
	st.Upstreams, more = g.liveUpstreams(rates)
	for what, n := range map[string]int{"routes": rates.MoreRoutes, "limits": rates.MoreLimits, "upstreams": more} {
		if n > 0 {
			st.More[what] = n
		}
	}
	st.Instances = g.liveInstances()
	m := &o.machine
	st.Process = liveProcess{Goroutines: m.goroutines, RSS: m.rss, Heap: m.heap, OpenFiles: m.files, CPU: m.cpu, LogDropped: pulse.Value(rates.LogDropped)}
	return st
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func valuesOf(rates map[string]float64) map[string]pulse.Value {
	out := make(map[string]pulse.Value, len(rates))
	for name, n := range rates {
		out[name] = pulse.Value(n)
	}
	return out
}

// keysLocked are the heaviest of a list, and how each moves.
func (o *overview) keysLocked(trends *pulse.Trends, top []topEntry, total float64) []liveKey {
	list := make([]liveKey, 0, len(top))
	for _, e := range top {
		limit, partition, _ := strings.Cut(e.Key, " ")
		kind, name := whoIs(partition)
		list = append(list, liveKey{
			Key: e.Key, Limit: limit, Partition: partition, Kind: kind, Name: name, Count: pulse.Value(e.Count), Error: pulse.Value(e.Error),
			PerMinute: trends.PerMinute(e.Key), Share: pulse.Value(min(e.Count/total, 1)), Trend: trends.Trend(e.Key),
		})
	}
	return list
}

// whoIs says whose bucket a partition is: the user, else the key, else the address of
// its parts; other, with the partition itself, where it has none of these. It is what
// partition has made, perhaps cut.
func whoIs(partition string) (kind, name string) {
	found := map[string]string{}
	for p := range strings.SplitSeq(strings.Trim(partition, "{}"), "|") {
		dimension, value, _ := strings.Cut(p, ":")
		if text, err := url.PathUnescape(value); err == nil && value != "" {
			found[dimension] = text
		}
	}
	for _, k := range [...]struct {
		dimension config.DimensionKind
		kind      string
	}{{config.PerUser, "user"}, {config.PerAPIKey, "key"}, {config.PerIP, "ip"}} {
		if name, ok := found[string(k.dimension)]; ok {
			return k.kind, name
		}
	}
	return "other", partition
}

// upstreamList are the upstreams in force, by name.
func (g *Gateway) upstreamList() []*pooled {
	g.mu.Lock()
	up := g.upstreams
	g.mu.Unlock()
	list := make([]*pooled, 0, len(up))
	for _, name := range slices.Sorted(maps.Keys(up)) {
		list = append(list, up[name])
	}
	return list
}

// liveUpstreams are the upstreams, the busiest first, and how many more there are.
func (g *Gateway) liveUpstreams(rates *pulse.Rates) (list []liveUpstream, more int) {
	list = []liveUpstream{}
	busy := map[string]float64{}
	for _, p := range g.upstreamList() {
		u := liveUpstream{Upstream: p.cfg.Name, CircuitOpen: p.upstream.CircuitOpen(), InFlight: p.upstream.InFlight(), Targets: []liveTarget{}, P50: pulse.Unknown(), P99: pulse.Unknown()}
		if p.cfg.MaxInFlight > 0 {
			u.MaxInFlight = &p.cfg.MaxInFlight
		}
		if r, ok := rates.Upstreams[u.Upstream]; ok {
			u.Refused, u.Retries, u.P50, u.P99 = pulse.Value(r.Refused), pulse.Value(r.Retries), ms(r.P50), ms(r.P99)
		}
		out := p.upstream.LeftOut()
		of := map[string]pulse.TargetRates{}
		for _, t := range rates.Targets[u.Upstream] {
			of[t.Target] = t
			busy[u.Upstream] += t.Requests
		}
		for _, t := range p.cfg.Targets[:min(len(p.cfg.Targets), pulse.MaxTargets)] {
			name := proxy.TargetName(t.URL)
			r := of[name]
			one := liveTarget{Target: name, Up: true, Requests: pulse.Value(r.Requests), Errors: pulse.Value(r.Errors), Status: map[string]pulse.Value{"error": pulse.Value(r.NoAnswer)}}
			for i, class := range [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"} {
				if i == 0 && r.Status[0] == 0 {
					continue // only who upgrades has them
				}
				one.Status[class] = pulse.Value(r.Status[i])
			}
			if i := slices.IndexFunc(out, func(l proxy.LeftOut) bool { return l.Target == name }); i >= 0 {
				since := out[i].Since.UTC()
				one.Up, one.Since = false, &since
			}
			u.Targets = append(u.Targets, one)
		}
		list = append(list, u)
	}
	slices.SortStableFunc(list, func(a, b liveUpstream) int { return cmp.Compare(busy[b.Upstream], busy[a.Upstream]) })
	more = max(len(list)-pulse.MaxUpstreams, 0)
	return list[:len(list)-more], more
}

// circumstances are the figures that findings follow from.
func (o *overview) circumstances(rates *pulse.Rates) *pulse.Circumstances {
	g := o.gw
	s := g.current.Load()
	status := g.status()
	c := &pulse.Circumstances{
		Requests: rates.Requests, AddedP90: rates.AddedP90, Limits: rates.Limits, LogDropped: rates.LogDropped, Overflow: rates.Overflow,
		Denied: o.callers(o.denied, g.topDenied.Top(pulse.Trended)), Near: o.callers(o.near, g.topNear.Top(pulse.Trended)),
		OpenFiles: float64(o.machine.files), MaxFiles: o.machine.filesMax, Waits: waits(s.cfg), Hash: status.ConfigHash,
		Hashes: map[string]int{},
		Store: pulse.StoreState{
			Shared: s.cfg.Store.Redis != nil, Away: status.Fallback.Active, AwayNodes: status.Fallback.Away, Modes: status.Fallback.Modes,
			P90: rates.StoreP90, Errors: rates.StoreErrors,
		},
	}
	if s.cfg.Store.Redis != nil {
		c.Store.Timeout = s.cfg.Store.Redis.Timeout.Seconds()
	}
	if status.RejectedReload != nil {
		c.Rejected = status.RejectedReload.Mistakes
	}
	for _, i := range status.InstanceList {
		if i.ConfigHash != "" {
			c.Hashes[i.ConfigHash]++
		}
	}
	for _, p := range g.upstreamList() {
		u := pulse.UpstreamState{
			Upstream: p.cfg.Name, CircuitOpen: p.upstream.CircuitOpen(), Targets: len(p.cfg.Targets),
			P50: math.NaN(), P90: math.NaN(), Usual: o.pulse.Usual(p.cfg.Name) / 1000, Wait: p.cfg.ResponseHeaderTimeout.Seconds(),
		}
		for _, l := range p.upstream.LeftOut() {
			u.Out = append(u.Out, l.Target)
		}
		for _, t := range rates.Targets[u.Upstream] {
			u.Requests, u.Errors = u.Requests+t.Requests, u.Errors+t.Errors
		}
		if r, ok := rates.Upstreams[u.Upstream]; ok {
			u.P50, u.P90, u.Refused = r.P50, r.P90, r.Refused
		}
		c.Upstreams = append(c.Upstreams, u)
	}
	return c
}

// waits reports whether requests may wait on purpose: for their turn, or for a place.
func waits(cfg *config.Config) bool {
	queued := func(l *config.Limit) bool { return l.Queue > 0 }
	return slices.ContainsFunc(cfg.Limits, queued) ||
		slices.ContainsFunc(cfg.Plans, func(p *config.Plan) bool { return slices.ContainsFunc(p.Limits, queued) })
}

func (o *overview) callers(trends *pulse.Trends, top []topEntry) []pulse.Caller {
	list := make([]pulse.Caller, 0, len(top))
	for _, e := range top {
		limit, partition, _ := strings.Cut(e.Key, " ")
		c := pulse.Caller{Key: e.Key, Limit: limit}
		c.Kind, c.Name = whoIs(partition)
		if v := trends.Recent(e.Key); known(v) {
			c.PerSecond = float64(v)
		}
		list = append(list, c)
	}
	return list
}
