// Package admin is the handler of the second listener: metrics, health, what
// the gateway is doing now, reload, and profiles. People and monitoring look at
// it; clients of the API never reach it.
//
// It is not a place that decides or keeps anything: all it shows comes from the
// functions in [Options], and a part whose function is nil is not offered.
//
// # Who may see what
//
// /healthz, /readyz and /metrics are open, because probes and scrapers carry no
// credentials. So are the page and its files, which are the same for everybody:
// what the page shows it asks for, with the token where one is needed (whoever has
// none is told so by a 401, whose body is the page with the form to sign in), and
// /api/session, which tells a request what it may do. Everything else that only reads is open as long as the listener
// is on loopback, and needs the admin token otherwise. What changes something
// or costs something (POST /-/reload, /debug/pprof/) always needs the token;
// without one configured it is refused.
//
// A client certificate that one of [Options].ClientCAs vouches for counts as the token.
//
// The token travels in "Authorization: Bearer …" only. No browser adds that
// field by itself, so a hostile page cannot make an operator's browser reload
// the gateway, and since no CORS field is ever sent it cannot read an answer. What
// changes something is besides refused to a page of another site, by what browsers
// say of it (Sec-Fetch-Site, else Origin). The Content-Security-Policy lets the page
// run and show its own files alone: text from outside can never be script.
//
// One hole would be left on loopback: DNS rebinding. A page of
// http://attacker.example whose name suddenly resolves to 127.0.0.1 is, for the
// browser, talking to its own site, and may read what it gets. The Host field
// still carries the attacker's name. So on loopback the handler answers only to
// IP literals, localhost and [Options].Hostnames, and anything else is 421.
// (Over a unix socket, too: ask for http://localhost/….)
//
// # What it promises when things fail
//
// /healthz is 200 as long as the process can answer; nothing outside the process
// makes it fail, since a restart would cure nothing. /readyz is 503 before a
// configuration is loaded and from the moment shutdown begins. A shared store
// that is away makes the gateway degraded, which /readyz says, not unready:
// otherwise one failure of Redis would take every instance out of service at
// once. Every error is application/problem+json.
//
//	h := admin.New(admin.Options{
//		Metrics:  telemetry.Handler(),
//		Ready:    g.Readiness,
//		Reload:   g.Reload,
//		Token:    token,
//		Loopback: true,
//	})
//	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
package admin
