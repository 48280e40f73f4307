package main

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"bouncer/bench/internal/rig"
)

// The process as a whole may never have had more than this in memory.
const bodiesBar = 64 << 20

// A flow is a long body: one random block again and again.
type flow struct {
	block []byte
	size  int64
	sum   uint32 // of all of it
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newFlow(size int64) *flow {
	f := &flow{block: make([]byte, 1<<20)}
	_, _ = rand.NewChaCha8([32]byte{1}).Read(f.block)
	for ; f.size < size; f.size += int64(len(f.block)) {
		f.sum = crc32.Update(f.sum, castagnoli, f.block)
	}
	return f
}

func (f *flow) send(w io.Writer) error {
	for sent := int64(0); sent < f.size; sent += int64(len(f.block)) {
		if _, err := w.Write(f.block); err != nil {
			return fmt.Errorf("after %d of %d bytes: %w", sent, f.size, err)
		}
	}
	return nil
}

func (f *flow) check(r io.Reader) error {
	sum := crc32.New(castagnoli)
	n, err := io.CopyBuffer(sum, r, make([]byte, 256<<10))
	switch {
	case err != nil:
		return fmt.Errorf("after %d of %d bytes: %w", n, f.size, err)
	case n != f.size || sum.Sum32() != f.sum:
		return fmt.Errorf("%d bytes with the sum %x, want %d with %x: %w", n, sum.Sum32(), f.size, f.sum, errShort)
	}
	return nil
}

// bodies sends a large body up and another down.
func bodies(ctx context.Context, o options, r *report) error {
	f := newFlow(int64(o.of(10<<10, 16)) << 20)
	uploaded := make(chan error, 1)
	s, err := newSite(ctx, o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			uploaded <- f.check(r.Body)
			return
		}
		_ = f.send(w) // the client says what it got
	}))
	if err != nil {
		return err
	}
	defer s.stop()
	size := fmt.Sprintf("%.2f GiB", float64(f.size)/(1<<30))
	for _, way := range []string{"up", "down"} {
		start := time.Now()
		var done error
		if way == "up" {
			done = s.upload(ctx, f, uploaded)
		} else {
			done = s.download(ctx, f)
		}
		took := time.Since(start)
		outcome := "whole"
		if done != nil {
			outcome = done.Error()
		}
		r.add("bodies", fmt.Sprintf("%s %s, in %.1f s", size, way, took.Seconds()), outcome, "whole", done == nil)
		_, peak, err := s.process.Memory()
		if err != nil {
			return err
		}
		r.add("bodies", "peak memory of the gateway so far", mib(peak), mib(bodiesBar), peak <= bodiesBar)
	}
	return nil
}

func (s *site) upload(ctx context.Context, f *flow, uploaded <-chan error) error {
	body, feed := io.Pipe()
	go func() { _ = feed.CloseWithError(f.send(feed)) }()
	defer func() { _ = body.Close() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+"/up", body)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", resp.Status)
	}
	return <-uploaded
}

func (s *site) download(ctx context.Context, f *flow) error {
	resp, err := rig.Get(ctx, s.address, "/down")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return f.check(resp.Body)
}
