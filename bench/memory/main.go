// Command memory measures what a crowd costs: it sends one request from each
// of a million different client addresses through one gateway and looks at the
// process. Then it sends as many again, from addresses never seen, into tables
// that are full. It does so twice: with an edge limit alone, and with an
// anonymous plan beside it that counts per address as well, in a second table.
//
// The limits are windows of an hour, so that no state runs out meanwhile: this
// is the most that the tables can hold. The addresses are told through
// X-Forwarded-For by a trusted peer, as behind a load balancer.
//
// It is not a measurement of speed.
//
//	make bench-memory
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bouncer/bench/internal/rig"
)

// bar is the most that the process may have in memory with one full table, in
// MiB. Two full tables are shown beside it: what each one costs is what an
// operator needs to choose max_keys.
const bar = 300

type options struct {
	gateway, upstream string
	addresses         int
	json              bool
	write             string
}

func main() {
	var o options
	flag.StringVar(&o.gateway, "gateway", "bin/gateway", "the gateway's program")
	flag.StringVar(&o.upstream, "upstream", "bin/upstream", "the upstream's program")
	flag.IntVar(&o.addresses, "addresses", 1_000_000, "different client addresses; also store.memory.max_keys")
	flag.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flag.StringVar(&o.write, "write", "", "Markdown `file` whose memory section is replaced")
	flag.Parse()
	rig.Main("bench-memory", func(ctx context.Context) error { return run(ctx, o) })
}

const connections = 64

func run(ctx context.Context, o options) error {
	// 10.0.0.0/8 has room for two crowds of eight million.
	if o.addresses < connections || o.addresses > 8_000_000 {
		return fmt.Errorf("want 64 to 8000000 addresses, got %d", o.addresses)
	}
	dir, err := os.MkdirTemp("", "bouncer-memory-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	upstream, upstreamAddress, err := startUpstream(ctx, o, dir)
	if err != nil {
		return err
	}
	defer upstream.Stop()
	r := &report{Machine: rig.Machine(), Date: time.Now().Format(time.DateOnly), Addresses: o.addresses, Bar: bar}
	for _, c := range []struct{ name, plans string }{
		{edgeAlone, "anonymous: {limits: []}"},
		{"edge limit and plan", "anonymous: {limits: [{name: per-hour, per: ip, algorithm: fixed_window, limit: 1000/hour}]}"},
	} {
		if err := r.crowds(ctx, o, dir, upstreamAddress, c.name, c.plans); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	err = rig.Output{Write: o.write, Section: "memory", JSON: o.json}.Show(r)
	return errors.Join(err, r.verdict())
}

const edgeAlone = "edge limit"

// crowds sends two crowds through a gateway with the given plan.
func (r *report) crowds(ctx context.Context, o options, dir, upstream, name, plan string) error {
	g, err := startGateway(ctx, o, dir, upstream, plan)
	if err != nil {
		return err
	}
	defer g.process.Stop()
	if err := r.look(ctx, g, name, "at start", nil); err != nil {
		return err
	}
	for crowd, when := range []string{"after %d addresses", "after %d more"} {
		when = fmt.Sprintf(when, o.addresses)
		fmt.Fprintf(os.Stderr, "%s: %s …\n", name, when)
		result, err := g.crowd(ctx, o.addresses, crowd*o.addresses)
		if err != nil {
			return err
		}
		if err := r.look(ctx, g, name, when, result.Statuses); err != nil {
			return err
		}
	}
	full, crowded := r.Looks[len(r.Looks)-2], r.Looks[len(r.Looks)-1]
	if full.Admitted < o.addresses*99/100 {
		return fmt.Errorf("%d of %d newcomers were admitted into empty tables, want 99 %%", full.Admitted, o.addresses)
	}
	if crowded.Overflows == 0 {
		return errors.New("the second crowd met no full table: the tables are not bounded by max_keys")
	}
	return nil
}

func startUpstream(ctx context.Context, o options, dir string) (*rig.Process, string, error) {
	address, err := rig.FreeAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	p, err := rig.Start("upstream", dir, nil, o.upstream, "-listen", address)
	if err != nil {
		return nil, "", err
	}
	if err := p.Ready(ctx, address, ""); err != nil {
		p.Stop()
		return nil, "", err
	}
	return p, address, nil
}

type gateway struct {
	process        *rig.Process
	address, admin string
}

const plansYAML = `anonymous_plan: anonymous
plans:
  %s
`

const routesYAML = `listen: {http: "%s", admin: "%s"}
client_ip: {trusted_proxies: [127.0.0.1]}
store: {memory: {max_keys: %d}}
limits:
  edge-ip: {per: ip, algorithm: fixed_window, limit: 2000/hour}
edge: [edge-ip]
upstreams:
  weather: {targets: ["http://%s"]}
routes:
  - {name: weather, path: /api/weather, methods: [GET], upstream: weather, auth: none}
`

func startGateway(ctx context.Context, o options, dir, upstream, plan string) (*gateway, error) {
	g := &gateway{}
	var err error
	if g.address, err = rig.FreeAddress(ctx); err != nil {
		return nil, err
	}
	if g.admin, err = rig.FreeAddress(ctx); err != nil {
		return nil, err
	}
	routes, plans := filepath.Join(dir, "routes.yaml"), filepath.Join(dir, "plans.yaml")
	if err := os.WriteFile(routes, fmt.Appendf(nil, routesYAML, g.address, g.admin, o.addresses, upstream), 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(plans, fmt.Appendf(nil, plansYAML, plan), 0o600); err != nil {
		return nil, err
	}
	if g.process, err = rig.Start("gateway", dir, nil, o.gateway, "run", "-routes", routes, "-plans", plans); err != nil {
		return nil, err
	}
	if err := g.process.Ready(ctx, g.admin, "/readyz"); err != nil {
		g.process.Stop()
		return nil, err
	}
	return g, nil
}

// crowd sends one request from each of n addresses, beginning with the first-th.
func (g *gateway) crowd(ctx context.Context, n, first int) (rig.Result, error) {
	return rig.Run(ctx, rig.Load{
		Address: g.address, Connections: connections,
		Next: func(connection, i int) []byte {
			k := i*connections + connection
			if k >= n {
				return nil
			}
			a := first + k + 1
			return fmt.Appendf(nil, "GET /api/weather HTTP/1.1\r\nHost: api.example.com\r\nX-Forwarded-For: 10.%d.%d.%d\r\n\r\n", a>>16&255, a>>8&255, a&255)
		},
		// Newcomers to a full table share one budget, which a crowd uses up.
		Accept: func(status int) bool { return status == http.StatusOK || status == http.StatusTooManyRequests },
	})
}

// overflows is how many decisions the full tables have made so far.
func (g *gateway) overflows(ctx context.Context) (float64, error) {
	value, ok, err := rig.Metric(ctx, g.admin, "gateway_store_overflow_total")
	if err == nil && !ok {
		err = errors.New("no gateway_store_overflow_total in the metrics")
	}
	return value, err
}

type report struct {
	Machine   string  `json:"machine"`
	Date      string  `json:"date"`
	Addresses int     `json:"addresses"`
	Bar       int     `json:"bar_mib"`
	Looks     []*look `json:"looks"`
}

// A look is the process at one moment.
type look struct {
	Limits    string  `json:"limits"`
	When      string  `json:"when"`
	Resident  float64 `json:"resident_mib"`
	Peak      float64 `json:"peak_mib"`
	Admitted  int     `json:"admitted"`
	Denied    int     `json:"denied"`
	Overflows float64 `json:"overflows"`
}

func (r *report) look(ctx context.Context, g *gateway, limits, when string, statuses map[int]int) error {
	resident, peak, err := g.process.Memory()
	if err != nil {
		return err
	}
	overflows, err := g.overflows(ctx)
	if err != nil {
		return err
	}
	r.Looks = append(r.Looks, &look{
		Limits: limits, When: when, Resident: float64(resident) / (1 << 20), Peak: float64(peak) / (1 << 20),
		Admitted: statuses[http.StatusOK], Denied: statuses[http.StatusTooManyRequests], Overflows: overflows,
	})
	return nil
}

// Markdown is the report as a section of a document.
func (r *report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s: %s. `max_keys: %d`.\n\n", r.Date, r.Machine, r.Addresses)
	b.WriteString("    make bench-memory\n\n")
	b.WriteString("| limits | | resident MiB | peak MiB | admitted | denied | decided by the shared budget, so far |\n| --- | --- | --: | --: | --: | --: | --: |\n")
	for _, l := range r.Looks {
		fmt.Fprintf(&b, "| %s | %s | %.0f | %.0f | %d | %d | %.0f |\n", l.Limits, l.When, l.Resident, l.Peak, l.Admitted, l.Denied, l.Overflows)
	}
	return b.String()
}

// verdict is an error if the process with one table was above the bar.
func (r *report) verdict() error {
	var errs []error
	for _, l := range r.Looks {
		if l.Limits == edgeAlone && l.Peak > bar {
			errs = append(errs, fmt.Errorf("%s, %s: %.0f MiB at the peak, above the bar of %d MiB", l.Limits, l.When, l.Peak, bar))
		}
	}
	return errors.Join(errs...)
}
