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

	"bouncer/gateway"
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
	observe         func(*record, *gateway.Verdict) // a test's, of Config
}

// ErrOptions is wrapped by errors about the options themselves.
var ErrOptions = errors.New("the options cannot be used")

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
		if len(worlds) == 0 {
			w.ledger.observe = o.observe
		}
		worlds = append(worlds, w)
	}

	var read atomic.Int64
	in := &merged{arrival: o.Arrival}
	defer in.close()
	texts, seen := newKept(), map[string]bool{}
	for _, path := range o.Logs {
		if path == "-" && seen[path] {
			return nil, fmt.Errorf("%w: standard input can be read once", ErrOptions)
		}
		seen[path] = true
		s, err := open(path, cmp.Or[io.Reader](o.Stdin, os.Stdin), &o, texts, &read)
		if err != nil {
			return nil, err
		}
		in.sources = append(in.sources, s)
	}
	if err := replay(ctx, in, worlds, &o, &read); err != nil {
		return nil, err
	}
	result := worlds[0].result()
	if len(worlds) > 1 {
		result.Against = worlds[1].result()
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
	return &world{ledger: l, patient: &patience{ask: a}}, nil
}

func (w *world) close() {
	_ = w.ledger.ask.h.Close() // they log to nobody
	_ = w.patient.ask.h.Close()
}

// An outcome is what one configuration makes of a record.
type outcome struct {
	who    *caller
	denied bool
}

// A batch is some records on their way from the reader through the ledgers to the
// patient clients, and back to be used again.
type batch struct {
	records []*record
	// outcomes are those of each configuration, in the order of the records.
	outcomes [2][]outcome
	open     atomic.Int32 // how many have yet to be done with it
}

const (
	batchSize = 512
	// underWay is how many batches there are.
	underWay = 16
)

// replay reads in one goroutine, and decides in others: each configuration in one
// of its own, and a batch or more behind it its patient clients, in one too.
func replay(ctx context.Context, in *merged, worlds []*world, o *Options, read *atomic.Int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	idle, full := make(chan *batch, underWay), make(chan *batch, underWay)
	for range underWay {
		idle <- &batch{records: make([]*record, 0, batchSize)}
	}
	var failed error
	var all, deciding sync.WaitGroup
	all.Go(func() {
		defer close(full)
		failed = gather(ctx, in, idle, full)
	})
	var patients []chan *batch
	for i, w := range worlds {
		decided := make(chan *batch, underWay)
		patients = append(patients, decided)
		all.Go(func() {
			for b := range decided {
				w.patient.decide(b.records, b.outcomes[i]) //nolint:contextcheck // a rehearsal waits for nothing
				b.done(idle)
			}
			if ctx.Err() == nil {
				w.patient.finish() //nolint:contextcheck // a rehearsal waits for nothing
			}
		})
	}
	for b := range full {
		for i, w := range worlds[1:] {
			deciding.Go(func() { b.outcomes[i+1] = w.ledger.decide(b.records, b.outcomes[i+1][:0]) }) //nolint:contextcheck // a rehearsal waits for nothing
		}
		b.outcomes[0] = worlds[0].ledger.decide(b.records, b.outcomes[0][:0]) //nolint:contextcheck // a rehearsal waits for nothing
		deciding.Wait()
		compare(b, worlds)
		b.open.Store(int32(len(worlds))) //nolint:gosec // one or two
		for _, decided := range patients {
			decided <- b
		}
		if o.Progress != nil {
			o.Progress(read.Load())
		}
	}
	for _, decided := range patients {
		close(decided)
	}
	all.Wait()
	return failed
}

// done gives a batch back once all are done with it.
func (b *batch) done(idle chan<- *batch) {
	if b.open.Add(-1) > 0 {
		return
	}
	for _, r := range b.records {
		records.Put(r)
	}
	b.records = b.records[:0]
	idle <- b
}

// gather reads batch after batch.
func gather(ctx context.Context, in *merged, idle <-chan *batch, full chan<- *batch) error {
	if err := in.start(); err != nil {
		return err
	}
	for {
		var b *batch
		select {
		case b = <-idle:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for len(b.records) < batchSize {
			r, err := in.next()
			if err != nil {
				return err
			}
			if r == nil {
				break
			}
			b.records = append(b.records, r)
		}
		if len(b.records) == 0 {
			return nil
		}
		full <- b // there is room for all of them
	}
}

// compare counts what one configuration denies and the other does not.
func compare(b *batch, worlds []*world) {
	if len(worlds) < 2 {
		return
	}
	for i := range b.records {
		switch mine, other := b.outcomes[0][i], b.outcomes[1][i]; {
		case mine.denied && !other.denied:
			worlds[0].newly++
			mine.who.newly++
		case other.denied && !mine.denied:
			worlds[1].newly++
			other.who.newly++
		}
	}
}
