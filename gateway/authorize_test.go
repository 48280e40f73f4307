package gateway

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"bouncer/gateway/auth"
	"bouncer/gateway/config"
)

// The sorted table says what looking at each network would, whatever order they are
// written in and however they lie in one another.
func TestNetworksAreFoundAsByLookingAtEach(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	address := func() netip.Addr {
		// Few bits differ, so that networks meet.
		if random.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(4)), byte(random.IntN(8))})
		}
		return netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 15: byte(random.IntN(16))})
	}
	found := 0
	for range 2000 {
		var ps []netip.Prefix
		for range random.IntN(12) {
			ip := address()
			p, err := ip.Prefix(random.IntN(ip.BitLen() + 1))
			if err != nil {
				t.Fatal(err)
			}
			if p.Bits() > 0 || random.IntN(20) == 0 {
				ps = append(ps, p)
			}
		}
		before := slices.Clone(ps)
		table := disjoint(ps)
		if !slices.Equal(ps, before) {
			t.Fatal("the list of the configuration was changed")
		}
		for range 20 {
			ip := address()
			want := slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(ip) })
			if got := within(table, ip); got != want {
				t.Fatalf("%s in %v: %v, want %v (%v)", ip, ps, got, want, table)
			}
			if want {
				found++
			}
		}
		if within(table, netip.Addr{}) {
			t.Fatalf("no address is in %v", table)
		}
	}
	if found < 1000 {
		t.Errorf("only %d addresses were in a network", found)
	}
}

// What a route wants costs a known caller no allocation.
func TestAuthorizationDoesNotAllocate(t *testing.T) {
	free := &plan{name: "free"}
	rt := &route{name: "export", auth: config.AuthRequired, access: makeAccess(&config.Route{Access: config.Access{
		Scopes: []string{"read", "write"}, Plans: []string{"free"},
		Claims:   []config.ClaimRule{{Name: "tier", Values: []config.ClaimValue{{V: int64(3)}, {V: "gold"}}}},
		AllowIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")},
		DenyIPs:  []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")},
	}}, &plans{byName: map[string]*plan{"free": free}}, true)}
	s, x := &snapshot{}, &exchange{
		route: rt, plan: free, scopes: []string{"other", "read", "write"}, claims: []auth.Claim{{Name: "tier", Value: "gold"}},
	}
	// A page of the API's own changes something with its cookie.
	r, err := http.NewRequest("POST", "http://api.example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header["Sec-Fetch-Site"], r.Header["Origin"] = []string{"same-origin"}, []string{"http://api.example.com"}
	x.unasked = true
	x.AuthMethod, x.ClientIP = "cookie", netip.MustParseAddr("192.0.2.8")
	if n := testing.AllocsPerRun(100, func() {
		if s.checkAddress(x) != nil || s.authorize(x, r) != nil {
			t.Fatal("refused")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
