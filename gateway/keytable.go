package gateway

import (
	"fmt"

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
	name := sh.cfg.KeyPrefix + ":v1:{keys}:" + use.hash
	var err error
	use.table, err = rediskeys.New(sh.client, rediskeys.Options{
		Hash: name, Read: use.read, Timeout: sh.cfg.Timeout,
		Refused: func(digest string, err error) {
			g.log.Warn("a value in the hash of API keys is no key and opens nothing; correct it in Redis",
				"hash", name, "digest", digest, "error", err)
		},
		Failed: func(err error) { g.telemetry.StoreFailed(redisstore.Kind(err)) },
	})
	if err != nil {
		return keysUse{}, fmt.Errorf("auth.api_keys.redis: %w", err)
	}
	return use, nil
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
