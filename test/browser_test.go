package test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/coder/websocket"
)

// A browser is a Chromium without a window. One process serves all pages of the
// test that started it, and ends with it.
type browser struct {
	t   testing.TB
	ctx context.Context
}

// newBrowser starts one, with a profile that nothing is left of. CHROMIUM names
// another program than chromium.
func newBrowser(t testing.TB) *browser {
	t.Helper()
	name := cmp.Or(os.Getenv("CHROMIUM"), "chromium")
	program, err := exec.LookPath(name)
	if err != nil {
		hint := name + " is not installed, so no browser was asked; type: apt-get install chromium"
		if os.Getenv("CI") != "" {
			t.Fatal(hint)
		}
		t.Skip(hint)
	}
	var said lockedBuffer
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, // which root has none of; all that it visits is ours
		chromedp.CombinedOutput(&said))
	allocator, free := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	// Asked to end, then made to; free returns when no process is left.
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx)
		free()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v\n%s", program, err, said.String())
	}
	return &browser{t: t, ctx: ctx}
}

// A page is a tab that shows one address.
type page struct {
	t   testing.TB
	ctx context.Context
}

// open shows an address in a tab of its own until the test ends.
func (b *browser) open(t testing.TB, url string) *page {
	t.Helper()
	ctx, closeTab := chromedp.NewContext(b.ctx)
	t.Cleanup(closeTab)
	if err := chromedp.Do(ctx, chromedp.Navigate(url)); err != nil {
		t.Fatalf("open %s: %v", url, err)
	}
	return &page{t: t, ctx: ctx}
}

// run runs the body of an async function in the page and returns what it
// returns, as JSON decodes it.
func (p *page) run(script string, args ...any) any {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[any]("(async () => {"+fmt.Sprintf(script, args...)+"})()", chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("the page could not run its script: %v\n%s", err, script)
	}
	return v
}

// fetch asks for url with fetch's own options (JavaScript), and returns what
// the page may know of the answer: "status body", or "unreadable", and the
// fields that it may read, by their names in small letters.
func (p *page) fetch(url, options string) (seen string, fields map[string]string) {
	p.t.Helper()
	v, ok := p.run(`
		try {
			const a = await fetch(%q, %s);
			return {seen: a.status + ' ' + (await a.text()), fields: Object.fromEntries(a.headers)};
		} catch (e) {
			return {seen: 'unreadable', fields: {}};
		}`, url, options).(map[string]any)
	if !ok {
		p.t.Fatal("the page said nothing")
	}
	fields = map[string]string{}
	for name, value := range v["fields"].(map[string]any) {
		fields[name] = value.(string)
	}
	return v["seen"].(string), fields
}

// blank is a server of one empty page: an origin.
func blank(t testing.TB) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!doctype html><title>blank</title>")
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// A real browser, with its own ideas of streams, upgrades and origins.
func TestABrowser(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	for name, test := range map[string]func(*testing.T, *browser){
		"events":    eventsInABrowser,
		"websocket": aWebSocketInABrowser,
		"origins":   originsInABrowser,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, b)
		})
	}
}

// browserSite is a site of these routes, without credentials unless a route says so.
func browserSite(t testing.TB, target, routes string) *gateway {
	s := newSite(t)
	s.write("keys.yaml", "keys: []\n")
	s.write("plans.yaml", `
anonymous_plan: strangers
default_plan: strangers
plans: {strangers: {limits: []}}
`)
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
auth: {api_keys: {file: keys.yaml}}
limits:
  twice: {per: [ip, route], algorithm: fixed_window, limit: 2/hour}
upstreams: {api: {targets: ["`+target+`"]}}
routes:
`+routes)
	return s.start()
}

// The upstream sends an event only when the page has seen the one before. Then
// it ends the stream, and the browser comes back to where it was.
func eventsInABrowser(t *testing.T, b *browser) {
	seen := make(chan string, 8)
	var mu sync.Mutex
	var resumed []string
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if id, ok := strings.CutPrefix(r.URL.Path, "/seen/"); ok {
			seen <- id
			return
		}
		if r.URL.Path != "/events" {
			w.Header().Set("Content-Type", "text/html")
			return
		}
		last := r.Header.Get("Last-Event-ID")
		mu.Lock()
		resumed = append(resumed, last)
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		first, end := 1, 3
		if last != "" {
			first, end = 4, 4
		}
		_, _ = io.WriteString(w, "retry: 1\n\n")
		for id := first; id <= end; id++ {
			_, _ = fmt.Fprintf(w, "id: %d\ndata: event %d\n\n", id, id)
			_ = http.NewResponseController(w).Flush()
			select {
			case got := <-seen:
				if got != fmt.Sprint(id) {
					t.Errorf("the page has seen %s, sent was %d", got, id)
				}
			case <-r.Context().Done():
				if last == "" {
					t.Errorf("the stream ended before event %d was seen", id)
				}
				return
			case <-time.After(patience):
				t.Errorf("event %d was not seen while the stream was open", id)
				return
			}
		}
	})
	g := browserSite(t, u.URL, `
  - {name: events, path: /events, upstream: api, auth: none, limits: [twice]}
  - {name: all, path: "/*", upstream: api, auth: none, cost: 0}
`)
	got := b.open(t, g.url+"/").run(`
		return await new Promise(done => {
			const got = [];
			const events = new EventSource('/events');
			events.onmessage = async e => {
				got.push(e.lastEventId + ' ' + e.data);
				await fetch('/seen/' + e.lastEventId);
				if (got.length == 4) { events.close(); done(got.join(', ')); }
			};
		})`)
	if want := "1 event 1, 2 event 2, 3 event 3, 4 event 4"; got != want {
		t.Errorf("the page got %q, want %q", got, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := fmt.Sprintf("%q", resumed); got != `["" "3"]` {
		t.Errorf("the streams began after %s", got)
	}
}

// A handshake is a request and costs one; one too many is refused, and the page
// hears of it as an error, not as a socket that is open for a moment.
func aWebSocketInABrowser(t *testing.T, b *browser) {
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/socket" {
			w.Header().Set("Content-Type", "text/html")
			return
		}
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // Host is the target's
		if err != nil {
			t.Errorf("the upgrade at the upstream: %v", err)
			return
		}
		defer c.CloseNow()
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if err := c.Write(r.Context(), kind, append([]byte("you said "), data...)); err != nil {
				return
			}
		}
	})
	g := browserSite(t, u.URL, `
  - {name: socket, path: /socket, upstream: api, auth: none, limits: [twice]}
  - {name: all, path: "/*", upstream: api, auth: none, cost: 0}
`)
	got := b.open(t, g.url+"/").run(`
		const say = words => new Promise(done => {
			const socket = new WebSocket('ws://' + location.host + '/socket');
			let opened = false;
			socket.onopen = () => { opened = true; socket.send(words); };
			socket.onmessage = e => { socket.close(1000); done('opened: ' + e.data); };
			socket.onerror = () => done(opened ? 'an error later' : 'an error');
		});
		return [await say('one'), await say('two'), await say('three')].join(', ');`)
	if want := "opened: you said one, opened: you said two, an error"; got != want {
		t.Errorf("the page got %q, want %q", got, want)
	}
	if n := g.value(`gateway_requests_total{code="429",method="GET",route="socket"}`); n != 1 {
		t.Errorf("%v handshakes were answered 429, want 1", n)
	}
}

// What a page of another origin may know: all that it may do, if it is one that
// the operator named; nothing, if it is not.
func originsInABrowser(t *testing.T, b *browser) {
	var mu sync.Mutex
	methods := map[string]int{}
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		methods[r.Method]++
		mu.Unlock()
		if r.URL.Path == "/login" {
			http.SetCookie(w, &http.Cookie{Name: "session", Value: "priya", Path: "/"})
		}
		_, _ = fmt.Fprintf(w, "for %s", cmp.Or(r.Header.Get("Cookie"), "nobody"))
	})
	app, other := blank(t), blank(t)
	g := browserSite(t, u.URL, strings.ReplaceAll(`
  - {name: read, path: /read, methods: [GET], upstream: api, auth: none, limits: [twice], cors: {origins: [APP]}}
  - {name: change, path: /change, methods: [PUT], upstream: api, auth: optional, limits: [twice], cors: {origins: [APP], headers: [X-Reason]}}
  - {name: member, path: /member, methods: [GET], upstream: api, cors: {origins: [APP]}}
  - {name: login, path: /login, methods: [POST], upstream: api, auth: none, cost: 0, cors: {origins: [APP], credentials: true}}
  - {name: mine, path: /mine, methods: [GET], upstream: api, auth: none, cost: 0, cors: {origins: [APP], credentials: true}}
  - {name: anybodys, path: /anybodys, methods: [GET], upstream: api, auth: none, cost: 0, cors: {origins: [APP]}}
`, "APP", `"`+app+`"`))
	p, stranger := b.open(t, app), b.open(t, other)

	// A page of a site that was not named may read nothing, and is counted.
	if seen, fields := stranger.fetch(g.url+"/read", "{}"); seen != "unreadable" {
		t.Errorf("another site: %s %v", seen, fields)
	}
	seen, fields := p.fetch(g.url+"/read", "{}")
	if seen != "200 for nobody" || !strings.HasPrefix(fields["ratelimit"], `"twice";r=0;t=`) || fields["ratelimit-policy"] == "" ||
		fields["x-ratelimit-remaining"] != "0" || fields["x-request-id"] == "" {
		t.Errorf("a page that is allowed reads %s %v", seen, fields)
	}
	seen, fields = p.fetch(g.url+"/read", "{}")
	if !contains(seen, "429 ", "quota-exceeded", `"violated-policies":["twice"]`) || fields["retry-after"] == "" ||
		!strings.HasPrefix(fields["ratelimit"], `"twice";r=0;t=`) {
		t.Errorf("a 429 is read as %s %v", seen, fields)
	}
	if seen, _ = p.fetch(g.url+"/member", "{}"); !contains(seen, "401 ", `"title":"Unauthorized"`) {
		t.Errorf("a 401 is read as %s", seen)
	}

	// A PUT with a field of its own is asked about first. That is free.
	for i, want := range []string{`"twice";r=1;t=`, `"twice";r=0;t=`} {
		seen, fields = p.fetch(g.url+"/change", "{method: 'PUT', headers: {'X-Reason': 'none'}, body: 'x'}")
		if seen != "200 for nobody" || !strings.HasPrefix(fields["ratelimit"], want) {
			t.Errorf("PUT %d: %s %v", i+1, seen, fields)
		}
	}
	if n := g.value(`gateway_requests_total{code="204",method="OPTIONS",route="change"}`); n < 1 {
		t.Error("the browser sent no preflight")
	}
	for _, options := range []string{"{method: 'PUT', headers: {'X-Other': 'none'}}", "{method: 'DELETE'}"} {
		if seen, fields = p.fetch(g.url+"/change", options); seen != "unreadable" {
			t.Errorf("%s: %s %v", options, seen, fields)
		}
	}

	// Cookies go along where page and route both say so.
	const with, without = "{credentials: 'include'}", "{credentials: 'omit'}"
	if seen, _ = p.fetch(g.url+"/login", "{method: 'POST', credentials: 'include'}"); seen != "200 for nobody" {
		t.Errorf("the login: %s", seen)
	}
	for _, c := range [][3]string{
		{"/mine", with, "200 for session=priya"}, {"/mine", without, "200 for nobody"},
		{"/anybodys", with, "unreadable"}, {"/anybodys", without, "200 for nobody"},
	} {
		if seen, _ = p.fetch(g.url+c[0], c[1]); seen != c[2] {
			t.Errorf("%s %s: %s, want %s", c[0], c[1], seen, c[2])
		}
	}
	if seen, fields = stranger.fetch(g.url+"/mine", with); seen != "unreadable" {
		t.Errorf("another site with the caller's cookie: %s %v", seen, fields)
	}
	mu.Lock()
	defer mu.Unlock()
	if methods["OPTIONS"]+methods["DELETE"] != 0 || methods["PUT"] != 2 {
		b, _ := json.Marshal(maps.Clone(methods))
		t.Errorf("the upstream was asked %s", b)
	}
}
