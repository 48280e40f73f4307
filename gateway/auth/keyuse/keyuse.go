// Package keyuse keeps in Redis when each API key was last used with success, so that
// whoever lists keys sees which of them nobody needs any more.
//
// It is information and decides nothing: the times are by the clocks of the instances,
// a use may be missing, and no request waits for it. Which keys are used, package auth
// notes.
//
// All is in one sorted set: the ids, each with the Unix second of its last use as its
// score. An id goes when it was not used for [Keep], which also takes those that are
// configured no more; the ones used longest ago go first when there are more than
// [MaxIDs]. A time never goes back, whichever instance writes last.
package keyuse

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// Keep is how long a last use is known.
	Keep = 400 * 24 * time.Hour
	// MaxIDs is how many ids Redis holds at most, after each batch.
	MaxIDs = 100_000

	chunk = 1000 // ids in one command, so that none holds up others for long
)

// A Client sends commands to Redis. Calls must end within their context.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// Key is the name of the set, below a key prefix.
func Key(prefix string) string { return prefix + ":v1:{gateway}:key-use" }

// Write says when ids were last used. Each command has timeout. After an error some of
// it may be written; writing it again does no harm.
func Write(ctx context.Context, client Client, key string, timeout time.Duration, uses map[string]time.Time, now time.Time) error {
	if len(uses) == 0 {
		return nil
	}
	run := func(args ...any) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return client.Process(ctx, redis.NewIntCmd(ctx, args...))
	}
	head := []any{"zadd", key, "gt"}
	args := head
	for id, at := range uses {
		args = append(args, at.Unix(), id)
		if len(args) == len(head)+2*chunk {
			if err := run(args...); err != nil {
				return fmt.Errorf("write when keys were used: %w", err)
			}
			args = head
		}
	}
	if len(args) > len(head) {
		if err := run(args...); err != nil {
			return fmt.Errorf("write when keys were used: %w", err)
		}
	}
	for _, args := range [][]any{
		{"pexpire", key, Keep.Milliseconds()},
		{"zremrangebyscore", key, "-inf", now.Add(-Keep).Unix()},
		{"zremrangebyrank", key, 0, -MaxIDs - 1},
	} {
		if err := run(args...); err != nil {
			return fmt.Errorf("forget old uses of keys: %s: %w", args[0], err)
		}
	}
	return nil
}

// Read says when ids were last used, in UTC; of those that were not, or so long ago
// that nobody knows, it has nothing. The whole has timeout, once for each thousand ids.
func Read(ctx context.Context, client Client, key string, timeout time.Duration, ids []string) (map[string]time.Time, error) {
	found := map[string]time.Time{}
	for len(ids) > 0 {
		some := ids[:min(len(ids), chunk)]
		ids = ids[len(some):]
		args := []any{"zmscore", key}
		for _, id := range some {
			args = append(args, id)
		}
		scores, err := ask(ctx, client, timeout, args)
		if err == nil && len(scores) != len(some) {
			err = errors.New("the answer has another length than the question")
		}
		if err != nil {
			return nil, fmt.Errorf("read when keys were used: %w", err)
		}
		for i, score := range scores {
			if at := seconds(score); at > 0 {
				found[some[i]] = time.Unix(at, 0).UTC()
			}
		}
	}
	return found, nil
}

func ask(ctx context.Context, client Client, timeout time.Duration, args []any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := redis.NewSliceCmd(ctx, args...)
	if err := client.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}

// seconds is a score: text or a number, by the protocol's version; 0 if it is none.
func seconds(score any) int64 {
	var f float64
	switch s := score.(type) {
	case float64:
		f = s
	case string:
		f, _ = strconv.ParseFloat(s, 64) // 0 is none
	}
	const year9999 = 253402300799
	if f >= 1 && f <= year9999 {
		return int64(f)
	}
	return 0
}
