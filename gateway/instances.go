package gateway

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"time"

	"bouncer/gateway/admin"
	"bouncer/gateway/pulse"
	"bouncer/gateway/ratelimit/redisstore"
)

// An announcement is what an instance says of itself on the board: enough to
// find it and to see how it does, and nothing secret. As JSON it stays below the 512
// bytes of a board, unless a host has a name that needs escaping; it is shown without
// all this then. Members that another version has, or has not, do no harm.
type announcement struct {
	Hostname string    `json:"hostname"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Config   string    `json:"config"` // the hash of its configuration
	Figures  *figures  `json:"now,omitempty"`
}

// figures are how an instance does, in short: rates per second over the last ten
// seconds, and what it adds to 99 of 100 requests at most.
type figures struct {
	Requests float64     `json:"r"`
	Denied   float64     `json:"d"`
	Failed   float64     `json:"f"`
	P99      pulse.Value `json:"p"` // ms
	InFlight float64     `json:"i"`
	Away     bool        `json:"a"` // the store is taken to be away
}

// short rounds them, so that they stay short and what stands still says the same.
func (f figures) short() *figures {
	round := func(v float64) float64 { return math.Round(v*10) / 10 }
	f.Requests, f.Denied, f.Failed = round(f.Requests), round(f.Denied), round(f.Failed)
	return &f
}

// tellFiguresEvery is how often the others are told of figures: each time, all of
// them read what all say.
const tellFiguresEvery = 2 * time.Second

// maxAnnounced bounds a host name and a version, in bytes. Both are cut.
const maxAnnounced = 64

// announcement is that of this process, under the configuration in force.
func (g *Gateway) announcement() announcement {
	host, _ := os.Hostname() // empty where there is none
	a := announcement{
		Hostname: host[:min(len(host), maxAnnounced)],
		Version:  g.options.Version[:min(len(g.options.Version), maxAnnounced)],
		Started:  g.started.UTC().Truncate(time.Second),
		Config:   g.current.Load().cfg.Hash,
	}
	if o := g.overview; o != nil {
		a.Figures = o.told.Load()
	}
	return a
}

// makeBoard makes the board of sh. However many stores one process has had, it
// is one instance. It starts nothing.
func (g *Gateway) makeBoard(sh *shared) (*redisstore.Board, error) {
	known := 1
	if g.shared != nil {
		known = g.shared.instances()
	}
	return redisstore.NewBoard(sh.redis, redisstore.BoardOptions{
		Instance: g.instance,
		Known:    known,
		About: func() string {
			b, err := json.Marshal(g.announcement())
			if err != nil {
				return "" // only a clock beyond the year 9999 could do this
			}
			return string(b)
		},
		OnFreed:  sh.heard,
		OnError:  g.boardFailed,
		OnChange: g.telemetry.Instances,
	})
}

// boardFailed counts a call of the board that failed. Limits do not depend on
// it, so nothing else tells the operator of what does not pass by itself.
func (g *Gateway) boardFailed(err error) {
	kind := redisstore.Kind(err)
	g.telemetry.StoreFailed(kind)
	if kind == redisstore.KindNoPerm || kind == redisstore.KindCorrupt {
		g.boardWarning.Do(func() {
			g.log.Warn("instances cannot tell each other through Redis that they are alive; limits are decided as ever, but the share of one instance while Redis is away is that of the last known number of them",
				"kind", kind, "error", err,
				"hint", "docs/OPERATING.md lists the keys and what the user of store.redis must be allowed")
		})
	}
}

// instances is how many gateways share the store, as last known.
func (sh *shared) instances() int {
	if sh.board == nil {
		return 1
	}
	return sh.board.Instances()
}

// freed is told of a bucket that something came back to here.
func (sh *shared) freed(bucket uint64) {
	sh.board.Free(bucket)
	if len(sh.forget) > 0 {
		sh.heard([]uint64{bucket}, false)
	}
}

// freedAll is told that limits have changed here.
func (sh *shared) freedAll() {
	if sh.board != nil {
		sh.board.FreeAll()
	}
	sh.heard(nil, true)
}

// heard is told of what came back anywhere.
func (sh *shared) heard(buckets []uint64, all bool) {
	for _, forget := range sh.forget {
		forget(buckets, all)
	}
}

// A member is a gateway of the fleet, and what it says of itself.
type member struct {
	id    string
	since time.Time
	about announcement
}

// fleet lists the gateways that share the store, oldest first. Where none is known,
// as in memory, that is this one.
func (g *Gateway) fleet(sh *shared) []member {
	var list []member
	if sh.board != nil {
		for _, m := range sh.board.Members() {
			var a announcement
			if json.Unmarshal([]byte(m.About), &a) != nil {
				a = announcement{} // another version, or another writer
			}
			list = append(list, member{m.Instance, m.Since, a})
		}
	}
	if len(list) == 0 {
		list = append(list, member{g.instance, g.started, g.announcement()})
	}
	slices.SortFunc(list, func(a, b member) int { return a.since.Compare(b.since) })
	return list
}

// members are the fleet as /api/status shows it.
func (g *Gateway) members(sh *shared) []admin.Instance {
	fleet := g.fleet(sh)
	list := make([]admin.Instance, len(fleet))
	for i, m := range fleet {
		list[i] = admin.Instance{
			ID: m.id, Self: m.id == g.instance, Since: m.since.UTC(), Hostname: m.about.Hostname, Version: m.about.Version,
			StartedAt: m.about.Started, ConfigHash: m.about.Config,
		}
	}
	return list
}

// liveInstances are the fleet with its figures; those of this instance are of this
// very second.
func (g *Gateway) liveInstances() []liveInstance {
	g.mu.Lock()
	sh := g.shared
	g.mu.Unlock()
	fleet := g.fleet(sh)
	list := make([]liveInstance, len(fleet))
	for i, m := range fleet {
		list[i] = liveInstance{
			ID: m.id, Self: m.id == g.instance, Since: m.since.UTC(), Hostname: m.about.Hostname, Version: m.about.Version,
			StartedAt: m.about.Started, ConfigHash: m.about.Config,
			Requests: pulse.Unknown(), Denied: pulse.Unknown(), Failed: pulse.Unknown(), P99: pulse.Unknown(), InFlight: pulse.Unknown(),
		}
		f := m.about.Figures
		if m.id == g.instance {
			if own := g.overview.figures.Load(); own != nil {
				f = own
			}
		}
		if f != nil {
			l := &list[i]
			l.Requests, l.Denied, l.Failed = pulse.Value(f.Requests), pulse.Value(f.Denied), pulse.Value(f.Failed)
			l.P99, l.InFlight, l.StoreAway = f.P99, pulse.Value(f.InFlight), &f.Away
		}
	}
	return list
}
