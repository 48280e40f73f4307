package rig

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Info asks a Redis for a section of INFO: the fields by name, as text.
func Info(ctx context.Context, client *redis.Client, section string) (map[string]string, error) {
	text, err := client.Info(ctx, section).Result()
	if err != nil {
		return nil, fmt.Errorf("ask redis for INFO %s: %w", section, err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

// UsedMemory is what Redis has allocated, in bytes.
func UsedMemory(ctx context.Context, client *redis.Client) (int64, error) {
	fields, err := Info(ctx, client, "memory")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(fields["used_memory"], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read used_memory: %w", err)
	}
	return n, nil
}

// ScriptTime is the time that Redis has spent inside of EVALSHA, in µs, and how
// often it was called. Both are 0 before the first call.
func ScriptTime(ctx context.Context, client *redis.Client) (micros, calls int64, err error) {
	fields, err := Info(ctx, client, "commandstats")
	if err != nil {
		return 0, 0, err
	}
	// calls=2,usec=31,usec_per_call=15.50,…
	for field := range strings.SplitSeq(fields["cmdstat_evalsha"], ",") {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "calls":
			calls, err = strconv.ParseInt(value, 10, 64)
		case "usec":
			micros, err = strconv.ParseInt(value, 10, 64)
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read cmdstat_evalsha: %w", err)
		}
	}
	return micros, calls, nil
}

// RedisCPU is the time that all threads of Redis have computed so far, in user
// and in kernel mode. It is what [Process.CPU] reads, from getrusage instead of
// /proc, and so to 1 µs instead of 10 ms.
func RedisCPU(ctx context.Context, client *redis.Client) (time.Duration, error) {
	fields, err := Info(ctx, client, "cpu")
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(fields[name], 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		sum += seconds
	}
	return time.Duration(sum * float64(time.Second)), nil
}
