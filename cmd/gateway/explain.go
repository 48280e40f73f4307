package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"bouncer/gateway"
	"bouncer/gateway/config"
	"bouncer/gateway/explain"
)

const aboutExplain = `
gateway explain [METHOD] URL says what would become of one request, and why:
the route, the caller, the plan and where it comes from, what the route wants
besides credentials, every limit in order with its key and cost, and which one
binds. Nothing is consumed.

Without a URL it prints the routes in matching order.

Examples:

    gateway explain
    gateway explain GET /api/export/9 -key bn_live_…
    gateway explain /api/weather -key-id k-7f3a -redis
    gateway explain POST https://api.example.com/login -ip 203.0.113.7
    gateway explain /api/weather -user priya123 -plan pro -json
    gateway explain /api/weather -header 'X-Forwarded-For: 198.51.100.4' -ip 10.0.0.1

It exits 0 if the request would be carried, 1 if it would be refused.`

func (c *command) explain(args []string) int {
	// "explain -routes" with nothing behind it asks for the table, too.
	if n := len(args); n > 0 && (args[n-1] == "-routes" || args[n-1] == "--routes") {
		args = args[:n-1]
	}
	fs := c.flags("explain", aboutExplain)
	key := fs.String("key", "", "the API key that is sent")
	token := fs.String("token", "", "the bearer token that is sent")
	cert := fs.String("cert", "", "the certificate that the client shows: a PEM `file`, with those on the way to an authority")
	keyID := fs.String("key-id", "", "whose key it is, by the `id` in the key file")
	user := fs.String("user", "", "who it is, without a credential")
	tenant := fs.String("tenant", "", "the caller's tenant, with -user")
	plan := fs.String("plan", "", "the plan that the credential would say, with -user")
	ip := fs.String("ip", "127.0.0.1", "the `address` of the peer")
	live := fs.Bool("redis", false, "look at the limits' live state in Redis")
	asJSON := fs.Bool("json", false, "print the answer as JSON")
	header := http.Header{}
	fs.Func("header", "a `field` that is sent, as 'Name: value'; may be repeated", func(s string) error {
		name, value, ok := strings.Cut(s, ":")
		if !ok || name == "" {
			return fmt.Errorf("%q: want 'Name: value'", s)
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	})
	positional, code, done := c.parse(fs, args)
	if done {
		return code
	}
	usage := func(format string, a ...any) int {
		fmt.Fprintf(c.stderr, "gateway explain: "+format+"; see gateway explain -h\n", a...)
		return exitUsage
	}
	if len(positional) > 2 {
		return usage("%q is one argument too many", positional[2])
	}
	given := 0
	for _, s := range []string{*key, *token, *cert, *keyID, *user} {
		if s != "" {
			given++
		}
	}
	if given > 1 {
		return usage("choose one of -key, -token, -cert, -key-id and -user")
	}
	if *user == "" && *tenant+*plan != "" {
		return usage("-tenant and -plan go with -user")
	}
	if len(positional) == 0 && (given > 0 || *asJSON || *live || len(header) > 0) {
		return usage("there is no URL to explain")
	}
	addr, err := netip.ParseAddr(*ip)
	if err != nil {
		return usage("-ip %q is no address", *ip)
	}
	cfg, report := config.Load(config.Options{Routes: c.routes, Plans: c.plans})
	if err := report.Err(); err != nil {
		fmt.Fprintln(c.stderr, err)
		return exitFindings
	}
	if len(positional) == 0 {
		if err := explain.WriteRoutes(c.stdout, cfg); err != nil {
			fmt.Fprintln(c.stderr, "gateway explain: write the routes:", err)
			return exitFindings
		}
		return exitOK
	}
	method, target := http.MethodGet, positional[0]
	if len(positional) == 2 {
		method, target = positional[0], positional[1]
	}
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return usage("%q is neither a path nor a URL", target)
	}
	r := &http.Request{
		Method: method, URL: u, Host: cmp.Or(u.Host, "localhost"), Header: header, RequestURI: u.RequestURI(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: net.JoinHostPort(addr.String(), "0"), Body: http.NoBody,
	}
	u.Scheme, u.Host = "", ""
	q := explain.Query{Request: r, At: time.Now()}
	switch {
	case *key != "":
		if cfg.Auth.APIKeys == nil {
			return usage("-key: the configuration has no auth.api_keys")
		}
		header.Set(cfg.Auth.APIKeys.Header, *key)
	case *token != "":
		header.Set("Authorization", "Bearer "+*token)
	case *cert != "":
		chain, err := readChain(*cert)
		if err != nil {
			return usage("-cert: %s %v", *cert, err)
		}
		r.TLS = &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true, PeerCertificates: chain}
	case *keyID != "":
		if q.As = gateway.KeyCaller(cfg, *keyID); q.As == nil {
			return usage("-key-id: the key file has no key %q; gateway keys list shows them", *keyID)
		}
	case *user != "":
		q.As = &gateway.Caller{User: *user, Tenant: *tenant, Plan: *plan}
	}
	if *live {
		store, err := gateway.OpenStore(cfg)
		if err != nil {
			fmt.Fprintln(c.stderr, "gateway explain: -redis:", err)
			return exitFindings
		}
		defer store.Close() //nolint:errcheck // it was only looked at
		// The first call pays for connecting, and would look like a slow store.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_ = store.Probe(ctx)
		cancel()
		q.Store = store
	}
	answer, err := explain.Explain(cfg, q)
	if err != nil {
		fmt.Fprintln(c.stderr, "gateway explain:", err)
		return exitFindings
	}
	refused := !answer.Verdict.Allowed || answer.Store != ""
	if *asJSON {
		return exitCode(!c.printJSON("gateway explain: write the answer", answer) || refused)
	}
	if err := answer.WriteText(c.stdout); err != nil {
		fmt.Fprintln(c.stderr, "gateway explain: write the answer:", err)
		return exitFindings
	}
	return exitCode(refused)
}

// readChain reads the certificates that a client would show.
func readChain(path string) ([]*x509.Certificate, error) {
	data, err := config.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	var chain []*x509.Certificate
	for {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			break
		}
		if b.Type != "CERTIFICATE" {
			continue // the key may stand beside it
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, errors.New("holds a damaged CERTIFICATE block")
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, errors.New("holds no certificate; want PEM with CERTIFICATE blocks")
	}
	return chain, nil
}
