package ratelimit

import (
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
	"time"
)

func TestPartition(t *testing.T) {
	long := strings.Repeat("a", 128)
	for _, c := range []struct {
		parts []Part
		want  string
	}{
		{[]Part{{"user", "priya123"}}, "{user:priya123}"},
		{[]Part{{"tenant", "acme"}, {"route", "weather"}}, "{tenant:acme|route:weather}"},
		{[]Part{{"global", ""}}, "{global}"},
		{nil, "{global}"},
		{[]Part{{"user", "priya@example.com"}}, "{user:priya@example.com}"},
		{[]Part{{"ip", "203.0.113.7"}}, "{ip:203.0.113.7}"},
		{[]Part{{"ip", "2001:db8::/64"}}, "{ip:2001%3Adb8%3A%3A%2F64}"},
		{[]Part{{"header:x-tenant", "acme"}}, "{header%3Ax-tenant:acme}"},
		{[]Part{{"user", "}{"}}, "{user:%7D%7B}"},
		{[]Part{{"user", "a|tenant:b"}}, "{user:a%7Ctenant%3Ab}"},
		{[]Part{{"user", "a%7C"}}, "{user:a%257C}"},
		{[]Part{{"user", "line\nbreak \x00\x7f\""}}, "{user:line%0Abreak%20%00%7F%22}"},
		{[]Part{{"user", "ü"}}, "{user:%C3%BC}"},
		{[]Part{{"user", "\xff"}}, "{user:%FF}"},
		{[]Part{{"user", "~abc"}}, "{user:%7Eabc}"},
		{[]Part{{"user", long}}, "{user:" + long + "}"},
		{[]Part{{"user", long + "a"}}, "{user:~c12cb024a2e5551cca0e08fce8f1c5e314555cc3fef6329ee994a3db752166ae}"},
	} {
		if got := Partition(c.parts...); got != c.want {
			t.Errorf("%q: got %s, want %s", c.parts, got, c.want)
		}
	}
}

func TestPartitionOfAMegabyteIsShort(t *testing.T) {
	mega := strings.Repeat("x", 1<<20)
	a, b := Partition(Part{"user", mega}), Partition(Part{"user", mega + "y"})
	if len(a) > 80 || a == b {
		t.Errorf("got %d bytes, equal to another's: %v", len(a), a == b)
	}
	// What the hash looks like cannot be had by asking for it.
	forged := strings.TrimSuffix(strings.TrimPrefix(a, "{user:"), "}")
	if Partition(Part{"user", forged}) == a {
		t.Error("the name of a long value can be forged")
	}
}

func TestPartitionAllocatesItsResultOnly(t *testing.T) {
	parts := []Part{{"tenant", "acme"}, {"ip", "2001:db8::/64"}}
	if n := testing.AllocsPerRun(100, func() { Partition(parts...) }); n > 1 {
		t.Errorf("allocates %v times", n)
	}
	buf := make([]byte, 0, 100)
	if n := testing.AllocsPerRun(100, func() { buf = AppendPartition(buf[:0], parts...) }); n != 0 {
		t.Errorf("appending allocates %v times", n)
	}
}

// Two lists of two parts have one name only if they are equal, and no name
// holds anything but what is harmless in a key, a log line and a hash tag.
func FuzzPartitionIsInjectiveAndHarmless(f *testing.F) {
	f.Add("user", "a", "tenant", "b", "user", "a|tenant:b", "", "")
	f.Add("user", "a:b", "", "", "user:a", "b", "", "")
	f.Add("user", "%41", "x", "}", "user", "A", "x", "{")
	f.Add("ip", "2001:db8::/64", "", "", "ip", "2001:db8::", "64", "")
	f.Add("user", strings.Repeat("a", 129), "", "", "user", strings.Repeat("a", 130), "", "")
	f.Add("user", strings.Repeat("%", 43), "", "", "user", "~"+strings.Repeat("0", 64), "", "")
	f.Fuzz(func(t *testing.T, d1, v1, d2, v2, d3, v3, d4, v4 string) {
		lists := [][]Part{
			{{d1, v1}}, {{d1, v1}, {d2, v2}}, {{d3, v3}}, {{d3, v3}, {d4, v4}},
		}
		for i, a := range lists {
			name := Partition(a...)
			if len(name) > 600 {
				t.Errorf("%q has a name of %d bytes", a, len(name))
			}
			inner, ok := strings.CutPrefix(name, "{")
			inner, ok2 := strings.CutSuffix(inner, "}")
			if !ok || !ok2 || strings.Trim(inner, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-%~|:") != "" {
				t.Errorf("%q is named %q", a, name)
			}
			for _, b := range lists[:i] {
				equal := fmt.Sprintf("%q", a) == fmt.Sprintf("%q", b)
				if (Partition(b...) == name) != equal {
					t.Errorf("%q and %q are named %q and %q", a, b, name, Partition(b...))
				}
			}
		}
	})
}

// Instances of two versions of this program tell each other of buckets by it.
func TestBucketHashIsTheSameInEveryVersion(t *testing.T) {
	p, err := NewPolicy(Policy{Name: "per-minute", Scope: "plan/per-minute", Algorithm: TokenBucket, Quota: 100, Window: time.Minute, Burst: 20})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := BucketHash("{user:priya123}", p), uint64(0x827e543be4d22f00); got != want {
		t.Errorf("the hash is %#x, and was %#x", got, want)
	}
	h := fnv.New64a()
	fmt.Fprint(h, "{user:priya123}:", p.Key())
	if got, want := BucketHash("{user:priya123}", p), h.Sum64(); got != want {
		t.Errorf("the hash is %#x; that of FNV-1a is %#x", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { BucketHash("{user:priya123}", p) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
