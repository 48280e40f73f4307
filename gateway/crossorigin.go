package gateway

import (
	"net/http"

	"bouncer/gateway/config"
	"bouncer/gateway/proxy"
)

// sameOrigin is what net/http knows of the fields by which browsers say whose page
// asks (Sec-Fetch-Site, Origin). It trusts no other origin: that is a route's
// business.
var sameOrigin http.CrossOriginProtection

// fromElsewhere reports whether r, which came with a cookie, is one that browsers
// send for a page of another origin, and that may change something: then the cookie
// says who sits at the browser, and not that they want it (cross-site request
// forgery). Without the fields that browsers send it is no page's. Pages that may use
// the route with credentials (CORS) are no strangers. The handshake of a WebSocket
// changes something whatever its method, and CORS does not keep pages from it.
func (x *exchange) fromElsewhere(r *http.Request) bool {
	as, socket := r, proxy.AsksForWebSocket(r)
	host := r.Host
	if v := r.Header["X-Forwarded-Host"]; x.PeerTrusted && len(v) == 1 {
		host = v[0] // a proxy may ask for another host than the browser did
	}
	if socket || host != r.Host {
		as = &http.Request{Method: r.Method, Host: host, Header: r.Header}
		if socket {
			as.Method = http.MethodPost
		}
	}
	if len(r.Header["Sec-Fetch-Site"]) > 1 || len(r.Header["Origin"]) > 1 {
		// No browser sends two, and two readers could disagree on which counts.
		return !safe(as.Method)
	}
	if sameOrigin.Check(as) == nil {
		return false
	}
	rt := x.route
	return !(rt.credentialed && goodOrigin(r.Header["Origin"]) && rt.cors.OriginAllowed(r))
}

// safe reports whether a method changes nothing (RFC 9110 section 9.2.1; TRACE is no
// browser's).
func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// cookiesBound reports whether tokens of some issuer come in a cookie that does not
// count for pages of other origins.
func cookiesBound(cfg *config.Config) bool {
	for _, is := range cfg.Auth.JWT {
		if is.Cookie != "" && !is.CookieCrossOrigin {
			return true
		}
	}
	return false
}
