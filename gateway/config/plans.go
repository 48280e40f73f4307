package config

// planDecl is a plan and where its parts stand.
type planDecl struct {
	Plan
	at     value
	capAt  value // local_cap, if given
	limits []*limitDecl
}

// plansFile is what plans.yaml says.
type plansFile struct {
	root      value
	byName    map[string]*planDecl
	plans     []*planDecl
	def, anon ref // given if .at is
	// hasDefault and hasAnon say that the fields are there, right or wrong.
	hasDefault, hasAnon bool
	overrides           []overrideDecl
	tests               []*testDecl
}

// overrideDecl is an override and where its parts stand.
type overrideDecl struct {
	Override
	at, subjectAt value
	plan          ref
}

// maxLimits bounds the limits of a plan and those of a route.
const maxLimits = 32

const wantedPlans = "the fields plans and default_plan"

// readPlans reads plans.yaml. It returns nil if there is nothing to check.
func readPlans(root value) *plansFile {
	f := &plansFile{root: root, byName: map[string]*planDecl{}}
	o, ok := root.object(wantedPlans)
	if !ok {
		return nil
	}
	o.extensions = true
	planRef := func(o *object, name string) ref {
		if v, ok := o.get(name, "the name of a plan"); ok {
			if s, ok := v.word("the name of a plan"); ok {
				return ref{s, v}
			}
		}
		return ref{}
	}
	f.hasDefault, f.hasAnon = o.has("default_plan"), o.has("anonymous_plan")
	f.def = planRef(o, "default_plan")
	f.anon = planRef(o, "anonymous_plan")
	if v, ok := o.need("plans", "named plans with limits, or {}"); ok {
		f.readPlans(v)
	}
	if v, ok := o.get("overrides", "a list of overrides"); ok {
		f.readOverrides(v)
	}
	if v, ok := o.get("tests", "a list of tests, or []"); ok {
		f.tests = readTests(v)
	}
	o.done()
	return f
}

func (f *plansFile) readPlans(v value) {
	o, ok := v.object("named plans")
	if !ok {
		return
	}
	for _, v := range o.entries("a plan") {
		name := v.key.Value
		p := &planDecl{Plan: Plan{Name: name, Pos: v.pos()}, at: v}
		f.byName[name] = p
		f.plans = append(f.plans, p)
		o, ok := v.object("limits")
		if !ok {
			continue
		}
		if v, ok := o.need("limits", "a list of limits, [] if there are none"); ok {
			p.readLimits(v)
		}
		if v, ok := o.get("local_cap", wantedRate); ok {
			p.LocalCap, p.capAt = v.cap(), v
		}
		o.done()
	}
}

func (d *planDecl) readLimits(v value) {
	items, _ := v.list("a list of limits")
	if len(items) > maxLimits {
		v.errorf("%d limits; want at most %d, since every request is decided by all of them", len(items), maxLimits)
		return
	}
	names := map[string]value{}
	for _, item := range items {
		o, ok := item.object("name, algorithm and limit")
		if !ok {
			continue
		}
		l := &limitDecl{Limit: Limit{Pos: item.pos()}, at: item, nameAt: item}
		if v, ok := o.need("name", "a name"); ok {
			l.nameAt = v
			l.Name = v.name("a limit")
		}
		if first, twice := names[l.Name]; twice && l.Name != "" {
			l.nameAt.errorf("two limits of this plan are named %s; the first one is at line %d, column %d",
				quote(l.Name), first.n.Line, first.n.Column)
		} else {
			names[l.Name] = l.nameAt
		}
		l.read(o, false)
		o.done()
		d.limits = append(d.limits, l)
	}
}

func (f *plansFile) readOverrides(v value) {
	items, _ := v.list("a list of overrides")
	seen := map[string]value{}
	for _, item := range items {
		o, ok := item.object("plan, and one of key, user and tenant")
		if !ok {
			continue
		}
		d := overrideDecl{at: item, Override: Override{Pos: item.pos()}}
		count := 0
		for _, s := range []struct {
			field string
			to    *string
		}{{"key", &d.Key}, {"user", &d.User}, {"tenant", &d.Tenant}} {
			if !o.has(s.field) {
				o.known = append(o.known, s.field)
				continue
			}
			count++
			if v, ok := o.get(s.field, "a name"); ok {
				*s.to = v.identity("a name")
				d.subjectAt = v
				subject := s.field + ":" + *s.to
				if first, twice := seen[subject]; twice && *s.to != "" {
					v.errorf("given twice; the first one is at line %d, column %d", first.n.Line, first.n.Column)
				} else {
					seen[subject] = v
				}
			}
		}
		if count != 1 {
			item.errorf("want exactly one of key, user and tenant, got %d", count)
		}
		if v, ok := o.need("plan", "the name of a plan"); ok {
			if s, ok := v.word("the name of a plan"); ok {
				d.plan = ref{s, v}
			}
		}
		o.done()
		f.overrides = append(f.overrides, d)
	}
}
