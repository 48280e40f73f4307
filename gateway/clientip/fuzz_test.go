package clientip_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"bouncer/gateway/clientip"
)

// Whatever is sent: no panic, only addresses come out, and what a trusted proxy
// appended on the right is understood whatever stands on its left.
func FuzzResolve(f *testing.F) {
	for _, peer := range []string{"10.0.0.1:1", "203.0.113.7:1", "[2001:db8:ffff::1]:1", "[fe80::1%eth0]:1", "@", "", "/s", "junk"} {
		for _, text := range []string{
			"", "203.0.113.7", "1.2.3.4, ", "unknown, 10.0.0.1", "[2001:db8::1]:443, 10.0.0.2:1", "fe80::1%eth0", "::ffff:10.0.0.1", "0177.0.0.1",
			`for="[2001:db8::1]:1";by=_a, for=10.0.0.2`, `for="a\",b"`, `for="x`, `"\"\\`, strings.Repeat("10.0.0.1,", 100), strings.Repeat(`for="\"`, 100),
		} {
			f.Add(peer, text, "10.0.0.9")
		}
	}
	kinds := map[string]*clientip.Resolver{}
	for _, header := range []string{"X-Forwarded-For", "Forwarded", "Cf-Connecting-Ip"} {
		kinds[header] = resolver(f, clientip.Options{Trusted: trusted, Header: header, IPv6Prefix: 56})
	}
	alone := resolver(f, clientip.Options{})

	f.Fuzz(func(t *testing.T, peer, first, second string) {
		for header, r := range kinds {
			req := &http.Request{RemoteAddr: peer, Header: http.Header{header: {first, second}}}
			check(t, r.Resolve(req), 56)
			check(t, alone.Resolve(req), 64)
			req.Header[header] = []string{first}
			check(t, r.Resolve(req), 56)
		}
		for header, suffixes := range map[string][]string{
			"X-Forwarded-For": {", 198.51.100.66"},
			"Forwarded":       {", for=198.51.100.66", `, for="198.51.100.66:80";host="a,\"b\""`},
		} {
			for _, suffix := range suffixes {
				req := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{header: {first, second + suffix}}}
				if got := kinds[header].Resolve(req); got.Client != netip.MustParseAddr("198.51.100.66") {
					t.Errorf("%s: %q appended to %q: client %v", header, suffix, second, got.Client)
				}
			}
		}
	})
}

func check(t *testing.T, got clientip.Result, bits int) {
	t.Helper()
	switch {
	case !got.Client.IsValid():
		if got.Bucket != "unix" || got.Forwarded != "" || got.Peer.IsValid() {
			t.Fatalf("%+v: nobody, and yet something", got)
		}
		return
	case got.Client.Is4():
		if got.Bucket != got.Client.String() {
			t.Fatalf("%+v: want the address as bucket", got)
		}
	default:
		p, err := netip.ParsePrefix(got.Bucket)
		if err != nil || p.Bits() != bits || p != p.Masked() || !p.Contains(got.Client) {
			t.Fatalf("%+v: want the client's /%d as bucket", got, bits)
		}
	}
	if a := got.Client; a.Is4In6() || a.Zone() != "" {
		t.Fatalf("client %v is not folded", a)
	}
	chain := strings.Split(got.Forwarded, ", ")
	if len(chain) > 65 || chain[0] != got.Client.String() {
		t.Fatalf("chain %q does not begin with the client %v", got.Forwarded, got.Client)
	}
	for _, s := range chain {
		if a, err := netip.ParseAddr(s); err != nil || a.String() != s || a.Zone() != "" {
			t.Fatalf("chain %q: %q is no plain address", got.Forwarded, s)
		}
	}
	if got.Peer.IsValid() && chain[len(chain)-1] != got.Peer.String() {
		t.Fatalf("chain %q does not end with the peer %v", got.Forwarded, got.Peer)
	}
}
