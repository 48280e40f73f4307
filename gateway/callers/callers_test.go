package callers

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func table(t testing.TB, o Options) *Table {
	t.Helper()
	table, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func priya(at time.Time, o Outcome) *Request {
	return &Request{
		At: at, User: "priya123", Tenant: "acme", KeyID: "k-3f9a12cd", Method: "api_key", TokenPlan: "free", Plan: "free",
		Address: netip.MustParseAddr("203.0.113.7"), Bucket: "203.0.113.7", UserAgent: "curl/8", Outcome: o,
	}
}

func TestACallerIsKnownByUserKeyAndAddress(t *testing.T) {
	tb := table(t, Options{})
	tb.Note(priya(noon, Allowed))
	tb.Note(priya(noon.Add(time.Second), Denied))
	tb.Note(priya(noon.Add(2*time.Second), Refused))
	for kind, name := range map[Kind]string{User: "priya123", Key: "k-3f9a12cd", IP: "203.0.113.7"} {
		c, known := tb.Get(kind, name, noon.Add(3*time.Second))
		requests, denied := c.Sum()
		if !known || requests != 3 || denied != 1 || !c.LastSeen.Equal(noon.Add(2*time.Second)) ||
			len(c.Addresses) != 1 || c.Addresses[0].String() != "203.0.113.7" {
			t.Errorf("%s: %v %+v", kind, known, c)
		}
		if c.Counts[Minutes-1] != [outcomes]uint32{1, 1, 1} {
			t.Errorf("%s: the last minute is %v", kind, c.Counts[Minutes-1])
		}
		want := Identity{"priya123", "acme", "k-3f9a12cd", "api_key", "free", "free"}
		if kind == IP {
			want = Identity{} // that of one caller is not that of the address
		}
		if c.Identity != want {
			t.Errorf("%s is %+v", kind, c.Identity)
		}
		if (c.Crowd != nil) != (kind == IP) {
			t.Errorf("%s: crowd %v", kind, c.Crowd)
		}
	}
	for kind, name := range map[Kind]string{User: "203.0.113.7", Key: "priya123", IP: "k-3f9a12cd", kinds: "x"} {
		if _, known := tb.Get(kind, name, noon); known {
			t.Errorf("%s %s is known", kind, name)
		}
	}
}

func TestMinutesPass(t *testing.T) {
	tb := table(t, Options{})
	at := func(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	for _, m := range []int{0, 1, 1, 59, 61} {
		tb.Note(priya(at(m), Allowed))
	}
	tb.Note(priya(at(60), Denied)) // a clock that is set back counts on
	for _, tc := range []struct {
		at   int
		want map[int]uint32 // by how many minutes ago
	}{
		{61, map[int]uint32{0: 2, 2: 1}},
		{62, map[int]uint32{1: 2, 3: 1}},
		{120, map[int]uint32{59: 2}},
		{121, map[int]uint32{}},
		{100000, map[int]uint32{}},
	} {
		c, known := tb.Get(User, "priya123", at(tc.at))
		if !known {
			t.Fatal("unknown")
		}
		for i, n := range c.Counts {
			if sum := n[Allowed] + n[Denied]; sum != tc.want[Minutes-1-i] {
				t.Errorf("at minute %d, %d ago: %d, want %d", tc.at, Minutes-1-i, sum, tc.want[Minutes-1-i])
			}
		}
	}
}

func TestTheLastAddressesAreKept(t *testing.T) {
	tb := table(t, Options{})
	for _, last := range []int{1, 2, 3, 2, 4, 5, 6, 6, 3} {
		r := priya(noon, Allowed)
		r.Address = netip.AddrFrom4([4]byte{203, 0, 113, byte(last)})
		tb.Note(r)
	}
	c, _ := tb.Get(User, "priya123", noon)
	if got, want := fmt.Sprint(c.Addresses), "[203.0.113.3 203.0.113.6 203.0.113.5 203.0.113.4 203.0.113.2]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Many people behind one address are told from one who asks too much.
func TestManyBehindOneAddressAreToldFromOne(t *testing.T) {
	for _, tc := range []struct{ users, agents int }{{0, 0}, {1, 1}, {1, 40}, {30, 3}, {200, 60}, {500, 500}} {
		tb := table(t, Options{})
		for i := range 2000 {
			r := &Request{At: noon.Add(time.Duration(i) * 100 * time.Millisecond), Bucket: "203.0.113.7"}
			if tc.users > 0 {
				r.User, r.Method = fmt.Sprint("user", i%tc.users), "jwt"
			}
			if tc.agents > 0 {
				r.UserAgent = fmt.Sprint("agent/", i%tc.agents)
			}
			tb.Note(r)
		}
		c, _ := tb.Get(IP, "203.0.113.7", noon.Add(5*time.Minute))
		near := func(got, want int) bool { return abs(got-want)*7 <= want || abs(got-want) <= 2 }
		if !near(c.Crowd.Users, tc.users) || !near(c.Crowd.UserAgents, tc.agents) || c.Crowd.AtLeast {
			t.Errorf("%d users and %d user agents are %+v", tc.users, tc.agents, *c.Crowd)
		}
		// Who has not come for 20 minutes is not behind it any more.
		if c, _ := tb.Get(IP, "203.0.113.7", noon.Add(25*time.Minute)); c.Crowd.Users != 0 || c.Crowd.UserAgents != 0 {
			t.Errorf("25 minutes later %+v", *c.Crowd)
		}
	}
	tb := table(t, Options{})
	for i := range 20000 {
		tb.Note(&Request{At: noon, Bucket: "a", UserAgent: fmt.Sprint(i)})
	}
	if c, _ := tb.Get(IP, "a", noon); !c.Crowd.AtLeast || c.Crowd.UserAgents < 1500 {
		t.Errorf("20,000 are %+v", *c.Crowd)
	}
}

func abs(n int) int { return max(n, -n) }

func TestWhatCallersAreCalledIsBounded(t *testing.T) {
	for _, name := range []string{
		`"><script>alert(1)</script>`, "\u202egnp.exe", "a\x00\x1b[31m\nb", "\xff\xfe\xc0\x80", strings.Repeat("x", 4096),
		strings.Repeat("ü", 2048), strings.Repeat("\xff", 4096), strings.Repeat("a", 255) + "日",
	} {
		tb := table(t, Options{})
		r := &Request{At: noon, User: name, Tenant: name, KeyID: name, Method: name, TokenPlan: name, Plan: name, Bucket: name, UserAgent: name}
		tb.Note(r)
		tb.Note(r)
		for _, kind := range []Kind{User, Key, IP} {
			c, known := tb.Get(kind, name, noon)
			if n, _ := c.Sum(); !known || n != 2 {
				t.Fatalf("%s %.20q is not known: %v", kind, name, c)
			}
			for _, s := range []string{c.Name, c.Identity.User, c.Identity.Tenant, c.Identity.KeyID, c.Identity.Method, c.Identity.TokenPlan, c.Identity.Plan} {
				if len(s) > MaxText || !utf8.ValidString(s) {
					t.Errorf("%s %.20q is kept as %d bytes, %.20q", kind, name, len(s), s)
				}
			}
		}
	}
}

func TestFind(t *testing.T) {
	tb := table(t, Options{})
	for i, name := range []string{"priya", "Priya123", "xpriya", "sam", "priya9"} {
		tb.Note(&Request{At: noon.Add(time.Duration(i) * time.Second), User: name, Bucket: "203.0.113.7"})
	}
	tb.Note(&Request{At: noon, KeyID: "priya", Bucket: "203.0.113.8"})
	names := func(q string, most int) string {
		found, more := tb.Find(q, most, noon)
		var b strings.Builder
		for _, c := range found {
			fmt.Fprintf(&b, "%s %s, ", c.Kind, c.Name)
		}
		if more {
			b.WriteString("more")
		}
		return strings.TrimSuffix(b.String(), ", ")
	}
	for q, want := range map[string]string{
		"priya":       "user priya, key priya, user priya9, user Priya123, user xpriya",
		"PRIYA123":    "user Priya123",
		"203.0.113.7": "ip 203.0.113.7",
		"203.0":       "ip 203.0.113.7, ip 203.0.113.8",
		"nobody":      "",
		"":            "",
	} {
		if got := names(q, 20); got != want {
			t.Errorf("%q finds %q, want %q", q, got, want)
		}
	}
	if got, want := names("priya", 3), "user priya, key priya, user priya9, more"; got != want {
		t.Errorf("three of them are %q, want %q", got, want)
	}
}

func TestNoCrowdPushesOutAnotherKind(t *testing.T) {
	tb := table(t, Options{PerKind: 64})
	tb.Note(priya(noon, Allowed))
	for i := range 10000 {
		tb.Note(&Request{At: noon, Bucket: fmt.Sprintf("2001:db8:%x::/64", i)})
	}
	if _, known := tb.Get(User, "priya123", noon); !known {
		t.Error("addresses have pushed out a user")
	}
	held := 0
	for i := range tb.shards[IP] {
		held += tb.shards[IP][i].lru.Len()
	}
	if held > 64 {
		t.Errorf("%d addresses are held, of at most 64", held)
	}
}

// The memory of a full table of callers with the longest names is within what the
// package comment says.
func TestMemoryIsBounded(t *testing.T) {
	const perKind = 512
	long := strings.Repeat("n", 2*MaxText)
	for _, c := range []struct {
		what    string
		minutes int
		request func(i int) *Request
		most    int64 // bytes each
	}{
		{"a crowd that passes", 1, func(i int) *Request {
			return &Request{User: fmt.Sprintf("user-%d", i), KeyID: fmt.Sprintf("k-%d", i), Method: "api_key", Plan: "free", Bucket: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), UserAgent: "curl/8"}
		}, 640},
		{"names without end that stay", Minutes + 5, func(i int) *Request {
			name := fmt.Sprintf("%08d%s", i, long)
			return &Request{User: name, Tenant: name, KeyID: name, Method: "api_key", TokenPlan: long, Plan: long, Bucket: name, UserAgent: name}
		}, 3584},
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		tb := table(t, Options{PerKind: perKind})
		for minute := range c.minutes {
			for i := range 3 * perKind {
				if minute > 0 && i%3 > 0 {
					continue // those that stay
				}
				r := c.request(i)
				r.At = noon.Add(time.Duration(minute) * time.Minute)
				r.UserAgent += fmt.Sprint(minute)
				for a := range 2 {
					r.Address = netip.AddrFrom4([4]byte{10, byte(i), byte(minute), byte(a)})
					tb.Note(r)
				}
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		held := 0
		for k := range tb.shards {
			for i := range tb.shards[k] {
				held += tb.shards[k][i].lru.Len()
			}
		}
		each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(held)
		t.Logf("%s: %d callers, %d bytes each", c.what, held, each)
		if held != 3*perKind || each > c.most {
			t.Errorf("%s: %d callers take %d bytes each, want %d of at most %d", c.what, held, each, 3*perKind, c.most)
		}
		runtime.KeepAlive(tb)
	}
}

func TestAKnownCallerCostsNoAllocation(t *testing.T) {
	tb := table(t, Options{})
	r := priya(time.Now(), Allowed)
	tb.Note(r)
	if n := testing.AllocsPerRun(1000, func() { tb.Note(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNobodyIsKnownToNone(t *testing.T) {
	var none *Table
	none.Note(priya(noon, Allowed))
	if _, known := none.Get(User, "priya123", noon); known {
		t.Error("somebody is")
	}
	if found, _ := none.Find("p", 1, noon); found != nil {
		t.Error("somebody is found")
	}
	if _, err := New(Options{PerKind: 3}); err == nil {
		t.Error("a table for 3 is no mistake")
	}
}

func BenchmarkNote(b *testing.B) {
	tb := table(b, Options{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := priya(time.Now(), Allowed)
		for pb.Next() {
			tb.Note(r)
		}
	})
}

func ExampleTable_Get() {
	t, err := New(Options{})
	if err != nil {
		panic(err)
	}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	t.Note(&Request{At: at, User: "priya123", Bucket: "203.0.113.7", Plan: "free", Outcome: Denied})
	c, known := t.Get(User, "priya123", at)
	requests, denied := c.Sum()
	fmt.Println(known, c.Identity.Plan, requests, denied)
	// Output: true free 1 1
}
