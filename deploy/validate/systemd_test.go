package validate

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// systemd's own reader finds nothing to say about the units, and little to gain for who
// takes the gateway over.
func TestTheUnitsAreWhatSystemdReads(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("systemd-analyze is not installed; type: apt-get install systemd")
		}
		t.Skip("systemd-analyze is not installed, so the units were not read; type: apt-get install systemd")
	}
	// The program has to be there, and is wherever this test's machine has one.
	dir := t.TempDir()
	program, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	service := filepath.Join(dir, "gateway.service")
	for _, name := range []string{"gateway.service", "gateway.socket"} {
		unit, err := os.ReadFile(filepath.Join("../systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(unit), "/usr/local/bin/gateway", program)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	said, err := exec.Command(analyze, "verify", "--man=no", service, filepath.Join(dir, "gateway.socket")).CombinedOutput()
	for line := range strings.Lines(string(said)) {
		if strings.Contains(line, "gateway.") { // others of the machine are not ours
			t.Error(strings.TrimSpace(line))
			err = nil
		}
	}
	if err != nil {
		t.Errorf("systemd-analyze verify: %v\n%s", err, said)
	}
	// 0 is nothing and 100 is everything; what is left is the network, which is its work.
	if said, err := exec.Command(analyze, "security", "--no-pager", "--offline=true", "--threshold=20", service).CombinedOutput(); err != nil {
		t.Errorf("the service is exposed above 2.0: %v\n%s", err, said)
	}
}
