package auth_test

import (
	"crypto/rand"
	"testing"

	"bouncer/gateway/auth"
)

func TestWhatLooksSecret(t *testing.T) {
	key, id, digest, err := auth.NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const token = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJwcml5YTEyMyJ9.c2lnbmF0dXJl"
	for text, want := range map[string]bool{
		key: true, " " + key + "\n": true, "ApiKey " + key: true, "X-API-Key: " + key: true, key[:30]: true, "bn_live_ bn_live_" + key: true,
		token: true, "Bearer " + token: true, `"` + token + `"`: true, "access_token=" + token: true,
		"Basic cHJpeWE6aHVudGVyMg==": true, "Authorization: basic cHJpeWE6aHVudGVyMg": true, "basic auth": false, "Basic cHJpeWE=": false, "Basic": false,
		"-----BEGIN PRIVATE KEY-----": true,
		id:                            false, key[:16]: false, key[:17]: false, "bn_live_": false, "": false,
		"priya123": false, "203.0.113.7": false, "2001:db8::/64": false, "eye.of.beholder": false, "eyes.example.com": false,
		"a.b.c": false, "9b2f2c1e-6f1c-4f0e-9a5e-1f2e3d4c5b6a": false,
	} {
		if got := auth.LooksSecret(text); got != want {
			t.Errorf("%.40q: %v, want %v", text, got, want)
		}
	}
	a, err := auth.New(auth.Options{APIKeys: true, Keys: []auth.Key{{ID: id, SHA256: digest}}, Realm: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if !a.HasKey(key) || a.HasKey(id) || a.HasKey("") {
		t.Error("a key of the file is not known, or its id is taken for one")
	}
}
