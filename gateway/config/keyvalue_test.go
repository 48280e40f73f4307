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
	filed := &Config{Plans: []*Plan{{Name: "free"}}, Routes: []*Route{{Name: "a"}}}
	filed.Auth.APIKeys = &APIKeys{Keys: []Key{{ID: "k-1"}}}
	if err := filed.KeyFits(k); err == nil || !strings.Contains(err.Error(), `id: "k-1" is a key of the key file`) {
		t.Errorf("the id of a key of the file: %v", err)
	}
	filed.Auth.APIKeys.Keys[0].SHA256 = digest
	if err := filed.KeyFits(k); err != nil {
		t.Errorf("the same key in the file: %v", err)
	}
	// As other writers of JSON spell what is beyond the BMP, and what needs no escape.
	if k, err := ReadKeyValue(digest, []byte("{\n\t\"id\": \"a\", \"user\": \"\\ud83d\\ude00 \\/ \\u003c: # '\", \"scopes\": [\"x\",\"y\"]\r\n}")); err != nil || k.User != "\U0001f600 / <: # '" || len(k.Scopes) != 2 {
		t.Errorf("escapes: %+v, %v", k, err)
	}
	for value, want := range map[string]string{
		``: "is no JSON object", `[]`: "is no JSON object", `null`: "is no JSON object", `"k"`: "is no JSON object",
		`{"id": "a"} {"id": "b"}`:     "is no JSON object",
		`{"id": "a"}]}`:               "is no JSON object",
		`{id: a}`:                     "is no JSON object", // YAML
		`{}`:                          "id: missing",
		`{"id": ""}`:                  "id: ",
		`{"id": "a b"}`:               "id: bad id",
		`{"id": "a", "id": "b"}`:      "given twice",
		`{"id": "a", "i\u0064": "b"}`: `"id": given twice`,
		`{"id": "a", "sha256": "` + digestText('1') + `"}`: "sha256: does not belong here",
		`{"id": 9}`:                                               `"id": want text in quotes`,
		`{"id": "a", "user": 1e3}`:                                `"user": want text in quotes`,
		`{"id": "a", "user": true}`:                               `"user": want text in quotes`,
		`{"id": "a", "scopes": [1]}`:                              `"scopes": want text in quotes`,
		`{"id": "a", "scopes": [["b"]]}`:                          `"scopes": want text in quotes, or a list of it`,
		`{"id": "a", "user": null}`:                               "user: has no value",
		`{"id": "a", "user": "\ud83d"}`:                           `"user": holds a character that is broken`,
		`{"id": "a", "user": "key:k-b"}`:                          "user: begins with key:",
		`{"id": "a", "usr": "b"}`:                                 `unknown field (did you mean "user"?)`,
		`{"id": "a", "user": "x\r\nX-Auth-User: root"}`:           "control character",
		`{"id": "a", "expires": "tomorrow"}`:                      "is not a date",
		`{"id": "a", "routes": "b"}`:                              "want a list",
		`{"id": "a", "allow_ips": ["x"]}`:                         "is not a network",
		`{"id": "a", "user": {"name": "b"}}`:                      `"user": want text in quotes`,
		`{"id": "a", "user": "` + strings.Repeat("x", 300) + `"}`: "at most 256",
	} {
		if k, err := ReadKeyValue(digest, []byte(value)); err == nil || !strings.Contains(err.Error(), want) || k.ID != "" {
			t.Errorf("%.60s: %+v, %v, want %q", value, k, err, want)
		}
	}
}

func digestText(c byte) string { return strings.Repeat(string(c), 64) }
