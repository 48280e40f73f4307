package test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A wireRow is what a client sends over one connection, as bytes, and what has to
// come of it.
type wireRow struct {
	name string
	send string
	// answers are the statuses of what comes back, in order. What is behind an
	// answer of the gateway's own that ends the connection comes to nothing.
	answers string
	// reached is what the upstream was sent, in order: method, target and body,
	// with " | " between two requests.
	reached string
}

// field is a GET with one field line, or several, beside its Host.
func field(lines string) string { return "GET /x HTTP/1.1\r\nHost: a\r\n" + lines + "\r\n\r\n" }

// target is a GET of that target.
func target(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n" }

// host is a GET with that Host.
func host(host string) string { return "GET /x HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }

// post is a POST with that field line and what follows the head.
func post(line, body string) string {
	return "POST /x HTTP/1.1\r\nHost: a\r\n" + line + "\r\n\r\n" + body
}

// chunks is a POST in chunks, with what follows the head.
func chunks(body string) string { return post("Transfer-Encoding: chunked", body) }

const (
	next     = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n"
	smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
)

func wireRows() []wireRow {
	rows := []wireRow{
		// What is right passes as it came.
		{"a GET", target("/x"), "200", "GET /x"},
		{"two in one segment", target("/x") + next, "200 200", "GET /x | GET /next"},
		{"a body of known length", post("Content-Length: 3", "abc"), "200", "POST /x abc"},
		{"a body of length 0", post("Content-Length: 0", ""), "200", "POST /x"},
		{"a body, and another request", post("Content-Length: 3", "abc"+next), "200 200", "POST /x abc | GET /next"},
		{"a body in chunks, and another request", chunks("3\r\nabc\r\n0\r\n\r\n" + next), "200 200", "POST /x abc | GET /next"},
		{"a GET with a body", "GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" + next, "200 200", "GET /x abc | GET /next"},
		{"an empty line behind a body", post("Content-Length: 3", "abc\r\n"+next), "200 200", "POST /x abc | GET /next"},
		{"an empty line in front", "\r\n" + target("/x"), "200", "GET /x"},
		{"HTTP/1.0", "GET /x HTTP/1.0\r\n\r\n", "200", "GET /x"},
		{"HTTP/1.0 with a Host", "GET /x HTTP/1.0\r\nHost: a\r\n\r\n", "200", "GET /x"},
		{"HTTP/1.0 with a body", "POST /x HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "200", "POST /x abc"},
		{"HTTP/1.0 that goes on", "GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + next, "200 200", "GET /x | GET /next"},
		{"the last one", "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + next, "200", "GET /x"},
		{"a method that nobody knows", "FROB /x HTTP/1.1\r\nHost: a\r\n\r\n", "200", "FROB /x"},
		{"a method of odd letters", "A!#$%&'*+-.^_`|~0 /x HTTP/1.1\r\nHost: a\r\n\r\n", "200", "A!#$%&'*+-.^_`|~0 /x"},
		{"a method in lower case", "get /x HTTP/1.1\r\nHost: a\r\n\r\n", "200", "get /x"},
		{"a query", target("/x?a=1;b=2&c=%zz"), "200", "GET /x?a=1;b=2&c=%zz"},
		{"an empty query", target("/x?"), "200", "GET /x?"},
		{"an encoded slash", target("/x%2Fy"), "200", "GET /x%2Fy"},
		{"a bracket", target("/x[1]{2}|3"), "200", "GET /x[1]{2}|3"},
		{"a whole URL", target("http://a/x"), "200", "GET /x"},
		{"a whole URL in capitals", target("HTTP://A/x"), "200", "GET /x"},
		{"a whole URL with its port", "GET http://a:80/x HTTP/1.1\r\nHost: a\r\n\r\n", "200", "GET /x"},
		{"a whole URL, and a Host with its port", "GET https://a/x HTTP/1.1\r\nHost: a:443\r\n\r\n", "200", "GET /x"},
		{"a whole URL without a path", target("http://a"), "400", ""}, // a path is what is judged
		{"an empty value", field("X-A:"), "200", "GET /x"},
		{"blanks around a value", field("X-A: \t b \t "), "200", "GET /x"},
		{"a tab in a value", field("X-A: a\tb"), "200", "GET /x"},
		{"a value of UTF-8", field("X-A: \xc3\xbc"), "200", "GET /x"},
		{"a value of Latin-1", field("X-A: \xfc"), "200", "GET /x"},
		{"a colon in a value", field("X-A: b:c"), "200", "GET /x"},
		{"a name of odd letters", field("!#$%&'*+-.^_`|~0: 1"), "200", "GET /x"},
		{"a length in front of blanks", post("Content-Length:  3\t", "abc"), "200", "POST /x abc"},
		{"a length with a zero in front", post("Content-Length: 03", "abc"), "200", "POST /x abc"},
		{"a coding in capitals", post("Transfer-Encoding: CHUNKED", "3\r\nabc\r\n0\r\n\r\n"), "200", "POST /x abc"},
		{"a name in capitals", post("TRANSFER-ENCODING: chunked", "3\r\nabc\r\n0\r\n\r\n"), "200", "POST /x abc"},
		{"a size in capitals", chunks("A\r\n0123456789\r\n0\r\n\r\n"), "200", "POST /x 0123456789"},
		{"a size in small letters", chunks("a\r\n0123456789\r\n0\r\n\r\n"), "200", "POST /x 0123456789"},
		{"zeros in front of a size", chunks("0003\r\nabc\r\n000\r\n\r\n"), "200", "POST /x abc"},
		{"an extension", chunks("3;a=b;c=\"d e\"\r\nabc\r\n0;x\r\n\r\n"), "200", "POST /x abc"},
		{"blanks in front of an extension", chunks("3 ;a=b\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"trailers", chunks("3\r\nabc\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n" + next), "200 200", "POST /x abc | GET /next"},
		{"announced trailers", post("Trailer: X-A\r\nTransfer-Encoding: chunked", "3\r\nabc\r\n0\r\nX-A: 1\r\n\r\n"+next), "200 200", "POST /x abc | GET /next"},
		{"an expectation", post("Expect: 100-continue\r\nContent-Length: 3", "abc"), "100 200", "POST /x abc"},
		{"an expectation in capitals", post("Expect: 100-Continue\r\nContent-Length: 3", "abc"), "100 200", "POST /x abc"},
		{"as many fields as there may be", field(strings.TrimSuffix(strings.Repeat("X-A: 1\r\n", 199), "\r\n")), "200", "GET /x"},
		{"fields of 60 kB", field("Cookie: " + strings.Repeat("x", 60<<10)), "200", "GET /x"},

		// The request line.
		{"garbage", "\x00\x01\x02\x03 \x04\x05\x06\x07 \x08\x09\r\n\r\n", "400", ""},
		{"binary", strings.Repeat("\xff\xfe\xfd\r\n", 100) + "\r\n", "400", ""},
		{"a TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400", ""},
		{"one word", "HELLO,GATEWAY!\r\n\r\n", "400", ""},
		{"two empty lines in front", "\r\n\r\n" + target("/x"), "400", ""},
		{"a bare LF in front", "\n" + target("/x"), "400", ""},
		{"a blank in front", " GET /x HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"no target", "GET HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"an empty target", "GET  HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"no version", "GET /x\r\nHost: a\r\n\r\n", "400", ""},
		{"HTTP/0.9", "GET /x\r\n\r\n", "400", ""},
		{"two blanks", "GET  /x HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"two blanks before the version", "GET /x  HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a tab for a blank", "GET\t/x HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a tab before the version", "GET /x\tHTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a blank behind the version", "GET /x HTTP/1.1 \r\nHost: a\r\n\r\n", "400", ""},
		{"more behind the version", "GET /x HTTP/1.1 x\r\nHost: a\r\n\r\n", "400", ""},
		{"a form feed for a blank", "GET\x0c/x HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a version in small letters", "GET /x http/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a version of one digit", "GET /x HTTP/1\r\nHost: a\r\n\r\n", "400", ""},
		{"a version of two digits behind the dot", "GET /x HTTP/1.10\r\nHost: a\r\n\r\n", "400", ""},
		{"a version of two digits", "GET /x HTTP/11.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a version with a zero in front", "GET /x HTTP/01.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a version of letters", "GET /x HTTP/a.b\r\nHost: a\r\n\r\n", "400", ""},
		{"another protocol", "GET /x HTTQ/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"version 1.2", "GET /x HTTP/1.2\r\nHost: a\r\n\r\n", "505", ""},
		{"version 2.0", "GET /x HTTP/2.0\r\nHost: a\r\n\r\n", "505", ""},
		{"version 0.9", "GET /x HTTP/0.9\r\nHost: a\r\n\r\n", "505", ""},
		{"version 9.9", "GET /x HTTP/9.9\r\nHost: a\r\n\r\n", "505", ""},
		{"a method with an at sign", "G@T /x HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a method with a colon", "GET: /x HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a method with a NUL", "GE\x00T /x HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"no method", " /x HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a method of UTF-8", "G\xc3\x8bT /x HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a tunnel", "CONNECT example.test:443 HTTP/1.1\r\nHost: example.test:443\r\n\r\n" + next, "501", ""},
		{"a tunnel to a path", "CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n", "501", ""},
		{"a tunnel to nowhere", "CONNECT : HTTP/1.1\r\nHost: a\r\n\r\n", "501", ""},
		{"a trace", "TRACE /x HTTP/1.1\r\nHost: a\r\n\r\n", "501", ""},

		// The target.
		{"a word for a target", target("evil"), "400", ""},
		{"a relative path", target("x/y"), "400", ""},
		{"a query for a target", target("?a=b"), "400", ""},
		{"a host for a target", target("a:80"), "400", ""},
		{"a fragment", target("/x#y"), "400", ""},
		{"a number sign in a query", target("/x?y#z"), "200", "GET /x?y#z"},
		{"a NUL in a target", target("/x\x00y"), "400", ""},
		{"a control byte in a target", target("/x\x1fy"), "400", ""},
		{"DEL in a target", target("/x\x7fy"), "400", ""},
		{"a blank in a target", target("/x y"), "400", ""},
		{"a bare CR in a target", target("/x\ry"), "400", ""},
		{"a percent sign alone", target("/x%"), "400", ""},
		{"one digit behind a percent sign", target("/x%2"), "400", ""},
		{"letters behind a percent sign", target("/x%zz"), "400", ""},
		{"an encoded NUL", target("/x%00"), "400", ""},
		{"the whole server", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"the whole server with GET", target("*"), "400", ""},
		{"two stars", "OPTIONS ** HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"a URL of another scheme", target("ftp://a/x"), "400", ""},
		{"a URL without slashes", target("http:x"), "400", ""},
		{"a URL without a host", target("http:///x"), "400", ""},
		{"a URL with a user", target("http://user@a/x"), "400", ""},
		{"a URL with a user and a password", target("http://user:secret@a/x"), "400", ""},
		{"a URL with a bad port", target("http://a:b/x"), "400", ""},
		{"a URL with a blank in its host", target("http://a b/x"), "400", ""},
		{"a URL with an escape in its host", target("http://a%41/x"), "400", ""},
		{"a URL with a bad escape", target("http://a/x%zz"), "400", ""},
		{"a URL of another host", target("http://b/x"), "400", ""},
		{"a URL of another port", target("http://a:81/x"), "400", ""},
		{"a URL, and no Host", "GET http://a/x HTTP/1.1\r\n\r\n", "400", ""},
		{"a target of 100 kB", target("/" + strings.Repeat("x", 100<<10)), "414", ""},
		{"a method without end", strings.Repeat("x", 100<<10), "414", ""},

		// Host.
		{"no Host", "GET /x HTTP/1.1\r\n\r\n", "400", ""},
		{"an empty Host", host(""), "400", ""},
		{"two Hosts", field("Host: b"), "400", ""},
		{"two Hosts alike", field("Host: a"), "400", ""},
		{"two Hosts in HTTP/1.0", "GET /x HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", "400", ""},
		{"two Hosts in a line", host("a, b"), "400", ""},
		{"a Host with a blank", host("a b"), "400", ""},
		{"a Host with a path", host("a/b"), "400", ""},
		{"a Host with a query", host("a?b"), "400", ""},
		{"a Host with a fragment", host("a#b"), "400", ""},
		{"a Host with a user", host("user@a"), "400", ""},
		{"a Host with a scheme", host("http://a"), "400", ""},
		{"a Host with a backslash", host(`a\b`), "400", ""},
		{"a Host with an escape", host("a%2eb"), "400", ""},
		{"a Host of UTF-8", host("\xc3\xbc"), "400", ""},
		{"a Host with a NUL", host("a\x00"), "400", ""},
		{"a Host with quotes", host(`"a"`), "400", ""},
		{"a port of letters", host("a:abc"), "400", ""},
		{"two ports", host("a:80:80"), "400", ""},
		{"a port of 0", host("a:0"), "400", ""},
		{"a port too large", host("a:65536"), "400", ""},
		{"a port with a sign", host("a:+80"), "400", ""},
		{"a port alone", host(":80"), "400", ""},
		{"an open bracket", host("[::1"), "400", ""},
		{"a closed bracket", host("::1]"), "400", ""},
		{"IPv6 without brackets", host("::1"), "400", ""},
		{"brackets around IPv4", host("[127.0.0.1]"), "400", ""},
		{"brackets around a name", host("[a]"), "400", ""},
		{"IPv6 with a zone", host("[fe80::1%eth0]"), "400", ""},
		{"something behind the bracket", host("[::1]a"), "400", ""},
		{"a Host with a port", host("a:8080"), "200", "GET /x"},
		{"a Host with an empty port", host("a:"), "200", "GET /x"},
		{"a Host with a dot at the end", host("a."), "200", "GET /x"},
		{"a Host with an underscore", host("a_b.test"), "200", "GET /x"},
		{"an IPv4 Host", host("127.0.0.1:80"), "200", "GET /x"},
		{"an IPv6 Host", host("[::1]:80"), "200", "GET /x"},

		// Lines and fields.
		{"a bare LF behind the request line", "GET /x HTTP/1.1\nHost: a\r\n\r\n", "400", ""},
		{"bare LFs", "GET /x HTTP/1.1\nHost: a\n\n", "400", ""},
		{"a bare LF behind a field", field("X-A: 1\nX-B: 2"), "400", ""},
		{"a bare LF at the end", "GET /x HTTP/1.1\r\nHost: a\r\n\n", "400", ""},
		{"a bare LF in the middle of the end", "GET /x HTTP/1.1\r\nHost: a\n\r\n", "400", ""},
		{"a bare CR in a value", field("X-A: a\rb"), "400", ""},
		{"a bare CR in a name", field("X\r-A: b"), "400", ""},
		{"two CRs", field("X-A: a\r"), "400", ""},
		{"a bare CR for a line end", "GET /x HTTP/1.1\rHost: a\r\n\r\n", "400", ""},
		{"a fold", field("X-A: a\r\n b"), "400", ""},
		{"a fold with a tab", field("X-A: a\r\n\tb"), "400", ""},
		{"a fold of a Host", "GET /x HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", "400", ""},
		{"a folded first field", "GET /x HTTP/1.1\r\n Host: a\r\n\r\n", "400", ""},
		{"a fold of a coding", chunksFolded, "400", ""},
		{"a blank before the colon", field("X-A : 1"), "400", ""},
		{"a tab before the colon", field("X-A\t: 1"), "400", ""},
		{"a blank before the colon of a length", post("Content-Length : 3", "abc"), "400", ""},
		{"a blank before the colon of a coding", post("Transfer-Encoding : chunked", "0\r\n\r\n"), "400", ""},
		{"a blank in a name", field("X A: 1"), "400", ""},
		{"no name", field(": 1"), "400", ""},
		{"no colon", field("nonsense"), "400", ""},
		{"a NUL in a value", field("X-A: a\x00b"), "400", ""},
		{"a NUL in a name", field("X\x00A: b"), "400", ""},
		{"a control byte in a value", field("X-A: a\x01b"), "400", ""},
		{"a vertical tab in a value", field("X-A: a\x0bb"), "400", ""},
		{"DEL in a value", field("X-A: a\x7fb"), "400", ""},
		{"an escape in a value", field("X-A: \x1b[31m"), "400", ""},
		{"UTF-8 in a name", field("X-\xc3\xbc: 1"), "400", ""},
		{"a bracket in a name", field("X(A): 1"), "400", ""},
		{"a quote in a name", field(`"X-A": 1`), "400", ""},
		{"a slash in a name", field("X/A: 1"), "400", ""},
		{"an at sign in a name", field("X@A: 1"), "400", ""},
		{"fields of 100 kB", field("Cookie: " + strings.Repeat("x", 100<<10)), "431", ""},
		{"fields of 2 MB", field("Cookie: " + strings.Repeat("x", 2<<20)), "431", ""},
		{"one field too many", field(strings.TrimSuffix(strings.Repeat("X-A: 1\r\n", 200), "\r\n")), "431", ""},
		{"20,000 fields", field(strings.Repeat("X-A: 1\r\n", 20000)), "431", ""},

		// Lengths.
		{"two lengths", post("Content-Length: 3\r\nContent-Length: 4", "abcd"), "400", ""},
		{"two lengths alike", post("Content-Length: 3\r\nContent-Length: 3", "abc"), "400", ""},
		{"two lengths in a line", post("Content-Length: 3, 3", "abc"), "400", ""},
		{"a comma behind a length", post("Content-Length: 3,", "abc"), "400", ""},
		{"a signed length", post("Content-Length: +3", "abc"), "400", ""},
		{"a negative length", post("Content-Length: -3", "abc"), "400", ""},
		{"a length in hex", post("Content-Length: 0x3", "abc"), "400", ""},
		{"a length with an underscore", post("Content-Length: 1_0", "0123456789"), "400", ""},
		{"a length with a point", post("Content-Length: 3.0", "abc"), "400", ""},
		{"a length with an exponent", post("Content-Length: 3e0", "abc"), "400", ""},
		{"a length of a blank and digits", post("Content-Length: 3 3", "abc"), "400", ""},
		{"a length in quotes", post(`Content-Length: "3"`, "abc"), "400", ""},
		{"an empty length", post("Content-Length:", ""), "400", ""},
		{"a length in other digits", post("Content-Length: \xd9\xa3", "abc"), "400", ""},
		{"a length that is too large", post("Content-Length: 99999999999999999999", "abc"), "400", ""},
		{"a length of 2^63", post("Content-Length: 9223372036854775808", "abc"), "400", ""},
		{"a length with an underscore for its hyphen", post("Content_Length: 3", "abc"), "400", ""},
		{"a length behind a tab and a NUL", post("Content-Length: \t\x003", "abc"), "400", ""},
		{"a second length in HTTP/1.0", "POST /x HTTP/1.0\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400", ""},

		// Codings.
		{"a length beside a coding", post("Content-Length: 4\r\nTransfer-Encoding: chunked", "0\r\n\r\n"+smuggled), "400", ""},
		{"a coding beside a length", post("Transfer-Encoding: chunked\r\nContent-Length: 4", "0\r\n\r\n"+smuggled), "400", ""},
		{"a length of 0 beside a coding", post("Content-Length: 0\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), "400", ""},
		{"an unknown coding beside a length", post("Content-Length: 4\r\nTransfer-Encoding: xchunked", "abcd"), "400", ""},
		{"two codings", post("Transfer-Encoding: chunked, identity", "0\r\n\r\n"), "400", ""},
		{"two codings the other way", post("Transfer-Encoding: identity, chunked", "0\r\n\r\n"), "400", ""},
		{"a doubled coding", post("Transfer-Encoding: chunked, chunked", "0\r\n\r\n"), "400", ""},
		{"two lines of coding", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), "400", ""},
		{"two lines of differing coding", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "0\r\n\r\n"), "400", ""},
		{"gzip", post("Transfer-Encoding: gzip", "abc"), "400", ""},
		{"gzip, chunked", post("Transfer-Encoding: gzip, chunked", "0\r\n\r\n"), "400", ""},
		{"identity", post("Transfer-Encoding: identity", "abc"), "400", ""},
		{"an unknown coding", post("Transfer-Encoding: xchunked", "0\r\n\r\n"), "400", ""},
		{"an empty coding", post("Transfer-Encoding:", "0\r\n\r\n"), "400", ""},
		{"a coding with a parameter", post("Transfer-Encoding: chunked;q=1", "0\r\n\r\n"), "400", ""},
		{"a coding in quotes", post(`Transfer-Encoding: "chunked"`, "0\r\n\r\n"), "400", ""},
		{"a comma behind a coding", post("Transfer-Encoding: chunked,", "0\r\n\r\n"), "400", ""},
		{"a comma in front of a coding", post("Transfer-Encoding: ,chunked", "0\r\n\r\n"), "400", ""},
		{"a coding behind a vertical tab", post("Transfer-Encoding: \x0bchunked", "0\r\n\r\n"), "400", ""},
		{"a coding in front of a NUL", post("Transfer-Encoding: chunked\x00", "0\r\n\r\n"), "400", ""},
		{"a coding with an underscore for its hyphen", post("Transfer_Encoding: chunked", "0\r\n\r\n"), "400", ""},
		{"a coding in HTTP/1.0", "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400", ""},
		{"a coding in HTTP/1.0 that goes on", "POST /x HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, "400", ""},

		// Chunks. A body that goes wrong is the client's mistake when it is seen, and
		// nobody takes what came for the whole.
		{"a size of junk", chunks("xyz\r\nabc\r\n0\r\n\r\n" + smuggled), "400", ""},
		{"an empty size", chunks("\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a signed size", chunks("+3\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a negative size", chunks("-3\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a size with 0x", chunks("0x3\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a size with an underscore", chunks("0_3\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a blank in front of a size", chunks(" 3\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a blank behind a size", chunks("3 \r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a tab behind a size", chunks("3\t\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a size too large", chunks("fffffffffffffffff\r\nabc\r\n"), "400", ""},
		{"a size of 2^64", chunks("10000000000000003\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a size of many zeros", chunks(strings.Repeat("0", 100) + "3\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a bare LF behind a size", chunks("3\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a bare CR behind a size", chunks("3\rabc\r\n0\r\n\r\n"), "400", ""},
		{"two CRs behind a size", chunks("3\r\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a bare LF behind a chunk", chunks("3\r\nabc\n0\r\n\r\n"), "400", ""},
		{"a bare CR behind a chunk", chunks("3\r\nabc\r0\r\n\r\n"), "400", ""},
		{"a chunk longer than its size", chunks("3\r\nabcdef\r\n0\r\n\r\n"), "400", ""},
		{"a chunk shorter than its size", chunks("5\r\nabc\r\n0\r\n\r\n" + smuggled), "400", ""},
		{"junk behind a good chunk", chunks("3\r\nabc\r\nzz\r\n"), "400", ""},
		{"a NUL in an extension", chunks("3;a=\x00\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a bare CR in an extension", chunks("3;a=\rb\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a bare LF in an extension", chunks("3;a=\nb\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"an extension of 1 kB", chunks("3;" + strings.Repeat("a", 1<<10) + "\r\nabc\r\n0\r\n\r\n"), "400", ""},
		{"a bare LF behind the last chunk", chunks("3\r\nabc\r\n0\n\r\n"), "400", ""},
		{"a bare LF at the end of chunks", chunks("3\r\nabc\r\n0\r\n\n" + smuggled), "400", ""},
		{"a trailer without a colon", chunks("3\r\nabc\r\n0\r\nno colon\r\n\r\n"), "400", ""},
		{"a trailer with a bare LF", chunks("3\r\nabc\r\n0\r\nX-A: 1\n\r\n"), "400", ""},
		{"a folded trailer", chunks("3\r\nabc\r\n0\r\nX-A: 1\r\n 2\r\n\r\n"), "400", ""},
		{"a trailer with a NUL", chunks("3\r\nabc\r\n0\r\nX-A: \x00\r\n\r\n"), "400", ""},
		{"a length for a trailer", chunks("3\r\nabc\r\n0\r\nContent-Length: 3\r\n\r\n"), "400", ""},
		{"a coding for a trailer", chunks("3\r\nabc\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"), "400", ""},
		{"a Host for a trailer", chunks("3\r\nabc\r\n0\r\nHost: b\r\n\r\n"), "400", ""},
		{"trailers of 10 kB", chunks("3\r\nabc\r\n0\r\nX-A: " + strings.Repeat("x", 10<<10) + "\r\n\r\n"), "400", ""},
		{"a length is announced for a trailer", post("Trailer: X-A, Content-Length\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), "400", ""},
		{"a coding is announced for a trailer", post("Trailer: transfer-encoding\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), "400", ""},

		// What else a request may ask.
		{"an unknown expectation", post("Expect: wonders\r\nContent-Length: 0", ""), "417", ""},
		{"two expectations", post("Expect: 100-continue, wonders\r\nContent-Length: 0", ""), "417", ""},
		{"an unknown expectation in HTTP/1.0", "POST /x HTTP/1.0\r\nExpect: wonders\r\nContent-Length: 0\r\n\r\n", "417", ""},

		// Order: what came before is answered before, and nothing behind is read.
		{"a good one in front of a bad one", next + "GET /x HTTP/1.1\r\nHost : a\r\n\r\n" + smuggled, "200 400", "GET /next"},
		{"two good ones in front of a bad one", next + next + "\x00\r\n\r\n", "200 200 400", "GET /next | GET /next"},
		{"a body in front of a bad one", post("Content-Length: 3", "abcdef\r\n\r\n"+smuggled), "200 400", "POST /x abc"},
		{"a body longer than its length", post("Content-Length: 3", "abcGET /smuggled HTTP/1.1\r\nHost: a b\r\n\r\n"), "200 400", "POST /x abc"},
		{"chunks in front of a bad one", chunks("3\r\nabc\r\n0\r\n\r\nX\r\n\r\n" + smuggled), "200 400", "POST /x abc"},
		{"two bad ones", "X\r\n\r\nX\r\n\r\n", "400", ""},
		{"HEAD with a bad field", "HEAD /x HTTP/1.1\r\nHost: a\r\nX A: 1\r\n\r\n", "HEAD 400", ""},
		{"HTTP/2 behind a request", next + "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "200 505", "GET /next"},
		{"half of HTTP/2", "PRI * HTTP/2.0\r\n\r\n\r\n\r\n\r\n", "505", ""},
		{"HTTP/2 in small letters", "pri * http/2.0\r\n\r\nsm\r\n\r\n", "400", ""},
	}
	for _, c := range []string{"(", ")", "<", ">", "@", ",", ";", "\\", "\"", "/", "[", "]", "?", "=", "{", "}", "\x80", "\xff"} {
		rows = append(rows, wireRow{fmt.Sprintf("%q in a name", c), field("X" + c + "A: 1"), "400", ""})
	}
	for c := range 0x20 {
		switch c {
		case '\t', '\n', '\r':
		default:
			rows = append(rows,
				wireRow{fmt.Sprintf("%#02x in a value", c), field("X-A: a" + string(rune(c)) + "b"), "400", ""},
				wireRow{fmt.Sprintf("%#02x in a target", c), target("/a" + string(rune(c)) + "b"), "400", ""})
		}
	}
	return rows
}

const chunksFolded = "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"

// A request that two parsers could read differently is answered as the client's
// mistake, and nothing of it, or of what stands behind it on its connection,
// reaches the upstream. What is right gets there as it was sent.
func TestOnlyWhatEverybodyReadsAlikePasses(t *testing.T) {
	u := newRecorder(t)
	g := proxySite(t, u.url).start()
	rows := wireRows()
	if len(rows) < 200 {
		t.Fatalf("%d rows", len(rows))
	}
	refused := map[string]float64{}
	for _, row := range rows {
		before := len(u.seen())
		wants := strings.Fields(row.answers)
		method := http.MethodGet
		if wants[0] == http.MethodHead {
			method, wants = wants[0], wants[1:]
		}
		c := g.dial()
		// The gateway may answer and hang up before all of it is written.
		_, _ = io.WriteString(c.Conn, row.send)
		for i, want := range wants {
			res, err := http.ReadResponse(c.in, &http.Request{Method: method})
			if err != nil {
				t.Errorf("%s: answer %d of %s: %v", row.name, i+1, row.answers, err)
				break
			}
			if want >= "400" {
				refused[want]++
			}
			a := answer{status: res.StatusCode, header: res.Header}
			body, err := io.ReadAll(res.Body)
			a.body = string(body)
			switch {
			case fmt.Sprint(res.StatusCode) != want:
				t.Errorf("%s: answer %d is %d %s, want %s", row.name, i+1, res.StatusCode, body, want)
			case err != nil:
				t.Errorf("%s: body of answer %d: %v", row.name, i+1, err)
			case want < "400":
			case res.Header.Get("Content-Type") != "application/problem+json":
				t.Errorf("%s: answer %d is not the gateway's: %v %s", row.name, i+1, res.Header, body)
			case method == http.MethodHead && len(body) > 0:
				t.Errorf("%s: a body of %q", row.name, body)
			case method != http.MethodHead && (a.problem(t)["status"] != float64(res.StatusCode) || tellsInsides(a.body)):
				t.Errorf("%s: answer %d: %v %s", row.name, i+1, res.Header, body)
			case want != "501" && !res.Close:
				t.Errorf("%s: the connection goes on behind a request that was not understood", row.name)
			case res.Close:
				rest, err := io.ReadAll(c.in)
				if len(rest) > 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%s: behind the last answer: %q, %v", row.name, rest, err)
				}
			}
		}
		_ = c.Close()
		if got := strings.Join(u.seen()[before:], " | "); got != row.reached {
			t.Errorf("%s: the upstream got %q, want %q", row.name, got, row.reached)
		}
		select {
		case <-g.ended:
			t.Fatalf("%s: ended the gateway", row.name)
		default:
		}
	}
	for status, want := range refused {
		if got := g.sum("gateway_requests_total", `code="`+status+`"`); got != want {
			t.Errorf("%v answers of %s are counted, want %v", got, status, want)
		}
	}
	if strings.Contains(g.output(), "panic") || strings.Contains(g.stderr.String(), "goroutine ") {
		t.Errorf("a panic was provoked:\n%s%s", g.output(), g.stderr.String())
	}
	t.Logf("%d requests", len(rows))
}

// A request is read alike however its bytes arrive.
func TestASlowRequestIsReadLikeAFastOne(t *testing.T) {
	t.Parallel()
	u := newRecorder(t)
	g := proxySite(t, u.url).start()
	c := g.dial()
	for b := range strings.SplitSeq(chunks("3;x\r\nabc\r\n0\r\nX-A: 1\r\n\r\n")+next+"GET /x HTTP/1.1\r\nHost : a\r\n\r\n", "") {
		c.say(b)
	}
	for _, want := range []int{200, 200, 400} {
		if res := c.hear(http.MethodGet); res.StatusCode != want {
			t.Errorf("%d, want %d", res.StatusCode, want)
		}
	}
	if got := u.seen(); !slices.Equal(got, []string{"POST /x abc", "GET /next"}) {
		t.Errorf("the upstream got %q", got)
	}
}

// A recorder is an upstream that keeps every request that came whole: its
// method, its target and its body, as they came.
type recorder struct {
	url string
	mu  sync.Mutex
	all []string
}

func newRecorder(t testing.TB) *recorder {
	u := &recorder{}
	u.url = "http://" + serveConns(t, func(c net.Conn) {
		var raw bytes.Buffer
		in := bufio.NewReader(io.TeeReader(c, &raw))
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			line, _, _ := strings.Cut(raw.String(), " HTTP/1.1\r\n")
			raw.Next(raw.Len() - in.Buffered())
			u.mu.Lock()
			u.all = append(u.all, strings.TrimSpace(line+" "+string(body)))
			u.mu.Unlock()
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil {
				return
			}
		}
	})
	return u
}

func (u *recorder) seen() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.all)
}

// What begins like HTTP/2 and is none of it ends, and ends nothing else.
func TestBadHTTP2EndsItsConnection(t *testing.T) {
	t.Parallel()
	u := newRecorder(t)
	g := proxySite(t, u.url).start()
	for name, send := range map[string]string{
		"without settings": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\xff", 100),
		"with a bad frame": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff",
	} {
		c := g.dial()
		_, _ = io.WriteString(c.Conn, send)
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c.in); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if a := g.get("/still-here"); a.status != 200 {
		t.Errorf("afterwards: %d", a.status)
	}
	if got := u.seen(); !slices.Equal(got, []string{"GET /still-here"}) {
		t.Errorf("the upstream got %q", got)
	}
}
