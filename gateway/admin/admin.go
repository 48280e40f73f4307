package admin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"bouncer/gateway/httperr"
	"bouncer/gateway/scope"
	"bouncer/gateway/topk"
)

// Options says what the handler shows, and to whom. The zero value offers
// health, and a readiness that is always 200, to everyone.
type Options struct {
	// Metrics serves /metrics; nil: not offered.
	Metrics http.Handler
	// Ready says whether this instance wants traffic; nil: always.
	Ready func() Readiness
	// Reload puts the files' present content into force, whole or not at all. An
	// error's text is shown to the operator, a mistake a line, so it must hold no
	// secret. It is not canceled when the operator hangs up, and must bound itself
	// and be safe for concurrent use. nil: not offered.
	Reload func(context.Context) error
	// Info says what the gateway is doing; nil: not offered.
	Info func() Status
	// TopDenied returns the k partitions that are denied most, heaviest first;
	// nil: not offered. Partitions name users, addresses and the ids of keys,
	// never a credential.
	TopDenied func(k int) []topk.Entry
	// Token is the admin token; empty: none is configured.
	Token []byte
	// Loopback says that only this machine can reach the listener.
	Loopback bool
	// Hostnames are names, besides localhost and IP literals, that the listener
	// answers to on loopback. Off loopback they are not looked at.
	Hostnames []string
	// Logger receives one record for each reload asked for and each refusal; nil
	// means none. It is given addresses and paths, never a token.
	Logger *slog.Logger
}

// New returns the handler. It is safe for concurrent use, holds nothing that
// needs closing, and is cheap to make, so that a reload which changes the token
// makes a new one.
func New(o Options) http.Handler {
	h := &handler{o: o, names: make(map[string]bool), endpoints: make(map[string]endpoint)}
	if h.o.Logger == nil {
		h.o.Logger = slog.New(slog.DiscardHandler)
	}
	if len(o.Token) > 0 {
		digest := sha256.Sum256(o.Token)
		h.token = &digest
	}
	for _, name := range o.Hostnames {
		h.names[canonicalHost(name)] = true
	}
	h.names["localhost"] = true
	h.addAll()
	return h
}

// access says what an endpoint asks of the caller.
type access uint8

const (
	open    access = iota // nothing
	reading               // the token, unless the listener is on loopback
	guarded               // the token, always
)

// An endpoint is one path of the listener.
type endpoint struct {
	methods []string // HEAD stands beside GET where a body may be left out
	access  access
	serve   func(w http.ResponseWriter, r *http.Request, id string)
}

type handler struct {
	o         Options
	token     *[sha256.Size]byte // nil: none configured
	names     map[string]bool
	endpoints map[string]endpoint
	links     []link // what the index page lists
}

// addAll makes the table of everything that is offered.
func (h *handler) addAll() {
	get := []string{http.MethodGet, http.MethodHead}
	h.endpoints["/"] = endpoint{get, reading, h.index}
	h.endpoints["/style.css"] = endpoint{get, reading, h.style}
	h.add("/healthz", "the process is alive", endpoint{get, open, h.healthz})
	h.add("/readyz", "this instance wants traffic, and which parts are degraded", endpoint{get, open, h.readyz})
	if h.o.Metrics != nil {
		h.add("/metrics", "Prometheus metrics", endpoint{get, open, h.metrics})
	}
	if h.o.Info != nil {
		h.add("/api/status", "what this page shows, as JSON", endpoint{get, reading, h.status})
	}
	if h.o.TopDenied != nil {
		h.add("/api/top-denied", "the callers that are denied most, as JSON (?k=20)", endpoint{get, reading, h.topDenied})
	}
	if h.o.Reload != nil {
		h.add("/-/reload", "read the configuration again", endpoint{[]string{http.MethodPost}, guarded, h.reload})
	}
	h.add(pprofPrefix, "profiles, for go tool pprof", endpoint{get, guarded, plain(pprof.Index)})
	for name, serve := range map[string]http.HandlerFunc{
		"cmdline": pprof.Cmdline, "profile": pprof.Profile, "trace": pprof.Trace,
	} {
		h.endpoints[pprofPrefix+name] = endpoint{get, guarded, plain(serve)}
	}
	h.endpoints[pprofPrefix+"symbol"] = endpoint{append(get[:2:2], http.MethodPost), guarded, plain(pprof.Symbol)}
	for _, name := range []string{"allocs", "block", "goroutine", "heap", "mutex", "threadcreate"} {
		h.endpoints[pprofPrefix+name] = endpoint{get, guarded, plain(pprof.Handler(name).ServeHTTP)}
	}
}

const pprofPrefix = "/debug/pprof/"

// add offers an endpoint and lists it on the index page.
func (h *handler) add(path, help string, e endpoint) {
	h.endpoints[path] = e
	h.links = append(h.links, link{
		Method: e.methods[0], Path: path, Help: help,
		Follow: e.methods[0] == http.MethodGet && e.access != guarded,
		Token:  e.access == guarded || e.access == reading && !h.o.Loopback,
	})
}

func plain(serve http.HandlerFunc) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, r *http.Request, _ string) { serve(w, r) }
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := rand.Text()
	secure(w.Header())
	w.Header().Set("X-Request-Id", id)
	// An unknown path is protected like a known one, so that nobody without the
	// token learns what there is.
	e, known := h.endpoints[r.URL.Path]
	need := reading
	if known {
		need = e.access
	}
	switch err := h.admit(r, need); {
	case err != nil:
		h.refuse(w, r, id, err)
	case !known:
		httperr.Write(w, r, id, &httperr.Error{
			Status: http.StatusNotFound, Reason: "not_found",
			Detail: "there is nothing at this path; / lists what there is",
		})
	case !slices.Contains(e.methods, r.Method):
		allow := strings.Join(e.methods, ", ")
		httperr.Write(w, r, id, &httperr.Error{
			Status: http.StatusMethodNotAllowed, Reason: "method",
			Detail: "this path takes " + allow,
			Header: http.Header{"Allow": {allow}},
		})
	default:
		e.serve(w, r, id)
	}
}

// admit says whether the request may go on; nil means yes.
func (h *handler) admit(r *http.Request, need access) *httperr.Error {
	if h.o.Loopback && !h.answersTo(r.Host) {
		return &httperr.Error{
			Status: http.StatusMisdirectedRequest, Reason: "host",
			Detail: "the admin listener answers to IP addresses and localhost only; use one of them in the URL",
		}
	}
	if need == open || need == reading && h.o.Loopback {
		return nil
	}
	if h.token == nil {
		return &httperr.Error{
			Status: http.StatusForbidden, Reason: "no_token_configured",
			Detail: "this needs the admin token, and none is configured; set admin.token_file in routes.yaml",
		}
	}
	if !h.authorized(r) {
		return &httperr.Error{
			Status: http.StatusUnauthorized, Reason: "token",
			Detail: "this needs the admin token, as Authorization: Bearer <token>",
			Header: http.Header{"Www-Authenticate": {`Bearer realm="gateway admin"`}},
		}
	}
	return nil
}

// authorized reports whether the request carries the token. Digests are
// compared, so that the time taken tells neither the token's bytes nor its length.
func (h *handler) authorized(r *http.Request) bool {
	fields := r.Header.Values("Authorization")
	if len(fields) != 1 {
		return false
	}
	scheme, token, ok := strings.Cut(fields[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	digest := sha256.Sum256([]byte(strings.Trim(token, " ")))
	return subtle.ConstantTimeCompare(digest[:], h.token[:]) == 1
}

// answersTo reports whether host, a Host field, names this listener. A request
// without one (HTTP/1.0) comes from no browser.
func (h *handler) answersTo(host string) bool {
	if host == "" {
		return true
	}
	host = canonicalHost(host)
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return h.names[host]
}

// canonicalHost is host without port, brackets, final dot and case. What does
// not end in a port number keeps what follows the colon, and so is no address.
func canonicalHost(host string) string {
	if name, port, err := net.SplitHostPort(host); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil || port == "" {
			host = name
		}
	} else if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func (h *handler) refuse(w http.ResponseWriter, r *http.Request, id string, err *httperr.Error) {
	h.o.Logger.Info("admin request refused", "request_id", id, "reason", err.Reason, "remote", scope.PeerName(r.RemoteAddr))
	httperr.Write(w, r, id, err)
}

// secure sets what keeps a browser from doing more than showing the page.
// Nothing is sent that would let another origin read an answer (no CORS).
func secure(hd http.Header) {
	hd.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	hd.Set("X-Content-Type-Options", "nosniff")
	hd.Set("X-Frame-Options", "DENY")
	hd.Set("Referrer-Policy", "no-referrer")
	hd.Set("Cross-Origin-Resource-Policy", "same-origin")
	hd.Set("Cross-Origin-Opener-Policy", "same-origin")
	hd.Set("Cache-Control", "no-store")
}

// write sends an answer that is not an error; HEAD gets no body. Only readiness
// has a status of its own, see readyz.
func write(w http.ResponseWriter, r *http.Request, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a caller that left needs no answer
	}
}
