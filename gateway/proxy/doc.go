// Package proxy carries an admitted request to one of an upstream's servers
// and the answer back.
//
// An Upstream is a set of equal servers (targets), each with a pool of
// connections. It lives across configuration reloads, so that a reload neither
// leaks connections nor forgets which servers are busy.
//
// It is not for deciding: it knows no routes, limits, credentials or
// configuration files. It does not cache, compress, or follow redirects, and
// it repeats no request that may have reached a server, unless that does no harm.
//
// # What reaches the upstream
//
// Method, path, query and body arrive byte for byte as the client sent them;
// the target's own path stands in front. The Host field is the target's host,
// for http and https alike, so that virtual hosts and TLS server names agree;
// the client's Host travels in X-Forwarded-Host. Compression is neither asked
// for nor undone. A route may have another path sent (Forward.To), and other
// fields and another Host (Forward.Fields).
//
// Everything that the gateway says in its own name (X-Forwarded-*, Forwarded,
// X-Real-*, True-Client-IP, X-Auth-User/-Tenant/-Plan/-Key-Id, X-Request-Id,
// Proxy) is first removed from what the client sent, in every spelling of case
// and with underscores for hyphens, from the trailers too, because CGI-like
// servers read X_Auth_User as X-Auth-User. Only then are the gateway's own
// fields set, after the hop-by-hop fields and those named in Connection have
// gone: no Connection field can remove them. From a trusted peer a well-formed
// X-Forwarded-Proto and X-Forwarded-Host survive.
//
// WebSocket is the only protocol a client may upgrade to. Any other offer is
// left out, as RFC 9110 section 7.8 permits, and the request goes on as an
// ordinary one: so no tunnel is opened past the gateway, and clients that offer
// h2c on every plain connection, as Java's do, are served all the same.
// CONNECT and TRACE are refused with 501. To a target that speaks HTTP/2 in the
// clear (h2c) no WebSocket is offered either. What goes through a WebSocket is passed
// on as it is; its frames are followed, so that one that has to end (Forward.WebSocket,
// or the request's context) is ended by a Close frame where a frame ends.
//
// # What happens when things fail
//
// An answer that comes before the end of the client's body ends the client's
// connection over HTTP/1.
//
// As long as nothing has been written, Forward returns an *httperr.Error and
// the caller answers: 502 (unreachable, refused, reset, malformed or oversized
// head), 504 (connection or head too slow), 499 (the client left; nothing is
// to be written), or 400, 408 or 413 (the client's own body broke off, was too
// slow or too large).
//
// Once an answer has begun there is no honest way back. An upstream that dies
// in the middle of a body, or a client that stops reading, ends in
// panic(http.ErrAbortHandler): net/http then breaks the connection (HTTP/1) or
// resets the stream (HTTP/2), so that the client sees an error and never a
// short success. Between a client and an upstream that both speak HTTP/2 this holds
// while the client's body is still on its way as well, as in a stream of gRPC whose
// caller waits for the other side. Where one of the two speaks HTTP/1, an upstream that
// dies in that moment is noticed when the client sends more, or is too slow. Whatever
// recovers panics above must let this value pass. What had arrived by then is sent
// before the break.
//
// A request whose connection attempt failed, at the handshake of TLS as well, goes to
// each other target once; this is safe for every method, because no byte of it has been
// sent. A target that cannot be connected to three times in a row is left out for a
// while, and comes back by and by, as does one that fails its health checks ([Health]);
// if all are left out, all are used. On an
// idle connection that the upstream has just closed, a request is repeated on
// a fresh connection if it is safe to: always when nothing was written (a body
// must be at most 8 KiB, which is kept for that), and otherwise only for GET,
// HEAD, OPTIONS, and for requests with an Idempotency-Key field. A POST whose
// bytes may have arrived gives 502 rather than happening twice; set
// Options.IdleTimeout below the upstream's own keep-alive time and it does not
// come to this. [Retries] say how what fails in other ways is attempted again.
//
// # Known limits
//
// Trailers that an HTTP/2 upstream sends beside a Content-Length reach HTTP/2
// clients only; HTTP/1.1 has no place for them. When an upstream names fields
// in a Connection field that also says close, net/http has removed it before
// they can be read, and the fields go through. Location fields are not
// rewritten: an upstream that redirects should use X-Forwarded-Host and
// X-Forwarded-Proto, or relative references. net/http prints on the standard
// logger when an upstream sends bytes nobody asked for.
//
// # Use
//
//	u, err := proxy.New(proxy.Options{Name: "weather", Targets: targets})
//	...
//	defer u.Close()
//	if e := u.Forward(w, r, s, proxy.Forward{}); e != nil && e.Status != httperr.StatusClientClosedRequest {
//		httperr.Write(w, r, s.ID, e)
//	}
package proxy
