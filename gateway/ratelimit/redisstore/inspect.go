package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Facts is what one server says of itself. A server may keep some of it to
// itself (an ACL, a hosted service): what it does not say is zero.
type Facts struct {
	Address string
	// RoundTrip is the quickest of a few: what a decision costs at least.
	RoundTrip time.Duration
	// Ahead is how far the server's clock is ahead of this machine's, to within
	// half a round trip; negative if it is behind.
	Ahead time.Duration
	// Told reports whether the server answered INFO. All that follows comes from
	// there.
	Told    bool
	Product string // redis or valkey
	Version string
	Role    string // master or slave
	Cluster bool
	// Eviction is maxmemory-policy. MaxMemory is 0 where nothing bounds it.
	Eviction              string
	UsedMemory, MaxMemory int64
	AppendOnly            bool
	Snapshots             bool // it saves itself to disk now and then
	Replicas              int
	Clients, MaxClients   int64
}

// roundTrips is how many are measured for Facts.RoundTrip.
const roundTrips = 5

// Inspect asks the server, or every primary of a cluster, about itself. It
// writes nothing. It ends when ctx does, and each question within
// Options.Timeout. What it found before an error is returned with it.
func (s *Store) Inspect(ctx context.Context) ([]Facts, error) {
	if s.cluster == nil {
		f, err := inspect(ctx, s.client)
		return []Facts{f}, err
	}
	var mu sync.Mutex
	var all []Facts
	err := s.cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		f, err := inspect(ctx, c)
		f.Address = c.Options().Addr
		mu.Lock()
		defer mu.Unlock()
		all = append(all, f)
		return err
	})
	slices.SortFunc(all, func(a, b Facts) int { return strings.Compare(a.Address, b.Address) })
	return all, err
}

func inspect(ctx context.Context, c Client) (Facts, error) {
	var f Facts
	for range roundTrips {
		sent := time.Now()
		now := redis.NewTimeCmd(ctx, "time")
		if err := c.Process(ctx, now); err != nil {
			return f, fmt.Errorf("ask redis for its time: %w", err)
		}
		took := time.Since(sent)
		if f.RoundTrip == 0 || took < f.RoundTrip {
			f.RoundTrip = took
			f.Ahead = now.Val().Sub(sent.Add(took / 2).Round(0))
		}
	}
	text := redis.NewStringCmd(ctx, "info")
	if err := c.Process(ctx, text); err != nil {
		if Kind(err) == KindNoPerm {
			return f, nil // the ACL that a gateway needs has no INFO
		}
		return f, fmt.Errorf("ask redis about itself: %w", err)
	}
	f.read(text.Val())
	// A server that has not saved yet may still be going to.
	save := redis.NewMapStringStringCmd(ctx, "config", "get", "save")
	if err := c.Process(ctx, save); err == nil {
		f.Snapshots = save.Val()["save"] != ""
	}
	return f, nil
}

// read takes the facts from the text that INFO answers: lines of name:value.
func (f *Facts) read(text string) {
	f.Told, f.Product = true, "redis"
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		n, _ := strconv.ParseInt(value, 10, 64) // 0 where it is no number
		switch name {
		case "redis_version":
			if f.Product == "redis" {
				f.Version = value
			}
		case "valkey_version":
			f.Product, f.Version = "valkey", value
		case "role":
			f.Role = value
		case "cluster_enabled":
			f.Cluster = n == 1
		case "maxmemory_policy":
			f.Eviction = value
		case "used_memory":
			f.UsedMemory = n
		case "maxmemory":
			f.MaxMemory = n
		case "aof_enabled":
			f.AppendOnly = n == 1
		case "rdb_last_bgsave_time_sec":
			f.Snapshots = n >= 0
		case "connected_slaves":
			f.Replicas = int(n)
		case "connected_clients":
			f.Clients = n
		case "maxclients":
			f.MaxClients = n
		}
	}
}
