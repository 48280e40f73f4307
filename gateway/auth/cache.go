package auth

import (
	"crypto/sha256"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// tokenCache remembers verified tokens by the SHA-256 of their text, so that
// a caller pays for a signature once and not with every request. The digest
// covers the whole token, signature included, and nothing else is needed: what
// a token means depends only on the configuration, and a cache belongs to one;
// whether the key of a KeySource that verified it is still in force is looked
// at with each hit. It holds no refusal and, on purpose, no token text.
//
// It is cut in shards because each look-up moves an entry to the front under
// a lock.
type tokenCache struct {
	size   int
	shards []*lru.Cache[[32]byte, verified]
}

// verified is a token that passed every check.
type verified struct {
	principal Principal
	issuer    int       // index of its issuer
	proof     proof     // which key of a KeySource verified it; else zero
	from      time.Time // valid from here, leeway included; zero: always
	until     time.Time // no longer valid from here on, leeway included
}

const (
	cacheShards   = 16
	minShardSize  = 64 // smaller shards would evict long before the cache is full
	unshardedSize = cacheShards * minShardSize
)

// newTokenCache returns a cache for size tokens, size >= 1.
func newTokenCache(size int) *tokenCache {
	n := cacheShards
	if size < unshardedSize {
		n = 1
	}
	c := &tokenCache{size: size, shards: make([]*lru.Cache[[32]byte, verified], n)}
	for i := range c.shards {
		shard, err := lru.New[[32]byte, verified]((size + n - 1) / n)
		if err != nil {
			panic("bug: token cache: " + err.Error()) // only for sizes below 1
		}
		c.shards[i] = shard
	}
	return c
}

func (c *tokenCache) shard(digest [32]byte) *lru.Cache[[32]byte, verified] {
	return c.shards[int(digest[0])%len(c.shards)]
}

// get returns a token's entry if the token is valid at now. A token that is
// not is left to the full check, which knows how to say why.
func (c *tokenCache) get(digest [32]byte, now time.Time) (verified, bool) {
	v, ok := c.shard(digest).Get(digest)
	if !ok || now.Before(v.from) || !now.Before(v.until) {
		return verified{}, false
	}
	return v, true
}

func (c *tokenCache) add(digest [32]byte, v verified) { c.shard(digest).Add(digest, v) }

// digestOf is the SHA-256 of a credential. The usual ones are copied to the
// stack, because the conversion alone would put each on the heap, with every
// request.
func digestOf(credential string) [32]byte {
	var buf [2048]byte
	if len(credential) > len(buf) {
		return sha256.Sum256([]byte(credential))
	}
	n := copy(buf[:], credential)
	return sha256.Sum256(buf[:n])
}
