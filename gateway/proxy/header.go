package proxy

import (
	"net/http"
	"strings"

	"bouncer/gateway/httperr"
	"bouncer/gateway/rewrite"
	"bouncer/gateway/scope"
)

// ours reports whether a field belongs to the gateway and is removed from what
// a client sent, in any spelling that rewrite.SameName takes for the same.
func ours(name string) bool {
	if len(name) < 5 { // the shortest is Proxy
		return false
	}
	switch name[0] | 0x20 {
	case 'x':
		switch name[2] | 0x20 {
		case 'f':
			const prefix = "x-forwarded"
			return len(name) >= len(prefix) && rewrite.SameName(name[:len(prefix)], prefix) &&
				(len(name) == len(prefix) || rewrite.SameName(name[len(prefix):len(prefix)+1], "-"))
		case 'r':
			const prefix = "x-real-"
			return len(name) > len(prefix) && rewrite.SameName(name[:len(prefix)], prefix) || rewrite.SameName(name, "x-request-id")
		case 'a':
			return rewrite.SameName(name, "x-auth-user") || rewrite.SameName(name, "x-auth-tenant") ||
				rewrite.SameName(name, "x-auth-plan") || rewrite.SameName(name, "x-auth-key-id")
		}
	case 'f':
		return rewrite.SameName(name, "forwarded")
	case 'p':
		return rewrite.SameName(name, "proxy")
	case 't':
		return rewrite.SameName(name, "true-client-ip") || twin(name, "transfer-encoding")
	case 'c':
		return twin(name, "content-length")
	case 'h':
		return rewrite.SameName(name, "http2-settings") // of a refused upgrade
	}
	return false
}

// namesClient reports whether a field is one that load balancers and delivery
// networks name the client's address in: from a peer that is not trusted it is
// a forgery, which upstreams behind the gateway might believe. configured is
// one more such field, or empty.
func namesClient(name, configured string) bool {
	switch len(name) {
	case len("X-Client-IP"):
		if rewrite.SameName(name, "x-client-ip") {
			return true
		}
	case len("CF-Connecting-IP"): // as long as Fastly-Client-IP
		if rewrite.SameName(name, "cf-connecting-ip") || rewrite.SameName(name, "fastly-client-ip") {
			return true
		}
	case len("X-Cluster-Client-IP"):
		if rewrite.SameName(name, "x-cluster-client-ip") {
			return true
		}
	}
	return configured != "" && rewrite.SameName(name, configured)
}

// certificateNames are what fields begin with in which proxies that end TLS say which
// certificate a client has shown (RFC 9440, and before it everybody's own).
var certificateNames = [...]string{
	"client-cert", "x-client-cert", "x-client-verify", "ssl-client-", "x-ssl-client-", "x-ssl-cert", "x-tls-client-", "x-arr-clientcert", "x-amzn-mtls-",
}

// namesCertificate reports whether a field is one of those: from a peer that is not
// trusted it is a forgery.
func namesCertificate(name string) bool {
	if len(name) < len("client-cert") {
		return false
	}
	switch name[0] | 0x20 {
	case 'c', 's':
	case 'x':
		if c := name[2] | 0x20; c != 'c' && c != 's' && c != 't' && c != 'a' {
			return false
		}
	default:
		return false
	}
	for _, prefix := range certificateNames {
		if len(name) >= len(prefix) && rewrite.SameName(name[:len(prefix)], prefix) {
			return true
		}
	}
	return false
}

// twin reports whether name is want in another spelling than that of its standard:
// to a CGI-like server a second framing field beside the true one.
func twin(name, want string) bool {
	return rewrite.SameName(name, want) && !strings.EqualFold(name, want)
}

// forbiddenTrailer reports whether a trailer field is dropped, a client's or an
// upstream's: those that frame, route, authenticate or control a message come too late
// in one (RFC 9110 section 6.5.1). The name is in canonical form.
func forbiddenTrailer(name string) bool {
	switch name {
	case "Connection", "Content-Encoding", "Content-Length", "Content-Range", "Content-Type", "Cookie", "Expect",
		"Authorization", "Proxy-Authorization", "Host", "Keep-Alive", "Max-Forwards", "Proxy-Connection", "Te",
		"Trailer", "Transfer-Encoding", "Upgrade", "Via", "Traceparent", "Tracestate",
		"Set-Cookie", "Www-Authenticate", "Proxy-Authenticate", "Location", "Retry-After", "Cache-Control", "Pragma",
		"Age", "Date", "Expires", "Vary", "X-Request-Id", "Ratelimit", "Ratelimit-Policy":
		return true
	}
	return strings.HasPrefix(name, "Access-Control-") || strings.HasPrefix(name, "X-Ratelimit-")
}

// allowedTrailers takes from the trailers of an answer those that come too late.
func allowedTrailers(t http.Header) http.Header {
	for name := range t {
		if forbiddenTrailer(name) {
			delete(t, name)
		}
	}
	return t
}

// replaces reports whether what a client sent under this name, in the header or the
// trailers, is not for the upstream: the gateway has its own word for it, or the route.
func (o *Forward) replaces(name string, s *scope.Request) bool {
	return ours(name) || o.Fields.Replaces(name) || !s.PeerTrusted && (namesClient(name, o.ClientField) || namesCertificate(name))
}

// maxFields is how many fields setFields sets at most.
const maxFields = 11

// fields sets header fields whose values share one array.
type fields struct {
	header http.Header
	values []string
}

// set sets a field unless the value is empty. The name is in canonical form.
func (f *fields) set(name, value string) {
	if value == "" {
		return
	}
	n := len(f.values)
	f.values = append(f.values, value)
	f.header[name] = f.values[n : n+1 : n+1]
}

// hopByHop reports whether a field is about the client's connection only (RFC
// 9110 section 7.6.1). The name is in canonical form.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// outgoing returns the fields that the upstream gets. It shares the values of
// fields that go through unchanged with in, so they must not be written to.
func outgoing(in *http.Request, s *scope.Request, o Forward, webSocket bool) http.Header {
	out := make(http.Header, len(in.Header)+maxFields)
	for name, values := range in.Header {
		if !hopByHop(name) && !o.replaces(name, s) {
			out[name] = values
		}
	}
	for _, options := range in.Header["Connection"] {
		for option := range strings.SplitSeq(options, ",") {
			delete(out, http.CanonicalHeaderKey(strings.TrimSpace(option)))
		}
	}
	if o.Strip != nil {
		o.Strip(out)
	}
	o.Fields.Apply(out, in, s)
	// What follows is out of reach for Connection, Strip and Fields.
	if webSocket {
		out["Connection"], out["Upgrade"] = []string{"Upgrade"}, in.Header["Upgrade"]
	} else if in.Header["Upgrade"] != nil {
		// What is not asked for needs no key (RFC 6455 section 4.1).
		for name := range out {
			if strings.HasPrefix(name, "Sec-Websocket-") {
				delete(out, name)
			}
		}
	}
	if offersTrailers(in.Header["Te"]) {
		out["Te"] = []string{"trailers"} // gRPC servers insist on it
	}

	proto, host := "http", in.Host
	if in.TLS != nil {
		proto = "https"
	}
	if s.PeerTrusted {
		if v, ok := only(in.Header["X-Forwarded-Proto"]); ok {
			switch {
			case strings.EqualFold(v, "https"):
				proto = "https"
			case strings.EqualFold(v, "http"):
				proto = "http"
			}
		}
		if v, ok := only(in.Header["X-Forwarded-Host"]); ok && rewrite.ValidHost(v) {
			host = v
		}
	}

	f := fields{header: out, values: make([]string, 0, maxFields)}
	f.set("X-Forwarded-For", s.Forwarded)
	f.set("X-Forwarded-Proto", proto)
	f.set("X-Forwarded-Host", host)
	if s.ClientIP.IsValid() {
		f.set("X-Real-Ip", s.ClientIP.String())
	}
	f.set("X-Request-Id", s.ID)
	f.set("X-Auth-User", s.User)
	f.set("X-Auth-Tenant", s.Tenant)
	f.set("X-Auth-Plan", s.Plan)
	f.set("X-Auth-Key-Id", s.KeyID)

	via := "1.1 gateway" // RFC 9110 section 7.6.3
	switch {
	case in.ProtoMajor == 2:
		via = "2.0 gateway"
	case in.ProtoMajor == 1 && in.ProtoMinor == 0:
		via = "1.0 gateway"
	}
	if prior := out["Via"]; len(prior) > 0 {
		via = strings.Join(prior, ", ") + ", " + via
	}
	f.set("Via", via)

	f.setTrace(out, s)
	return out
}

// setTrace names the trace that the upstream's part belongs to: ours, or the one that the
// client sent as it is, or one that nobody keeps.
func (f *fields) setTrace(out http.Header, s *scope.Request) {
	var trace [16]byte // of the client
	ok := false
	if v, once := only(out["Traceparent"]); once {
		trace, _, _, ok = scope.ParseTraceparent(v)
	}
	own := s.SpanID != [8]byte{}
	if !ok || own && trace != s.TraceID {
		delete(out, "Tracestate") // it belongs to a trace that does not go on
	}
	switch {
	case own:
		f.set("Traceparent", scope.Traceparent(s.TraceID, s.SpanID, s.TraceSampled))
	case !ok:
		fresh, span := scope.NewTrace()
		f.set("Traceparent", scope.Traceparent(fresh, span, false))
	}
}

// offersTrailers reports whether a TE field names trailers.
func offersTrailers(te []string) bool {
	for _, v := range te {
		for coding := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(coding), "trailers") {
				return true
			}
		}
	}
	return false
}

// only returns the value of a field that was sent once.
func only(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	return values[0], true
}

// Refuse returns the answer to a request that [Upstream.Forward] would so carry to
// no upstream, whatever the state of the upstreams, and nil for any other. Ask
// before a request is charged: for what cannot be carried nobody should pay.
func (o *Forward) Refuse(r *http.Request) *httperr.Error {
	_, e := o.refuse(r)
	return e
}

// refuse returns the answer to requests that are not carried at all, and
// whether the request may become a WebSocket.
func (o *Forward) refuse(r *http.Request) (webSocket bool, e *httperr.Error) {
	switch r.Method {
	case http.MethodConnect, http.MethodTrace:
		return false, &httperr.Error{
			Status: http.StatusNotImplemented,
			Detail: "The method " + r.Method + " is not supported here.",
			Close:  r.Method == http.MethodConnect, // what follows is meant for somebody else
			Reason: "method_refused",
		}
	}
	if path := r.URL.Path; path == "" || path[0] != '/' || strings.IndexByte(r.URL.RawPath, '#') >= 0 {
		return false, &httperr.Error{
			Status: http.StatusBadRequest,
			Detail: "The request target is not a path. Send one that begins with a slash and holds no #.",
			Close:  true,
			Reason: "bad_target",
		}
	}
	if o.MaxBody != nil && r.ContentLength > *o.MaxBody {
		return false, tooLarge(&http.MaxBytesError{Limit: *o.MaxBody})
	}
	offers := r.Header["Upgrade"]
	if len(offers) == 0 {
		return false, nil
	}
	for _, offer := range offers {
		if !printable(offer) {
			return false, &httperr.Error{
				Status: http.StatusBadRequest,
				Detail: "The Upgrade field is malformed. Send the request without it.",
				Close:  true,
				Reason: "upgrade_refused",
			}
		}
	}
	if handshake(r) && r.ContentLength != 0 {
		// Upstreams would take the body for the first frames, or wait for it.
		return false, &httperr.Error{
			Status: http.StatusBadRequest,
			Detail: "The handshake of a WebSocket has no body. Send it without Content-Length and Transfer-Encoding.",
			Close:  true,
			Reason: "upgrade_refused",
		}
	}
	if webSocket = AsksForWebSocket(r); webSocket && o.NoWebSocket {
		return false, &httperr.Error{
			Status: http.StatusNotImplemented, Reason: "websocket_unsupported",
			Detail: "No WebSocket can be opened under this path.",
		}
	}
	return webSocket, nil
}

// AsksForWebSocket reports whether r is the handshake of a WebSocket (RFC 6455
// section 4.1): a GET over HTTP/1.1 that offers nothing else.
func AsksForWebSocket(r *http.Request) bool { return handshake(r) && r.ContentLength == 0 }

// handshake is AsksForWebSocket, whether there is a body or not.
func handshake(r *http.Request) bool {
	offers := r.Header["Upgrade"]
	return len(offers) == 1 && strings.EqualFold(offers[0], "websocket") &&
		r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ProtoMinor == 1
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
