package clientip_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"bouncer/gateway/clientip"
)

// The cast: one trusted balancer network, one trusted IPv6 network.
var trusted = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48")}

func resolver(t testing.TB, o clientip.Options) *clientip.Resolver {
	t.Helper()
	r, err := clientip.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// request comes from remote with the given lines of a field.
func request(remote, header string, lines ...string) *http.Request {
	r := &http.Request{RemoteAddr: remote, Header: http.Header{}}
	if lines != nil {
		r.Header[header] = lines
	}
	return r
}

// want compares client, bucket and the believed chain.
func want(t *testing.T, got clientip.Result, client, bucket, forwarded string) {
	t.Helper()
	c := ""
	if got.Client.IsValid() {
		c = got.Client.String()
	}
	if c != client || got.Bucket != bucket || got.Forwarded != forwarded {
		t.Errorf("client %q bucket %q forwarded %q; want %q %q %q", c, got.Bucket, got.Forwarded, client, bucket, forwarded)
	}
}

const xff = "X-Forwarded-For"

func TestD01LeftmostXForwardedForBelieved(t *testing.T) {
	alone, behind := resolver(t, clientip.Options{}), resolver(t, clientip.Options{Trusted: trusted})
	for n := range 50 {
		forged := fmt.Sprintf("203.0.113.%d", n)

		got := alone.Resolve(request("198.51.100.7:4711", xff, forged))
		want(t, got, "198.51.100.7", "198.51.100.7", "198.51.100.7")
		if got.PeerTrusted || !got.Ignored {
			t.Errorf("%+v: want an untrusted peer whose field is ignored", got)
		}

		got = behind.Resolve(request("10.0.0.1:4711", xff, forged+", 198.51.100.7"))
		want(t, got, "198.51.100.7", "198.51.100.7", "198.51.100.7, 10.0.0.1")
		if !got.PeerTrusted || got.Ignored {
			t.Errorf("%+v: want a trusted peer", got)
		}

		got = behind.Resolve(request("198.51.100.7:4711", xff, forged)) // past the balancer
		want(t, got, "198.51.100.7", "198.51.100.7", "198.51.100.7")
	}
}

func TestD02LockingOutAVictimByForgingHisAddress(t *testing.T) {
	r := resolver(t, clientip.Options{Trusted: trusted})
	victim := r.Resolve(request("10.0.0.1:1", xff, "203.0.113.7"))
	for _, forged := range []string{
		"203.0.113.7, 198.51.100.66",
		"203.0.113.7,203.0.113.7, 198.51.100.66",
		"10.0.0.9, 203.0.113.7, 10.0.0.9, 198.51.100.66",
		`203.0.113.7, ", 198.51.100.66`,
	} {
		if got := r.Resolve(request("10.0.0.1:1", xff, forged)); got.Bucket == victim.Bucket {
			t.Errorf("%q is counted as the victim", forged)
		}
	}
}

func TestD04SeveralXForwardedForHeaderLines(t *testing.T) {
	r := resolver(t, clientip.Options{Trusted: trusted})
	want(t, r.Resolve(request("10.0.0.1:1", xff, "198.51.100.7", "203.0.113.9")),
		"203.0.113.9", "203.0.113.9", "203.0.113.9, 10.0.0.1")
	want(t, r.Resolve(request("10.0.0.1:1", xff, "198.51.100.7, 203.0.113.9", "10.0.0.2", "10.0.0.3 , 10.0.0.4")),
		"203.0.113.9", "203.0.113.9", "203.0.113.9, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.1")
}

func TestD05EntriesWithPortsBracketsZonesAndGarbage(t *testing.T) {
	r := resolver(t, clientip.Options{Trusted: trusted})
	good := map[string]string{
		"203.0.113.7":              "203.0.113.7",
		"203.0.113.7:50123":        "203.0.113.7",
		" \t203.0.113.7 ":          "203.0.113.7",
		"::ffff:203.0.113.7":       "203.0.113.7",
		"[::ffff:203.0.113.7]:443": "203.0.113.7",
		"[2001:db8::1]:443":        "2001:db8::1",
		"[2001:db8::1]":            "2001:db8::1",
		"2001:db8::1":              "2001:db8::1",
		"2001:DB8:0:0::1":          "2001:db8::1",
		"fe80::1%eth0":             "fe80::1",
		"[fe80::1%eth0]:80":        "fe80::1",
		strings.Repeat("x", 10<<10) + ", 203.0.113.7": "203.0.113.7",
	}
	for entry, client := range good {
		got := r.Resolve(request("10.0.0.1:1", xff, entry))
		if got.Client.String() != client || got.Forwarded != client+", 10.0.0.1" {
			t.Errorf("%.40q: client %v forwarded %q, want %s", entry, got.Client, got.Forwarded, client)
		}
	}
	bad := []string{
		"unknown", "_hidden", "", " ", ",", "1.2.3.4, ", "0177.0.0.1", "1.2.3", "1.2.3.4.5", "256.1.1.1", "16909060", "0x1.2.3.4",
		"1.2.3.4:", "1.2.3.4:port", "1.2.3.4:123456", "1.2.3.4:-1", "[1.2.3.4]", "[2001:db8::1", "2001:db8::1]", "[2001:db8::1]443", "[]", "[", ":", "[]:1",
		"fe80::1%", "1.2.3.4%eth0", `"1.2.3.4"`, "1.2.3.4;x", "1.2.3.4 5.6.7.8", "localhost", "1.2.3.4/8", "１.2.3.4", "\x00", "\xff\xfe",
		strings.Repeat("1", 10<<10), strings.Repeat(" ", 10<<10), "unknown" + strings.Repeat(" ", 600) + "203.0.113.7",
	}
	for _, entry := range bad {
		got := r.Resolve(request("10.0.0.1:1", xff, entry))
		want(t, got, "10.0.0.1", "10.0.0.1", "10.0.0.1")
		// What was vouched for before the garbage holds, what is left of it does not.
		got = r.Resolve(request("10.0.0.1:1", xff, "203.0.113.7", entry, "10.9.9.9"))
		want(t, got, "10.9.9.9", "10.9.9.9", "10.9.9.9, 10.0.0.1")
	}
}

func TestD06OneIPv6CustomerHas2To64Buckets(t *testing.T) {
	for bits, buckets := range map[int]int{0: 1, 64: 1, 56: 1, 48: 1, 80: 1000, 128: 1000} {
		r := resolver(t, clientip.Options{Trusted: trusted, IPv6Prefix: bits})
		seen := map[string]bool{}
		for n := range 1000 {
			client := fmt.Sprintf("2001:db8:1:2:%x::%x", n, n)
			got := r.Resolve(request("10.0.0.1:1", xff, client))
			seen[got.Bucket] = true
			if got.Client != netip.MustParseAddr(client) {
				t.Fatalf("client %v, want the whole address %s", got.Client, client)
			}
		}
		if len(seen) != buckets {
			t.Errorf("prefix %d: %d buckets for 1000 addresses of one /64, want %d", bits, len(seen), buckets)
		}
	}
	r := resolver(t, clientip.Options{})
	want(t, r.Resolve(request("[2001:db8::1]:443", xff)), "2001:db8::1", "2001:db8::/64", "2001:db8::1")
	// Each IPv4 client keeps its own bucket, also when the listener is IPv6.
	want(t, r.Resolve(request("[::ffff:203.0.113.7]:443", xff)), "203.0.113.7", "203.0.113.7", "203.0.113.7")
}

// Nobody trusted and a balancer in front: one bucket, which cannot be helped,
// but it is said.
func TestD08EveryoneBehindTheLoadBalancerSharesOneBucket(t *testing.T) {
	r := resolver(t, clientip.Options{})
	for n := range 20 {
		got := r.Resolve(request("10.0.0.1:1", xff, fmt.Sprintf("203.0.113.%d", n)))
		want(t, got, "10.0.0.1", "10.0.0.1", "10.0.0.1")
		if !got.Ignored {
			t.Error("not reported that the field was ignored")
		}
	}
	if r.Resolve(request("10.0.0.1:1", xff)).Ignored {
		t.Error("reported without a field")
	}
}

// The configured field is the one that counts, and no other.
func TestD10KeySourceOptionIgnored(t *testing.T) {
	r := resolver(t, clientip.Options{Trusted: trusted, Header: "cf-connecting-ip"})
	resolve := func(lines ...string) clientip.Result {
		req := request("10.0.0.1:1", "Cf-Connecting-Ip", lines...)
		req.Header.Set(xff, "192.0.2.99")
		req.Header.Set("Forwarded", "for=192.0.2.98")
		return r.Resolve(req)
	}
	want(t, resolve("203.0.113.7"), "203.0.113.7", "203.0.113.7", "203.0.113.7, 10.0.0.1")
	want(t, resolve("203.0.113.8"), "203.0.113.8", "203.0.113.8", "203.0.113.8, 10.0.0.1")
	want(t, resolve("2001:db8::8"), "2001:db8::8", "2001:db8::/64", "2001:db8::8, 10.0.0.1")
	for _, lines := range [][]string{
		nil, {}, {""}, {"203.0.113.7", "203.0.113.7"}, {"203.0.113.7, 203.0.113.8"}, {strings.Repeat("7", 8<<10)}, {"unknown"},
	} {
		want(t, resolve(lines...), "10.0.0.1", "10.0.0.1", "10.0.0.1")
	}
	req := request("198.51.100.7:1", "Cf-Connecting-Ip", "203.0.113.7")
	want(t, r.Resolve(req), "198.51.100.7", "198.51.100.7", "198.51.100.7")
}

func TestD11WholeXFFTextUsedAsKey(t *testing.T) {
	r := resolver(t, clientip.Options{Trusted: trusted})
	for n := range 40 {
		edge := fmt.Sprintf("10.1.2.%d", n)
		want(t, r.Resolve(request("10.0.0.1:1", xff, "9.9.9.9, 203.0.113.7, "+edge)),
			"203.0.113.7", "203.0.113.7", "203.0.113.7, "+edge+", 10.0.0.1")
	}
}

func TestAllTrustedGivesTheLeftmost(t *testing.T) {
	r := resolver(t, clientip.Options{Trusted: trusted})
	want(t, r.Resolve(request("10.0.0.1:1", xff, "10.0.0.3, 10.0.0.2")), "10.0.0.3", "10.0.0.3", "10.0.0.3, 10.0.0.2, 10.0.0.1")
	want(t, r.Resolve(request("[2001:db8:ffff::1]:1", xff, "2001:db8:ffff:7::2")),
		"2001:db8:ffff:7::2", "2001:db8:ffff:7::/64", "2001:db8:ffff:7::2, 2001:db8:ffff::1")
	want(t, r.Resolve(request("10.0.0.1:1", xff)), "10.0.0.1", "10.0.0.1", "10.0.0.1")
}

func TestForwarded(t *testing.T) {
	r := resolver(t, clientip.Options{Trusted: trusted, Header: "forwarded"})
	good := map[string]string{ // what is sent → the chain before the peer
		`for=203.0.113.7`: "203.0.113.7",
		`For="203.0.113.7:50123";proto=https;by=10.0.0.1`:               "203.0.113.7",
		`proto=https;FOR="[2001:db8:cafe::17]:4711"`:                    "2001:db8:cafe::17",
		`for="[2001:db8::1]"`:                                           "2001:db8::1",
		`for=203.0.113.7:_obf`:                                          "203.0.113.7",
		`for=1.1.1.1, for=203.0.113.7;host="a,b;c=\"d\\", for=10.0.0.2`: "203.0.113.7, 10.0.0.2",
		`for="203.0.\113.7"`:                                            "203.0.113.7",
		`;for=203.0.113.7; proto=http ;`:                                "203.0.113.7",
		`for=203.0.113.7 , for=10.0.0.3 `:                               "203.0.113.7, 10.0.0.3",
		`host="for=1.1.1.1";for=203.0.113.7`:                            "203.0.113.7",
		`for=10.0.0.9,for="_hidden",for=10.0.0.2`:                       "10.0.0.2",
		// A stranger's open quote does not swallow what our proxy appended.
		`for="x, for=203.0.113.7`:                           "203.0.113.7",
		`for="x\, for="203.0.113.7"`:                        "203.0.113.7",
		`for=1.1.1.1;by="\", for=203.0.113.7;proto=http`:    "203.0.113.7",
		strings.Repeat(`"\`, 6<<10) + `, for="203.0.113.7"`: "203.0.113.7",
	}
	for sent, chain := range good {
		if got := r.Resolve(request("10.0.0.1:1", "Forwarded", sent)).Forwarded; got != chain+", 10.0.0.1" {
			t.Errorf("%.60q: chain %q, want %q before the peer", sent, got, chain)
		}
	}
	bad := []string{
		``, `,`, `unknown`, `for=unknown`, `for="_hidden"`, `for=_SEVKISEK`, `by=203.0.113.7`, `for=`, `for=""`, `for="203.0.113.7`, `for=203.0.113.7"`,
		`for=203.0.113.7;for=203.0.113.8`, `for = 203.0.113.7`, `for=203.0.113.7 proto=http`, `for="203.0.113.7"x`, `for="203.0.113.7\"`,
		`xfor=203.0.113.7`, `fo r=203.0.113.7`, `a b=c;for=203.0.113.7`, `for=203.0.113.7;by`, `for="0177.0.0.1"`, `=203.0.113.7`, `"for"=203.0.113.7`, `for=203.0.113.7;="`,
		`for="203.0.113.7, for=10.0.0.2"`, `for=203.0.113.7:_`, `for=203.0.113.7:_a b`, `for="` + strings.Repeat("1", 10<<10) + `"`,
	}
	for _, sent := range bad {
		want(t, r.Resolve(request("10.0.0.1:1", "Forwarded", sent)), "10.0.0.1", "10.0.0.1", "10.0.0.1")
	}
	want(t, r.Resolve(request("10.0.0.1:1", "Forwarded", `for=203.0.113.7`, `for=10.0.0.2, for=10.0.0.3`)),
		"203.0.113.7", "203.0.113.7", "203.0.113.7, 10.0.0.2, 10.0.0.3, 10.0.0.1")
	// The other field is what the client sent.
	want(t, r.Resolve(request("10.0.0.1:1", xff, "203.0.113.7")), "10.0.0.1", "10.0.0.1", "10.0.0.1")
}

// A process at the socket's path is trusted if the configuration says so, whoever else
// is, and has no address.
func TestUnixSocket(t *testing.T) {
	for _, remote := range []string{"@", "", "/run/edge.sock", "@abstract"} {
		for _, trusted := range [][]netip.Prefix{nil, trusted} {
			r := resolver(t, clientip.Options{Trusted: trusted})
			got := r.Resolve(request(remote, xff, "203.0.113.7"))
			want(t, got, "", "unix", "")
			if got.PeerTrusted || !got.Ignored || got.Peer.IsValid() || r.Trusts(remote) {
				t.Errorf("%q: %+v", remote, got)
			}
		}
		r := resolver(t, clientip.Options{Trusted: trusted, TrustUnix: true})
		if _, counted := r.Own(remote); counted || !r.Trusts(remote) {
			t.Errorf("%q: is counted or not trusted", remote)
		}
		if alone := resolver(t, clientip.Options{TrustUnix: true}).Resolve(request("198.51.100.7:1", xff, "203.0.113.7")); alone.PeerTrusted {
			t.Errorf("%+v: a peer with an address is none on a socket", alone)
		}
		got := r.Resolve(request(remote, xff, "1.1.1.1, 203.0.113.7, 10.0.0.2"))
		want(t, got, "203.0.113.7", "203.0.113.7", "203.0.113.7, 10.0.0.2")
		if !got.PeerTrusted || got.Peer.IsValid() {
			t.Errorf("%q: %+v", remote, got)
		}
		want(t, r.Resolve(request(remote, xff, "unknown")), "", "unix", "")
		want(t, r.Resolve(request(remote, xff)), "", "unix", "")
	}
	// What is neither a socket nor an address is trusted by nobody.
	r := resolver(t, clientip.Options{Trusted: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}, TrustUnix: true})
	if got := r.Resolve(request("pipe", xff, "203.0.113.7")); got.PeerTrusted || got.Bucket != "unix" {
		t.Errorf("%+v, want an untrusted peer", got)
	}
}

func TestWorkIsBoundedFromTheRight(t *testing.T) {
	r := resolver(t, clientip.Options{Trusted: trusted})
	hops := strings.Repeat("10.0.0.2, ", 63) + "10.0.0.2"
	got := r.Resolve(request("10.0.0.1:1", xff, hops))
	if n := strings.Count(got.Forwarded, "10.0.0.2"); n != 64 {
		t.Errorf("%d hops believed, want 64", n)
	}
	// The 65th is not looked at, and so is not believed.
	want(t, r.Resolve(request("10.0.0.1:1", xff, "203.0.113.7, "+hops)), "10.0.0.2", "10.0.0.2", got.Forwarded)
	lines := make([]string, 65)
	for i := range lines {
		lines[i] = "10.0.0.2"
	}
	lines[0] = "203.0.113.7"
	want(t, r.Resolve(request("10.0.0.1:1", xff, lines...)), "10.0.0.2", "10.0.0.2", got.Forwarded)

	// 8 KiB, spaces included.
	wide := strings.Repeat(strings.Repeat(" ", 400)+"10.0.0.2,", 30) + "10.0.0.2"
	got = r.Resolve(request("10.0.0.1:1", xff, "203.0.113.7,"+wide))
	if got.Client.String() != "10.0.0.2" || strings.Count(got.Forwarded, "10.0.0.2") != 21 {
		t.Errorf("%d hops believed in 12 KiB, want the 21 of the last 8 KiB", strings.Count(got.Forwarded, "10.0.0.2"))
	}

	huge := strings.Repeat("10.0.0.2,", 1<<20)
	if n := testing.AllocsPerRun(10, func() { r.Resolve(request("10.0.0.1:1", xff, huge+"10.0.0.2")) }); n > 12 {
		t.Errorf("%v allocations for a huge list", n)
	}
}

func TestTrustedPrefixesMayOverlap(t *testing.T) {
	var ps []netip.Prefix
	for _, s := range []string{"10.1.0.0/16", "10.0.0.0/8", "10.255.255.255/32", "192.0.2.7/24", "::ffff:198.51.100.0/120", "2001:db8::/32", "2001:db8:1::/48", "11.0.0.0/32"} {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	r := resolver(t, clientip.Options{Trusted: ps})
	for peer, trusted := range map[string]bool{
		"10.0.0.0": true, "10.1.2.3": true, "10.2.0.1": true, "10.255.255.255": true, "9.255.255.255": false, "11.0.0.0": true, "11.0.0.1": false,
		"192.0.2.0": true, "192.0.3.0": false, "198.51.100.255": true, "198.51.101.0": false,
		"2001:db8::1": true, "2001:db8:1::1": true, "2001:db9::": false, "::1": false, "::ffff:10.1.2.3": true, "0.0.0.0": false,
	} {
		if got := r.Resolve(request(netip.AddrPortFrom(netip.MustParseAddr(peer), 1).String(), xff)); got.PeerTrusted != trusted {
			t.Errorf("%s: trusted = %v", peer, got.PeerTrusted)
		}
	}
	all := resolver(t, clientip.Options{Trusted: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}})
	if all.Resolve(request("[2001:db8::1]:1", xff)).PeerTrusted || !all.Resolve(request("203.0.113.7:1", xff)).PeerTrusted {
		t.Error("0.0.0.0/0 is all of IPv4 and none of IPv6")
	}
}

func TestNewRefuses(t *testing.T) {
	for want, o := range map[string]clientip.Options{
		"ipv6 prefix":   {IPv6Prefix: 129},
		"1 to 128":      {IPv6Prefix: -1},
		"header":        {Header: "X Forwarded"},
		"trusted proxy": {Trusted: []netip.Prefix{{}}},
		"96 bits":       {Trusted: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("::ffff:1.2.3.4"), 90)}},
	} {
		if _, err := clientip.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, want an error with %q", o, err, want)
		}
	}
	ps := []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8"), netip.MustParsePrefix("1.0.0.0/8")}
	kept := append([]netip.Prefix(nil), ps...)
	resolver(t, clientip.Options{Trusted: ps})
	if !reflect.DeepEqual(ps, kept) {
		t.Error("New changed its argument")
	}
}

func TestCommonCaseAllocations(t *testing.T) {
	r := resolver(t, clientip.Options{})
	for remote, most := range map[string]float64{"203.0.113.7:50123": 1, "[2001:db8::1]:50123": 2} {
		req := request(remote, xff, "198.51.100.7")
		if n := testing.AllocsPerRun(1000, func() { r.Resolve(req) }); n > most {
			t.Errorf("%s: %v allocations, want at most %v", remote, n, most)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	bench := func(name string, o clientip.Options, req *http.Request) {
		r := resolver(b, o)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.Resolve(req)
			}
		})
	}
	bench("direct", clientip.Options{}, request("203.0.113.7:50123", xff))
	bench("proxied", clientip.Options{Trusted: trusted}, request("10.0.0.1:1", xff, "203.0.113.7, 10.0.0.2"))
	bench("forwarded", clientip.Options{Trusted: trusted, Header: "Forwarded"}, request("10.0.0.1:1", "Forwarded", `for="203.0.113.7:4711";proto=https, for=10.0.0.2`))
	var many []netip.Prefix
	for i := range 1000 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24))
	}
	bench("1000 prefixes", clientip.Options{Trusted: many}, request("20.1.2.3:1", xff, "203.0.113.7"))
}

func ExampleResolver_Resolve() {
	r, err := clientip.New(clientip.Options{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	if err != nil {
		panic(err)
	}
	req := &http.Request{RemoteAddr: "10.0.0.1:4711", Header: http.Header{}}
	req.Header.Add("X-Forwarded-For", "1.1.1.1, 2001:db8::7") // the client claims 1.1.1.1
	req.Header.Add("X-Forwarded-For", "10.0.0.2")
	res := r.Resolve(req)
	fmt.Println(res.Client)
	fmt.Println(res.Bucket)
	fmt.Println(res.Forwarded)
	// Output:
	// 2001:db8::7
	// 2001:db8::/64
	// 2001:db8::7, 10.0.0.2, 10.0.0.1
}
