package test

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// onTerminal runs a command of the gateway with standard output and standard
// error on a pseudo-terminal, and returns what a person sees.
func (s *site) onTerminal(env []string, args ...string) (seen string, code int) {
	s.t.Helper()
	ptm, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		s.t.Fatalf("open a pseudo-terminal: %v", err)
	}
	defer ptm.Close()
	number, err := unix.IoctlGetInt(int(ptm.Fd()), unix.TIOCGPTN)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(ptm.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		s.t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(ptm.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 60}); err != nil {
		s.t.Fatal(err)
	}
	pts, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, pts, pts
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NO_COLOR=") && !strings.HasPrefix(v, "TERM=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, "TERM=xterm"), env...)
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	_ = pts.Close()
	b, _ := io.ReadAll(ptm) // ends with an error, when the other end is closed
	_ = cmd.Wait()          // its exit code is what counts
	return strings.ReplaceAll(string(b), "\r\n", "\n"), cmd.ProcessState.ExitCode()
}

// On a terminal the line stands under its mistake, with the place marked; where
// nobody looks, and for scripts, the findings are as they ever were.
func TestCheckShowsTheLineOnATerminal(t *testing.T) {
	s := openSite(t, newUpstream(t, nil))
	s.write("plans.yaml", `anonymous_plan: anonymous
plans:
  anonymous: {limits: [{name: per-minute, per: ip, algorithm: token_buket, limit: 600/minute}]}
`)
	finding := `plans.yaml:3:63: plans.anonymous.limits[0].algorithm: want fixed_window, sliding_window_log, sliding_window_counter, token_bucket or leaky_bucket, got "token_buket" (did you mean "token_bucket"?)`
	// 60 cells wide: the line is cut around the place.
	const source = "…r: ip, algorithm: token_buket, limit: 600/minute}]}"
	const under = "                   ^^^^^^^^^^^"
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"in colour": {nil, "\x1b[1mplans.yaml:3:63:\x1b[0m" + strings.TrimPrefix(finding, "plans.yaml:3:63:") + "\n" +
			"\x1b[2m  3 | \x1b[0m" + source + "\n\x1b[2m    | \x1b[0m" + strings.TrimRight(under, "^") + "\x1b[1;31m^^^^^^^^^^^\x1b[0m\n1 mistake\n"},
		"with NO_COLOR":     {[]string{"NO_COLOR=1"}, finding + "\n  3 | " + source + "\n    | " + under + "\n1 mistake\n"},
		"a simple terminal": {[]string{"TERM=dumb"}, finding + "\n  3 | " + source + "\n    | " + under + "\n1 mistake\n"},
	} {
		if got, code := s.onTerminal(c.env, "check"); got != c.want || code != 1 {
			t.Errorf("%s: exit code %d, got\n%q\nwant\n%q", name, code, got, c.want)
		}
	}
	if r := s.command("check"); r.stdout != finding+"\n1 mistake\n" {
		t.Errorf("into a pipe: %q", r.stdout)
	}
	if got, _ := s.onTerminal(nil, "check", "-json"); strings.Contains(got, "^") || strings.Contains(got, "\x1b") {
		t.Errorf("-json on a terminal:\n%s", got)
	}
}
