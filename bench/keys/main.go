// Command keys measures what a caller costs Redis in memory: it charges one unit
// for each of many different users, by each algorithm, and divides what
// used_memory grew by. So the number holds everything that Redis allocates for a
// key: its name, its value, the expiry, and both hash tables. It also measures
// what each further unit of a sliding_window_log adds.
//
// The keys are made by the gateway's own store, some charges of different users
// in each call, and have the names that a gateway gives them:
//
//	rl:v1:{user:u1234567}:plan/per-day:tb/86400
//
// It is not a measurement of speed.
//
//	make bench-keys
//	make bench-keys BENCHFLAGS='-keys 10000000 -algorithm token_bucket -section keys-many'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/bench/internal/rig"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
)

const (
	callers = 4  // calls under way at once
	batch   = 32 // charges of different users in one call

	logUsers = 2000 // of the measurement of a log's further units
)

type options struct {
	keys      int
	algorithm string
	atMost    time.Duration
	json      bool
	write     string
	section   string
}

func main() {
	var o options
	flag.IntVar(&o.keys, "keys", 200_000, "different users for each algorithm")
	flag.StringVar(&o.algorithm, "algorithm", "", "only this one, and not what further units of a log cost")
	flag.DurationVar(&o.atMost, "at-most", 8*time.Minute, "end one algorithm's part after so long, with the keys made by then")
	flag.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flag.StringVar(&o.write, "write", "", "Markdown `file` with a section that is replaced")
	flag.StringVar(&o.section, "section", "keys", "which section")
	flag.Parse()
	rig.Main("bench-keys", func(ctx context.Context) error { return run(ctx, o) })
}

var algorithms = []ratelimit.Algorithm{
	ratelimit.TokenBucket, ratelimit.LeakyBucket, ratelimit.FixedWindow,
	ratelimit.SlidingWindowCounter, ratelimit.SlidingWindowLog,
}

func run(ctx context.Context, o options) error {
	if o.keys < 1000 || o.keys > 100_000_000 || o.atMost <= 0 {
		return fmt.Errorf("want 1000 to 100000000 keys and some time, got -keys %d -at-most %v", o.keys, o.atMost)
	}
	r := &report{Machine: rig.Machine(), Date: time.Now().Format(time.DateOnly), Command: o.command()}
	for _, a := range algorithms {
		if o.algorithm != "" && o.algorithm != a.String() {
			continue
		}
		c, err := fill(ctx, o, a, o.keys, 1)
		if err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
		r.Crowds = append(r.Crowds, c)
	}
	if len(r.Crowds) == 0 {
		return fmt.Errorf("no algorithm %q; want one of %v", o.algorithm, algorithms)
	}
	if o.algorithm == "" {
		// The same users with more units each.
		for _, units := range []int{1, 10, 100, 1000} {
			c, err := fill(ctx, o, ratelimit.SlidingWindowLog, logUsers, units)
			if err != nil {
				return fmt.Errorf("%s, %d units: %w", ratelimit.SlidingWindowLog, units, err)
			}
			r.Log = append(r.Log, c)
		}
	}
	return rig.Output{Write: o.write, Section: o.section, JSON: o.json}.Show(r)
}

func (o options) command() string {
	flags := fmt.Sprintf("-keys %d", o.keys)
	if o.algorithm != "" {
		flags += " -algorithm " + o.algorithm
	}
	if o.section != "keys" {
		flags += " -section " + o.section
	}
	return "make bench-keys BENCHFLAGS='" + flags + "'"
}

// A crowd is what one algorithm's keys cost.
type crowd struct {
	Algorithm string `json:"algorithm"`
	Units     int    `json:"units_per_key"`
	Wanted    int    `json:"keys_wanted"`
	Keys      int64  `json:"keys"`
	Expiring  int64  `json:"keys_with_expiry"`
	// Growth of used_memory, and of the process as the system sees it, in bytes.
	Used     int64   `json:"used_memory_bytes"`
	Resident int64   `json:"resident_bytes"`
	Seconds  float64 `json:"seconds"`
	Key      string  `json:"key"` // one of them, as an example
}

func (c *crowd) perKey() float64 { return float64(c.Used) / float64(c.Keys) }

// fill starts a Redis, charges each of n users so many units, one after the
// other, and looks at what that has cost.
func fill(ctx context.Context, o options, a ratelimit.Algorithm, n, units int) (*crowd, error) {
	fmt.Fprintf(os.Stderr, "%s: %d keys of %d units …\n", a, n, units)
	dir, err := os.MkdirTemp("", "bouncer-keys-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	process, address, err := rig.StartRedis(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer process.Stop()
	newClient := func() (*redis.Client, error) {
		return redisstore.NewClient(redisstore.ClientOptions{Address: address, Timeout: 10 * time.Second, PoolSize: callers})
	}
	look, err := newClient()
	if err != nil {
		return nil, err
	}
	defer func() { _ = look.Close() }()
	client, err := newClient()
	if err != nil {
		return nil, err
	}
	store, err := redisstore.New(client, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	defer func() { _ = store.Close() }()
	spec := ratelimit.Policy{
		Name: "per-day", Scope: "plan/per-day", Algorithm: a,
		Quota: 10_000, Window: 24 * time.Hour, // nothing runs out meanwhile
	}
	if a == ratelimit.LeakyBucket {
		spec.Queue = spec.Quota - 1
	}
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		return nil, err
	}
	// Scripts, connections and their buffers are there before the first look.
	if err := charge(ctx, store, p, callers*batch, 1, time.Now().Add(o.atMost)); err != nil {
		return nil, err
	}
	if err := look.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	used, err := rig.UsedMemory(ctx, look)
	if err != nil {
		return nil, err
	}
	resident, _, err := process.Memory()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := charge(ctx, store, p, n, units, start.Add(o.atMost)); err != nil {
		return nil, err
	}
	c := &crowd{Algorithm: a.String(), Units: units, Wanted: n, Seconds: time.Since(start).Seconds()}
	if err := settle(ctx, look); err != nil {
		return nil, err
	}
	return c, c.look(ctx, look, process, used, resident)
}

// look fills in what the keys have cost since before.
func (c *crowd) look(ctx context.Context, look *redis.Client, process *rig.Process, usedBefore, residentBefore int64) error {
	used, err := rig.UsedMemory(ctx, look)
	if err != nil {
		return err
	}
	resident, _, err := process.Memory()
	if err != nil {
		return err
	}
	c.Used, c.Resident = used-usedBefore, resident-residentBefore
	space, err := rig.Info(ctx, look, "keyspace")
	if err != nil {
		return err
	}
	if _, err := fmt.Sscanf(space["db0"], "keys=%d,expires=%d", &c.Keys, &c.Expiring); err != nil {
		return fmt.Errorf("read the number of keys from %q: %w", space["db0"], err)
	}
	if c.Key, err = look.RandomKey(ctx).Result(); err != nil {
		return err
	}
	if c.Expiring != c.Keys {
		return fmt.Errorf("%d of %d keys have no expiry", c.Keys-c.Expiring, c.Keys)
	}
	return nil
}

// settle waits until the hash tables have their size: Redis moves a table that
// has grown bit by bit, and has the old one beside it until then.
func settle(ctx context.Context, look *redis.Client) error {
	last := int64(-1)
	for range 300 {
		used, err := rig.UsedMemory(ctx, look)
		if err != nil {
			return err
		}
		if used == last {
			return nil
		}
		last = used
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
	return errors.New("used_memory did not come to rest within a minute")
}

// charge takes units of each of n users, one at a time, until the deadline.
func charge(ctx context.Context, store *redisstore.Store, p *ratelimit.Policy, n, units int, deadline time.Time) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64 // the number of the batch that is next
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			charges := make([]ratelimit.Charge, 0, batch)
			var decisions []ratelimit.Decision
			for ctx.Err() == nil && time.Now().Before(deadline) {
				first := int(next.Add(1)-1) * batch
				if first >= n {
					return
				}
				charges = charges[:0]
				for i := first; i < min(n, first+batch); i++ {
					// As long as the names of a service with some millions of users.
					who := ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: fmt.Sprintf("u%07d", i)})
					charges = append(charges, ratelimit.Charge{Policy: p, Partition: who, Caller: who, Cost: 1})
				}
				for range units {
					var err error
					decisions, err = store.Take(ctx, charges, decisions)
					if err == nil && !ratelimit.Admitted(decisions) {
						err = fmt.Errorf("users %d and following were denied", first)
					}
					if err != nil {
						cancel(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

type report struct {
	Machine string   `json:"machine"`
	Date    string   `json:"date"`
	Command string   `json:"command"`
	Crowds  []*crowd `json:"crowds"`
	Log     []*crowd `json:"log,omitempty"`
}

// Markdown is the report as a section of a document.
func (r *report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s: %s.\n\n    %s\n\n", r.Date, r.Machine, r.Command)
	b.WriteString("| algorithm | keys | used_memory MiB | bytes per key | resident MiB | made in s | a key |\n| --- | --: | --: | --: | --: | --: | --- |\n")
	mib := func(n int64) float64 { return float64(n) / (1 << 20) }
	for _, c := range r.Crowds {
		fmt.Fprintf(&b, "| %s | %d | %.1f | %.0f | %.1f | %.0f | `%s` |\n",
			c.Algorithm, c.Keys, mib(c.Used), c.perKey(), mib(c.Resident), c.Seconds, c.Key)
	}
	for _, c := range r.Crowds {
		if c.Keys < int64(c.Wanted) {
			fmt.Fprintf(&b, "\n%s: the time was up at %d of %d keys.\n", c.Algorithm, c.Keys, c.Wanted)
		}
	}
	if len(r.Log) == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "\nA sliding_window_log of %d users, charged one unit several times:\n\n| units per key | bytes per key | bytes per further unit |\n| --: | --: | --: |\n", logUsers)
	one := r.Log[0]
	for _, c := range r.Log {
		further := "–"
		if c.Units > 1 {
			further = fmt.Sprintf("%.1f", (c.perKey()-one.perKey())/float64(c.Units-1))
		}
		fmt.Fprintf(&b, "| %d | %.0f | %s |\n", c.Units, c.perKey(), further)
	}
	return b.String()
}
