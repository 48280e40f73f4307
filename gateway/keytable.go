package gateway

import (
	"context"
	"fmt"
	"strings"

	"bouncer/gateway/admin"
	"bouncer/gateway/auth"
	"bouncer/gateway/auth/rediskeys"
	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit/redisstore"
)

// API keys in Redis. The table lives as long as the store and the name of its hash
// stay the same, so that a reload makes nobody unknown, also while Redis is away.

// authKey is a key as package auth has it.
func authKey(k config.Key) auth.Key {
	return auth.Key{
		ID: k.ID, SHA256: k.SHA256, User: k.User, Tenant: k.Tenant, Plan: k.Plan, Expires: k.Expires,
		Routes: k.Routes, AllowIPs: k.AllowIPs, Scopes: k.Scopes,
	}
}

// keysUse is the table that a configuration wants, and how it reads keys.
type keysUse struct {
	table *rediskeys.Table // nil: none
	hash  string
	read  rediskeys.Reader
}

// makeKeyTable returns the table of cfg: that of sh, or a new one. It changes nothing.
func (g *Gateway) makeKeyTable(sh *shared, cfg *config.Config) (keysUse, error) {
	c := cfg.Auth.APIKeys
	if c == nil || c.RedisHash == "" || sh.client == nil {
		return keysUse{}, nil
	}
	use := keysUse{table: sh.keys, hash: c.RedisHash, read: func(digest [32]byte, value []byte) (auth.Key, error) {
		k, err := config.ReadKeyValue(digest, value)
		if err == nil {
			err = cfg.KeyFits(k)
		}
		return authKey(k), err
	}}
	if use.table != nil && sh.keysHash == use.hash {
		return use, nil
	}
	name := keysHash(cfg)
	var err error
	use.table, err = rediskeys.New(sh.client, rediskeys.Options{
		Hash: name, Read: use.read, Timeout: sh.cfg.Timeout,
		Refused: func(digest string, err error) {
			g.log.Warn("a value in the hash of API keys is no key and opens nothing; correct it in Redis",
				"hash", name, "digest", digest, "error", err)
		},
		Failed: func(err error) { g.telemetry.StoreFailed(redisstore.Kind(err)) },
		Away: func(err error) {
			if err == nil {
				g.log.Warn("API keys in Redis can be looked up again", "hash", name)
				return
			}
			g.log.Error("API keys in Redis cannot be looked up; those that were used before hold for 10 minutes, all others of them are refused",
				"hash", name, "kind", redisstore.Kind(err), "error", err, "hint", keyTableHint(err))
		},
	})
	if err != nil {
		return keysUse{}, fmt.Errorf("auth.api_keys.redis: %w", err)
	}
	return use, nil
}

// keysHash is the key of the hash of API keys in the Redis of cfg.
func keysHash(cfg *config.Config) string {
	return cfg.Store.Redis.KeyPrefix + ":v1:{keys}:" + cfg.Auth.APIKeys.RedisHash
}

// keyTableHint is what to do about a hash that cannot be asked.
func keyTableHint(err error) string {
	if strings.Contains(err.Error(), "WRONGTYPE") {
		return "another kind of value is stored under this name; remove it, or name another hash in auth.api_keys.redis"
	}
	if kind := redisstore.Kind(err); kind != redisstore.KindNoPerm {
		return storeHint(kind)
	}
	return "allow the user of store.redis to run HGET on this key"
}

// keysDegraded says that API keys in Redis cannot be looked up.
func (g *Gateway) keysDegraded() []admin.Degraded {
	g.mu.Lock()
	table := g.shared.keys
	g.mu.Unlock()
	if table == nil {
		return nil
	}
	since := table.Since()
	if since.IsZero() {
		return nil
	}
	return []admin.Degraded{{Part: "api keys in redis", Since: since, Effect: "they cannot be looked up; those that were used before hold for 10 minutes, all others of them are refused"}}
}

// orNone is the table for package auth.
func (u keysUse) orNone() auth.KeyTable {
	if u.table == nil {
		return nil
	}
	return u.table
}

// use makes the table that of the store, which reads keys by the configuration that is
// in force from now on.
func (u keysUse) use(sh *shared) {
	sh.keys, sh.keysHash = u.table, u.hash
	if u.table != nil {
		u.table.SetReader(u.read)
	}
}

// unaskedKeys stands in for the table where nobody is asked. A key that is not in the key
// file may be in Redis or not: that it is wrong is not to be said.
type unaskedKeys string

// Lookup implements auth.KeyTable.
func (hash unaskedKeys) Lookup(_ context.Context, _ [32]byte, onlyKnown bool) (*auth.Entry, error) {
	if onlyKnown {
		return nil, nil //nolint:nilnil // none is known
	}
	return nil, fmt.Errorf("it is not in the key file, and those of the hash %s in Redis are not looked at here: %w", string(hash), auth.ErrKeysUnavailable)
}

// unasked returns what stands in for the table of cfg.
func unasked(cfg *config.Config) auth.KeyTable {
	if c := cfg.Auth.APIKeys; c == nil || c.RedisHash == "" || cfg.Store.Redis == nil {
		return nil
	}
	return unaskedKeys(keysHash(cfg))
}
