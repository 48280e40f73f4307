package gateway

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"bouncer/docs"
	"bouncer/gateway/admin"
	"bouncer/gateway/config"
	"bouncer/gateway/topk"
)

// admin is the handler of the second listener; a reload that changes the token
// makes a new one.
func (g *Gateway) admin(cfg *config.Config) *http.Handler {
	h := admin.New(admin.Options{
		Metrics:   g.telemetry.Handler(),
		Ready:     g.readiness,
		Reload:    g.Reload,
		Info:      g.status,
		TopDenied: func(k int) []topk.Entry { return g.topDenied.Top(k) },
		Live:      g.overview.feed,
		History:   g.overview.history,
		Callers:   g.callerPage(),
		Runbook:   docs.Runbook,
		Token:     cfg.Admin.Token,
		ClientCAs: cfg.Admin.ClientCAs,
		Loopback:  g.adminLoopback,
		Logger:    g.log,
	})
	return &h
}

// isLoopback reports whether only this machine can reach address.
func isLoopback(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

func (g *Gateway) readiness() admin.Readiness {
	if g.draining.Load() {
		return admin.Readiness{Reason: "shutting down"}
	}
	r := admin.Readiness{Ready: true}
	if f := g.fallback(); f.Active {
		effect := "limits are not shared; each route does what its on_store_failure says"
		if len(f.Away) > 0 {
			effect = "limits of the callers whose counts " + strings.Join(f.Away, ", ") +
				" had are not shared; for them each route does what its on_store_failure says"
		}
		r.Degraded = []admin.Degraded{{Part: "store", Since: f.Since, Effect: effect}}
	}
	r.Degraded = append(r.Degraded, g.upstreamsDegraded()...)
	r.Degraded = append(r.Degraded, g.certificatesDegraded()...)
	r.Degraded = append(r.Degraded, g.providersDegraded()...)
	r.Degraded = append(r.Degraded, g.keysDegraded()...)
	return r
}

// upstreamsDegraded lists the upstreams of which a target is left out.
func (g *Gateway) upstreamsDegraded() (list []admin.Degraded) {
	g.mu.Lock()
	up := g.upstreams
	g.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(up)) {
		p := up[name]
		out := p.upstream.LeftOut()
		if len(out) == 0 {
			continue
		}
		d := admin.Degraded{Part: "upstream " + name, Since: out[0].Since}
		var sick, away []string
		for _, t := range out {
			if t.Since.Before(d.Since) {
				d.Since = t.Since
			}
			if t.Unhealthy {
				sick = append(sick, t.Target)
			} else {
				away = append(away, t.Target)
			}
		}
		var effects []string
		for _, e := range []struct {
			targets []string
			what    string
		}{{sick, "unhealthy"}, {away, "unreachable"}} {
			if len(e.targets) > 0 {
				effects = append(effects, e.what+": "+someOf(e.targets))
			}
		}
		d.Effect = strings.Join(effects, "; ")
		if len(out) == len(p.cfg.Targets) {
			d.Effect += "; no target is well, and requests go to all of them"
		} else {
			d.Effect += "; the others get the requests"
		}
		list = append(list, d)
	}
	return list
}

// someOf names a few, and says how many more there are.
func someOf(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func (g *Gateway) fallback() admin.Fallback {
	s := g.current.Load()
	f := admin.Fallback{Store: sourceOf(s.cfg), Modes: modes(s.cfg)}
	g.mu.Lock()
	sh := g.shared
	g.mu.Unlock()
	if sh.fallback != nil {
		state := sh.fallback.State()
		f.Active, f.Since, f.Away = state.Open, state.Since, state.Away
	}
	return f
}

func (g *Gateway) status() admin.Status {
	s := g.current.Load()
	st := admin.Status{
		Version: g.options.Version, StartedAt: g.started,
		ConfigHash: s.cfg.Hash, ConfigLoadedAt: s.loaded,
		Fallback: g.fallback(),
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	st.Instances, st.InstanceList = g.shared.instances(), g.members(g.shared)
	if g.lastError != "" {
		st.RejectedReload = &admin.RejectedReload{At: g.failedAt, Mistakes: strings.Split(g.lastError, "\n")}
	}
	return st
}
