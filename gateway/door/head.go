package door

import (
	"bytes"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"bouncer/gateway/httperr"
)

// A head is what a request says of how it is framed.
type head struct {
	length  int64 // of its body, if it is not chunked
	chunked bool
	upgrade bool // it asks for another protocol
}

// maxLengthDigits is how many digits a Content-Length may have: below 2^60.
const maxLengthDigits = 18

// readHead reads a whole head, with the empty line at its end. All its lines end
// with LF. The error is the answer to one that is malformed, or that two parsers
// could read differently.
func readHead(b []byte) (h head, e *httperr.Error) {
	line, rest := cutLine(b)
	target, minor, e := readRequestLine(line)
	if e != nil {
		return h, e
	}
	var host []byte
	hosts, lengths, codings := 0, 0, 0
	for {
		line, rest = cutLine(rest)
		if len(line) == 0 {
			break
		}
		if line[0] == ' ' || line[0] == '\t' {
			return h, badRequest("A field is folded over several lines. Send it in one line.")
		}
		name, value, ok := readField(line)
		if !ok {
			return h, badRequest("A field line is malformed. It is a name, a colon and a value, without control characters, and the name has no space before or after it.")
		}
		switch len(name) { // of the names below
		case 4, 6, 7, 14, 17:
		default:
			continue
		}
		switch {
		case is(name, "host"):
			host = value
			hosts++
		case is(name, "content-length"):
			if h.length, ok = readLength(value); !ok {
				return h, badRequest("The Content-Length is not a number of bytes.")
			}
			lengths++
		case is(name, "transfer-encoding"):
			if !is(value, "chunked") {
				return h, badRequest("The Transfer-Encoding is not chunked, which is the only one that is understood here.")
			}
			codings++
		case is(name, "content_length"), is(name, "transfer_encoding"):
			return h, badRequest("A field that says where the body ends is misspelled. It has a hyphen.")
		case is(name, "upgrade"):
			h.upgrade = true
		case is(name, "expect"):
			if !is(value, "100-continue") {
				return h, expectationFailed()
			}
		case is(name, "trailer"):
			for announced := range bytes.SplitSeq(value, []byte{','}) {
				if framingField(bytes.Trim(announced, " \t")) {
					return h, badRequest("The Trailer field announces a field that cannot stand behind a body.")
				}
			}
		}
	}
	switch {
	case lengths > 1:
		return h, badRequest("There are several Content-Length fields. Send one.")
	case codings > 1:
		return h, badRequest("There are several Transfer-Encoding fields. Send one.")
	case lengths > 0 && codings > 0:
		return h, badRequest("There are both a Content-Length and a Transfer-Encoding. Send one of them.")
	case codings > 0 && minor == 0:
		return h, badRequest("A Transfer-Encoding does not exist in HTTP/1.0. Send a Content-Length.")
	case hosts > 1:
		return h, badRequest("There are several Host fields. Send one.")
	case hosts == 0 && minor > 0:
		return h, badRequest("There is no Host field. Send one.")
	case hosts > 0 && !validHost(host):
		return h, badRequest("The Host field is not a host, with or without a port.")
	}
	h.chunked = codings > 0
	return h, checkTarget(target, host, hosts > 0)
}

// cutLine returns the first line of b without its CR LF.
func cutLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte{'\n'})
	return bytes.TrimSuffix(line, []byte{'\r'}), rest
}

// readRequestLine reads a method, a target and HTTP/1.minor, with one space
// between each two (RFC 9112 section 3). The target is not empty, and holds
// neither space nor control character; a method that has no target in the form
// of a path or URL is refused.
func readRequestLine(line []byte) (target []byte, minor byte, e *httperr.Error) {
	method, line, ok := bytes.Cut(line, []byte{' '})
	target, version, ok2 := bytes.Cut(line, []byte{' '})
	if !ok || !ok2 || !isToken(method) || len(target) == 0 || len(version) != len("HTTP/1.1") || !bytes.HasPrefix(version, []byte("HTTP/")) ||
		!digit(version[5]) || version[6] != '.' || !digit(version[7]) {
		return nil, 0, badRequest("The request line is malformed. It is a method, a target and HTTP/1.1, with one space between each two.")
	}
	if version[5] != '1' || version[7] > '1' {
		return nil, 0, &httperr.Error{
			Status: http.StatusHTTPVersionNotSupported, Reason: "version_not_supported", Close: true,
			Detail: "This version of HTTP is not spoken here. HTTP/1.1 and HTTP/2 are.",
		}
	}
	for _, c := range target {
		if c <= ' ' || c == 0x7f {
			return nil, 0, badTarget()
		}
	}
	if string(method) == http.MethodConnect {
		return nil, 0, &httperr.Error{
			Status: http.StatusNotImplemented, Reason: "method_refused", Close: true,
			Detail: "The method CONNECT is not supported here.",
		}
	}
	if string(target) == "*" && string(method) != http.MethodOptions {
		return nil, 0, badTarget()
	}
	return target, version[7] - '0', nil
}

// methodOf returns the method of a request line, or "" if it has none.
func methodOf(line []byte) string {
	method, _, ok := bytes.Cut(line, []byte{' '})
	if !ok || !isToken(method) {
		return ""
	}
	return string(method)
}

// checkTarget refuses a target that is neither a path nor a URL of HTTP, and one
// that is for another host than the Host field says (RFC 9112 section 3.2).
func checkTarget(target, host []byte, hasHost bool) *httperr.Error {
	path, _, _ := bytes.Cut(target, []byte{'?'})
	if bytes.IndexByte(path, '#') >= 0 { // in a query it means nothing to a route
		return badTarget()
	}
	if target[0] == '/' {
		for i := range path {
			if path[i] == '%' && (i+2 >= len(path) || hexDigit(path[i+1]) < 0 || hexDigit(path[i+2]) < 0) {
				return badRequest("The path has a percent sign that is not followed by two hexadecimal digits.")
			}
		}
		return nil
	}
	if string(target) == "*" {
		return nil
	}
	u, err := url.ParseRequestURI(string(target))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || !validHost([]byte(u.Host)) {
		return badTarget()
	}
	if hasHost && sameHost(u.Host, u.Scheme) != sameHost(string(host), u.Scheme) {
		return badRequest("The target is for another host than the Host field says.")
	}
	return nil
}

// sameHost is how a host is compared with another: in lower case, without the
// port that the scheme has by itself.
func sameHost(host, scheme string) string {
	port := ":80"
	if scheme == "https" {
		port = ":443"
	}
	return strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(host), port), ":")
}

// readField reads a field line (RFC 9110 section 5): a token, a colon, a value
// without control characters and with whitespace around it, which goes.
func readField(line []byte) (name, value []byte, ok bool) {
	name, value, ok = bytes.Cut(line, []byte{':'})
	if !ok || !isToken(name) || !isValue(value) {
		return nil, nil, false
	}
	return name, bytes.Trim(value, " \t"), true
}

// framingField reports whether a field of this name says where a message ends,
// and so cannot stand behind it (RFC 9110 section 6.5.1).
func framingField(name []byte) bool {
	return is(name, "content-length") || is(name, "transfer-encoding") || is(name, "trailer") || is(name, "host")
}

// readLength reads digits and nothing else (RFC 9110 section 8.6).
func readLength(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > maxLengthDigits {
		return 0, false
	}
	for _, c := range b {
		if !digit(c) {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// validHost reports whether b is a host of RFC 3986 section 3.2.2 with an
// optional port: a name without percent signs, an IPv4 address, or an IPv6
// address in brackets and without a zone.
func validHost(b []byte) bool {
	var host, port []byte
	if len(b) > 0 && b[0] == '[' {
		end := bytes.IndexByte(b, ']')
		if end < 0 {
			return false
		}
		ip, err := netip.ParseAddr(string(b[1:end]))
		if err != nil || !ip.Is6() || ip.Zone() != "" {
			return false
		}
		if host, port = b[:end+1], b[end+1:]; len(port) > 0 && port[0] != ':' {
			return false
		}
		port = bytes.TrimPrefix(port, []byte{':'})
	} else {
		host, port, _ = bytes.Cut(b, []byte{':'})
		for _, c := range host {
			if !hostByte[c] {
				return false
			}
		}
	}
	if len(port) > 0 {
		if n, err := strconv.ParseUint(string(port), 10, 16); err != nil || n == 0 {
			return false
		}
	}
	return len(host) > 0
}

func badRequest(detail string) *httperr.Error {
	return &httperr.Error{Status: http.StatusBadRequest, Reason: "malformed_request", Detail: detail, Close: true}
}

func expectationFailed() *httperr.Error {
	return &httperr.Error{
		Status: http.StatusExpectationFailed, Reason: "expectation_failed", Close: true,
		Detail: "The Expect field asks for something other than 100-continue. Send the request without it.",
	}
}

func badTarget() *httperr.Error {
	return badRequest("The request target is not a path. Send one that begins with a slash, without spaces, and without # before the query.")
}

// tooLarge is the answer to a head that is too long, before all of it was read.
func (f *framing) tooLarge() *httperr.Error {
	if f.lines == 0 {
		return &httperr.Error{
			Status: http.StatusRequestURITooLong, Reason: "target_too_long", Close: true,
			Detail: "The request line is longer than is read here.",
		}
	}
	return tooManyFields()
}

func tooManyFields() *httperr.Error {
	return &httperr.Error{
		Status: http.StatusRequestHeaderFieldsTooLarge, Reason: "fields_too_large", Close: true,
		Detail: "The fields are longer, or more, than are read here. Cookies are the usual cause.",
	}
}

func tooSlow() *httperr.Error {
	return &httperr.Error{
		Status: http.StatusRequestTimeout, Reason: "head_too_slow", Close: true,
		Detail: "The head of the request took too long to arrive.",
	}
}
