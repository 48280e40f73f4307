package auth_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"bouncer/gateway/auth"
)

// A key that is for some addresses is as bad as a wrong one from all others,
// also where it was used with success before.
func TestAKeyIsForItsAddresses(t *testing.T) {
	bound := key("k-1", keyOne)
	bound.AllowIPs = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("2001:db8::/32"),
	}
	a := newAuth(t, auth.Options{APIKeys: true, Keys: []auth.Key{bound, key("k-2", keyPlain)}})
	from := func(ip, secret string, onlyKnown bool) string {
		c := auth.Check{OnlyKnown: onlyKnown}
		if ip != "" {
			c.ClientIP = netip.MustParseAddr(ip)
		}
		p, err := a.Authenticate(request("X-API-Key: "+secret), c)
		if err == nil {
			return "user " + p.User
		}
		if refused, ok := errors.AsType[*auth.RefusedError](err); ok {
			return string(refused.Reason)
		}
		return err.Error()
	}
	for _, tt := range []struct{ ip, want string }{
		{"10.200.0.1", "user user-of-k-1"},
		{"::ffff:10.200.0.1", "user user-of-k-1"}, // the same address, as a dual-stack socket tells it
		{"192.0.2.7", "user user-of-k-1"},
		{"2001:db8:ffff::1", "user user-of-k-1"},
		{"11.0.0.1", "wrong_address"},
		{"192.0.2.8", "wrong_address"},
		{"2001:db9::1", "wrong_address"},
		{"::a00:1", "wrong_address"}, // 10.0.0.1, but of another family
		{"", "wrong_address"},        // who is on a unix socket has none
	} {
		if got := from(tt.ip, keyOne, false); got != tt.want {
			t.Errorf("from %q: %s, want %s", tt.ip, got, tt.want)
		}
		if got := from(tt.ip, keyPlain, false); got != "user user-of-k-2" {
			t.Errorf("a key without addresses from %q: %s", tt.ip, got)
		}
	}
	if got := from("10.0.0.1", keyOne, true); got != "user user-of-k-1" {
		t.Errorf("known, from its address: %s", got)
	}
	if got := from("11.0.0.1", keyOne, true); got != auth.ErrNotKnown.Error() {
		t.Errorf("known, from another address: %s", got)
	}
}

// What a key is for goes with its principal.
func TestAKeyCarriesRoutesAndScopes(t *testing.T) {
	k := key("k-1", keyOne)
	k.Routes, k.Scopes = []string{"export", "weather"}, []string{"read:weather", "write"}
	a := newAuth(t, auth.Options{APIKeys: true, Keys: []auth.Key{k}})
	p, err := a.Authenticate(request("X-API-Key: "+keyOne), auth.Check{})
	if err != nil || !slices.Equal(p.Routes, k.Routes) || !slices.Equal(p.Scopes, k.Scopes) {
		t.Errorf("%+v, %v", p, err)
	}
}

// Two keys of one user are one caller, so that a key is changed for another
// without a gap and without a second budget.
func TestRotatingAKeyKeepsTheCaller(t *testing.T) {
	before, after := key("k-old", keyOne), key("k-new", keyPlain)
	before.User, after.User = "priya123", "priya123"
	both := newAuth(t, auth.Options{APIKeys: true, Keys: []auth.Key{before, after}})
	for _, secret := range []string{keyOne, keyPlain} {
		if got := reason(t, both, request("X-API-Key: "+secret)); got != "user priya123" {
			t.Errorf("while both live: %s", got)
		}
	}
	rotated := newAuth(t, auth.Options{APIKeys: true, Keys: []auth.Key{after}, Previous: both})
	if got := reason(t, rotated, request("X-API-Key: "+keyOne)); got != "unknown_key" {
		t.Errorf("the old key, revoked: %s", got)
	}
	if got := known(t, rotated, "X-API-Key: "+keyPlain); got != "user priya123" {
		t.Errorf("the new key is not known any more: %s", got)
	}
}
