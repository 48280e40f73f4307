package test

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A doorstep opens connections from addresses of the caller's choice, all on
// loopback.
type doorstep struct {
	*gateway
	http, https string
	over        func(net.Conn) *tls.Conn
}

func newDoorstep(g *gateway, ca *testCA) *doorstep {
	d := &doorstep{gateway: g}
	for _, line := range g.all("listening") {
		switch line["for"] {
		case "http":
			d.http = str(line, "address")
		case "https":
			d.https = str(line, "address")
		}
	}
	d.over = func(c net.Conn) *tls.Conn {
		return tls.Client(c, &tls.Config{RootCAs: ca.pool, ServerName: "gateway.example.test"})
	}
	return d
}

// dialFrom opens a connection and says what a proxy would say first.
func (d *doorstep) dialFrom(from, to, first string) net.Conn {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", to)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = c.Write([]byte(first)) // one that is closed already takes it too
	return c
}

// answers reports whether a request on c is answered, and not cut off.
func answersOn(c net.Conn) bool {
	if _, err := c.Write([]byte("GET /a HTTP/1.1\r\nHost: gateway.example.test\r\n\r\n")); err != nil {
		return false
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	return err == nil && res.StatusCode == 200
}

// shut reports whether c was closed before anything was sent on it.
func shut(c net.Conn) bool {
	n, err := c.Read(make([]byte, 1))
	return n == 0 && err != nil && !strings.Contains(err.Error(), "timeout")
}

const crowded = "an address has as many connections as it may, and further ones are closed; if it is a proxy of yours, add it to client_ip.trusted_proxies (said once a minute; gateway_connections_refused_total counts them)"

func TestOneAddressHasOnlySoManyConnections(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	ca := newTestCA(t)
	s := proxySite(t, "")
	ca.issue(t, s, 100, time.Now().Add(time.Hour))
	routes := func(may string) string {
		return proxyRoutes(u.URL, `http: "127.0.0.1:0", https: {address: "127.0.0.1:0", cert_file: cert.pem, key_file: key.pem}, max_connections_per_ip: `+may, "") +
			"client_ip: {trusted_proxies: [127.0.0.9]}\n"
	}
	s.write("routes.yaml", routes("3"))
	g := newDoorstep(s.start(), ca)

	// HTTP and HTTPS share the count, and so do requests and silence.
	plain := g.dialFrom("127.0.0.2", g.http, "")
	secure := g.over(g.dialFrom("127.0.0.2", g.https, ""))
	silent := g.dialFrom("127.0.0.2", g.http, "")
	if !answersOn(plain) || !answersOn(secure) {
		t.Fatal("two of three are refused")
	}
	for range 3 {
		if !shut(g.dialFrom("127.0.0.2", g.https, "")) || !shut(g.dialFrom("127.0.0.2", g.http, "")) {
			t.Error("a fourth of three is served")
		}
	}
	if !answersOn(g.dialFrom("127.0.0.3", g.http, "")) {
		t.Error("a neighbour is refused for it")
	}
	for range 5 {
		if !answersOn(g.dialFrom("127.0.0.9", g.http, "")) {
			t.Error("a trusted proxy, that speaks for many, is counted")
		}
	}
	if n := g.value("gateway_connections_refused_total"); n != 6 {
		t.Errorf("%v refused connections are counted, want 6", n)
	}
	if lines := g.all(crowded); len(lines) != 1 || lines[0]["address"] != "127.0.0.2/32" {
		t.Errorf("the log says it in %v; want one line of 127.0.0.2/32", lines)
	}

	// Each end gives a place back, once: of one that was idle, one under TLS, one that
	// never spoke, and one whose handshake fails.
	back := func(how string) net.Conn {
		t.Helper()
		var c net.Conn
		eventually(t, "a place is given back: "+how, func() bool {
			c = g.dialFrom("127.0.0.2", g.http, "")
			return answersOn(c)
		})
		if !shut(g.dialFrom("127.0.0.2", g.http, "")) {
			t.Errorf("%s: two places for one", how)
		}
		return c
	}
	for how, closed := range map[string]net.Conn{"idle": plain, "TLS": secure, "silent": silent} {
		_ = closed.Close()
		plain = back(how)
	}
	_ = plain.Close()
	eventually(t, "a place for a bad handshake", func() bool {
		c := g.dialFrom("127.0.0.2", g.https, "GET / HTTP/1.1\r\n\r\n")
		b := make([]byte, 100)
		n, _ := c.Read(b)
		return n > 0 // a word for those who speak HTTP here
	})
	back("a handshake that fails")

	// The number holds at once; 0 is any number.
	s.write("routes.yaml", routes("0"))
	eventually(t, "the new number is in force", func() bool { return g.logged(reloadApplied) != nil })
	for range 6 {
		if !answersOn(g.dialFrom("127.0.0.2", g.http, "")) {
			t.Error("without a bound one is refused")
		}
	}
}

// Whom a trusted proxy names by the PROXY protocol is who has the connection.
func TestConnectionsAreCountedByWhomTheProxyNames(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	ca := newTestCA(t)
	s := proxySite(t, "")
	ca.issue(t, s, 100, time.Now().Add(time.Hour))
	s.write("routes.yaml", proxyRoutes(u.URL, `http: "127.0.0.1:0", https: {address: "127.0.0.1:0", cert_file: cert.pem, key_file: key.pem}, max_connections_per_ip: 2`, "")+
		"client_ip: {trusted_proxies: [127.0.0.9], proxy_protocol: true, ipv6_prefix: 64}\n")
	g := newDoorstep(s.start(), ca)
	named := func(version, client, server string) string {
		return "PROXY " + version + " " + client + " " + server + " 40000 443\r\n"
	}
	four := func(client string) string { return named("TCP4", client, "192.0.2.1") }
	six := func(client string) string { return named("TCP6", client, "2001:db8:1::1") }

	if !answersOn(g.dialFrom("127.0.0.9", g.http, four("203.0.113.7"))) || !answersOn(g.over(g.dialFrom("127.0.0.9", g.https, four("203.0.113.7")))) {
		t.Fatal("two of two are refused")
	}
	if answersOn(g.dialFrom("127.0.0.9", g.http, four("203.0.113.7"))) || !shut(g.dialFrom("127.0.0.9", g.https, four("203.0.113.7"))) {
		t.Error("a third of two is served")
	}
	if !answersOn(g.dialFrom("127.0.0.9", g.http, four("203.0.113.8"))) {
		t.Error("another client of the proxy is refused for it")
	}
	for i, client := range []string{"2001:db8::1", "2001:db8::2:2", "2001:db8:0:0:ffff::3"} {
		if answersOn(g.dialFrom("127.0.0.9", g.http, six(client))) != (i < 2) {
			t.Errorf("connection %d of one /64 network, with two for all of it", i+1)
		}
	}
	for range 3 { // the proxy itself, and one whose client speaks for many
		if !answersOn(g.dialFrom("127.0.0.9", g.http, "PROXY UNKNOWN\r\n")) || !answersOn(g.dialFrom("127.0.0.9", g.http, four("127.0.0.9"))) {
			t.Error("a trusted proxy is counted")
		}
	}
	// Nobody else can say so.
	direct := []net.Conn{g.dialFrom("127.0.0.2", g.http, ""), g.dialFrom("127.0.0.2", g.http, "")}
	for _, c := range direct {
		if !answersOn(c) {
			t.Error("two of two are refused")
		}
	}
	if !shut(g.dialFrom("127.0.0.2", g.http, four("203.0.113.9"))) {
		t.Error("a stranger chooses his address")
	}
}
