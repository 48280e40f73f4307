package redisstore

import (
	_ "embed"

	"github.com/redis/go-redis/v9"
)

// virtualPrelude takes the time from the caller, so that a suite needs no sleep
// on a real server. It is no part of the program.
//
//go:embed testdata/prelude.lua
var virtualPrelude string

// NewVirtual returns a store whose now is what clock returns, in µs.
func NewVirtual(client redis.UniversalClient, o Options, clock func() int64) (*Store, error) {
	return newStore(client, o, virtualPrelude, clock)
}
