package gateway

import (
	"context"
	"errors"
	"maps"
	"time"

	"bouncer/gateway/auth"
	"bouncer/gateway/auth/keyuse"
	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit/redisstore"
)

// keyUseEvery is how often the last uses of API keys go to Redis.
const keyUseEvery = 10 * time.Second

// usesFor notes which API keys are used, if there is a Redis to be told of it.
func (g *Gateway) usesFor(cfg *config.Config) *auth.UseLog {
	if cfg.Store.Redis == nil {
		return nil
	}
	return g.keyUse
}

// writeKeyUses tells Redis when API keys were last used, again and again until ctx
// ends. What is used after that is for writeKeyUse.
func (g *Gateway) writeKeyUses(ctx context.Context) {
	tick := time.NewTicker(keyUseEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.writeKeyUse(ctx)
		}
	}
}

// writeKeyUse is one batch. What cannot be written now is in the next one, as far as
// that has room. One caller at a time.
func (g *Gateway) writeKeyUse(ctx context.Context) {
	for id, at := range g.keyUse.Drain() {
		if _, ok := g.keyUseOwed[id]; ok || len(g.keyUseOwed) < auth.MaxUses {
			g.keyUseOwed[id] = at
		}
	}
	g.mu.Lock()
	sh := g.shared
	g.mu.Unlock()
	switch {
	case sh.client == nil:
		clear(g.keyUseOwed) // nobody is to know
		return
	case sh.away():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := keyuse.Write(ctx, sh.client, keyuse.Key(sh.cfg.KeyPrefix), sh.cfg.Timeout, maps.Clone(g.keyUseOwed), time.Now())
	if err == nil {
		clear(g.keyUseOwed)
		return
	}
	kind := redisstore.Kind(err)
	g.telemetry.StoreFailed(kind)
	if kind == redisstore.KindNoPerm || kind == redisstore.KindCorrupt {
		g.keyUseWarning.Do(func() {
			g.log.Warn("when API keys were last used cannot be written to Redis, so that gateway keys list does not show it; nothing else depends on it (said once an hour)",
				"kind", kind, "error", err,
				"hint", "docs/OPERATING.md lists the keys and what the user of store.redis must be allowed")
		})
	}
}

// LastUses says when the keys of these ids were last used with success, by the
// instances' clocks, in UTC. Ids of which that is not known are left out. cfg must
// have a store.redis; each question has its timeout.
func LastUses(ctx context.Context, c *config.Redis, ids []string) (map[string]time.Time, error) {
	if c == nil {
		return nil, errors.New("there is no store.redis")
	}
	client, err := openRedis(c)
	if err != nil {
		return nil, err
	}
	defer client.Close() //nolint:errcheck // it was only asked
	return keyuse.Read(ctx, client, keyuse.Key(c.KeyPrefix), c.Timeout, ids)
}
