package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A prometheus is a running server of that name, of the Debian package.
type prometheus struct {
	t       testing.TB
	url     string
	started time.Time
}

// The figures of the shipped files are minutes, those of a test are seconds.
const (
	scrapeEvery = "1s" // and it may take as long
	rateOver    = "5s"
)

// hurried is a file of rules or of the scrape configuration on a test's clock. Five a
// second are more than a busy machine may send.
func hurried(text string) string {
	text = regexp.MustCompile(`(?m) > 5$`).ReplaceAllString(text, " > 0.5")
	text = regexp.MustCompile(`(?m)^(\s+for:) \S+$`).ReplaceAllString(text, "$1 1s")
	text = regexp.MustCompile(`\[\d+[mh]\]`).ReplaceAllString(text, "["+rateOver+"]")
	return regexp.MustCompile(`(?m)^(\s+(?:scrape|evaluation)_interval:) \S+$`).ReplaceAllString(text, "$1 "+scrapeEvery)
}

func shipped(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "deploy", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// startPrometheus starts a server with the shipped configuration and rules, but for
// the targets and the durations. features is what --enable-feature is given.
func startPrometheus(t testing.TB, features string, gateways ...*gateway) *prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("there is no prometheus; make needs installs it")
	}
	var targets []string
	for _, g := range gateways {
		targets = append(targets, strconv.Quote(strings.TrimPrefix(g.admin, "http://")))
	}
	config := hurried(shipped(t, "prometheus/prometheus.yml"))
	adapted := strings.Replace(config, `"gateway:9090"`, strings.Join(targets, ", "), 1)
	if adapted == config {
		t.Fatal("prometheus.yml has other targets than this test replaces")
	}
	s := newSite(t)
	s.write("prometheus.yml", adapted)
	s.write("rules.yml", hurried(shipped(t, "prometheus/rules.yml")))

	p := &prometheus{t: t, started: time.Now()}
	cmd := exec.Command(program, "--config.file="+s.path("prometheus.yml"), "--storage.tsdb.path="+s.path("data"),
		"--web.listen-address=127.0.0.1:0", "--enable-feature="+features)
	output, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening, ended := make(chan string, 1), make(chan struct{})
	var log lockedBuffer
	go func() {
		defer close(ended)
		where := regexp.MustCompile(`msg="Listening on" address=(\S+)`)
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			_, _ = fmt.Fprintln(&log, lines.Text())
			if m := where.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case listening <- m[1]:
				default:
				}
			}
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("the log of prometheus:\n%s", log.String())
		}
	})
	select {
	case address := <-listening:
		p.url = "http://" + address
	case <-ended:
		t.Fatalf("prometheus ended instead of serving:\n%s", log.String())
	case <-time.After(patience):
		t.Fatalf("prometheus does not serve:\n%s", log.String())
	}
	eventually(t, "prometheus is ready", func() bool {
		res, err := client.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return p
}

// ask calls the API and reads its data.
func (p *prometheus) ask(path string, form url.Values, data any) error {
	res, err := client.Get(p.url + "/api/v1/" + path + "?" + form.Encode())
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var reply struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(res.Body).Decode(&reply); err != nil {
		return err
	}
	if reply.Status != "success" {
		return fmt.Errorf("%d %s: %s", res.StatusCode, reply.Status, reply.Error)
	}
	return json.Unmarshal(reply.Data, data)
}

// A graph is what one query shows.
type graph struct {
	labels map[string]bool // that some line has
	lines  int             // with a figure
	most   float64         // the greatest figure
}

// stamp is a time as the API takes it.
func stamp(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }

// draw evaluates a query over all the time since the start, as a panel does.
func (p *prometheus) draw(expr string) (g graph, err error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Values [][2]any
		}
	}
	err = p.ask("query_range", url.Values{
		"query": {expr}, "start": {stamp(p.started)}, "end": {stamp(time.Now())}, "step": {"500ms"},
	}, &data)
	g = graph{labels: map[string]bool{}}
	for _, line := range data.Result {
		some := false
		for _, sample := range line.Values {
			text, _ := sample[1].(string)
			v, err := strconv.ParseFloat(text, 64)
			if err == nil && !math.IsNaN(v) {
				some = true
				g.most = max(g.most, v)
			}
		}
		if some {
			g.lines++
		}
		for name := range line.Metric {
			g.labels[name] = true
		}
	}
	return g, err
}

// firing waits for an alert, and wants its texts whole.
func (p *prometheus) firing(names ...string) {
	p.t.Helper()
	missing := slices.Clone(names)
	deadline := time.Now().Add(2 * patience) // it needs several scrapes in a row
	for {
		var data struct {
			Alerts []struct {
				State               string
				Labels, Annotations map[string]string
			}
		}
		if err := p.ask("alerts", nil, &data); err != nil {
			p.t.Fatal(err)
		}
		for _, a := range data.Alerts {
			if a.State != "firing" {
				continue
			}
			name := a.Labels["alertname"]
			missing = slices.DeleteFunc(missing, func(m string) bool { return m == name })
			text := a.Annotations["summary"] + a.Annotations["description"]
			if text == "" || strings.Contains(text, "<") || !strings.HasSuffix(a.Annotations["runbook_url"], "#"+strings.ToLower(name)) {
				p.t.Errorf("%s says %v", name, a.Annotations)
			}
		}
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("waited in vain for alerts: %v", missing)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
