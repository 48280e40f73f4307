package test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// A shownQuery is one query of the shipped dashboard.
type shownQuery struct{ panel, expr, legend string }

// dashboard returns the queries of the shipped dashboard with all variables chosen:
// those of panels, and those that give variables and annotations.
func dashboard(t testing.TB) (panels, others []shownQuery) {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Annotations struct{ List []struct{ Name, Expr string } }
	}
	if err := json.Unmarshal([]byte(shipped(t, "grafana/dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	chosen := strings.NewReplacer("$__rate_interval", rateOver, "$job", "gateway",
		"$instance", ".*", "$route", ".*", "$plan", ".*", "$limit", ".*", "$upstream", ".*")
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			panels = append(panels, shownQuery{p.Title, chosen.Replace(q.Expr), q.LegendFormat})
		}
	}
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(v.Definition); m != nil {
			others = append(others, shownQuery{"$" + v.Name, "count by (" + m[2] + ") (" + chosen.Replace(m[1]) + ")", ""})
		}
	}
	for _, a := range d.Annotations.List {
		others = append(others, shownQuery{a.Name, chosen.Replace(a.Expr), ""})
	}
	if len(panels) < 50 || len(others) < 6 {
		t.Fatalf("%d queries of panels and %d others: the dashboard is not read as it stands there", len(panels), len(others))
	}
	return panels, others
}

// rules returns the expressions of the shipped alerts by name.
func rules(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, rule := range strings.Split(shipped(t, "prometheus/rules.yml"), "- alert: ")[1:] {
		name, rest, _ := strings.Cut(rule, "\n")
		m := regexp.MustCompile(`(?s)expr: (?:[|>]\n)?(.*?)\n\s+(?:for|labels): `).FindStringSubmatch(rest)
		if m == nil {
			t.Fatalf("%s: no expression found", name)
		}
		out[name] = m[1]
	}
	return out
}

// A fleet is two gateways on one Redis, with everything that metrics tell of.
type fleet struct {
	*site
	redis    *redistest.Server
	provider *identityProvider
	signer   signer
	all      []*gateway
}

func startFleet(t testing.TB) *fleet {
	t.Helper()
	f := &fleet{site: newSite(t), redis: redistest.Start(t), signer: newSigner("k")}
	f.provider = newIdentityProvider(t, f.signer)
	weather := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		wait := map[string]time.Duration{"/slow": patience, "/late": 1500 * time.Millisecond, "/full": time.Second}[r.URL.Path]
		select {
		case <-r.Context().Done():
		case <-time.After(wait):
		}
		if strings.HasPrefix(r.URL.Path, "/export/") {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		_, _ = io.WriteString(w, "ok")
	})
	failing := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	newTestCA(t).issue(t, f.site, 2, time.Now().Add(time.Hour))
	f.write("keys.yaml", keysOf("priya123", "caller-0")+keyEntry("big", "plan: pro"))
	f.plans("")
	f.write("routes.yaml", `
listen: {http: "127.0.0.1:0", https: {address: "127.0.0.1:0", cert_file: cert.pem, key_file: key.pem}, admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [127.0.0.1]}
store: {redis: {url: "`+f.redis.URL()+`", timeout: 250ms}}
auth:
  failure_limit: off
  api_keys: {file: keys.yaml}
  jwt:
    - `+f.provider.byURL(", claims: {plan: plan}")+`
limits:
  edge-ip:   {per: ip, algorithm: token_bucket, limit: 1000000/minute}
  everybody: {per: global, algorithm: token_bucket, limit: 100000/second, lease: {size: auto, ttl: 1s}}
  login-try: {per: ip, algorithm: sliding_window_log, limit: 5/minute}
edge: [edge-ip]
upstreams:
  weather: {targets: ["`+weather.URL+`"], max_in_flight: 500}
  failing: {targets: ["`+failing.URL+`"], circuit: {errors: 50%, window: 10s, open: 5s}}
  narrow:  {targets: ["`+weather.URL+`"], max_in_flight: 1}
  gone:    {targets: ["http://`+deadAddress(t)+`"], retries: {attempts: 2, budget: 10%}}
routes:
  - {name: weather, path: /weather, upstream: weather, limits: [everybody]}
  - {name: slow, path: /slow, upstream: weather}
  - {name: late, path: /late, upstream: weather}
  - {name: full, path: /full, upstream: narrow}
  - {name: export, path: "/export/*", upstream: weather, cost: 10, on_store_failure: allow}
  - {name: scoped, path: /scoped, upstream: weather, scopes: [read]}
  - {name: socket, path: /socket, upstream: weather, websocket: {max_connections: 1}}
  - {name: login, path: /login, methods: [POST], upstream: weather, auth: none, limits: [login-try], on_store_failure: deny}
  - {name: failing, path: /failing, upstream: failing}
  - {name: gone, path: /gone, upstream: gone}
`)
	f.env = []string{"GOMEMLIMIT=1GiB"} // it has a panel
	f.all = []*gateway{f.start(), f.start()}
	return f
}

// plans writes plans.yaml, with something more at its end.
func (f *fleet) plans(more string) {
	f.write("plans.yaml", `
default_plan: free
anonymous_plan: anonymous
plans:
  anonymous: {limits: []}
  free:
    limits:
      - {name: per-minute, algorithm: token_bucket, limit: 60/minute, burst: 20, candidate: {limit: 120/minute, burst: 40}}
      - {name: per-day, algorithm: fixed_window, limit: 5/day, mode: shadow}
  pro: {limits: [{name: per-minute, algorithm: token_bucket, limit: 1000000/minute}]}
`+more)
}

// traffic sends requests of each kind to all gateways until it is stopped.
func (f *fleet) traffic(t testing.TB) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var senders sync.WaitGroup
	key := func(user string) []string { return []string{"X-API-Key", keyOf(user)} }
	unknownPlan := f.provider.token(f.signer, "tess", "plan", "platinum")
	for _, g := range f.all {
		for _, path := range []string{"/late", "/full", "/full"} { // one after the other
			senders.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						_, _ = trySend("GET", g.url+path, nil, key("big")...)
					}
				}
			})
		}
		senders.Go(func() {
			every := time.NewTicker(100 * time.Millisecond)
			defer every.Stop()
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-every.C:
				}
				traced := []string{"traceparent", fmt.Sprintf("00-%032x-%016x-01", n+1, n+1)}
				for _, r := range []struct {
					method, path string
					fields       []string
				}{
					{"GET", "/weather", append(key("big"), traced...)},
					{"GET", "/weather", key("priya123")}, // soon over its limit
					{"GET", "/weather", key("nobody")},
					{"GET", "/weather", key("nobody")},
					{"GET", "/weather", unknownPlan},
					{"GET", "/weather", nil},
					{"GET", "/export/1", key("big")},
					{"GET", "/scoped", key("big")},
					{"POST", "/login", nil},
					{"GET", "/failing", key("big")},
					{"GET", "/gone", key("big")},
					{"GET", fmt.Sprintf("/nowhere/%d", n), nil},
				} {
					_, _ = trySend(r.method, g.url+r.path, nil, r.fields...) // what comes of it, the metrics tell
				}
				f.leave(g)
			}
		})
	}
	return func() {
		close(done)
		senders.Wait() // every request has a timeout
	}
}

// leave makes a request of which the client does not wait for the answer.
func (f *fleet) leave(g *gateway) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/slow", nil)
	if err != nil {
		f.t.Error(err)
		return
	}
	r.Header.Set("X-API-Key", keyOf("big"))
	if res, err := client.Do(r); err == nil {
		_ = res.Body.Close()
	}
}

func (f *fleet) scrapes() (texts []string) {
	for _, g := range f.all {
		eventually(f.t, "a scrape that is not one too many at once", func() bool {
			a := send(f.t, http.MethodGet, g.admin+"/metrics", nil)
			if a.status == http.StatusOK {
				texts = append(texts, a.body)
			}
			return a.status == http.StatusOK
		})
	}
	return texts
}

// Figures that this test has no traffic for: that their queries draw a line is enough.
var quietPanels = map[string]string{
	"Counted together, for want of room": "needs a million callers",
	"Log lines and spans that are lost":  "needs a reader that stands still",
	"Turned away or broken off":          "needs crowds of connections",
	"WebSockets":                         "needs WebSockets",
	"Whose word is not taken":            "needs a proxy that is not trusted",
	"Restarts":                           "counts in steps of ten minutes",
}

// What the shipped files show and tell, a real Prometheus draws and tells, from two real
// gateways on one Redis, through requests of each kind and faults of each kind; once from
// classic buckets, and once from native histograms.
func TestTheDashboardAndTheAlertsOnARealPrometheus(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	classic := startPrometheus(t, "exemplar-storage", f.all...)
	native := startPrometheus(t, "exemplar-storage,native-histograms", f.all...)
	stop := f.traffic(t)
	stopped := false
	defer func() {
		if !stopped {
			stop()
		}
	}()

	classic.firing("ManyDenials", "NearLimit", "GuessingCredentials", "UpstreamDown", "UpstreamFails", "UpstreamLeftAlone", "UpstreamFull", "UpstreamSlow", "CertificateExpires", "UnknownPlan")
	native.firing("NearLimit", "UpstreamSlow")

	f.redis.Freeze() // first it is slow, and then away
	for _, p := range []*prometheus{classic, native} {
		p.firing("LimitStoreSlow", "GatewaySlow")
	}
	classic.firing("LimitStoreAway")
	f.redis.Kill()
	f.redis.Restart()
	for _, g := range f.all {
		eventually(t, "Redis decides again, and what was admitted without it is settled", func() bool {
			return g.sum("gateway_fallback_active{") == 0 && g.sum(`gateway_fallback_units_total{outcome="settled"}`) > 0
		})
	}

	f.plans("  free: {}\n")
	classic.firing("ConfigReloadRejected")
	f.plans("")
	panels, others := dashboard(t)
	for _, p := range []*prometheus{classic, native} {
		eventually(t, "the corrected configuration is in force, which every graph marks", func() bool {
			g, err := p.draw(others[len(others)-1].expr)
			return err == nil && g.most > 0
		})
	}

	scrapes := f.scrapes()
	stop()
	stopped = true

	t.Run("every metric and label that is asked for is there", func(t *testing.T) {
		wantExposed(t, exposed(scrapes...), panels, others)
	})
	for name, p := range map[string]*prometheus{"classic buckets": classic, "native histograms": native} {
		t.Run("every panel draws, from "+name, func(t *testing.T) { p.wantDrawn(t, panels, others) })
		t.Run("every rule is evaluated, on "+name, func(t *testing.T) { p.wantEvaluated(t) })
	}
	t.Run("each has its kind of histogram", func(t *testing.T) {
		for _, metric := range []string{"gateway_request_duration_seconds", "gateway_added_latency_seconds", "gateway_stream_duration_seconds", "gateway_store_duration_seconds", "gateway_ratelimit_remaining_ratio"} {
			if g, err := classic.draw(metric + "_bucket"); err != nil || g.lines == 0 {
				t.Errorf("%s: %d classic buckets, %v", metric, g.lines, err)
			}
			if g, err := native.draw("histogram_count(" + metric + ")"); err != nil || g.lines == 0 || g.most == 0 {
				t.Errorf("%s: %d native histograms, %v", metric, g.lines, err)
			}
		}
	})
	t.Run("buckets lead to traces", func(t *testing.T) {
		for _, metric := range []string{"gateway_request_duration_seconds_bucket", "gateway_added_latency_seconds_bucket"} {
			classic.wantTraces(t, metric)
		}
	})
	t.Run("promtool finds no fault with the metrics", func(t *testing.T) { lintMetrics(t, scrapes[0]) })

	f.all[1].stop()
	classic.firing("GatewayDown")
}

// wantExposed holds every query and every rule against what was scraped, and every
// rule against the panels.
func wantExposed(t *testing.T, known map[string]map[string]bool, panels, others []shownQuery) {
	t.Helper()
	// What Prometheus itself makes.
	known["up"] = map[string]bool{"job": true, "instance": true}
	alert := map[string]bool{"alertname": true, "alertstate": true, "severity": true}
	for _, labels := range known {
		maps.Copy(alert, labels) // it has those of what it is about
	}
	known["ALERTS"] = alert

	all := slices.Concat(panels, others)
	alerts := rules(t)
	for _, name := range slices.Sorted(maps.Keys(alerts)) {
		all = append(all, shownQuery{"alert " + name, alerts[name], ""})
	}
	var expressions []string
	for _, q := range all {
		expressions = append(expressions, q.expr)
	}
	onPanels := map[string]bool{}
	for i, r := range readPromQL(t, expressions) {
		q := all[i]
		if r.Error != "" {
			t.Errorf("%s: %s\n%s", q.panel, r.Error, q.expr)
			continue
		}
		if len(r.Selectors) == 0 {
			t.Errorf("%s: it asks for nothing: %s", q.panel, q.expr)
		}
		for _, s := range r.Selectors {
			labels := known[s.Metric]
			if labels == nil {
				t.Errorf("%s: nothing is called %s", q.panel, s.Metric)
				continue
			}
			for _, l := range s.Labels {
				if !labels[l] {
					t.Errorf("%s: %s has no label %s", q.panel, s.Metric, l)
				}
			}
			whole := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(s.Metric, "_bucket"), "_count"), "_sum")
			if i < len(panels) {
				onPanels[whole] = true
			} else if strings.HasPrefix(q.panel, "alert ") && !onPanels[whole] {
				t.Errorf("%s is on no panel, and %s tells of it", s.Metric, q.panel)
			}
		}
		for _, g := range r.Groupings {
			for _, l := range g.Labels {
				if !slices.ContainsFunc(g.Metrics, func(m string) bool { return known[m][l] }) {
					t.Errorf("%s: none of %v has a label %s, by which it groups", q.panel, g.Metrics, l)
				}
			}
		}
	}
}

// wantDrawn has Prometheus evaluate every query.
func (p *prometheus) wantDrawn(t *testing.T, panels, others []shownQuery) {
	t.Helper()
	most := map[string]float64{}
	name := regexp.MustCompile(`\{\{(\w+)\}\}`)
	for _, q := range slices.Concat(panels, others) {
		g, err := p.draw(q.expr)
		if err != nil {
			t.Errorf("%s: %v\n%s", q.panel, err, q.expr)
			continue
		}
		if g.lines == 0 {
			t.Errorf("%s: no line of %s", q.panel, q.expr)
		}
		most[q.panel] = max(most[q.panel], g.most)
		for _, m := range name.FindAllStringSubmatch(q.legend, -1) {
			if g.lines > 0 && !g.labels[m[1]] {
				t.Errorf("%s: the legend names %s, which no line has: %s", q.panel, m[1], q.expr)
			}
		}
	}
	for panel, v := range most {
		if v == 0 && quietPanels[panel] == "" {
			t.Errorf("%s: nothing but zeros, whatever happened", panel)
		}
	}
}

// wantEvaluated has Prometheus say how it fares with the rules.
func (p *prometheus) wantEvaluated(t *testing.T) {
	t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := p.ask("rules", nil, &data); err != nil {
		t.Fatal(err)
	}
	known := rules(t)
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" {
				t.Errorf("%s: %s: %s", r.Name, r.Health, r.LastError)
			}
			delete(known, r.Name)
		}
	}
	if len(known) > 0 {
		t.Errorf("not loaded: %v", slices.Sorted(maps.Keys(known)))
	}
}

// wantTraces wants exemplars of the requests that came with a trace, and no others.
func (p *prometheus) wantTraces(t *testing.T, metric string) {
	t.Helper()
	var data []struct {
		SeriesLabels map[string]string
		Exemplars    []struct{ Labels map[string]string }
	}
	form := url.Values{"query": {metric}, "start": {stamp(p.started)}, "end": {stamp(time.Now())}}
	if err := p.ask("query_exemplars", form, &data); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, series := range data {
		for _, e := range series.Exemplars {
			n++
			// traffic counts its traces from 1, and sends them to this route
			id, err := strconv.ParseInt(e.Labels["trace_id"], 16, 64)
			if len(e.Labels["trace_id"]) != 32 || len(e.Labels) != 1 || err != nil || id > 10_000 || series.SeriesLabels["route"] != "weather" {
				t.Errorf("%v: exemplar %v", series.SeriesLabels, e.Labels)
			}
		}
	}
	if n == 0 {
		t.Errorf("%s has no exemplars", metric)
	}
}

// lintMetrics has Prometheus' own tool read a scrape. No name of ours is excepted.
func lintMetrics(t *testing.T, scrape string) {
	t.Helper()
	cmd := exec.Command("promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(scrape)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}
