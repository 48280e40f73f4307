package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"bouncer/gateway/httperr"
)

// This file is who may see what, and who may change it.

var errOtherSite = errors.New("a page of another site asks")

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
	if h.token == nil && h.operators == nil {
		return &httperr.Error{
			Status: http.StatusForbidden, Reason: "no_token_configured",
			Detail: "this needs the admin token, and none is configured; set admin.token_file in routes.yaml, or admin.client_ca_file",
		}
	}
	if !h.authorized(r) && h.certificate(r) == nil {
		detail := "this needs the admin token, as Authorization: Bearer <token>"
		if h.operators != nil {
			detail = "this needs the admin token, as Authorization: Bearer <token>, or a client certificate that admin.client_ca_file vouches for"
		}
		return &httperr.Error{
			Status: http.StatusUnauthorized, Reason: "token",
			Detail: detail,
			Header: http.Header{"Www-Authenticate": {`Bearer realm="gateway admin"`}},
		}
	}
	return nil
}

// sameSite refuses what another site's page has a browser send. A token does not travel
// by itself, but a certificate does, and on loopback nothing is asked for. Such a page
// reads no answer; it could change something, have a profile made, or take up all
// streams of the live state. A link that somebody follows may lead to what is read, and
// what is open to all is so from everywhere.
func (h *handler) sameSite(r *http.Request, need access) *httperr.Error {
	err := h.crossOrigin.Check(r)
	if from := r.Header.Get("Sec-Fetch-Site"); err == nil && (from == "cross-site" || from == "same-site") &&
		(need == guarded || need == reading && !followsLink(r)) {
		err = errOtherSite
	}
	if err != nil {
		return &httperr.Error{
			Status: http.StatusForbidden, Reason: "cross_origin", Err: err,
			Detail: "a page of another site asked for this; use the gateway's own page, or a program",
		}
	}
	return nil
}

// followsLink reports whether a browser shows the answer to somebody, in no frame.
func followsLink(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
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

// certificate is that of the client, if somebody vouches for it who is to; else nil. It
// is looked at for each request, by those who vouch now: the connection may be older.
func (h *handler) certificate(r *http.Request) *x509.Certificate {
	if h.operators == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || len(r.TLS.PeerCertificates) > maxChain {
		return nil
	}
	leaf, between := r.TLS.PeerCertificates[0], x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: h.operators, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil
	}
	return leaf
}

// maxChain bounds how many certificates of a client are looked at.
const maxChain = 10

// who is by what a request was let in that may change something.
func (h *handler) who(r *http.Request) string {
	if h.authorized(r) {
		return "token"
	}
	c := h.certificate(r)
	if c == nil {
		return ""
	}
	const most = 256
	name := strings.ToValidUTF8(c.Subject.String(), "\ufffd")
	return "certificate " + strings.ToValidUTF8(name[:min(len(name), most)], "")
}

// session tells whoever asks what that very request may do: the page's script has no
// other way to know whether it has to ask for the token.
func (h *handler) session(w http.ResponseWriter, r *http.Request, id string) {
	h.json(w, r, id, http.StatusOK, struct {
		TokenNeeded     bool `json:"token_needed"`
		TokenConfigured bool `json:"token_configured"`
		SignedIn        bool `json:"signed_in"`
		MayChange       bool `json:"may_change"`
	}{!h.o.Loopback, h.token != nil, h.authorized(r) || h.certificate(r) != nil, h.allowed(r, guarded) == nil})
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
