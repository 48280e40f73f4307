package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bouncer/gateway/proxy"
	"bouncer/gateway/rewrite"
	"bouncer/gateway/scope"
)

func TestTargetArrivesByteForByte(t *testing.T) {
	targets := []string{
		"/", "/a", "/x/", "/a%2Fb", "/a%2fb", "/%2F/x", "/%2e%2e/x", "/a%252Fb", "/sp%20ace", "/a;b=c", "/a//x", "/+", "/%41",
		"/a?", "/?", "/a?a=1;b=2", "/a?a=%3B", "/a?x", "/a?x=&x=2", "/a?=1", "/a?a=b=c", "/a?%zz", "/a?a=%zz&b=1", "/a?x=a%2Fb", "/a?b=ü&c=+",
		"/ü", "/a|b%2Fc", "/{id}%2F", `/a"b%2F`, "/a%C3%BC", "//x", "//x/%2F?y", "/a/?q=/../",
	}
	for _, base := range []string{"", "/", "/base", "/base/", "/v%2F1"} {
		upstream, heads := recorder(t)
		g := newGateway(t, settings{}, upstream+base)
		for _, target := range targets {
			res := roundTrip(t, g.address(), "GET "+target+" HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
			if res.StatusCode != 200 {
				t.Errorf("base %q, target %q: want 200, got %d", base, target, res.StatusCode)
				continue
			}
			head := receive(t, heads, "a request")
			line, _, _ := strings.Cut(head, "\r\n")
			if want := "GET " + strings.TrimSuffix(base, "/") + target + " HTTP/1.1"; line != want {
				t.Errorf("base %q, target %q: want %q, got %q", base, target, want, line)
			}
		}
	}
	// A path that needs Opaque and begins with // goes out in absolute form.
	upstream, heads := recorder(t)
	g := newGateway(t, settings{}, upstream)
	roundTrip(t, g.address(), "GET //x|y%2Fz?q HTTP/1.1\r\nHost: a\r\n\r\n")
	if line, _, _ := strings.Cut(receive(t, heads, "a request"), "\r\n"); line != "GET "+upstream+"//x|y%2Fz?q HTTP/1.1" {
		t.Errorf("want the absolute form, got %q", line)
	}
}

func TestRefusedBeforeContact(t *testing.T) {
	upstream, heads := recorder(t)
	g := newGateway(t, settings{}, upstream)
	for request, want := range map[string]int{
		"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n":                 501,
		"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n":                                               501,
		"OPTIONS * HTTP/1.1\r\nHost: a\r\nX: 1\r\n\r\n":                                     0, // the server's own answer
		"GET * HTTP/1.1\r\nHost: a\r\n\r\n":                                                 400,
		"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n":                                              400,
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: w\xe9bsocket\r\n\r\n": 400,
	} {
		if res := roundTrip(t, g.address(), request); want != 0 && res.StatusCode != want {
			t.Errorf("%q: want %d, got %d", request, want, res.StatusCode)
		}
	}
	select {
	case head := <-heads:
		t.Errorf("want no contact, got %q", head)
	default:
	}
}

func TestOtherUpgradesAreLeftOut(t *testing.T) {
	upstream, heads := recorder(t)
	g := newGateway(t, settings{}, upstream)
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: TLS/1.0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket, H2C\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket, foo\r\n\r\n",
		"GET / HTTP/1.0\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
	} {
		roundTrip(t, g.address(), request)
		if head := receive(t, heads, "a request"); strings.Contains(strings.ToLower(head), "upgrade") || strings.Contains(strings.ToLower(head), "http2-settings") {
			t.Errorf("%q: want no upgrade, got %q", request, head)
		}
	}
}

// forged are the fields of the gateway's own, as a client may try to send them.
var forged = []string{
	"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Server", "X-Forwarded-Prefix",
	"X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Tls-Client-Cert", "X-Forwarded", "Forwarded", "X-Real-IP", "X-Real-Port",
	"True-Client-IP", "X-Auth-User", "X-Auth-Tenant", "X-Auth-Plan", "X-Auth-Key-Id", "X-Request-Id", "Proxy", "HTTP2-Settings",
}

func spellings(name string) []string {
	under := strings.ReplaceAll(name, "-", "_")
	mixed := strings.Replace(name, "-", "_", 1)
	dots, signs := strings.ReplaceAll(name, "-", "."), strings.ReplaceAll(name, "-", "+")
	return []string{name, strings.ToLower(name), strings.ToUpper(name), under, strings.ToLower(under), strings.ToUpper(under), mixed, dots, signs}
}

func TestForgedFieldsGo(t *testing.T) {
	upstream, heads := recorder(t)
	for _, filler := range []int{0, 150} {
		var b strings.Builder
		b.WriteString("GET / HTTP/1.1\r\nHost: api.example.com\r\n")
		for i := range filler {
			fmt.Fprintf(&b, "X-Filler-%d: 1\r\n", i)
		}
		for _, name := range forged {
			for _, n := range spellings(name) {
				fmt.Fprintf(&b, "%s: evil\r\n%s: evil2\r\n", n, n)
			}
		}
		b.WriteString("Transfer_Encoding: evil\r\ncontent_length: evil\r\nContent.Length: evil\r\n\r\n")
		g := newGateway(t, settings{}, upstream) // nobody is known: nothing replaces them
		roundTrip(t, g.address(), b.String())
		head := receive(t, heads, "a request")
		if strings.Contains(head, "evil") {
			t.Errorf("filler %d: want none of the forged fields, got:\n%s", filler, head)
		}
		if n := strings.Count(head, "X-Filler-"); n != filler {
			t.Errorf("want %d other fields, got %d", filler, n)
		}
	}
}

// A field that the route sets or removes has no other spelling that a server of the
// kind of CGI would take for it, in the header or the trailers.
func TestWhatTheRouteSetsHasNoTwin(t *testing.T) {
	fields, err := rewrite.NewFields(rewrite.Changes{
		Remove: []string{"X-Debug-Mode"},
		Set:    []rewrite.Field{{Name: "X-Caller", Value: "{user}"}, {Name: "X-Tenant-Id", Value: "{tenant}"}},
		Add:    []rewrite.Field{{Name: "X-Scope", Value: "read"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	upstream, heads := recorder(t)
	for user, want := range map[string][]string{"priya123": {"priya123"}, "": nil} {
		g := newGateway(t, settings{scope: scope.Request{User: user}, forward: proxy.Forward{Fields: fields}}, upstream)
		var b strings.Builder
		for _, name := range []string{"X-Caller", "X-Tenant-Id", "X-Debug-Mode"} {
			for _, n := range spellings(name) {
				fmt.Fprintf(&b, "%s: evil\r\n", n)
			}
		}
		roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\n"+b.String()+"X--Caller: 1\r\nX.Scope: 2\r\n\r\n")
		head := receive(t, heads, "a request")
		got := fieldsOf(head)
		if strings.Contains(head, "evil") || !slices.Equal(got["X-Caller"], want) || got["X-Scope"][0] != "read" {
			t.Errorf("want none of the client's, got:\n%s", head)
		}
		if !strings.Contains(head, "X--Caller: 1") || !strings.Contains(head, "X.scope: 2") {
			t.Errorf("want what is no twin, and those of what is added, got:\n%s", head)
		}
	}
	if n := testing.AllocsPerRun(100, func() { fields.Replaces("X.Tenant.Id") }); n != 0 {
		t.Errorf("%v allocations for a name", n)
	}
}

func TestConnectionCannotRemoveOurs(t *testing.T) {
	upstream, heads := recorder(t)
	g := newGateway(t, settings{scope: someone}, upstream)
	names := "X-Auth-User, X-Auth-Tenant, X-Auth-Plan, X-Auth-Key-Id, X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host, " +
		"X-Real-IP, X-Request-Id, close, Via, Traceparent, Host, X-Secret, Te, , keep-alive"
	roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: api.example.com\r\nX-Secret: 1\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nTE: trailers;q=1, trailers\r\n"+
		"Proxy-Authorization: x\r\nConnection: "+names+"\r\nConnection: x-also\r\nX-Also: 1\r\nX-Stays: 1\r\n\r\n")
	got := fieldsOf(receive(t, heads, "a request"))
	traceparent := got["Traceparent"]
	delete(got, "Traceparent")
	want := map[string][]string{
		"Host": {strings.TrimPrefix(upstream, "http://")}, "X-Stays": {"1"}, "Te": {"trailers"},
		"X-Forwarded-For": {"203.0.113.7, 10.0.0.1"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Host": {"api.example.com"},
		"X-Real-Ip": {"203.0.113.7"}, "X-Request-Id": {"req-1"}, "Via": {"1.1 gateway"},
		"X-Auth-User": {"priya123"}, "X-Auth-Tenant": {"acme"}, "X-Auth-Plan": {"free"}, "X-Auth-Key-Id": {"k1"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("fields (-want +got):\n%s", d)
	}
	if len(traceparent) != 1 || !regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-00$`).MatchString(traceparent[0]) {
		t.Errorf("want a new traceparent, got %q", traceparent)
	}
}

func TestForwardingFields(t *testing.T) {
	trusted := scope.Request{PeerTrusted: true}
	const valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	check := func(name string, s scope.Request, fields string, field string, want ...string) {
		t.Helper()
		upstream, heads := recorder(t)
		g := newGateway(t, settings{scope: s, forward: proxy.Forward{ClientField: "X-Azure-Client", Strip: func(h http.Header) { h.Del("Authorization") }}}, upstream)
		roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: api.example.com\r\n"+fields+"\r\n")
		got := fieldsOf(receive(t, heads, "a request"))[field]
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s (-want +got):\n%s", name, field, d)
		}
	}
	check("trusted https", trusted, "X-Forwarded-Proto: HTTPS\r\n", "X-Forwarded-Proto", "https")
	check("trusted, but nonsense", trusted, "X-Forwarded-Proto: javascript\r\n", "X-Forwarded-Proto", "http")
	check("trusted, twice", trusted, "X-Forwarded-Proto: https\r\nX-Forwarded-Proto: http\r\n", "X-Forwarded-Proto", "http")
	check("trusted host", trusted, "X-Forwarded-Host: shop.example.com:8443\r\n", "X-Forwarded-Host", "shop.example.com:8443")
	check("trusted host, named in Connection", trusted, "Connection: X-Forwarded-Host\r\nX-Forwarded-Host: shop.example.com\r\n", "X-Forwarded-Host", "shop.example.com")
	check("trusted host, malformed", trusted, "X-Forwarded-Host: a b\r\n", "X-Forwarded-Host", "api.example.com")
	for _, name := range []string{"X-Client-IP", "x_client_ip", "CF-Connecting-IP", "Fastly-Client-Ip", "X-Cluster-Client-IP", "X-Azure-Client"} {
		field := http.CanonicalHeaderKey(name)
		check("an address from anybody", scope.Request{}, name+": 6.6.6.6\r\n", field)
		check("an address from a trusted proxy", trusted, name+": 6.6.6.6\r\n", field, "6.6.6.6")
	}
	check("untrusted", scope.Request{}, "X-Forwarded-Proto: https\r\n", "X-Forwarded-Proto", "http")
	check("untrusted host", scope.Request{}, "X-Forwarded-Host: evil\r\n", "X-Forwarded-Host", "api.example.com")
	check("trusted, but another field", trusted, "X-Forwarded-Port: 1\r\n", "X-Forwarded-Port")
	check("chain from the pipeline only", scope.Request{Forwarded: "198.51.100.7, 203.0.113.9"},
		"X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\n", "X-Forwarded-For", "198.51.100.7, 203.0.113.9")
	check("whole address", scope.Request{ClientIP: netip.MustParseAddr("2001:db8::1")}, "", "X-Real-Ip", "2001:db8::1")
	check("via", scope.Request{}, "Via: 1.0 fred\r\nVia: 1.1 p.example\r\n", "Via", "1.0 fred, 1.1 p.example, 1.1 gateway")
	check("trace goes on", scope.Request{}, "traceparent: "+valid+"\r\ntracestate: a=1\r\n", "Traceparent", valid)
	check("state goes with it", scope.Request{}, "traceparent: "+valid+"\r\ntracestate: a=1\r\n", "Tracestate", "a=1")
	check("state goes when the trace is not valid", scope.Request{}, "traceparent: x\r\ntracestate: a=1\r\n", "Tracestate")
	own := scope.Request{TraceID: [16]byte{0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c}, SpanID: [8]byte{7: 9}, TraceSampled: true}
	const ours = "00-0af7651916cd43dd8448eb211c80319c-0000000000000009-01"
	check("our span goes on in the client's trace", own, "traceparent: "+valid+"\r\ntracestate: a=1\r\n", "Traceparent", ours)
	check("with its state", own, "traceparent: "+valid+"\r\ntracestate: a=1\r\n", "Tracestate", "a=1")
	other := strings.Replace(valid, "0af7", "1af7", 1)
	check("our trace replaces the client's", own, "traceparent: "+other+"\r\ntracestate: a=1\r\n", "Traceparent", ours)
	check("and its state", own, "traceparent: "+other+"\r\ntracestate: a=1\r\n", "Tracestate")
	check("our trace where there is none", own, "", "Traceparent", ours)
	check("state alone", scope.Request{}, "tracestate: a=1\r\n", "Tracestate")
	check("credentials", scope.Request{}, "Authorization: Bearer x\r\nCookie: a=1\r\n", "Authorization")
	check("no encoding is invented", scope.Request{}, "", "Accept-Encoding")
	check("encoding stays", scope.Request{}, "Accept-Encoding: br;q=1.0, gzip\r\n", "Accept-Encoding", "br;q=1.0, gzip")
	check("no agent is invented", scope.Request{}, "", "User-Agent")
	check("agent stays", scope.Request{}, "User-Agent: curl/8\r\n", "User-Agent", "curl/8")
	check("other lines stay apart", scope.Request{}, "X-A: 1\r\nX-A: 2\r\n", "X-A", "1", "2")
	check("the rest of X-Auth stays", scope.Request{}, "X-Auth-Token: 1\r\n", "X-Auth-Token", "1")
	check("nobody's name is not sent", scope.Request{}, "", "X-Auth-User")
}

// A Host made of what a caller is called may be none; then nobody is asked, or net/http
// would send an empty one.
func TestAHostThatIsNoneIsRefused(t *testing.T) {
	fields, err := rewrite.NewFields(rewrite.Changes{Set: []rewrite.Field{{Name: "Host", Value: "{tenant}.example"}}})
	if err != nil {
		t.Fatal(err)
	}
	upstream, heads := recorder(t)
	for tenant, want := range map[string]int{"acme": 200, "a/b": 400, "a b": 400} {
		g := newGateway(t, settings{scope: scope.Request{Tenant: tenant}, forward: proxy.Forward{Fields: fields}}, upstream)
		if res := roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode != want {
			t.Errorf("%s: %d, want %d", tenant, res.StatusCode, want)
		}
		if want == 200 {
			if host := fieldsOf(receive(t, heads, "a request"))["Host"]; !slices.Equal(host, []string{"acme.example"}) {
				t.Errorf("Host %q", host)
			}
		}
	}
	select {
	case head := <-heads:
		t.Errorf("want no contact, got %q", head)
	default:
	}
}

// Where nobody can be asked for a WebSocket a handshake is refused; an upgrade that is
// ignored leaves no key behind.
func TestAHandshakeThatNobodyTakes(t *testing.T) {
	upstream, heads := recorder(t)
	const fields = "Host: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
	g := newGateway(t, settings{forward: proxy.Forward{NoWebSocket: true}}, upstream)
	if res := roundTrip(t, g.address(), "GET / HTTP/1.1\r\n"+fields); res.StatusCode != 501 {
		t.Errorf("%d, want 501", res.StatusCode)
	}
	roundTrip(t, g.address(), "GET / HTTP/1.0\r\n"+fields) // no handshake
	if head := receive(t, heads, "a request"); strings.Contains(strings.ToLower(head), "websocket") {
		t.Errorf("got %q", head)
	}
}

// A handshake has no body; one that says it has is answered without waiting for it.
func TestAHandshakeWithABody(t *testing.T) {
	upstream, heads := recorder(t)
	const fields = " HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
	for _, body := range []string{"Content-Length: 5\r\n\r\n", "Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n"} {
		g := newGateway(t, settings{}, upstream)
		if res := roundTrip(t, g.address(), "GET /"+fields+body); res.StatusCode != 400 || !res.Close {
			t.Errorf("%q: %d, close %v; want 400 and an end", body, res.StatusCode, res.Close)
		}
	}
	select {
	case head := <-heads:
		t.Errorf("want no contact, got %q", head)
	default:
	}
	roundTrip(t, newGateway(t, settings{}, upstream).address(), "GET /"+fields+"Content-Length: 0\r\n\r\n")
	receive(t, heads, "a handshake without a body")
}

func TestStripCannotRemoveOurs(t *testing.T) {
	upstream, heads := recorder(t)
	g := newGateway(t, settings{scope: someone, forward: proxy.Forward{Strip: func(h http.Header) { clear(h) }}}, upstream)
	roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\nX-Key: 1\r\n\r\n")
	got := fieldsOf(receive(t, heads, "a request"))
	if got["X-Auth-User"] == nil || got["X-Key"] != nil {
		t.Errorf("want X-Auth-User and no X-Key, got %v", got)
	}
}

func TestHTTP2InTLS(t *testing.T) {
	upstream, heads := recorder(t)
	g := newGateway(t, settings{scope: someone, tls: true}, upstream)
	res, err := g.Client().Get(g.URL + "/a%2Fb?x;y")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	head := receive(t, heads, "a request")
	got := fieldsOf(head)
	if !strings.HasPrefix(head, "GET /a%2Fb?x;y HTTP/1.1\r\n") || res.ProtoMajor != 2 ||
		got["X-Forwarded-Proto"][0] != "https" || got["Via"][0] != "2.0 gateway" || got["X-Forwarded-Host"][0] != g.address() {
		t.Errorf("got %s %q", res.Proto, head)
	}
}

func TestRequestTrailers(t *testing.T) {
	got := make(chan string, 1)
	upstream := rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
		head, err := readHead(in)
		if err != nil {
			return
		}
		body, err := readHead(in) // the chunks and trailers end in an empty line too
		if err != nil {
			return
		}
		got <- head + body
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	})
	fields, err := rewrite.NewFields(rewrite.Changes{Set: []rewrite.Field{{Name: "X-Caller", Value: "{user}"}}})
	if err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, settings{forward: proxy.Forward{Strip: func(h http.Header) { h.Del("X-Api-Key") }, Fields: fields}}, upstream)
	roundTrip(t, g.address(), "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, X-Auth-User, X.Auth.User, X-Caller, X_Caller, CF-Connecting-IP, X_Forwarded_For, X-Api-Key, Authorization\r\n\r\n"+
		"3\r\nabc\r\n0\r\nX-Sum: 42\r\nX-Auth-User: evil\r\nX.Auth.User: evil\r\nX-Caller: evil\r\nX_Caller: evil\r\nCF-Connecting-IP: evil\r\nX_Forwarded_For: evil\r\nX-Api-Key: evil\r\nAuthorization: evil\r\nX-Request-Id: evil\r\nX-Unannounced: 1\r\n\r\n")
	all := receive(t, got, "a request")
	if strings.Contains(all, "evil") || !strings.HasSuffix(all, "3\r\nabc\r\n0\r\nX-Sum: 42\r\n\r\n") || !strings.Contains(all, "\r\nTrailer: X-Sum\r\n") {
		t.Errorf("want only X-Sum, got %q", all)
	}
}

func TestBodyFraming(t *testing.T) {
	got := make(chan string, 1)
	upstream := rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
		for {
			head, err := readHead(in)
			if err != nil {
				return
			}
			f := fieldsOf(head)
			got <- fmt.Sprint(f["Content-Length"], f["Transfer-Encoding"])
			if len(f["Transfer-Encoding"]) > 0 {
				_, _ = readHead(in)
			} else if n := len(f["Content-Length"]); n > 0 && f["Content-Length"][0] != "0" {
				_, _ = in.Discard(3)
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	g := newGateway(t, settings{}, upstream)
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n":                                                    "[] []",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n":                              "[0] []",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc":                           "[3] []",
		"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc":                            "[3] []",
		"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n": "[] [chunked]",
	} {
		roundTrip(t, g.address(), request)
		if s := receive(t, got, "a request"); s != want {
			t.Errorf("%q: want %s, got %s", request, want, s)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	parse := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	good := []proxy.Target{{URL: parse("http://127.0.0.1:1/base")}}
	for name, o := range map[string]proxy.Options{
		"name":    {Targets: good},
		"target":  {Name: "a"},
		"balance": {Name: "a", Targets: good, Balance: "random"},
		"connect": {Name: "a", Targets: good, ConnectTimeout: -1},
		"scheme":  {Name: "a", Targets: []proxy.Target{{URL: parse("ftp://h")}}},
		"host":    {Name: "a", Targets: []proxy.Target{{URL: parse("http://:80")}}},
		"user":    {Name: "a", Targets: []proxy.Target{{URL: parse("http://u:secret@h")}}},
		"query":   {Name: "a", Targets: []proxy.Target{{URL: parse("http://h/?a=1")}}},
		"weight":  {Name: "a", Targets: []proxy.Target{{URL: good[0].URL, Weight: proxy.MaxWeight + 1}}},
		"URL":     {Name: "a", Targets: []proxy.Target{{URL: nil}}},
	} {
		_, err := proxy.New(o)
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: want an error that says so, got %v", name, err)
		}
	}
}
