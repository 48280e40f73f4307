package door

import (
	"net/http"
	"strings"

	"bouncer/gateway/httperr"
)

// Refused returns the answer to a request that is not let in, or nil.
//
// One of HTTP/1 was refused before net/http read it; r, which stands for it, has
// only its method, and that only if it could be read. One of HTTP/2 is looked at
// here: its frames say where it ends, but net/http passes on what RFC 9113
// section 8 calls malformed, which in HTTP/1, as most upstreams speak it, would
// say something else. Fields of a connection, and a TE that is not trailers, net/http
// refuses itself.
func Refused(r *http.Request) *httperr.Error {
	if r.ProtoMajor == 2 {
		return refuseHTTP2(r)
	}
	if v := r.Header[stands]; len(v) != 1 || v[0] != secret {
		return nil
	}
	c := cameBy(r)
	if c == nil {
		return nil
	}
	return c.refusal.Load()
}

func refuseHTTP2(r *http.Request) *httperr.Error {
	if r.Method == http.MethodConnect {
		return nil // for whoever answers 501: its target is no path
	}
	if !isToken([]byte(r.Method)) {
		return badRequest("The method is not a word.")
	}
	switch lengths := r.Header["Content-Length"]; len(lengths) {
	case 0:
	case 1:
		n, ok := readLength([]byte(lengths[0]))
		if !ok || n != r.ContentLength {
			return badRequest("The Content-Length is not the number of bytes of the body.")
		}
	default:
		return badRequest("There are several Content-Length fields. Send one.")
	}
	fields := 0
	for name, values := range r.Header {
		fields += len(values)
		if strings.EqualFold(name, "Content_Length") || strings.EqualFold(name, "Transfer_Encoding") {
			return badRequest("A field that says where the body ends is misspelled. It has a hyphen.")
		}
	}
	if c := cameBy(r); c != nil && fields > c.o.MaxFields {
		return tooManyFields()
	}
	for _, v := range r.Header["Expect"] {
		if !strings.EqualFold(v, "100-continue") {
			return expectationFailed()
		}
	}
	for _, host := range r.Header["Host"] {
		if sameHost(host, "") != sameHost(r.Host, "") {
			return badRequest("The Host field is for another host than :authority says.")
		}
	}
	if !validHost([]byte(r.Host)) {
		return badRequest("There is no :authority, or it is not a host, with or without a port.")
	}
	target := r.RequestURI
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c == 0x7f {
			return badTarget()
		}
	}
	if target == "" || target[0] != '/' && target != "*" {
		return badTarget()
	}
	return checkTarget([]byte(target), nil, false)
}
