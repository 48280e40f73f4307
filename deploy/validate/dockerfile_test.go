package validate

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A stage is one image of the Dockerfile as far as its steps say: what is copied into it
// from where, and what is run.
type stage struct {
	base, name string
	steps      []step
}

// A step is one instruction and what stands behind it, its continued lines joined.
type step struct{ name, args string }

// readDockerfile understands what ours is made of, and nothing else.
func readDockerfile(t *testing.T) (stages []stage) {
	t.Helper()
	content, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	joined := ""
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") || joined == "" && line == "" {
			continue
		}
		if head, more := strings.CutSuffix(line, `\`); more {
			joined += head
			continue
		}
		name, args, _ := strings.Cut(joined+line, " ")
		joined = ""
		if name == "FROM" {
			base, as, ok := strings.Cut(args, " AS ")
			if !ok {
				t.Fatalf("FROM %s: a stage without a name", args)
			}
			stages = append(stages, stage{base: base, name: as})
			continue
		}
		last := &stages[len(stages)-1]
		last.steps = append(last.steps, step{name, args})
	}
	return stages
}

// The steps of the Dockerfile, taken one by one: the build on what .dockerignore lets
// through, and then the image, which is an empty directory but for what is copied there.
// As root it is entered as a container would be, so that nothing else can be needed.
func TestTheDockerfileByHand(t *testing.T) {
	t.Parallel()
	stages := readDockerfile(t)
	src, out := t.TempDir(), t.TempDir()
	copyContext(t, src)
	for _, s := range stages[0].steps {
		switch s.name {
		case "RUN":
			if strings.HasPrefix(s.args, "go mod download") {
				continue // the machine has them
			}
			script := "VERSION=by-hand\n" + strings.ReplaceAll(s.args, "/out/", out+"/")
			cmd := exec.Command("sh", "-euc", script)
			cmd.Dir = src
			cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("RUN %s: %v\n%s", s.args, err, said)
			}
		case "WORKDIR", "COPY", "ARG":
		default:
			t.Fatalf("%s %s: no step of this test", s.name, s.args)
		}
	}
	for _, s := range stages[1:] {
		if s.base != "scratch" {
			t.Errorf("%s is made of %s: want the empty image", s.name, s.base)
		}
		image := t.TempDir()
		var user, entry, dir string
		for _, step := range s.steps {
			switch step.name {
			case "COPY":
				from, to, _ := strings.Cut(strings.TrimPrefix(step.args, "--from=build "), " ")
				if strings.HasSuffix(to, "/") {
					to += filepath.Base(from)
				}
				from = strings.Replace(from, "/out/", out+"/", 1)
				if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) && strings.HasPrefix(from, "/etc/ssl/") {
					continue // this machine keeps no certificates; the image it is built on does
				}
				copyFile(t, from, filepath.Join(image, to))
			case "USER":
				user = step.args
			case "ENTRYPOINT":
				entry = step.args
			case "WORKDIR":
				dir = step.args
			case "EXPOSE":
			default:
				t.Fatalf("%s: %s %s: no step of this test", s.name, step.name, step.args)
			}
		}
		uid, gid, ok := strings.Cut(user, ":")
		if !ok || uid == "0" || uid == "" {
			t.Errorf("%s runs as %q: want a user and a group that are nobody's", s.name, user)
		}
		if s.name != "gateway" {
			continue
		}
		if entry != `["/gateway"]` {
			t.Errorf("the entry point is %s", entry)
		}
		enter(t, image, dir, uid, gid)
	}
}

// enter runs the gateway of an image: its configuration is mounted, it may write
// nowhere, and there is nothing else.
func enter(t *testing.T, image, dir, uid, gid string) {
	t.Helper()
	inside := filepath.Join(image, dir)
	if err := os.MkdirAll(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"routes.yaml", "plans.yaml", "keys.yaml"} {
		copyFile(t, filepath.Join("../compose/config", name), filepath.Join(inside, name))
	}
	secrets := filepath.Join(image, "run/secrets")
	if err := os.MkdirAll(secrets, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(secrets, "admin-token"), []byte("a token\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(image, 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"REDIS_URL=redis://redis:6379/0", "WEATHER_URL=http://weather-api:9001"}
	for _, arg := range []string{"version", "check"} {
		cmd := exec.Command(filepath.Join(image, "gateway"), arg)
		cmd.Dir, cmd.Env = inside, env
		if os.Getuid() == 0 {
			u, _ := strconv.ParseUint(uid, 10, 32)
			g, _ := strconv.ParseUint(gid, 10, 32)
			cmd.Path, cmd.Dir = "/gateway", dir
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: image, Credential: &syscall.Credential{Uid: uint32(u), Gid: uint32(g)}}
		} else if arg == "check" {
			continue // its secrets are at a place where only a container has them
		}
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("gateway %s in the image: %v\n%s", arg, err, said)
		}
		if arg == "version" && !strings.Contains(string(said), "by-hand") {
			t.Errorf("the image's gateway calls itself %q: want the VERSION of the build", said)
		}
	}
}

// copyContext copies what .dockerignore lets into the build: nothing but what it names,
// and of that no tests.
func copyContext(t *testing.T, to string) {
	t.Helper()
	ignore, err := os.ReadFile("../../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(ignore)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "!")
		if !ok {
			continue
		}
		err := filepath.WalkDir(filepath.Join("../..", name), func(path string, d os.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return filepath.SkipDir
			case d.IsDir() || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			rel, err := filepath.Rel("../..", path)
			if err == nil {
				copyFile(t, path, filepath.Join(to, rel))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
