package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"reflect"
	"time"

	"bouncer/gateway/auth/rediskeys"
	"bouncer/gateway/config"
	"bouncer/gateway/fallback"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/denycache"
	"bouncer/gateway/ratelimit/lease"
	"bouncer/gateway/ratelimit/memory"
	"bouncer/gateway/ratelimit/redisstore"
)

// shared is where limits are counted: Redis with its stand-in, or this
// process. It lives over reloads that do not change it.
type shared struct {
	cfg      *config.Redis      // nil: memory
	tlsFiles [sha256.Size]byte  // what the files of cfg.TLS held
	memory   *memory.Store      // the store itself without Redis, the local cap's with it
	redis    *redisstore.Store  // nil without Redis
	client   redisstore.Client  // what redis asks by; nil without Redis
	keys     *rediskeys.Table   // API keys; nil where none are in Redis
	keysHash string             // the name of keys' hash
	leases   *lease.Leases      // nil without Redis
	fallback *fallback.Fallback // nil without Redis
	denied   *denycache.Cache   // what redis has denied
	board    *redisstore.Board  // nil without Redis

	// forget is called where something may have come back to buckets, so that
	// whatever remembers what they held asks again: a refund or a reload here, or
	// what another instance tells of. The buckets are named as
	// ratelimit.BucketHash does; all means every bucket, without a list. Each is
	// added before start, must not block, and may be called from any goroutine.
	forget []func(buckets []uint64, all bool)

	retired bool // another store is in force; protected by Gateway.showing
}

// makeShared builds the store of cfg. It connects to nothing and starts nothing.
func (g *Gateway) makeShared(cfg *config.Config) (*shared, error) {
	sh := &shared{cfg: cfg.Store.Redis, denied: g.denied}
	sh.forget = append(sh.forget, sh.forgetDenied)
	source := ratelimit.SourceMemory
	if sh.cfg != nil {
		source = ratelimit.SourceLocalCap
	}
	var err error
	sh.memory, err = memory.New(memory.Options{
		MaxKeys: cfg.Store.MemoryMaxKeys, Source: source, Hooks: memory.Hooks{Overflow: g.telemetry.Overflow},
	})
	if err != nil {
		return nil, fmt.Errorf("store.memory: %w", err)
	}
	if sh.cfg == nil {
		return sh, nil
	}
	sh.tlsFiles = digest(sh.cfg.TLS)
	client, err := openRedis(sh.cfg)
	if err != nil {
		return nil, err
	}
	sh.client = client
	sh.redis, err = redisstore.New(client, redisstore.Options{
		KeyPrefix: sh.cfg.KeyPrefix, Timeout: sh.cfg.Timeout,
		// On a cluster a charge that one node denied could not be given back on
		// another: the caller has lost that much quota, and nobody got too much.
		OnRefundLost: func(err error) { g.telemetry.StoreFailed(redisstore.Kind(err)) },
		OnFreed:      func(bucket uint64) { sh.freed(bucket) },
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store.redis: %w", err), client.Close())
	}
	if sh.board, err = g.makeBoard(sh); err != nil {
		return nil, errors.Join(fmt.Errorf("store.redis: %w", err), sh.redis.Close())
	}
	sh.leases, err = lease.New(timedStore{Store: sh.redis, took: g.telemetry.StoreTook}, lease.Options{
		Instances: sh.board.Instances,
		Hooks: lease.Hooks{
			Blocks: g.telemetry.LeaseBlocks, Stranded: g.telemetry.LeaseStranded, Full: g.telemetry.LeaseOverflow,
			Failed: func(err error) { g.telemetry.StoreFailed(redisstore.Kind(err)) },
		},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store.redis: %w", err), sh.redis.Close())
	}
	o := fallback.Options{
		Held:  sh.leases.Held,
		Probe: sh.redis.Probe,
		// A probe is given what a decision is given: a store that is too slow
		// for decisions is not back.
		ProbeTimeout: sh.cfg.Timeout,
		Instances:    sh.board.Instances,
		Kind:         redisstore.Kind,
		KeyFault:     redisstore.KeyFault,
		Settle:       sh.redis.Settle,
		Ambiguous:    redisstore.Ambiguous,
		Hooks: fallback.Hooks{
			StoreFailed:  func(kind string, _ error) { g.telemetry.StoreFailed(kind) },
			StateChanged: func(c fallback.Change) { g.storeStateChanged(sh, c) },
			Degraded:     degraded,
			Accounted:    func(o fallback.Outcome, units int64) { g.telemetry.FallbackUnits(string(o), units) },
			Settled:      g.storeSettled,
		},
	}
	if nodes := sh.redis.Nodes(); nodes != nil {
		o.Nodes = nodes
	}
	sh.fallback, err = fallback.New(sh.leases, sh.memory, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store.redis: %w", err), sh.redis.Close())
	}
	return sh, nil
}

// openRedis is the client of store.redis. It connects to nothing.
func openRedis(c *config.Redis) (redisstore.Client, error) {
	tlsConfig, err := clientTLS(c.TLS)
	if err != nil {
		return nil, fmt.Errorf("store.redis.tls: %w", err)
	}
	client, err := redisClient(c, tlsConfig)
	if err != nil {
		return nil, fmt.Errorf("store.redis: %w", err)
	}
	return client, nil
}

// redisClient is for one server, for the cluster it is entered through, or for
// the master that sentinels name. It connects to nothing.
func redisClient(c *config.Redis, tlsConfig *tls.Config) (redisstore.Client, error) {
	o := redisstore.ClientOptions{
		Username: c.Username, Password: string(c.Password), PasswordFile: c.PasswordFile,
		TLS: tlsConfig, Timeout: c.Timeout,
	}
	if o.PasswordFile != "" {
		o.Password = "" // it is what the file held at the load; each connection reads what it holds then
	}
	if c.Sentinel != nil {
		s := redisstore.SentinelOptions{
			Master: c.Sentinel.Master, Addresses: c.Sentinel.Addresses,
			Username: c.Sentinel.Username, Password: string(c.Sentinel.Password), PasswordFile: c.Sentinel.PasswordFile,
		}
		if s.PasswordFile != "" {
			s.Password = ""
		}
		return redisstore.NewSentinelClient(s, o)
	}
	if len(c.Addresses) > 0 {
		return redisstore.NewClusterClient(c.Addresses, o)
	}
	o.Network, o.Address, o.DB = c.Network, c.Address, c.DB
	return redisstore.NewClient(o)
}

// storeErrorKinds are all the labels gateway_store_errors_total can have.
func storeErrorKinds() []string { return redisstore.Kinds() }

// fallbackOutcomes are all the labels gateway_fallback_units_total has.
func fallbackOutcomes() (names []string) {
	for _, o := range fallback.Outcomes() {
		names = append(names, string(o))
	}
	return names
}

// storeFor gives the store in the fail mode of a route. Memory never fails. What
// Redis denied until then is denied until then, also while it is away.
func (sh *shared) storeFor(m config.FailMode) ratelimit.Store {
	if sh.fallback == nil {
		return sh.memory
	}
	return sh.denied.Over(sh.fallback.Store(fallback.Mode(m)))
}

// forgetDenied gives up what was denied by buckets that something came back to;
// see forget.
func (sh *shared) forgetDenied(buckets []uint64, all bool) {
	if all {
		sh.denied.Clear()
		return
	}
	sh.denied.Free(buckets)
}

// start finds out, before the first request, whether the store is there and who
// else uses it.
func (sh *shared) start() {
	if sh.fallback != nil {
		sh.leases.Start()
		sh.fallback.Start()
		sh.board.Start()
	}
}

// leave tells the other instances that this one does not use the store any more.
// What is asked of it still is answered as before.
func (sh *shared) leave() {
	if sh.board != nil {
		sh.board.Close()
	}
}

// close charges the store with what was admitted while it was away, if it is back
// and as far as that is done before ctx ends, and lets go of it.
func (sh *shared) close(ctx context.Context) error {
	if sh.fallback == nil {
		return nil
	}
	sh.leases.Close() //nolint:contextcheck // bounded by itself; all blocks go back, while there is somebody to be told of it
	sh.leave()        //nolint:contextcheck // bounded by the store's own timeout
	sh.fallback.Settle(ctx)
	sh.fallback.Close()
	return sh.redis.Close()
}

// same reports whether a configuration wants just this store.
func (sh *shared) same(cfg *config.Config) bool {
	if !reflect.DeepEqual(sh.cfg, cfg.Store.Redis) {
		return false
	}
	return sh.cfg == nil || sh.tlsFiles == digest(sh.cfg.TLS)
}

// storeStateChanged says, once each time, that requests are decided without the
// shared store, or without a node of it, and that they are no longer. A store that
// a reload has replaced is not spoken of: it is probed for a moment yet, but no
// request depends on it.
func (g *Gateway) storeStateChanged(sh *shared, c fallback.Change) {
	g.showing.Lock()
	defer g.showing.Unlock()
	if sh.retired {
		return
	}
	g.telemetry.FallbackActive(c.Away > 0)
	log := g.log
	if c.Node != "" {
		log = log.With("node", c.Node, "away", fmt.Sprintf("%d of %d nodes", c.Away, c.Nodes))
	}
	kind := redisstore.Kind(c.Err)
	lasted := c.Lasted.Round(time.Millisecond).String()
	switch {
	case c.Open && c.Node == redisstore.Unassigned:
		log.Error("slots of the cluster have no node; for the callers whose counts are there, each route now does what its on_store_failure says, until a node has them",
			"kind", kind, "error", c.Err, "hint", storeHint(kind))
	case c.Open && c.Node == "":
		log.Error("the limit store is away; each route now does what its on_store_failure says, until the store answers again",
			"kind", kind, "error", c.Err, "hint", storeHint(kind))
	case c.Open:
		log.Error("a node of the limit store is away; for the callers whose counts it has, each route now does what its on_store_failure says, until the node answers again or another has taken over",
			"kind", kind, "error", c.Err, "hint", storeHint(kind))
	case c.Node == "":
		log.Warn("the limit store is back; limits are shared again", "was_away", lasted)
	case c.By == c.Node && c.Node != redisstore.Unassigned:
		log.Warn("a node of the limit store is back; the limits of its callers are shared again", "was_away", lasted)
	case c.By == redisstore.Unassigned && c.Node != redisstore.Unassigned:
		log.Warn("the node that was away is none of the cluster any more, and its slots are nobody's; its callers are as before", "was_away", lasted)
	case c.ByAway:
		log.Warn("another node has taken over from the one that was away, and is away itself; the callers are as before", "by", c.By, "was_away", lasted)
	case c.Node == redisstore.Unassigned:
		if c.By != c.Node { // else the probe was sent on to somebody whom the client does not know of yet
			log = log.With("by", c.By)
		}
		log.Warn("the slots of the cluster that had no node have one again; the limits of their callers are shared again", "was_away", lasted)
	default:
		log.Warn("another node has taken over from the one that was away; the limits of its callers are shared again", "by", c.By, "was_away", lasted)
	}
}

// storeSettled says what came of the requests that were admitted while the shared
// store was away.
func (g *Gateway) storeSettled(s fallback.Settlement) {
	g.log.Info("what was admitted without the limit store is settled",
		"buckets", s.Buckets, "units", s.Units, "lapsed", s.Lapsed, "left_out", s.LeftOut)
}

// storeHint is where to look first when the store is away for a reason of kind.
func storeHint(kind string) string {
	switch kind {
	case redisstore.KindRefused:
		return "see that Redis runs where store.redis says, as do its sentinels if it has any, and that this machine can connect to it"
	case redisstore.KindTimeout, redisstore.KindPool, redisstore.KindBusy:
		return "Redis is reached but does not answer within store.redis.timeout: see its load and its slow log, and the network between"
	case redisstore.KindAuth:
		return "see the user and the password that store.redis gives"
	case redisstore.KindNoPerm:
		return "allow the user of store.redis to run EVAL, EVALSHA, TIME and the further commands that docs/OPERATING.md lists, on keys that begin with store.redis.key_prefix"
	case redisstore.KindReadOnly:
		return "store.redis.url names a replica; name the primary. With sentinels and on a cluster, wait for the failover to end"
	case redisstore.KindMaxClients:
		return "Redis has as many clients as its maxclients allows: raise it, or see who else is connected"
	case redisstore.KindOOM:
		return "Redis has reached maxmemory and evicts nothing: give it more memory"
	case redisstore.KindMisconf:
		return "Redis cannot write to its disk and therefore takes no writes: see its log"
	case redisstore.KindClusterDown:
		return "the cluster does not serve these keys. While a master restarts or is replaced, wait. Otherwise see redis-cli --cluster check: a master that came back without its nodes.conf has forgotten its slots, and redis-cli --cluster fix gives them to a node"
	case redisstore.KindLoading:
		return "Redis is still reading its data; wait"
	default:
		return "see the error, and the log of Redis"
	}
}

// storeReplaced lets the metric and the log speak of the store that is in force
// now: the former one may have been away, and will not report its return.
func (g *Gateway) storeReplaced(former, now *shared) {
	g.showing.Lock()
	defer g.showing.Unlock()
	former.retired = true
	if former.away() && !now.away() {
		g.log.Warn("the limit store that was away is not in use any more; limits are counted in the one of the new configuration")
	}
	g.telemetry.FallbackActive(now.away())
	g.telemetry.Instances(now.instances())
}

// away reports whether requests are decided without the shared store.
func (sh *shared) away() bool {
	return sh.fallback != nil && sh.fallback.State().Open
}

// A decisionContext lets the fallback tell the very request it is about to
// decide without the shared store, so that the request's log line can say why.
type decisionContext struct {
	context.Context
	x *exchange
}

func degraded(ctx context.Context, _ fallback.Mode, err error) {
	if d, ok := ctx.(*decisionContext); ok {
		d.x.StoreErr = err
	}
}

// A timedStore observes how long each decision of the shared store takes.
type timedStore struct {
	lease.Store
	took func(time.Duration)
}

// Take implements ratelimit.Store.
func (t timedStore) Take(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	began := time.Now()
	ds, err := t.Store.Take(ctx, charges, dst)
	t.took(time.Since(began))
	return ds, err
}

// Lend implements lease.Store.
func (t timedStore) Lend(
	ctx context.Context, charges []ratelimit.Charge, extra []int64, dst []ratelimit.Decision, blocks []ratelimit.Block,
) ([]ratelimit.Decision, []ratelimit.Block, error) {
	began := time.Now()
	ds, blocks, err := t.Store.Lend(ctx, charges, extra, dst, blocks)
	t.took(time.Since(began))
	return ds, blocks, err
}
