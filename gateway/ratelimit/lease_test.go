package ratelimit

import (
	"strings"
	"testing"
	"time"
)

func TestNewPolicyChecksTheLease(t *testing.T) {
	bucket := Policy{Name: "n", Scope: "plan/n", Algorithm: TokenBucket, Quota: 100, Window: time.Minute, Burst: 20}
	for _, c := range []struct {
		name   string
		change func(*Policy)
		want   string // "" is fine
	}{
		{"as large as the burst", func(p *Policy) { p.Lease = Lease{TTL: MaxLeaseTTL, Size: 20} }, ""},
		{"of what nobody may spend", func(p *Policy) { p.Quota, p.Lease = 0, Lease{TTL: MinLeaseTTL, Size: 20} }, ""},
		{"in shadow", func(p *Policy) { p.Role, p.Lease = Shadow, Lease{TTL: time.Second} }, ""},
		{"size alone", func(p *Policy) { p.Lease = Lease{Size: 5} }, "lease: ttl: want 100ms to 10s, got 0s"},
		{"too short", func(p *Policy) { p.Lease = Lease{TTL: MinLeaseTTL - 1} }, "lease: ttl: want"},
		{"too long", func(p *Policy) { p.Lease = Lease{TTL: MaxLeaseTTL + 1} }, "lease: ttl: want"},
		{"negative", func(p *Policy) { p.Lease = Lease{TTL: time.Second, Size: -1} }, "lease: size: want 0 to"},
		{"more than the burst", func(p *Policy) { p.Lease = Lease{TTL: time.Second, Size: 21} }, "lease: size: want at most 20"},
		{"a queue", func(p *Policy) {
			p.Algorithm, p.Burst, p.Lease = LeakyBucket, 0, Lease{TTL: time.Second}
		}, "leaky_bucket"},
		{"beside count_rejected", func(p *Policy) { p.CountRejected, p.Lease = true, Lease{TTL: time.Second} }, "count_rejected"},
		{"of a candidate", func(p *Policy) { p.Role, p.Lease = Candidate, Lease{TTL: time.Second} }, "candidate"},
	} {
		spec := bucket
		c.change(&spec)
		p, err := NewPolicy(spec)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "" && p.Lease != spec.Lease:
			t.Errorf("%s: the lease became %+v", c.name, p.Lease)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// What stands in for a limit while its store is away is no shared budget.
func TestAShareHasNoLease(t *testing.T) {
	p := policy(t, Policy{
		Name: "n", Scope: "plan/n", Algorithm: TokenBucket, Quota: 100, Window: time.Minute, Lease: Lease{TTL: time.Second},
	})
	if s := p.Share(3); s.Lease != (Lease{}) {
		t.Errorf("the share has the lease %+v", s.Lease)
	}
}
