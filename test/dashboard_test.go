package test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	downloads "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	pages "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"bouncer/internal/redistest"
)

// A watched is the page of the admin listener in a tab of its own. What the
// browser complains of is kept: a script that failed, a file that did not come, what
// the Content-Security-Policy forbade.
type watched struct {
	*page
	url        string
	mu         sync.Mutex
	complaints []string
}

// A look is how the page is looked at.
type look struct {
	width, height int64
	scheme        string // of colours: light or dark
}

var desk = look{1360, 900, "light"}

// openDashboard shows a view of the page until the test ends.
func openDashboard(t testing.TB, b *browser, url, view string, l look) *watched {
	t.Helper()
	d := &watched{url: url}
	ctx, closeTab := chromedp.NewContext(b.ctx, chromedp.WithListener(d.hear))
	t.Cleanup(closeTab)
	d.page = &page{t: t, ctx: ctx}
	// The tab lives as long as the context that it is opened with.
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	d.do(chromedp.EmulateViewport(l.width, l.height), command(emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}), colours(l.scheme),
		chromedp.Navigate(url+"/"+view))
	return d
}

// command is a command of the browser's protocol as a step.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

func colours(scheme string) chromedp.Action[chromedp.Void] {
	return command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
}

func (d *watched) do(steps ...chromedp.Action[chromedp.Void]) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		d.t.Fatalf("the browser: %v", err)
	}
}

func (d *watched) hear(event any) {
	said := ""
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		said = "console." + string(e.Type)
		for _, a := range e.Args {
			said += " " + string(a.Value) + a.Description
		}
	case *runtime.EventExceptionThrown:
		said = e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			said += " " + e.ExceptionDetails.Exception.Description
		}
	case *log.EventEntryAdded:
		said = e.Entry.Text + " " + e.Entry.URL
	}
	if said != "" {
		d.mu.Lock()
		d.complaints = append(d.complaints, said)
		d.mu.Unlock()
	}
}

// quiet wants the browser to have complained of nothing.
func (d *watched) quiet() {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.complaints {
		d.t.Errorf("the browser complains: %s", c)
	}
}

// until waits in the page for an expression to hold, and returns its value.
func (d *watched) until(what, expression string) any {
	d.t.Helper()
	v, ok := d.run(`
		const end = Date.now() + %d;
		for (;;) {
			let v;
			try { v = %s; } catch (e) { v = null; }
			if (v) return {v: typeof v === 'object' ? true : v};
			if (Date.now() > end) return {words: document.body.innerText.slice(0, 3000)};
			await new Promise(done => setTimeout(done, 40));
		}`, (patience - 2*time.Second).Milliseconds(), expression).(map[string]any)
	if !ok || v["v"] == nil {
		d.t.Fatalf("waited in vain for %s: %s\nthe page says:\n%v", what, expression, v["words"])
	}
	return v["v"]
}

// anew waits for an expression to hold while the page may be loaded anew, which ends
// whatever runs in it.
func (d *watched) anew(what, expression string) {
	d.t.Helper()
	eventually(d.t, what, func() bool {
		ctx, cancel := context.WithTimeout(d.ctx, patience)
		defer cancel()
		v, err := chromedp.Run(ctx, chromedp.Evaluate[any](expression))
		return err == nil && v == true
	})
}

// see waits for words in what an element shows, without the spaces that join a
// figure and its unit.
func (d *watched) see(selector, words string) {
	d.t.Helper()
	d.until(fmt.Sprintf("%q in %s", words, selector), fmt.Sprintf(
		`[...document.querySelectorAll(%q)].some(e => e.innerText.replace(/\s+/g, ' ').includes(%q))`, selector, words))
}

// ready waits for the first figures.
func (d *watched) ready() *watched {
	d.t.Helper()
	d.until("the first state", `document.querySelector('#pulse.good')`)
	return d
}

// click clicks the first element that the selector finds and that is seen.
func (d *watched) click(selector string) {
	d.t.Helper()
	d.until("something to click on", fmt.Sprintf(`document.querySelector(%q)?.getClientRects().length`, selector))
	d.run(`document.querySelector(%q).click();`, selector)
}

// enter puts text into a field as keys would.
func (d *watched) enter(selector, text string) {
	d.t.Helper()
	d.until("the field "+selector, fmt.Sprintf(`document.querySelector(%q)?.getClientRects().length`, selector))
	d.run(`document.querySelector(%q).focus(); document.querySelector(%q).select();`, selector, selector)
	d.do(chromedp.KeyEvent(text))
}

// shots is where pictures go: DASHBOARD_SHOTS, below the top of the repository
// unless it is a whole path, else where the test keeps what it made.
func shots(t testing.TB) string {
	dir := os.Getenv("DASHBOARD_SHOTS")
	switch {
	case dir == "":
		return t.ArtifactDir()
	case !filepath.IsAbs(dir):
		dir = filepath.Join("..", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// shot keeps a picture of what is seen.
func (d *watched) shot(dir, name string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		d.t.Fatalf("a picture of %s: %v", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
		d.t.Fatal(err)
	}
}

const pageToken = "a-token-for-the-page-0123456789abcdef"

// dashboardSite is the weather site, with a plan that is soon used up, and a token
// for what changes something.
func dashboardSite(t testing.TB, u *upstream, admin, store string) *weatherSite {
	s := newWeatherSite(t, u, "")
	s.write("token", pageToken+"\n")
	s.write("plans.yaml", `
default_plan: free
plans:
  free:
    limits:
      - {name: per-minute, algorithm: token_bucket, limit: 100/minute, burst: 20}
      - {name: per-day, algorithm: fixed_window, limit: 50000/day}
`)
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "`+admin+`"}
admin: {token_file: token}
`+store+`
auth:
  jwt:
    - issuer: https://login.example.com/
      audience: [weather-api]
      algorithms: [HS256]
      secret_file: secret
      claims: {user: sub, tenant: org, plan: plan}
  api_keys: {file: keys.yaml, header: X-API-Key}
upstreams:
  weather: {targets: ["`+u.URL+`"]}
routes:
  - {name: weather, path: "/api/weather/*", methods: [GET], upstream: weather}
`)
	return s
}

// often sends n requests, one after another, and returns how many were denied.
func (g *gateway) often(n int, path string, who ...string) (denied int) {
	g.t.Helper()
	for range n {
		if a := g.get(path, who...); a.status == 429 {
			denied++
		}
	}
	return denied
}

func (s *weatherSite) bearer(user string) []string {
	return []string{"Authorization", "Bearer " + s.token(user, nil)}
}

// What callers may call themselves, to the harm of whoever looks.
var hostile = map[string]string{
	"markup":   `<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>`,
	"backward": "\u202Egnp.exe\u202C\u2066 admin",
	"controls": "bell\x07 escape\x1b[31m \x00null\u0085",
	"long":     "long-" + strings.Repeat("x", 4096),
	"hash":     `#/../denials?q=%zz&<b>`,
}

// The dashboard in a real browser, on a real gateway with real traffic and Redis.
func TestTheDashboard(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	u := newUpstream(t, nil)
	s := dashboardSite(t, u, "127.0.0.1:0", redisStore(redistest.Start(t).URL()))
	key := s.key("-user", "priya123", "-plan", "free")
	g := s.start()
	priya := []string{"X-API-Key", key}
	if g.often(60, "/api/weather/oslo", priya...) == 0 {
		t.Fatal("60 at once were let through")
	}
	site := &dashboardTest{b, s, g, priya}
	// One after another: a tab that is not in front is not drawn.
	for _, test := range []struct {
		name string
		run  func(*testing.T, *dashboardTest)
	}{
		{"it loads and every chart is drawn", dashboardLoads},
		{"it lives", dashboardLives},
		{"a crosshair goes by keys and pointer over all charts", dashboardCrosshair},
		{"a caller is searched for", dashboardSearch},
		{"a limit is reset", dashboardReset},
		{"hostile names do no harm", dashboardHostile},
		{"a phone needs no scrolling sideways", dashboardPhone},
		{"all text is legible in light and dark", dashboardContrast},
		{"a stream that is lost is said and regained", dashboardLost},
		{"the gateway's clock counts", dashboardClock},
		{"a filter that is refused shows nothing of the one before", dashboardRefusedFilter},
		{"denials are exported", dashboardExport},
		{"off loopback one signs in", dashboardSignIn},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, site) })
	}
}

// A dashboardTest is what the parts of the test share.
type dashboardTest struct {
	b     *browser
	s     *weatherSite
	g     *gateway
	priya []string // the fields of a request of hers
}

// use makes Priya ask until the page has something to show.
func (s *dashboardTest) use(t *testing.T) {
	t.Helper()
	for range 40 {
		send(t, http.MethodGet, s.g.url+"/api/weather/oslo", nil, s.priya...)
	}
}

func dashboardLoads(t *testing.T, s *dashboardTest) {
	d := openDashboard(t, s.b, s.g.admin, "", desk).ready()
	s.use(t)
	for _, id := range []string{"requests", "denied", "latency", "total", "in-flight", "store-latency", "store-errors"} {
		d.until("the chart "+id, fmt.Sprintf(`[...document.querySelectorAll('#%s .marks path')].some(p => (p.getAttribute('d') ?? '').length > 8)`, id))
		// What is drawn stands beside it as a table, for who cannot see it.
		d.until("the table of "+id, fmt.Sprintf(`document.querySelectorAll('#%s-summary tbody td').length >= 4`, id))
	}
	for selector, words := range map[string]string{
		".strip": "Ready", "#top-denied": "priya123", "#limits": "per-minute", "#routes": "weather", "#upstreams": s.s.upstreamURL(),
		"#instances": "this one", "#config": "applied", "#process": "Goroutines", "#store": "there", ".verdict": "Callers",
	} {
		d.see(selector, words)
	}
	found := d.run(`return {
		landmarks: ['header', 'nav', 'main', '[role=search]'].filter(s => !document.querySelector(s)),
		headings: [...document.querySelectorAll('h1')].length,
		captions: [...document.querySelectorAll('table')].filter(t => !t.caption?.textContent).length,
		scopes: [...document.querySelectorAll('th')].filter(th => !th.scope).length,
		labels: [...document.querySelectorAll('input, select')].filter(i => !i.labels?.length && !i.ariaLabel).length,
		ids: [...document.querySelectorAll('[id]')].map(e => e.id).filter((id, i, all) => all.indexOf(id) !== i),
		anchors: [...document.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute('href')).filter(h => !h.startsWith('#/') && !document.getElementById(h.slice(1))),
	};`)
	if got, want := asJSON(t, found), `{"anchors":[],"captions":0,"headings":1,"ids":[],"labels":0,"landmarks":[],"scopes":0}`; got != want {
		t.Errorf("what helps who cannot see: %s, want %s", got, want)
	}
	// A day has no full step yet, perhaps: then it is a gap, under the hours of the day.
	for window, labels := range map[string]string{"1h": `\d\d:\d[05]`, "24h": `\d\d:00`, "5m": `\d\d:\d\d`} {
		d.click(`input[value="` + window + `"]`)
		d.until("a chart of "+window, fmt.Sprintf(`document.querySelector('input[value=%q]').checked
			&& [...document.querySelectorAll('#requests .ticks text[text-anchor=middle]')].filter(l => /^%s$/.test(l.textContent)).length >= 2
			&& [...document.querySelectorAll('#requests .ticks text[text-anchor=middle]')].every(l => /^%s$/.test(l.textContent))
			&& ['.marks .area', '.gap'].some(c => document.querySelector('#requests ' + c).getAttribute('d').length > 8)`, window, labels, labels))
	}
	d.quiet()
}

// upstreamURL is the address of the upstream, as the page shows it.
func (s *weatherSite) upstreamURL() string {
	routes, _ := os.ReadFile(s.path("routes.yaml"))
	_, after, _ := strings.Cut(string(routes), `targets: ["`)
	url, _, _ := strings.Cut(strings.TrimPrefix(after, "http://"), `"`)
	return url
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func dashboardLives(t *testing.T, s *dashboardTest) {
	d := openDashboard(t, s.b, s.g.admin, "", desk).ready()
	first := d.until("a first moment", `document.querySelector('#pulse').textContent`)
	d.until("a later one", fmt.Sprintf(`document.querySelector('#pulse').textContent !== %q`, first))
	s.use(t)
	// The legend says what the chart shows: that somebody was denied.
	d.until("the share of some seconds, not of one", `/^0$/.test([...document.querySelectorAll('#requests .key')].find(k => /denied/.test(k.textContent)).querySelector('.value').textContent)
		&& /[1-9]\d*\s%/.test(document.querySelector('.tile[href="#limits"]').textContent)`)
	s.use(t)
	d.until("the denied in the legend", `[...document.querySelectorAll('#requests .key')].some(k => /denied/.test(k.textContent) && parseFloat(k.querySelector('.value').textContent) > 0)`)
	d.quiet()
}

func dashboardCrosshair(t *testing.T, s *dashboardTest) {
	d := openDashboard(t, s.b, s.g.admin, "", desk).ready()
	d.until("a chart", `(document.querySelector('#requests .marks .area').getAttribute('d') ?? '').length > 8`)
	// From the top of the page by Tab alone, as who has no pointer would.
	d.until("the chart under the focus", `document.activeElement`)
	for range 60 {
		if d.run(`return document.activeElement?.closest('#requests .plot') !== null && document.activeElement !== document.body;`) == true {
			break
		}
		d.do(chromedp.KeyEvent(kb.Tab))
	}
	d.until("the focus in the chart", `document.activeElement.matches('#requests .plot')`)
	d.do(chromedp.KeyEvent(kb.ArrowLeft + kb.ArrowLeft))
	d.until("the values of that moment, said", `/\d\d:\d\d:\d\d: allowed .*, denied .*, failed .*, refused /.test(document.querySelector('#requests [aria-live=polite]').textContent)`)
	before := d.run(`return document.querySelector('#requests .when').textContent;`)
	d.do(chromedp.KeyEvent(kb.PageUp))
	d.until("another moment", fmt.Sprintf(`document.querySelector('#requests .when').textContent !== %q`, before))
	d.until("the same moment in another chart", `document.querySelector('#latency .when').textContent === document.querySelector('#requests .when').textContent && document.querySelector('#latency .hair').getAttribute('d')`)
	d.do(chromedp.KeyEvent(kb.Escape))
	d.until("no crosshair", `document.querySelector('#requests .when').textContent === '' && !document.querySelector('#latency .hair').getAttribute('d')`)
	box := d.run(`const r = document.querySelector('#requests .plot').getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2];`).([]any)
	d.do(chromedp.MouseEvent("mouseMoved", box[0].(float64), box[1].(float64)))
	d.until("a crosshair under the pointer", `document.querySelector('#requests .when').textContent`)
	d.click(`#requests .key`)
	d.until("a series that is hidden", `document.querySelector('#requests .key').ariaPressed === 'false' && document.querySelector('#requests .marks .area').getAttribute('d') === ''`)
	d.quiet()
}

func dashboardSearch(t *testing.T, s *dashboardTest) {
	d := openDashboard(t, s.b, s.g.admin, "", desk).ready()
	s.use(t)
	d.enter("#find", "priya")
	d.see("#suggestions", "priya123")
	d.do(chromedp.KeyEvent(kb.ArrowDown))
	d.until("a suggestion that is marked", `document.querySelector('#find').getAttribute('aria-activedescendant') && document.querySelector('#suggestions [aria-selected=true]')`)
	d.do(chromedp.KeyEvent(kb.Enter))
	d.until("the caller's page", `location.hash === '#/caller/user/priya123'`)
	d.see("h1", "priya123")
	d.see("#caller-identity", "free")
	d.see("#caller-limits", "per-minute")
	d.see("#caller-limits", "per-day")
	d.see("#caller-denials", "per-minute")
	d.until("her requests", `(document.querySelector('#minutes .marks .area').getAttribute('d') ?? '').length > 8`)
	d.click("#caller-denials .opens")
	d.see(".opened .whole", "request_id")
	d.see(".opened .inner", "denied")

	// A whole key is nothing to search for, and is not looked at.
	d.enter("#find", s.priya[1])
	d.until("words about the key", `!document.querySelector('.search-said').hidden`)
	if said := d.run(`return document.querySelector('.search-said').textContent + document.querySelector('#suggestions').textContent;`).(string); strings.Contains(said, s.priya[1]) {
		t.Errorf("the key is shown: %q", said)
	}
	// Nor by Enter, nor by an address that somebody has made of it.
	d.do(chromedp.KeyEvent(kb.Enter))
	d.until("an answer to it", `!document.querySelector('.search-said').hidden`)
	d.until("no page of it", fmt.Sprintf(`!location.href.includes(%q)`, s.priya[1]))
	d.run(`location.hash = '#/caller/user/' + %q;`, s.priya[1])
	d.see(".view [role=alert]", "whole key")
	d.until("no trace of it", fmt.Sprintf(`!location.href.includes(%q) && !document.querySelector('main').outerHTML.includes(%q)`, s.priya[1], s.priya[1]))
}

// A laptop whose clock is an hour off is told how long ago by the gateway's.
func dashboardClock(t *testing.T, s *dashboardTest) {
	s.use(t)
	d := openDashboard(t, s.b, s.g.admin, "", desk)
	d.do(command(pages.AddScriptToEvaluateOnNewDocument, pages.AddScriptToEvaluateOnNewDocumentParams{Source: `{
		const D = Date;
		globalThis.Date = class extends D {
			constructor(...a) { if (a.length) super(...a); else super(D.now() + 3600e3); }
			static now() { return D.now() + 3600e3; }
		};
	}`}), chromedp.Navigate(s.g.admin+"/?ahead"))
	d.ready()
	d.see(".strip", "the clock of this browser is 1 h")
	if words := d.run(`return ['.strip li:nth-child(3)', '#config', '#instances tbody', '#process'].map(s => document.querySelector(s).innerText).filter(w => /\d\sh\b/.test(w));`); asJSON(t, words) != "[]" {
		t.Errorf("what began a moment ago is said to be old: %v", words)
	}
	d.run(`location.hash = '#/denials?within=300';`)
	d.see(".denials", "priya123")
	d.quiet()
}

func dashboardRefusedFilter(t *testing.T, s *dashboardTest) {
	s.use(t)
	d := openDashboard(t, s.b, s.g.admin, "#/denials", desk).ready()
	d.see(".denials", "priya123")
	d.enter("#filter-status", "teapot\r")
	d.see(".view [role=alert]", "429 or 503")
	d.until("no rows", `!document.querySelector('.denials').getClientRects().length && !/shown/.test(document.querySelector('main').innerText)`)
}

// FIELD-REPORTS J16: support releases one customer.
func dashboardReset(t *testing.T, s *dashboardTest) {
	s.use(t)
	d := openDashboard(t, s.b, s.g.admin, "#/caller/user/priya123", desk).ready()
	reset := `#caller-limits button[aria-label="Reset per-minute"]`
	d.see("#caller-limits", "per-minute")
	d.click(reset)
	// On loopback one sees without the token, and changes nothing.
	d.enter("dialog #token", pageToken)
	d.do(chromedp.KeyEvent(kb.Enter))
	d.until("no dialog", `!document.querySelector('dialog[open]')`)
	s.use(t)
	if a := s.g.get("/api/weather/oslo", s.priya...); a.status != 429 {
		t.Fatalf("before the reset: %d", a.status)
	}
	d.click(reset)
	d.see("dialog[open]", "Reset per-minute?")
	d.click("dialog[open] .primary")
	d.see("#said", "was reset")
	if a := s.g.get("/api/weather/oslo", s.priya...); a.status != 200 {
		t.Errorf("after the reset: %d", a.status)
	}
	line := s.g.logged("audit: a limit was reset")
	if line == nil || line["limit"] != "per-minute" || line["name"] != "priya123" || line["level"] != "WARN" {
		t.Errorf("the audit line: %v", line)
	}
	d.click("#sign")
	d.until("signed out", `document.querySelector('#sign').textContent === 'Sign in' && sessionStorage.length === 0`)
	d.quiet()
}

// FIELD-REPORTS H02, H05: names as they come from outside are text and nothing else.
func dashboardHostile(t *testing.T, s *dashboardTest) {
	for kind, name := range hostile {
		a := s.g.get("/api/weather/oslo", s.s.bearer(name)...)
		if a.status != 200 {
			t.Logf("%s: the gateway takes no such name: %d", kind, a.status)
			continue
		}
		s.g.often(45, "/api/weather/%3Cimg%20src=x%20onerror=window.pwned=1%3E", s.s.bearer(name)...)
	}
	d := openDashboard(t, s.b, s.g.admin, "", desk).ready()
	// Names that the gateway takes from nobody are harmless to the page all the same.
	shown := d.run(`
		const {name} = await import('/assets/dom.js');
		const {visible} = await import('/assets/format.js');
		return [visible(%s), name(%s).textContent.length, name(%s).title.length];`, asJSON(t, hostile["controls"]), asJSON(t, hostile["long"]), asJSON(t, hostile["long"]))
	if got, want := asJSON(t, shown), `["bell⟨U+0007⟩ escape⟨U+001B⟩[31m ⟨U+0000⟩null⟨U+0085⟩",48,4096]`; got != want {
		t.Errorf("names as they are shown: %s, want %s", got, want)
	}
	d.see("#top-denied", "<img src=x onerror=")
	d.see("#top-denied", "⟨U+202E⟩gnp.exe")
	for _, view := range []string{"", "#/denials", "#/caller/user/" + urlPart(hostile["markup"]), "#/caller/user/" + urlPart(hostile["backward"])} {
		d.run(`location.hash = %q;`, cmp.Or(view, "#/"))
		words := "<img src=x on"
		if strings.Contains(view, urlPart(hostile["backward"])) {
			words = "⟨U+202E⟩gnp.exe"
		}
		d.see("main", words)
		harm := d.run(`
			await new Promise(done => setTimeout(done, 100));
			const bad = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/;
			return {
				ran: window.pwned ?? null,
				images: document.querySelectorAll('main img, main script, main b').length,
				controls: [...document.querySelectorAll('main *')].filter(e => bad.test(e.title ?? '') || [...e.childNodes].some(n => n.nodeType === 3 && bad.test(n.data))).length,
				bare: [...document.querySelectorAll('main a')].filter(a => /gnp\.exe/.test(a.textContent) && !a.querySelector('bdi')).length,
				longest: Math.max(0, ...[...document.querySelectorAll('main bdi')].map(e => e.textContent.length)) > 200,
				wide: document.documentElement.scrollWidth > innerWidth,
			};`)
		if got, want := asJSON(t, harm), `{"bare":0,"controls":0,"images":0,"longest":false,"ran":null,"wide":false}`; got != want {
			t.Errorf("%s: %s, want %s", view, got, want)
		}
	}
	d.quiet()
}

// urlPart is encodeURIComponent for what the names here are made of.
func urlPart(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// views are all that the page has.
var views = []string{"#/", "#/caller/user/priya123", "#/caller/ip/127.0.0.1", "#/denials", "#/help"}

func dashboardPhone(t *testing.T, s *dashboardTest) {
	s.use(t)
	d := openDashboard(t, s.b, s.g.admin, "", look{360, 740, "light"}).ready()
	for _, view := range views {
		d.run(`location.hash = %q;`, view)
		d.until("the view", `document.querySelector('main .view')`)
		if strings.HasPrefix(view, "#/caller") {
			d.until("the caller", `document.querySelector('#caller-limits')?.getClientRects().length`)
		}
		wide := d.run(`
			await new Promise(done => setTimeout(done, 150));
			const out = [...document.querySelectorAll('#caller-limits button')].filter(b => b.getBoundingClientRect().right > innerWidth - 8);
			if (out.length) return out.length + ' buttons are cut off';
			document.querySelectorAll('.opens')[0]?.click();
			await new Promise(done => setTimeout(done, 50));
			if (document.documentElement.scrollWidth <= innerWidth) return '';
			return document.documentElement.scrollWidth + ': ' + [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.frame')).map(e => e.tagName + '.' + e.className).slice(0, 6).join(' ');`)
		if wide != "" {
			t.Errorf("%s is wider than a phone: %v", view, wide)
		}
	}
	d.quiet()
}

// contrast finds text that is hard to read: under 4.5 to 1 with what is behind it
// (WCAG 2.1, 1.4.3).
const contrast = `
	const parse = c => {
		const n = (c.match(/[\d.]+%?/g) ?? []).map(parseFloat);
		if (c.startsWith('color(')) return [n[0] * 255, n[1] * 255, n[2] * 255, n[3] ?? 1];
		return [n[0], n[1], n[2], n[3] ?? 1];
	};
	const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
	const light = c => {
		const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const behind = e => {
		const layers = [];
		for (; e; e = e.parentElement) {
			const c = parse(getComputedStyle(e).backgroundColor);
			if (c[3] > 0) layers.push(c);
			if (c[3] === 1) break;
		}
		return layers.reverse().reduce((under, c) => over(c, under), [255, 255, 255, 1]);
	};
	const found = new Set();
	let looked = 0;
	for (const e of document.querySelectorAll('body *')) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length || e.closest('.unseen, .skip, :disabled')) continue;
		const style = getComputedStyle(e), ground = behind(e);
		const colour = over(parse(e instanceof SVGElement ? style.fill : style.color), ground);
		const [a, b] = [light(colour), light(ground)].sort((x, y) => y - x);
		looked++;
		if ((a + 0.05) / (b + 0.05) < 4.5) found.add(e.tagName + '.' + (e.getAttribute('class') ?? '') + ' ' + ((a + 0.05) / (b + 0.05)).toFixed(2));
	}
	return {looked, found: [...found]};`

func dashboardContrast(t *testing.T, s *dashboardTest) {
	for _, scheme := range []string{"light", "dark"} {
		s.use(t)
		d := openDashboard(t, s.b, s.g.admin, "", look{1360, 900, scheme}).ready()
		ground := d.run(`return getComputedStyle(document.body).backgroundColor;`).(string)
		if dark := ground == "rgb(17, 20, 23)"; dark != (scheme == "dark") {
			t.Errorf("%s: the ground is %s", scheme, ground)
		}
		for _, view := range views {
			d.run(`location.hash = %q;`, view)
			d.until("the view", `document.querySelectorAll('main .card').length && [...document.querySelectorAll('main .card')].some(c => c.getClientRects().length)`)
			seen := d.run("%s", contrast).(map[string]any)
			if len(seen["found"].([]any)) > 0 || seen["looked"].(float64) < 15 {
				t.Errorf("%s, %s: %v texts, hard to read: %v", scheme, view, seen["looked"], seen["found"])
			}
		}
		d.quiet()
	}
}

// A relay stands between the page and the listener, and can be cut.
type relay struct {
	net.Listener
	target string
	mu     sync.Mutex
	cut    bool
	open   []net.Conn
}

func newRelay(t testing.TB, target string) *relay {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: ln, target: strings.TrimPrefix(target, "http://")}
	t.Cleanup(func() {
		_ = ln.Close()
		r.set(true)
	})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go r.carry(c)
		}
	}()
	return r
}

func (r *relay) carry(c net.Conn) {
	up, err := (&net.Dialer{Timeout: patience}).Dial("tcp", r.target)
	r.mu.Lock()
	if r.cut || err != nil {
		r.mu.Unlock()
		_ = c.Close()
		if err == nil {
			_ = up.Close()
		}
		return
	}
	r.open = append(r.open, c, up)
	r.mu.Unlock()
	pass := func(to, from net.Conn) {
		b := make([]byte, 32<<10)
		for {
			n, err := from.Read(b)
			if n > 0 {
				if _, werr := to.Write(b[:n]); werr != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		_ = to.Close()
		_ = from.Close()
	}
	go pass(up, c)
	pass(c, up)
}

func (r *relay) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	if cut {
		for _, c := range r.open {
			_ = c.Close()
		}
		r.open = nil
	}
}

func dashboardLost(t *testing.T, s *dashboardTest) {
	r := newRelay(t, s.g.admin)
	d := openDashboard(t, s.b, "http://"+r.Addr().String(), "", desk).ready()
	d.until("a chart", `(document.querySelector('#requests .marks .area').getAttribute('d') ?? '').length > 8`)
	if d.run(`return document.body.classList.contains('old') || !document.querySelector('#lost').hidden;`) != false {
		t.Error("what is new is called old")
	}
	r.set(true)
	d.until("the banner", `!document.querySelector('#lost').hidden && /Nothing heard for \d+\ss/.test(document.querySelector('#lost').innerText)`)
	d.until("grey figures", `document.body.classList.contains('old') && getComputedStyle(document.querySelector('.verdict')).filter.includes('grayscale')`)
	d.until("a word in the title", `document.title.startsWith('? ')`)
	s.use(t)
	d.until("some seconds more", `/Nothing heard for [5-9]\ss/.test(document.querySelector('#lost').innerText)`)
	r.set(false)
	d.click("#lost button")
	d.until("no banner", `document.querySelector('#lost').hidden && !document.body.classList.contains('old')`)
	// What was missed is caught up with: no gap is drawn in the last ten seconds.
	d.until("the seconds that were missed", `(() => {
		const right = Number(document.querySelector('#requests .drawing').getAttribute('width')) - 10;
		const gaps = [...document.querySelector('#requests .gap').getAttribute('d').matchAll(/H([\d.]+)V/g)].map(m => Number(m[1]));
		return gaps.every(x => x < right - (right - 40) / 30);
	})()`)
}

func dashboardExport(t *testing.T, s *dashboardTest) {
	s.use(t)
	dir := t.TempDir()
	for _, signed := range []bool{false, true} {
		name := map[bool]string{false: "by the link", true: "with the token"}[signed]
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			d := openDashboard(t, s.b, s.g.admin, "#/denials", desk).ready()
			d.do(command(downloads.SetDownloadBehavior, downloads.SetDownloadBehaviorParams{Behavior: downloads.SetDownloadBehaviorBehaviorAllow, DownloadPath: to}))
			if signed {
				d.run(`sessionStorage.setItem('admin-token', %q); setTimeout(() => location.reload(), 0);`, pageToken)
				d.anew("signed in", `document.querySelector('#sign').textContent === 'Sign out'`)
			}
			d.enter("#filter-user", "priya123\r")
			d.until("the filter", `location.hash.includes('user=priya123')`)
			d.see(".denials", "priya123")
			d.until("nobody else", `[...document.querySelectorAll('.denials tbody tr:not(.opened) td:nth-child(2)')].every(td => td.textContent.startsWith('priya123'))`)
			d.click("#export")
			var lines []string
			eventually(t, "the file", func() bool {
				found, _ := filepath.Glob(filepath.Join(to, "*.jsonl"))
				if len(found) != 1 {
					return false
				}
				b, err := os.ReadFile(found[0])
				lines = strings.Split(strings.TrimSpace(string(b)), "\n")
				return err == nil && strings.HasSuffix(string(b), "\n")
			})
			for _, line := range lines {
				var denial struct {
					User, Route string
					Time        time.Time
					Status      int
					Decisions   []map[string]any
				}
				if err := json.Unmarshal([]byte(line), &denial); err != nil || denial.User != "priya123" || denial.Status != 429 || denial.Route != "weather" || denial.Time.IsZero() || len(denial.Decisions) == 0 {
					t.Fatalf("a line of the file: %v\n%s", err, line)
				}
			}
		})
	}
}

// FIELD-REPORTS H05: who was denied is for operators only.
func dashboardSignIn(t *testing.T, s *dashboardTest) {
	away := dashboardSite(t, newUpstream(t, nil), "0.0.0.0:0", "")
	key := away.key("-user", "priya123", "-plan", "free")
	g := away.start()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(g.admin, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	g.often(40, "/api/weather/oslo", "X-API-Key", key)
	d := openDashboard(t, s.b, "http://127.0.0.1:"+port, "#/denials", desk)
	d.see("h1", "Sign in")
	if seen := d.run(`return document.body.innerText;`).(string); strings.Contains(seen, "priya123") || strings.Contains(seen, "weather") {
		t.Errorf("who has not signed in sees %s", seen)
	}
	d.shot(shots(t), "sign-in")
	d.enter("#token", "not-the-token\r")
	d.see("[role=alert]", "not the admin token")
	d.enter("#token", pageToken+"\r")
	d.see(".denials", "priya123") // where one wanted to go
	d.run(`location.hash = '#/';`)
	d.ready().see(".strip", "Ready")
	d.see("#top-denied", "priya123")
	d.see("#instances", "not used") // there is no Redis to be there
	away.write("token", pageToken+"-of-today\n")
	d.see("form.signin", "no longer taken")
	d.enter("#token", pageToken+"-of-today\r")
	d.ready()
	if kept := d.run(`return [document.cookie, localStorage.length, sessionStorage.length];`); asJSON(t, kept) != `["",0,1]` {
		t.Errorf("what the browser keeps: %v", kept)
	}
	d.click("#sign")
	d.anew("a page that asks for the token", `document.querySelector('#token') !== null`)
	if seen := d.run(`return [sessionStorage.length, document.body.innerText.includes('priya123')];`); asJSON(t, seen) != `[0,false]` {
		t.Errorf("who has signed out leaves %v", seen)
	}
	// The page itself came with 401, and that is the one thing to complain of.
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.complaints {
		if !strings.Contains(c, "401") {
			t.Errorf("the browser complains: %s", c)
		}
	}
}

// The pictures of the docs: a small fleet with its everyday traffic, then one noisy
// client, then Redis away. DASHBOARD_SHOTS says where they go, and has the traffic
// last for some minutes.
func TestTheDashboardsPictures(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	everyday, noise, outage := 2*time.Second, 3*time.Second, 3*time.Second
	if os.Getenv("DASHBOARD_SHOTS") != "" {
		everyday, noise, outage = 100*time.Second, 55*time.Second, 25*time.Second
	}
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Duration(3+len(r.URL.Path)%7) * time.Millisecond) // an API takes its time
		_, _ = w.Write([]byte(`{"ok":true}`))
	})
	redis := redistest.Start(t)
	s := dashboardSite(t, u, "127.0.0.1:0", "store: {redis: {url: \""+redis.URL()+"\", timeout: 100ms}}")
	var callers [][]string
	for _, user := range []string{"priya123", "tomas", "amara", "jonas", "mei", "olga", "ravi", "sara"} {
		callers = append(callers, []string{"X-API-Key", s.key("-user", user, "-plan", "free")})
	}
	g := s.start()
	s.start().instances(2)
	// Everybody asks now and then, a little more than the plan allows.
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	ask := func(every time.Duration, who []string) {
		asking.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					city := []string{"oslo", "lima", "quito", "nairobi", "ulaanbaatar"}[i%5]
					_, _ = trySend(http.MethodGet, g.url+"/api/weather/"+city, nil, who...)
				}
			}
		})
	}
	defer asking.Wait()
	defer stop()
	for i, who := range callers[1:] {
		ask(time.Duration(560+40*i)*time.Millisecond, who)
	}
	wait := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	dir := shots(t)
	wait(everyday)
	ask(12*time.Millisecond, callers[0])
	wait(noise)

	d := openDashboard(t, b, g.admin, "", look{1280, 860, "light"}).ready()
	d.until("a chart", `(document.querySelector('#requests .marks .area').getAttribute('d') ?? '').length > 8`)
	d.see("#top-denied", "priya123")
	d.shot(dir, "overview-light")
	d.do(colours("dark"))
	d.shot(dir, "overview-dark")
	d.do(colours("light"))
	// A finding that comes meanwhile moves everything below it, so it is gone there again.
	d.until("a picture that stands still", `(at => { at.scrollIntoView({behavior: 'instant'}); return Math.abs(at.getBoundingClientRect().top) < 120; })(document.querySelector('#callers'))`)
	d.shot(dir, "callers")
	d.run(`location.hash = '#/caller/user/priya123';`)
	d.see("#caller-limits", "per-minute")
	d.see("#caller-denials", "per-minute")
	d.shot(dir, "caller")
	d.run(`location.hash = '#/denials';`)
	d.see(".denials", "priya123")
	d.click(".opens")
	d.see(".opened .inner", "denied")
	d.shot(dir, "denials")
	phone := openDashboard(t, b, g.admin, "", look{390, 844, "light"}).ready()
	phone.see("#top-denied", "priya123")
	phone.shot(dir, "phone")

	redis.Freeze()
	wait(outage)
	d = openDashboard(t, b, g.admin, "", look{1280, 860, "light"}).ready()
	d.see(".strip", "Degraded")
	d.see(".verdict .act", "Redis")
	d.shot(dir, "incident-redis")
	pictures, _ := filepath.Glob(filepath.Join(dir, "*.png"))
	for _, name := range []string{"overview-light", "overview-dark", "callers", "caller", "denials", "phone", "incident-redis"} {
		path := filepath.Join(dir, name+".png")
		if !slices.Contains(pictures, path) {
			t.Errorf("no picture %s", name)
		} else if info, err := os.Stat(path); err != nil || info.Size() > 200<<10 || info.Size() < 5<<10 {
			t.Errorf("the picture %s: %v, %v", name, info, err)
		}
	}
}
