package test

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// ownChoices are the cases of h2spec that end otherwise than it says, by the choice
// of Go's server.
var ownChoices = map[string]string{
	"http2/3.5/2":   "in the clear, what does not begin as HTTP/2 is HTTP/1.1, answered as that and closed; h2spec stumbles over the answer",
	"http2/4.2/3":   "takes frames of up to 1 MiB, and says so in its SETTINGS; h2spec does not look",
	"http2/6.5.3/1": "ends a connection whose SETTINGS say the same parameter twice",
	// RFC 9113 section 8.1.1 lets a malformed request be answered before its stream
	// is closed; h2spec knows only the reset.
	"http2/8.1.2.2/1": "answers 400 to a field of a connection",
	"http2/8.1.2.2/2": "answers 400 to a TE other than trailers",
}

// The rules of HTTP/2, each of them tried by a program that knows nothing of ours.
func TestHTTP2IsWhatItsSpecificationSays(t *testing.T) {
	t.Parallel()
	tool := exec.Command("go", "tool", "-modfile=../tools/go.mod", "-n", "h2spec")
	tool.Stderr = os.Stderr
	path, err := tool.Output()
	if err != nil {
		t.Fatalf("build h2spec: %v", err)
	}
	u := newUpstream(t, nil)
	s := proxySite(t, "")
	s.write("routes.yaml", proxyRoutes(u.URL, `http: "127.0.0.1:0", https: {address: "127.0.0.1:0", cert_file: cert.pem, key_file: key.pem}`, ""))
	newTestCA(t).issue(t, s, 1, time.Now().Add(time.Hour))
	g := s.start()
	for _, line := range g.all("listening") {
		door, secure := line["for"], []string(nil)
		switch door {
		case "http":
		case "https":
			secure = []string{"--tls", "--insecure"}
		default:
			continue
		}
		t.Run(fmt.Sprint(door), func(t *testing.T) {
			t.Parallel()
			_, port, err := net.SplitHostPort(str(line, "address"))
			if err != nil {
				t.Fatal(err)
			}
			report := s.path(fmt.Sprint(door, ".xml"))
			ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, strings.TrimSpace(string(path)), append(secure, "--port", port, "--junit-report", report)...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			var failed *exec.ExitError
			if err := cmd.Run(); err != nil && !errors.As(err, &failed) {
				t.Fatal(err)
			}
			b, err := os.ReadFile(report)
			if err != nil {
				t.Fatalf("h2spec did not come to its end: %v\n%s", err, out.String())
			}
			var suites struct {
				Suites []struct {
					Package string `xml:"package,attr"`
					Cases   []struct {
						What    string  `xml:"classname,attr"`
						Error   *string `xml:"error"`
						Failure *string `xml:"failure"`
						Skipped *string `xml:"skipped"`
					} `xml:"testcase"`
				} `xml:"testsuite"`
			}
			if err := xml.Unmarshal(b, &suites); err != nil {
				t.Fatal(err)
			}
			passed := 0
			for _, suite := range suites.Suites {
				for i, c := range suite.Cases {
					name := fmt.Sprintf("%s/%d", suite.Package, i+1)
					switch {
					case c.Error == nil && c.Failure == nil && c.Skipped == nil:
						passed++
					case ownChoices[name] == "":
						t.Errorf("%s: %s", name, c.What)
					}
				}
			}
			if want := 145 - len(ownChoices); passed < want {
				t.Errorf("%d passed, want %d", passed, want)
			}
			if t.Failed() {
				t.Logf("h2spec:\n%s", out.String()[max(0, strings.LastIndex(out.String(), "Failures:")):])
			}
		})
	}
}
