package config

import (
	"crypto/sha256"
	"encoding/hex"
)

// Options says where the configuration is.
type Options struct {
	// Routes and Plans are the paths of routes.yaml and plans.yaml.
	Routes, Plans string
	// LookupEnv answers for ${NAME} in string values; nil means os.LookupEnv.
	LookupEnv func(string) (string, bool)
}

// Load reads both files and everything they name, and checks all of it. The
// Config is nil exactly when the report has errors.
func Load(o Options) (*Config, *Report) {
	s := newSource(o.LookupEnv)
	var routes *routesFile
	var plans *plansFile
	if root, ok := s.open(o.Routes, wantedRoutes); ok {
		routes = readRoutes(root)
	}
	if root, ok := s.open(o.Plans, wantedPlans); ok {
		plans = readPlans(root)
	}
	checkReferences(routes, plans)
	if routes != nil {
		checkRoutes(routes)
		routes.checkKeyRoutes()
		checkAccess(routes, plans)
	}
	if routes != nil && plans != nil {
		checkPlans(routes, plans)
		checkNames(routes, plans)
		checkCosts(routes, plans)
		checkTests(plans.tests, allLimits(routes, plans))
	}
	checkDangers(routes, plans)
	checkEffects(routes, plans)
	s.report.finish()
	if len(s.report.Errors()) > 0 {
		return nil, s.report
	}
	return build(s, routes, plans), s.report
}

// build makes the Config of two files without errors.
func build(s *source, f *routesFile, p *plansFile) *Config {
	sum := sha256.Sum256(s.hash)
	c := &Config{
		Files:           s.report.Files,
		Hash:            hex.EncodeToString(sum[:8]),
		Listen:          f.listen,
		Admin:           f.admin,
		Log:             f.log,
		Traces:          f.traces,
		ShutdownTimeout: f.shutdown,
		DrainDelay:      f.drain,
		ClientIP:        f.clientIP,
		Store:           f.store,
		Auth:            f.auth.Auth,
		Upstreams:       f.pools,
		ClientHeaders:   f.headers,
		UsagePath:       f.usage,
		DefaultPlan:     p.def.name,
		AnonymousPlan:   p.anon.name,
	}
	// Everything is copied out of the declarations, so that the Config does not
	// keep the documents.
	named := map[string]*Limit{}
	for _, d := range f.order {
		l := d.Limit
		named[l.Name] = &l
		c.Limits = append(c.Limits, &l)
	}
	for _, r := range f.edge {
		c.Edge = append(c.Edge, named[r.name])
	}
	for _, d := range f.routes {
		r := d.Route
		r.Upstream = d.upstream.name
		for _, l := range d.limits {
			r.Limits = append(r.Limits, named[l.name])
		}
		c.Routes = append(c.Routes, &r)
	}
	for _, d := range p.plans {
		plan := d.Plan
		for _, ld := range d.limits {
			l := ld.Limit
			plan.Limits = append(plan.Limits, &l)
		}
		c.Plans = append(c.Plans, &plan)
	}
	for _, d := range p.overrides {
		o := d.Override
		o.Plan = d.plan.name
		c.Overrides = append(c.Overrides, o)
	}
	c.Tests = testsOf(p.tests)
	return c
}
