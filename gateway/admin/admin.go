package admin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

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
	// Live is the live state; nil: not offered.
	Live *Feed
	// History returns what is kept of the window of that name, as JSON; false: there
	// is none. nil: not offered.
	History func(window string) ([]byte, bool)
	// Callers is what is known of callers and what was denied; nil: not offered.
	Callers *Callers
	// Runbook is what to do about what the page shows, in Markdown; empty: not offered.
	Runbook string
	// Token is the admin token; empty: none is configured.
	Token []byte
	// ClientCAs vouch for client certificates that count as the token; nil: none does.
	ClientCAs []*x509.Certificate
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
	if len(o.ClientCAs) > 0 {
		h.operators = x509.NewCertPool()
		for _, ca := range o.ClientCAs {
			h.operators.AddCert(ca)
		}
	}
	for _, name := range o.Hostnames {
		h.names[canonicalHost(name)] = true
	}
	h.names["localhost"] = true
	h.addAll()
	return h
}

// bodyWithin is how long a body may take, those that nobody reads too.
const bodyWithin = 5 * time.Second

// An endpoint is one path of the listener.
type endpoint struct {
	methods []string // HEAD stands beside GET where a body may be left out
	access  access
	serve   func(w http.ResponseWriter, r *http.Request, id string)
}

type handler struct {
	o         Options
	token     *[sha256.Size]byte // nil: none configured
	operators *x509.CertPool     // who vouches for their certificates; nil: none counts
	names     map[string]bool
	endpoints map[string]endpoint

	crossOrigin http.CrossOriginProtection
}

// addAll makes the table of everything that is offered.
func (h *handler) addAll() {
	get := []string{http.MethodGet, http.MethodHead}
	h.addAssets()
	h.addRunbook()
	h.endpoints["/healthz"] = endpoint{get, open, h.healthz}
	h.endpoints["/readyz"] = endpoint{get, open, h.readyz}
	h.endpoints["/api/session"] = endpoint{get, open, h.session}
	if h.o.Metrics != nil {
		h.endpoints["/metrics"] = endpoint{get, open, h.metrics}
	}
	if h.o.Info != nil {
		h.endpoints["/api/status"] = endpoint{get, reading, h.status}
	}
	if h.o.Live != nil {
		h.endpoints["/api/live"] = endpoint{get, reading, h.live}
	}
	if h.o.History != nil {
		h.endpoints["/api/history"] = endpoint{get, reading, h.history}
	}
	if h.o.TopDenied != nil {
		h.endpoints["/api/top-denied"] = endpoint{get, reading, h.topDenied}
	}
	if h.o.Reload != nil {
		h.endpoints["/-/reload"] = endpoint{[]string{http.MethodPost}, guarded, h.reload}
	}
	h.addCallers(h.o.Callers)
	h.endpoints[pprofPrefix] = endpoint{get, guarded, plain(pprof.Index)}
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

func plain(serve http.HandlerFunc) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, r *http.Request, _ string) { serve(w, r) }
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := rand.Text()
	secure(w.Header())
	w.Header().Set("X-Request-Id", id)
	if r.ContentLength != 0 {
		// A body that never comes would hold its connection for ever: net/http waits for it
		// even where nobody reads it, and before anybody has shown a token. Recorders in
		// tests have no deadline.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWithin))
	}
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
			Detail: "there is nothing at this path; docs/OPERATING.md lists what there is",
		})
	case !slices.Contains(e.methods, r.Method):
		allow := strings.Join(e.methods, ", ")
		httperr.Write(w, r, id, &httperr.Error{
			Status: http.StatusMethodNotAllowed, Reason: "method",
			Detail: "this path takes " + allow,
			Header: http.Header{"Allow": {allow}},
		})
	default:
		if err := h.sameSite(r, e.access); err != nil {
			h.refuse(w, r, id, err)
			return
		}
		e.serve(w, r, id)
	}
}

func (h *handler) refuse(w http.ResponseWriter, r *http.Request, id string, err *httperr.Error) {
	h.o.Logger.Info("admin request refused", "request_id", id, "reason", err.Reason, "remote", scope.PeerName(r.RemoteAddr))
	httperr.Write(w, r, id, err)
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
