package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// checkTests finds limits that tests name and that there are not.
func checkTests(tests []*testDecl, limits map[string]bool) {
	for _, t := range tests {
		for _, r := range t.limits {
			if !limits[r.name] {
				r.at.errorf("no limit %s in any plan or under limits%s", quote(r.name), suggestKey(r.name, limits))
			}
		}
		for _, r := range t.deniers {
			if !limits[r.name] && !slices.Contains(TestStages, r.name) {
				all := map[string]bool{}
				for _, s := range TestStages {
					all[s] = true
				}
				for l := range limits {
					all[l] = true
				}
				r.at.errorf("no limit %s in any plan or under limits%s; besides limits %s can deny",
					quote(r.name), suggestKey(r.name, all), strings.Join(TestStages, ", "))
			}
		}
	}
}

// allLimits are the names of all limits of two files.
func allLimits(f *routesFile, p *plansFile) map[string]bool {
	names := map[string]bool{}
	for name := range f.limits {
		names[name] = true
	}
	for _, d := range p.plans {
		for _, l := range d.limits {
			names[l.Name] = true
		}
	}
	return names
}

// testsOf copies the tests out of their declarations.
func testsOf(ds []*testDecl) []*Test {
	var out []*Test
	for _, d := range ds {
		t := d.Test
		out = append(out, &t)
	}
	return out
}

// LoadTests reads a file of tests for cfg: tests, as plans.yaml has them. It may
// be another plans file, of which nothing else is read: its tests say what cfg
// must keep of it. lookup answers for ${NAME}; nil means os.LookupEnv. The tests are
// nil exactly when the report has errors or there are none.
func LoadTests(cfg *Config, path string, lookup func(string) (string, bool)) ([]*Test, *Report) {
	s := newSource(lookup)
	var tests []*testDecl
	if root, ok := s.open(path, wantedTests); ok {
		if o, ok := root.object(wantedTests); ok {
			o.extensions = true
			o.known = append(o.known, "plans", "default_plan", "anonymous_plan", "overrides")
			if v, ok := o.need("tests", "a list of tests"); ok {
				tests = readTests(v)
			}
			o.done()
		}
	}
	names := map[string]bool{}
	for _, l := range cfg.Limits {
		names[l.Name] = true
	}
	for _, p := range cfg.Plans {
		for _, l := range p.Limits {
			names[l.Name] = true
		}
	}
	checkTests(tests, names)
	s.report.finish()
	if len(s.report.Errors()) > 0 {
		return nil, s.report
	}
	return testsOf(tests), s.report
}

// TestFiles are the files of tests beside the plans file at path, those whose
// names end in _test.yaml, sorted.
func TestFiles(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), "_test.yaml") && !e.IsDir() {
			files = append(files, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return files, nil
}
