package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"
)

const (
	// maxWarming is how many connections are made ready in the background at the
	// same time.
	maxWarming = 4
	// steps are those of a new connection: to dial, to say HELLO, to choose the
	// database, to name the script, and to send it. Each ends within Options.Timeout.
	steps = 5
)

// warm makes a connection ready in the background, to the node that has key, and
// gives it the script. It is called when a decision was out of time. A decision that
// finds no connection idle needs three round trips or more instead of one, and when
// its time is over the connection goes with it. Without this a Redis whose round
// trip is between a third of the time and all of it would never be used at all.
// Through TLS that holds up to half of the time, since to dial takes two.
//
// Of a cluster that is not known yet it learns the slots first. Where its own time
// does not suffice for both, the next one has them.
//
// The script is run for no keys, and so does nothing; whatever the server answers,
// the connection is ready.
func (s *Store) warm(key string, of *script) {
	select {
	case s.warming <- struct{}{}:
	default:
		return // enough of them
	}
	go func() {
		defer func() { <-s.warming }()
		ctx, cancel := context.WithTimeout(context.Background(), steps*s.timeout)
		defer cancel()
		client := s.client
		if s.cluster != nil {
			master, err := s.cluster.MasterForKey(ctx, key)
			if err != nil {
				return
			}
			client = master
		}
		err := client.Process(ctx, once{redis.NewIntSliceCmd(ctx, "evalsha", of.sha, "0", "")})
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			_ = client.Process(ctx, once{redis.NewIntSliceCmd(ctx, "eval", of.source, "0", "")})
		}
	}()
}

// cool waits until nothing is made ready any more, and lets nothing begin.
func (s *Store) cool() {
	for range cap(s.warming) {
		s.warming <- struct{}{}
	}
}
