package test

import (
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// healthSwitch is a server that is asked for its health, which can be set.
func healthSwitch(t testing.TB) (u *upstream, host string, status *atomic.Int32) {
	status = new(atomic.Int32)
	status.Store(200)
	u = newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/base/healthz" {
			w.WriteHeader(int(status.Load()))
			_, _ = io.WriteString(w, "so it is")
			return
		}
		_, _ = io.WriteString(w, r.Host)
	})
	return u, strings.TrimPrefix(u.URL, "http://"), status
}

// steadily sends requests until stop is called, which returns how many there were and
// how many were not answered with 200.
func (g *gateway) steadily() (stop func() (all, failed int)) {
	var all, failed atomic.Int32
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(5 * time.Millisecond):
				}
				a, err := trySend("GET", g.url+"/a", nil)
				all.Add(1)
				if err != nil || a.status != 200 {
					failed.Add(1)
				}
			}
		})
	}
	return func() (int, int) {
		close(done)
		wg.Wait()
		return int(all.Load()), int(failed.Load())
	}
}

const sick = "a target fails its health checks; while another target is well it gets no requests"

// A target that fails its checks gets no requests, and gets them again when it passes
// them: under steady requests no one fails for it. If all fail, all are used.
func TestTargetsTurnSickAndWell(t *testing.T) {
	t.Parallel()
	a, aHost, aStatus := healthSwitch(t)
	b, bHost, bStatus := healthSwitch(t)
	s := upstreamSite(t, `targets: ["`+a.URL+`/base", "`+b.URL+`/base"], balance: round_robin, slow_start: 100ms,
    health: {path: /healthz, interval: 500ms, timeout: 500ms, healthy: 1, unhealthy: 2}`)
	g := s.start()
	up := func(host string) float64 { return g.value(`gateway_upstream_up{target="` + host + `",upstream="api"}`) }
	ready := func() string { return send(t, "GET", g.admin+"/readyz", nil).body }
	if strings.Contains(ready(), "upstream") || up(bHost) != 1 {
		t.Errorf("degraded from the beginning: %s", ready())
	}
	stop := g.steadily()
	bStatus.Store(503)
	eventually(t, "it is said", func() bool { return up(bHost) == 0 && g.logged(sick) != nil })
	line := g.logged(sick)
	if text, _ := line["error"].(string); line["upstream"] != "api" || line["target"] != bHost || !strings.Contains(text, "GET /base/healthz was answered with 503") {
		t.Errorf("logged %v", line)
	}
	for range 20 { // those that were in flight are over
		if a := g.get("/a"); a.status != 200 || a.body != aHost {
			t.Fatalf("%d %q, want 200 of %s", a.status, a.body, aHost)
		}
	}
	if text := ready(); !strings.Contains(text, `"part": "upstream api"`) || !strings.Contains(text, "unhealthy: "+bHost+"; the others get the requests") || !strings.Contains(text, `"ready": true`) {
		t.Errorf("/readyz says %s", text)
	}
	found := s.command("doctor")
	if found.code != 1 || !strings.Contains(found.stdout, bHost+": the health check failed: GET /base/healthz was answered with 503") || !strings.Contains(found.stdout, "is well (/healthz)") {
		t.Errorf("doctor: %d\n%s", found.code, found.stdout)
	}
	// All are: all are used.
	aStatus.Store(500)
	eventually(t, "both are told to be away", func() bool { return up(aHost) == 0 && up(bHost) == 0 })
	seen := b.count()
	eventually(t, "it gets requests again", func() bool { return b.count() > seen+50 })
	if text := ready(); !strings.Contains(text, "no target is well, and requests go to all of them") {
		t.Errorf("/readyz says %s", text)
	}
	aStatus.Store(200)
	bStatus.Store(204)
	eventually(t, "both are well", func() bool { return up(aHost) == 1 && up(bHost) == 1 })
	if text := ready(); strings.Contains(text, "upstream") {
		t.Errorf("/readyz says %s", text)
	}
	eventually(t, "one line each is logged", func() bool {
		return len(g.all("the target that was left out is well again; it gets its share by and by")) == 2 && len(g.all(sick)) == 2
	})
	if all, failed := stop(); failed > 0 || all < 50 {
		t.Errorf("%d of %d requests failed", failed, all)
	}
}

// A target that a reload adds to an upstream gets few requests at first; those that were
// there are not forgotten, and nothing fails. Checks end with what asked for them.
func TestATargetThatAReloadAddsBeginsSlowly(t *testing.T) {
	t.Parallel()
	a, aHost, _ := healthSwitch(t)
	b, bHost, bStatus := healthSwitch(t)
	c, cHost, _ := healthSwitch(t)
	const check = `, health: {path: /base/healthz, interval: 1s, unhealthy: 3, healthy: 1}`
	bStatus.Store(500)
	s := upstreamSite(t, `targets: ["`+a.URL+`", "`+b.URL+`"], balance: round_robin, slow_start: 1h`+check)
	g := s.start()
	eventually(t, "it is found to be sick", func() bool { return g.value(`gateway_upstream_up{target="`+bHost+`",upstream="api"}`) == 0 })
	stop := g.steadily()
	s.write("routes.yaml", strings.Replace(string(must(os.ReadFile(s.path("routes.yaml")))), `"`+b.URL+`"`, `"`+b.URL+`", "`+c.URL+`"`, 1))
	if !g.reload() {
		t.Fatal("refused")
	}
	got := map[string]int{}
	for range 250 {
		got[g.get("/a").body]++
	}
	if got[bHost] != 0 || got[cHost] == 0 || got[cHost] > 40 || got[aHost] < 210 {
		t.Errorf("new %d, as before %d, sick %d", got[cHost], got[aHost], got[bHost])
	}
	if g.value(`gateway_upstream_up{target="`+bHost+`",upstream="api"}`) != 0 {
		t.Error("the sick one is told to be up after the reload")
	}
	s.write("routes.yaml", strings.Replace(string(must(os.ReadFile(s.path("routes.yaml")))), check, "", 1))
	if !g.reload() {
		t.Fatal("refused")
	}
	eventually(t, "nobody says that it is sick", func() bool { return g.value(`gateway_upstream_up{target="`+bHost+`",upstream="api"}`) == 1 })
	checks := func() (n int) {
		for _, u := range []*upstream{a, b, c} {
			u.mu.Lock()
			for _, r := range u.requests {
				if r.URL.Path == "/base/healthz" {
					n++
				}
			}
			u.mu.Unlock()
		}
		return n
	}
	if all, failed := stop(); failed > 0 || all < 50 {
		t.Errorf("%d of %d requests failed", failed, all)
	}
	before := checks()
	for range 100 {
		g.get("/a")
	}
	if n := checks(); n != before {
		t.Errorf("%d checks that nobody asked for", n-before)
	}
}
