package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
)

func Example() {
	client, err := redisstore.NewClient(redisstore.ClientOptions{
		Address: "127.0.0.1:1", // nobody listens here
		Timeout: 50 * time.Millisecond,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := redisstore.New(client, redisstore.Options{Timeout: 50 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()

	perMinute, err := ratelimit.NewPolicy(ratelimit.Policy{
		Name: "per-minute", Scope: "plan/per-minute", Algorithm: ratelimit.TokenBucket,
		Quota: 100, Window: time.Minute, Burst: 20,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	user := ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: "priya123"})
	decisions, err := store.Take(context.Background(),
		[]ratelimit.Charge{{Policy: perMinute, Partition: user, Caller: user, Cost: 1}}, nil)
	fmt.Println(len(decisions), redisstore.Kind(err))
	// Output: 0 refused
}
