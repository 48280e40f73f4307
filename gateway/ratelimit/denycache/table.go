package denycache

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// A table holds denials by key, the latest asked for. It is cut into shards of
// an LRU each, so that requests do not wait for one lock.
type table struct {
	shards    []shard // a power of two of them
	held      atomic.Int64
	evictions atomic.Uint64
}

type shard struct {
	mu  sync.Mutex // protects lru
	lru *simplelru.LRU[key, *denial]

	_ [48]byte // keeps the locks of neighbours on different cache lines
}

// maxShards serves any number of cores: a look-up holds its lock for some 50 ns.
const maxShards = 64

// init makes room for size entries, or a few less that the shards do not share
// evenly.
func (t *table) init(size int) error {
	n := 1
	for n < maxShards && 16*n <= size { // chance fills small shards unevenly
		n *= 2
	}
	t.shards = make([]shard, n)
	for i := range t.shards {
		lru, err := simplelru.NewLRU[key, *denial](size/n, nil)
		if err != nil {
			return err
		}
		t.shards[i].lru = lru
	}
	return nil
}

func (t *table) shard(k key) *shard { return &t.shards[k[0]&uint64(len(t.shards)-1)] } //nolint:gosec // there are some

// get returns the entry of k, or nil.
func (t *table) get(k key) *denial {
	sh := t.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e, _ := sh.lru.Get(k)
	return e
}

// put holds e under k, unless what is there was asked for later.
func (t *table) put(k key, e *denial) {
	sh := t.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if old, ok := sh.lru.Peek(k); ok && old.asked.at > e.asked.at {
		return
	}
	before := sh.lru.Len()
	if sh.lru.Add(k, e) {
		t.evictions.Add(1)
	}
	t.held.Add(int64(sh.lru.Len() - before))
}

// remove forgets e, unless another has taken its place.
func (t *table) remove(k key, e *denial) {
	sh := t.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if now, ok := sh.lru.Peek(k); ok && now == e {
		sh.lru.Remove(k)
		t.held.Add(-1)
	}
}

func (t *table) clear() {
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		t.held.Add(-int64(sh.lru.Len()))
		sh.lru.Purge()
		sh.mu.Unlock()
	}
}
