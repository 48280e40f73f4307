package ratelimit_test

import (
	"fmt"
	"time"

	"bouncer/gateway/ratelimit"
)

func ExampleNewPolicy() {
	p, err := ratelimit.NewPolicy(ratelimit.Policy{
		Name: "per-minute", Scope: "plan/per-minute",
		Algorithm: ratelimit.TokenBucket, Quota: 100, Window: time.Minute, Burst: 20,
	})
	fmt.Println(p.Key(), err)

	_, err = ratelimit.NewPolicy(ratelimit.Policy{Name: "per-minute", Scope: "plan/per-minute", Algorithm: ratelimit.TokenBucket, Quota: -7, Window: time.Minute})
	fmt.Println(err)
	// Output:
	// plan/per-minute:tb/60 <nil>
	// make policy "per-minute": quota: want 0 to 999999999999999, got -7
}

func ExamplePartition() {
	fmt.Println(ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: "priya123"}))
	fmt.Println(ratelimit.Partition(ratelimit.Part{Dimension: "tenant", Value: "acme"}, ratelimit.Part{Dimension: "route", Value: "weather"}))
	fmt.Println(ratelimit.Partition(ratelimit.Part{Dimension: "ip", Value: "2001:db8::/64"}))
	fmt.Println(ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: "mallory}:{user:priya123"}))
	fmt.Println(ratelimit.Partition(ratelimit.Part{Dimension: "global"}))
	// Output:
	// {user:priya123}
	// {tenant:acme|route:weather}
	// {ip:2001%3Adb8%3A%3A%2F64}
	// {user:mallory%7D%3A%7Buser%3Apriya123}
	// {global}
}

// A bucket of 20 that is empty, and a caller who asks for one more.
func ExamplePolicy_Advance() {
	p, err := ratelimit.NewPolicy(ratelimit.Policy{
		Name: "per-minute", Scope: "plan/per-minute",
		Algorithm: ratelimit.TokenBucket, Quota: 100, Window: time.Minute, Burst: 20,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	const now = 1_796_000_000_000_000
	empty, _ := p.Admit(p.Advance(ratelimit.State{}, now), now, 20)

	_, allowed := p.Admit(p.Advance(empty, now), now, 1)
	wait := p.RetryAfter(empty, now, 1)
	fmt.Println(allowed, wait)

	later := now + wait.Microseconds()
	_, allowed = p.Admit(p.Advance(empty, later), later, 1)
	fmt.Println(allowed)
	// Output:
	// false 600ms
	// true
}
