package scope

import (
	"strings"
	"testing"
)

func TestTraceparent(t *testing.T) {
	const valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for v, want := range map[string]bool{
		valid:                      true,
		"":                         false,
		valid + "-x":               false, // version 00 has four parts
		"cc" + valid[2:]:           true,
		"cc" + valid[2:] + "-what": true,
		"cc" + valid[2:] + ".what": false,
		"ff" + valid[2:]:           false,
		strings.ToUpper(valid):     false,
		valid[:54]:                 false,
		"00-" + strings.Repeat("0", 32) + valid[35:]:              false,
		valid[:36] + strings.Repeat("0", 16) + valid[52:]:         false,
		strings.Replace(valid, "-b7", "_b7", 1):                   false,
		strings.Replace(valid, "0af", "0ag", 1):                   false,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g": false,
	} {
		trace, span, sampled, got := ParseTraceparent(v)
		if got != want {
			t.Errorf("%q: want %v, got %v", v, want, got)
		}
		if again := Traceparent(trace, span, sampled); got && again[2:] != v[2:traceparentLen] {
			t.Errorf("%q is written as %q", v, again)
		}
	}
	seen := map[string]bool{}
	for range 1000 {
		trace, span := NewTrace()
		v := Traceparent(trace, span, false)
		if _, _, sampled, ok := ParseTraceparent(v); !ok || sampled || seen[v] {
			t.Fatalf("want a new valid one, got %q", v)
		}
		seen[v] = true
	}
}
