package jwks_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/jwks"
)

// A Source that replaces another of the same issuer and URL has its keys, although
// the provider is away; one that speaks to somebody else has not.
func TestKeysOutliveTheirSource(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`)) // RFC 8037 appendix A.2
	}))
	t.Cleanup(provider.Close)
	from := func(o jwks.Options) *jwks.Source {
		t.Helper()
		if o.Issuer == "" {
			o.Issuer = "https://login.example.com/"
		}
		if o.URL == "" {
			o.URL = provider.URL
		}
		s, err := jwks.New(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(s.Close)
		select {
		case <-s.Tried():
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was tried")
		}
		return s
	}
	first := from(jwks.Options{})
	if first.Keys() == nil {
		t.Fatalf("no keys: %v", first.State().Err)
	}
	away.Store(true)
	second := from(jwks.Options{Previous: first, Refresh: time.Minute})
	first.Close()
	if second.Keys() != first.Keys() || second.State().Err == nil || !second.State().Fetched.Equal(first.State().Fetched) {
		t.Errorf("the keys of the one before are not in force: %+v", second.State())
	}
	if third := from(jwks.Options{Previous: second}); third.Keys() != first.Keys() {
		t.Error("they are not handed on twice")
	}
	for name, o := range map[string]jwks.Options{
		"another URL":    {Previous: first, URL: provider.URL + "/other"},
		"another issuer": {Previous: first, Issuer: "https://other.example.com/"},
		"nobody before":  {},
	} {
		if s := from(o); s.Keys() != nil {
			t.Errorf("%s: it has keys", name)
		}
	}
}
