package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"bouncer/gateway/config"
)

// Options say what is replayed, and against what.
type Options struct {
	// Config is the configuration that is asked about.
	Config *config.Config
	// Against, if set, is the one it is compared with: today's.
	Against *config.Config
	// Logs are paths of logs, plain or gzip; "-" is Stdin.
	Logs  []string
	Stdin io.Reader
	// Format of all of them; Auto finds out.
	Format Format
	// Fields says where a line of JSON says what, as in "time=ts,ip=peer"; names
	// are time, ip, forwarded, request, method, uri, host, user, tenant, key_id,
	// key, plan and duration. What is not said is found under the usual names.
	Fields string
	// Host is that of lines which have none.
	Host string
	// AssumePlan is the plan of a line without identity where one is required;
	// "" is default_plan.
	AssumePlan string
	// Arrival takes the time a request took off the time of its line, for logs
	// that are written at its end.
	Arrival bool
	// Progress, if set, is told now and then how many bytes were read.
	Progress func(read int64)

	fields          []field
	forwardedMapped bool
	observe         func(r *record, denied bool) // a test's
}

// ErrOptions is wrapped by errors about the options themselves.
var ErrOptions = errors.New("the options cannot be used")

const batchSize = 512

// Run replays the logs. An error says what could not be read or is no option; a
// line that cannot be read is none.
func Run(ctx context.Context, o Options) (*Result, error) {
	var err error
	if o.fields, err = parseFields(o.Fields); err != nil {
		return nil, fmt.Errorf("%w: fields: %w", ErrOptions, err)
	}
	i := slices.IndexFunc(o.fields, func(f field) bool { return f.is == "forwarded" })
	o.forwardedMapped = len(o.fields[i].paths) == 1
	if len(o.Logs) == 0 {
		return nil, fmt.Errorf("%w: there is no log to replay", ErrOptions)
	}
	if o.AssumePlan != "" {
		for _, cfg := range []*config.Config{o.Config, o.Against} {
			if cfg != nil && !slices.ContainsFunc(cfg.Plans, func(p *config.Plan) bool { return p.Name == o.AssumePlan }) {
				return nil, fmt.Errorf("%w: there is no plan %q to assume", ErrOptions, o.AssumePlan)
			}
		}
	}
	var worlds []*world
	defer func() {
		for _, w := range worlds {
			w.close()
		}
	}()
	for _, cfg := range []*config.Config{o.Config, o.Against} {
		if cfg == nil {
			continue
		}
		w, err := newWorld(cfg, &o)
		if err != nil {
			return nil, err
		}
		worlds = append(worlds, w)
	}

	var read atomic.Int64
	in := &merged{arrival: o.Arrival}
	defer in.close()
	seen := map[string]bool{}
	for _, path := range o.Logs {
		if path == "-" && seen[path] {
			return nil, fmt.Errorf("%w: standard input can be read once", ErrOptions)
		}
		seen[path] = true
		s, err := open(path, cmp.Or[io.Reader](o.Stdin, os.Stdin), &o, &read)
		if err != nil {
			return nil, err
		}
		in.sources = append(in.sources, s)
	}
	if err := replay(ctx, in, worlds, &o, &read); err != nil {
		return nil, err
	}
	result := worlds[0].result(&o)
	if len(worlds) > 1 {
		result.Against = worlds[1].result(&o)
		result.NewlyDenied, result.NewlyAllowed = new(int64), new(int64)
		*result.NewlyDenied, *result.NewlyAllowed = worlds[0].newly, worlds[1].newly
	}
	for r := result; r != nil; r = r.Against {
		r.Lines, r.Malformed, r.Other, r.Late = in.counts.lines, in.counts.malformed, in.counts.other, in.counts.late
	}
	result.MalformedLines = in.counts.shown
	result.note(in, worlds)
	return result, nil
}

// A world is one configuration: its ledger, and its patient clients.
type world struct {
	ledger  *ledger
	patient *patience
	newly   int64 // denied here and not in the other
}

func newWorld(cfg *config.Config, o *Options) (*world, error) {
	l, err := newLedger(cfg, o)
	if err != nil {
		return nil, fmt.Errorf("rehearse the configuration: %w", err)
	}
	a, err := newAsker(cfg, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("rehearse the configuration: %w", err), l.ask.h.Close())
	}
	return &world{ledger: l, patient: newPatience(o, a)}, nil
}

func (w *world) close() {
	_ = w.ledger.ask.h.Close() // they log to nobody
	_ = w.patient.ask.h.Close()
}

// replay reads in one goroutine and decides in others: each configuration, and
// its patient clients, in one of its own.
func replay(ctx context.Context, in *merged, worlds []*world, o *Options, read *atomic.Int64) error {
	ctx, cancel := context.WithCancel(ctx)
	batches := make(chan []*record, 8)
	var failed error
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		defer close(batches)
		failed = gather(ctx, in, batches)
	}()
	defer func() { cancel(); <-reading }()
	var wg sync.WaitGroup
	for batch := range batches {
		for _, w := range worlds {
			wg.Go(func() { w.ledger.decide(batch) })
			wg.Go(func() { w.patient.decide(batch) })
		}
		wg.Wait()
		compare(batch, worlds, o)
		for _, r := range batch {
			records.Put(r)
		}
		if o.Progress != nil {
			o.Progress(read.Load())
		}
	}
	<-reading
	if failed != nil {
		return failed
	}
	for _, w := range worlds {
		wg.Go(w.patient.finish)
	}
	wg.Wait()
	return nil
}

func gather(ctx context.Context, in *merged, batches chan<- []*record) error {
	if err := in.start(); err != nil {
		return err
	}
	for {
		batch := make([]*record, 0, batchSize)
		for len(batch) < batchSize {
			r, err := in.next()
			if err != nil {
				return err
			}
			if r == nil {
				break
			}
			batch = append(batch, r)
		}
		if len(batch) == 0 {
			return nil
		}
		select {
		case batches <- batch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// compare counts what one configuration denies and the other does not.
func compare(batch []*record, worlds []*world, o *Options) {
	mine := worlds[0].ledger
	for i, r := range batch {
		if o.observe != nil {
			o.observe(r, mine.verdicts[i])
		}
		if len(worlds) < 2 {
			continue
		}
		other := worlds[1].ledger
		switch a, b := mine.verdicts[i], other.verdicts[i]; {
		case a && !b:
			worlds[0].newly++
			mine.who[i].newly++
		case b && !a:
			worlds[1].newly++
			other.who[i].newly++
		}
	}
}
