package auth_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"bouncer/gateway/auth"
)

// A wrong key says which key it is a guess at, if that one is configured: whoever
// guesses from many addresses is known by what they guess at.
func TestAWrongKeyNamesWhatItGuessesAt(t *testing.T) {
	made, id, digest, err := auth.NewKey(bytes.NewReader(bytes.Repeat([]byte{7}, 64)))
	if err != nil {
		t.Fatal(err)
	}
	other, _, _, err := auth.NewKey(bytes.NewReader(append(bytes.Repeat([]byte{7}, 4), bytes.Repeat([]byte{9}, 64)...)))
	if err != nil {
		t.Fatal(err)
	}
	a := newAuth(t, auth.Options{APIKeys: true, Keys: []auth.Key{{ID: id, SHA256: digest}, key("own", "brought along")}})
	prefix := strings.TrimPrefix(id, "k-")
	for _, tt := range []struct{ key, want string }{
		{other, id}, // whole, with the same public part
		{made[:len(made)-1] + "~", id},
		{"bn_live_" + prefix + "_", id},
		{"bn_live_" + prefix + "_x", id},
		{"bn_live_" + prefix, ""},
		{"bn_live_" + prefix + "0_x", ""},
		{"bn_live_00000000_x", ""}, // nobody's
		{"bn_live_" + strings.ToUpper(prefix) + "x_", ""},
		{"own", ""},
		{id, ""},
		{"bn_live_", ""},
	} {
		_, err := a.Authenticate(request("X-API-Key: "+tt.key), auth.Check{})
		refused, ok := errors.AsType[*auth.RefusedError](err)
		if !ok || refused.KeyID != tt.want {
			t.Errorf("%s: %+v, want a guess at %q", tt.key, refused, tt.want)
		}
	}
	if got := reason(t, a, request("X-API-Key: "+made)); got != "user key:"+id {
		t.Errorf("the key itself: %s", got)
	}
}
