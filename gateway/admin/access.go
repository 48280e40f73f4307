package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"bouncer/gateway/httperr"
)

// This file is who may see what, and who may change it.

// access says what an endpoint asks of the caller.
type access uint8

const (
	open    access = iota // nothing
	reading               // the token, unless the listener is on loopback
	guarded               // the token, always
)

// admit says whether the request may go on; nil means yes.
func (h *handler) admit(r *http.Request, need access) *httperr.Error {
	if h.o.Loopback && !h.answersTo(r.Host) {
		return &httperr.Error{
			Status: http.StatusMisdirectedRequest, Reason: "host",
			Detail: "the admin listener answers to IP addresses and localhost only; use one of them in the URL",
		}
	}
	return h.allowed(r, need)
}

// allowed says whether the request carries what need asks for.
func (h *handler) allowed(r *http.Request, need access) *httperr.Error {
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

// sameSite refuses what another site's page has a browser send and that is not a
// mere read. A token does not travel by itself; this holds also where something
// else that lets a browser in does.
func (h *handler) sameSite(r *http.Request) *httperr.Error {
	if err := h.crossOrigin.Check(r); err != nil {
		return &httperr.Error{
			Status: http.StatusForbidden, Reason: "cross_origin", Err: err,
			Detail: "a page of another site asked for this; use the gateway's own page, or a program",
		}
	}
	return nil
}

// authorized reports whether the request carries the token. Digests are
// compared, so that the time taken tells neither the token's bytes nor its length.
func (h *handler) authorized(r *http.Request) bool {
	fields := r.Header.Values("Authorization")
	if h.token == nil || len(fields) != 1 {
		return false
	}
	scheme, token, ok := strings.Cut(fields[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	digest := sha256.Sum256([]byte(strings.Trim(token, " ")))
	return subtle.ConstantTimeCompare(digest[:], h.token[:]) == 1
}

// who is by what a request that may change something was let in.
func (h *handler) who(*http.Request) string { return "token" }

// session tells whoever asks what that very request may do: the page's script has no
// other way to know whether it has to ask for the token.
func (h *handler) session(w http.ResponseWriter, r *http.Request, id string) {
	h.json(w, r, id, http.StatusOK, struct {
		TokenNeeded     bool `json:"token_needed"`
		TokenConfigured bool `json:"token_configured"`
		SignedIn        bool `json:"signed_in"`
		MayChange       bool `json:"may_change"`
	}{!h.o.Loopback, h.token != nil, h.authorized(r), h.allowed(r, guarded) == nil})
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

// secure sets what keeps a browser from doing more than showing the page: scripts
// and styles are files of ours, so that what a caller is called can never be one.
// Nothing is sent that would let another origin read an answer (no CORS).
func secure(hd http.Header) {
	hd.Set("Content-Security-Policy",
		"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	hd.Set("X-Content-Type-Options", "nosniff")
	hd.Set("X-Frame-Options", "DENY")
	hd.Set("Referrer-Policy", "no-referrer")
	hd.Set("Cross-Origin-Resource-Policy", "same-origin")
	hd.Set("Cross-Origin-Opener-Policy", "same-origin")
	hd.Set("Cache-Control", "no-store")
}
