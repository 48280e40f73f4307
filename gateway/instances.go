package gateway

import (
	"encoding/json"
	"os"
	"slices"
	"time"

	"bouncer/gateway/admin"
	"bouncer/gateway/ratelimit/redisstore"
)

// An announcement is what an instance says of itself on the board: enough to
// find it, and nothing secret. As JSON it stays below the 256 bytes of a board,
// unless a host has a name that needs escaping; it is shown without all this then.
type announcement struct {
	Hostname string    `json:"hostname"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Config   string    `json:"config"` // the hash of its configuration
}

// maxAnnounced bounds a host name and a version, in bytes. Both are cut.
const maxAnnounced = 64

// announcement is that of this process, under the configuration in force.
func (g *Gateway) announcement() announcement {
	host, _ := os.Hostname() // empty where there is none
	return announcement{
		Hostname: host[:min(len(host), maxAnnounced)],
		Version:  g.options.Version[:min(len(g.options.Version), maxAnnounced)],
		Started:  g.started.UTC().Truncate(time.Second),
		Config:   g.current.Load().cfg.Hash,
	}
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

// members lists the gateways that share the store, oldest first. Where none is
// known, as in memory, that is this one.
func (g *Gateway) members(sh *shared) []admin.Instance {
	var list []admin.Instance
	if sh.board != nil {
		for _, m := range sh.board.Members() {
			var a announcement
			if json.Unmarshal([]byte(m.About), &a) != nil {
				a = announcement{} // another version, or another writer
			}
			list = append(list, instanceOf(m.Instance, m.Since, a))
		}
	}
	if len(list) == 0 {
		list = append(list, instanceOf(g.instance, g.started, g.announcement()))
	}
	slices.SortFunc(list, func(a, b admin.Instance) int { return a.Since.Compare(b.Since) })
	for i := range list {
		list[i].Self = list[i].ID == g.instance
	}
	return list
}

func instanceOf(id string, since time.Time, a announcement) admin.Instance {
	return admin.Instance{
		ID: id, Since: since.UTC(), Hostname: a.Hostname, Version: a.Version, StartedAt: a.Started, ConfigHash: a.Config,
	}
}
