package memory_test

import (
	"context"
	"fmt"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/memory"
)

func ExampleNew() {
	perDay, err := ratelimit.NewPolicy(ratelimit.Policy{
		Name: "per-day", Scope: "plan/per-day",
		Algorithm: ratelimit.FixedWindow, Quota: 2, Window: 24 * time.Hour,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := int64(0) // a clock that stands still, for the example
	store, err := memory.New(memory.Options{Now: func() int64 { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	charges := []ratelimit.Charge{{
		Policy:    perDay,
		Partition: ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: "priya123"}),
		Cost:      1,
	}}
	var ds []ratelimit.Decision
	for range 3 {
		ds, err = store.Take(context.Background(), charges, ds)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(ds[0].Allowed, ds[0].Remaining, ds[0].RetryAfter)
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 24h0m0s
}
