package config

import (
	"archive/zip"
	gobuild "go/build"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every name that is taken can be loaded, and none of those that Go brings is
// missing, so that a new Go with a new zone is noticed (-update takes them over).
func TestZonesAreThoseOfGo(t *testing.T) {
	for _, name := range zones() {
		if _, err := time.LoadLocation(name); err != nil {
			t.Error(err)
		}
	}
	r, err := zip.OpenReader(filepath.Join(gobuild.Default.GOROOT, "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Skipf("the names cannot be compared with those of Go: %v", err)
	}
	defer func() { _ = r.Close() }()
	var names []string
	for _, f := range r.File {
		// Factory stands for a zone that was not set.
		if !strings.HasSuffix(f.Name, "/") && f.Name != "Factory" {
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	if *update {
		if err := os.WriteFile("zones.txt", []byte(strings.Join(names, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !slices.Equal(names, zones()) {
		t.Errorf("zones.txt has %d names, Go has %d others", len(zones()), len(names))
	}
}
