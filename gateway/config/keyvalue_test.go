package config

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// A key that is kept in a hash is read by the rules of the key file.
func TestReadKeyValue(t *testing.T) {
	digest := key("x").SHA256
	k, err := ReadKeyValue(digest, []byte(` {"id": "k-1", "user": "gro\u00dfe \"x\"", "plan": "free", "expires": "2077-06-30", "routes": ["a"], "scopes": ["r"]}
`))
	want := Key{ID: "k-1", SHA256: digest, User: `große "x"`, Plan: "free", Expires: time.Date(2077, 7, 1, 0, 0, 0, 0, time.UTC), Routes: []string{"a"}, Scopes: []string{"r"}}
	if k.Pos = (Pos{}); err != nil || !reflect.DeepEqual(k, want) {
		t.Errorf("%+v, %v", k, err)
	}
	if err := (&Config{Plans: []*Plan{{Name: "free"}}, Routes: []*Route{{Name: "a"}}}).KeyFits(k); err != nil {
		t.Error(err)
	}
	if err := (&Config{Plans: []*Plan{{Name: "free"}}, Routes: []*Route{{Name: "ab"}}}).KeyFits(k); err == nil || !strings.Contains(err.Error(), `(did you mean "ab"?)`) {
		t.Errorf("a route that does not exist: %v", err)
	}
	if err := (&Config{Plans: []*Plan{{Name: "freed"}}}).KeyFits(k); err == nil || !strings.Contains(err.Error(), `(did you mean "freed"?)`) {
		t.Errorf("a plan that does not exist: %v", err)
	}
	for value, want := range map[string]string{
		``: "is no JSON object", `[]`: "is no JSON object", `null`: "is no JSON object", `"k"`: "is no JSON object",
		`{"id": "a"} {"id": "b"}`: "is no JSON object",
		`{"id": "a"}]}`:           "is no JSON object",
		`{id: a}`:                 "is no JSON object", // YAML
		`{}`:                      "keys[0].id: missing",
		`{"id": ""}`:              "keys[0].id",
		`{"id": "a b"}`:           "keys[0].id: bad id",
		`{"id": "a", "id": "b"}`:  "given twice",
		`{"id": "a", "sha256": "` + digestText('1') + `"}`:        "given twice",
		`{"id": "a", "usr": "b"}`:                                 `unknown field (did you mean "user"?)`,
		`{"id": "a", "user": "x\r\nX-Auth-User: root"}`:           "control character",
		`{"id": "a", "expires": "tomorrow"}`:                      "is not a date",
		`{"id": "a", "routes": "b"}`:                              "want a list",
		`{"id": "a", "allow_ips": ["x"]}`:                         "is not a network",
		`{"id": "a", "user": {"name": "b"}}`:                      "want the name of the user",
		`{"id": "a", "user": "` + strings.Repeat("x", 300) + `"}`: "at most 256",
	} {
		if k, err := ReadKeyValue(digest, []byte(value)); err == nil || !strings.Contains(err.Error(), want) || k.ID != "" {
			t.Errorf("%.60s: %+v, %v, want %q", value, k, err, want)
		}
	}
}

func digestText(c byte) string { return strings.Repeat(string(c), 64) }
