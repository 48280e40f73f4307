package gateway

import (
	"net/http"
	"testing"

	"bouncer/gateway/config"
	"bouncer/gateway/scope"
)

func TestWhichPlanACallerHas(t *testing.T) {
	cfg := &config.Config{
		Plans:       []*config.Plan{{Name: "free"}, {Name: "pro"}, {Name: "gold"}, {Name: "anonymous"}},
		DefaultPlan: "free", AnonymousPlan: "anonymous",
		Overrides: []config.Override{
			{Key: "k-1", Plan: "gold"}, {User: "priya123", Plan: "pro"}, {Tenant: "acme", Plan: "free"},
		},
	}
	var ps plans
	if err := ps.build(cfg); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		story   string
		caller  scope.Request
		want    string
		unknown bool
	}{
		{"nobody", scope.Request{}, "anonymous", false},
		{"no plan named", scope.Request{AuthMethod: "jwt", User: "u"}, "free", false},
		{"the token's plan", scope.Request{AuthMethod: "jwt", User: "u", TokenPlan: "pro"}, "pro", false},
		{"a plan that is gone", scope.Request{AuthMethod: "jwt", User: "u", TokenPlan: "platinum"}, "free", true},
		{"case counts", scope.Request{AuthMethod: "jwt", User: "u", TokenPlan: "Pro"}, "free", true},
		{"override by user beats the token", scope.Request{AuthMethod: "jwt", User: "priya123", TokenPlan: "gold"}, "pro", false},
		{"override by key beats user", scope.Request{AuthMethod: "api_key", User: "priya123", KeyID: "k-1", Tenant: "acme"}, "gold", false},
		{"override by user beats tenant", scope.Request{AuthMethod: "jwt", User: "priya123", Tenant: "acme"}, "pro", false},
		{"override by tenant beats the token", scope.Request{AuthMethod: "jwt", User: "u", Tenant: "acme", TokenPlan: "gold"}, "free", false},
	}
	for _, tt := range tests {
		p, from := ps.choose(&tt.caller)
		unknown := from == planUnknown
		if p == nil || p.name != tt.want || unknown != tt.unknown {
			t.Errorf("%s: got %v (unknown %v), want %s (unknown %v)", tt.story, p, unknown, tt.want, tt.unknown)
		}
	}
}

func TestWhatALimitIsCountedPer(t *testing.T) {
	known := scope.Request{IPBucket: "203.0.113.7", User: "priya123", Tenant: "acme", KeyID: "k-1", Route: "weather"}
	anonymous := scope.Request{IPBucket: "203.0.113.7", Route: "weather"}
	dim := func(kinds ...config.DimensionKind) (ds []config.Dimension) {
		for _, k := range kinds {
			ds = append(ds, config.Dimension{Kind: k, Header: "X-Account-Id"})
		}
		return ds
	}
	one := http.Header{"X-Account-Id": {"a-1"}}
	two := http.Header{"X-Account-Id": {"a-1", "a-2"}}
	tests := []struct {
		story string
		per   []config.Dimension
		s     *scope.Request
		h     http.Header
		want  string
	}{
		{"ip", dim(config.PerIP), &known, nil, "{ip:203.0.113.7}"},
		{"user", dim(config.PerUser), &known, nil, "{user:priya123}"},
		{"user, nobody known", dim(config.PerUser), &anonymous, nil, "{ip:203.0.113.7}"},
		{"key", dim(config.PerAPIKey), &known, nil, "{api_key:k-1}"},
		{"tenant and route", dim(config.PerTenant, config.PerRoute), &known, nil, "{tenant:acme|route:weather}"},
		{"no tenant: the address stands in", dim(config.PerTenant, config.PerRoute), &anonymous, nil, "{ip:203.0.113.7|route:weather}"},
		{"global", dim(config.PerGlobal), &known, nil, "{global}"},
		{"header", dim(config.PerHeader), &known, one, "{header.X-Account-Id:a-1}"},
		{"header missing", dim(config.PerHeader), &known, nil, "{ip:203.0.113.7}"},
		{"header twice", dim(config.PerHeader), &known, two, "{ip:203.0.113.7}"},
	}
	for _, tt := range tests {
		r := &http.Request{Header: tt.h}
		if got := partition(tt.per, r, tt.s); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.story, got, tt.want)
		}
	}
}
