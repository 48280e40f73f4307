package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// get asks for url until it is answered or ctx ends, and waits as long as it is told.
func get(ctx context.Context, url, key string) (*http.Response, error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Header.Set("X-API-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != 429 && resp.StatusCode != 503 {
			return resp, err
		}
		_ = resp.Body.Close()
		seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if err != nil {
			return nil, fmt.Errorf("%s without Retry-After: no wait would help", resp.Status)
		}
		wait := time.Duration(seconds)*time.Second + rand.N(200*time.Millisecond) // not all workers at once
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}
