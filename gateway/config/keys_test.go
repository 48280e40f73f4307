package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// key returns a key with the digest of its id.
func key(id string) Key { return Key{ID: id, SHA256: sha256.Sum256([]byte(id)), User: "user-" + id} }

// ids returns the ids of a key file that must be without mistakes.
func ids(t *testing.T, path string) []string {
	t.Helper()
	keys, report := ReadKeys(path)
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, k := range keys {
		ids = append(ids, k.ID)
	}
	return ids
}

func digest(id string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(id))) }

// TestKeyEditsKeepTheText adds the key "new" to files of every layout and
// revokes it again, or revokes "b", and compares the whole text.
func TestKeyEditsKeepTheText(t *testing.T) {
	entry := "{id: new, sha256: " + digest("new") + ", user: user-new}"
	a, b := "{id: a, sha256: "+digest("a")+"}", "{id: b, sha256: "+digest("b")+"}"
	block := "sha256: " + digest("b")
	for _, c := range []struct{ name, before, added, revoked string }{
		{"one entry a line",
			"# head\nkeys:\n  # first\n  - " + a + " # tail of a\n\n  - " + b + "\n\n# end\n",
			"# head\nkeys:\n  # first\n  - " + a + " # tail of a\n\n  - " + b + "\n  - " + entry + "\n\n# end\n",
			"# head\nkeys:\n  # first\n  - " + a + " # tail of a\n\n\n# end\n"},
		{"one field a line",
			"keys:\n- id: b\n  # of b\n  " + block + "\n  user: |\n    x\n- " + a + "\n",
			"", // user with a newline is a mistake: see below
			""},
		{"fields on lines of their own",
			"keys:\n- id: b # b\n  " + block + "\n  user: >-\n    priya\n    123\n# about a\n- " + a + "\nx-end: 1\n",
			"keys:\n- id: b # b\n  " + block + "\n  user: >-\n    priya\n    123\n# about a\n- " + a + "\n- " + entry + "\nx-end: 1\n",
			"keys:\n# about a\n- " + a + "\nx-end: 1\n"},
		{"a mapping over lines",
			"keys:\n  - " + a + "\n  - {\n    id: b,\n    " + block + "\n  }\n",
			"keys:\n  - " + a + "\n  - {\n    id: b,\n    " + block + "\n  }\n  - " + entry + "\n",
			"keys:\n  - " + a + "\n"},
		{"a dash alone",
			"keys:\n  -\n    id: b\n    " + block + "\n  - " + a + "\n",
			"keys:\n  -\n    id: b\n    " + block + "\n  - " + a + "\n  - " + entry + "\n",
			"keys:\n  - " + a + "\n"},
		{"a list on one line",
			"keys: [" + a + ", " + b + "] # all\n",
			"keys: [" + a + ", " + b + ", " + entry + "] # all\n",
			"keys: [" + a + "] # all\n"},
		{"a list in brackets over lines",
			"keys: [\n  " + b + ",\n  " + a + ",\n]\n",
			"keys: [\n  " + b + ",\n  " + a + ", " + entry + "]\n",
			"keys: [\n  " + a + ",\n]\n"},
		{"the only one",
			"keys:\n  - " + b + "\n",
			"keys:\n  - " + b + "\n  - " + entry + "\n",
			"keys: []\n"},
		{"no newline at the end",
			"keys:\n  - " + b,
			"keys:\n  - " + b + "\n  - " + entry + "\n",
			"keys: []\n"},
		{"CRLF",
			"keys:\r\n  - " + a + "\r\n  - " + b + "\r\n",
			"keys:\r\n  - " + a + "\r\n  - " + b + "\r\n  - " + entry + "\r\n",
			"keys:\r\n  - " + a + "\r\n"},
		{"byte order mark",
			"\xef\xbb\xbfkeys:\n  - " + b + "\n",
			"\xef\xbb\xbfkeys:\n  - " + b + "\n  - " + entry + "\n",
			"\xef\xbb\xbfkeys: []\n"},
		{"an empty list", "# none\nkeys: [] # yet\n", "# none\nkeys: # yet\n  - " + entry + "\n", ""},
		{"nothing after keys", "keys:\n# end\n", "keys:\n  - " + entry + "\n# end\n", ""},
		{"a comment only", "# mine\n", "# mine\nkeys:\n  - " + entry + "\n", ""},
		{"an empty file", "", newKeysFile + "  - " + entry + "\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys.yaml")
			reset := func() { write(t, filepath.Dir(path), map[string]string{"keys.yaml": c.before}) }
			check := func(what, want string, err error) {
				t.Helper()
				data, readErr := os.ReadFile(path)
				if readErr != nil {
					t.Fatal(readErr)
				}
				if err != nil || string(data) != want {
					t.Errorf("%s: %v\ngot:\n%s\nwant:\n%s", what, err, data, want)
				}
			}
			reset()
			if c.added == "" {
				if err := AddKey(path, key("new")); err == nil {
					t.Error("a malformed file was edited")
				}
				check("left alone", c.before, nil)
				return
			}
			check("add", c.added, AddKey(path, key("new")))
			if c.revoked != "" {
				reset()
				check("revoke", c.revoked, RevokeKey(path, "b"))
			}
		})
	}
}

func TestAddKeyCreatesAPrivateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	k := Key{
		ID: "k-1", SHA256: sha256.Sum256([]byte("x")), User: "it's: {odd} ${HOME}", Tenant: "007", Plan: "free",
		Expires: time.Date(2077, 7, 1, 0, 0, 0, 0, time.UTC),
		Routes:  []string{"a", "on"}, AllowIPs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::1/128")},
		Scopes: []string{"read", "1", "a:b", "#x"},
	}
	if err := AddKey(path, k); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	keys, report := ReadKeys(path)
	if len(keys) != 1 || report.Err() != nil {
		t.Fatal(keys, report.Err())
	}
	k.Pos = keys[0].Pos
	if !reflect.DeepEqual(keys[0], k) {
		t.Errorf("got %+v, want %+v", keys[0], k)
	}
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), "expires: 2077-06-30, ") {
		t.Errorf("%s, %v", data, err)
	}
}

func TestKeyEditsKeepModeAndLink(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"real/keys.yaml": "keys: []\n"})
	real, link := filepath.Join(dir, "real/keys.yaml"), filepath.Join(dir, "keys.yaml")
	if err := os.Chmod(real, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real/keys.yaml", link); err != nil {
		t.Fatal(err)
	}
	if err := AddKey(link, key("a")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", info, err)
	}
	if info, err := os.Stat(real); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info, err)
	}
	if got := ids(t, real); len(got) != 1 || got[0] != "a" {
		t.Errorf("keys %v", got)
	}
	entries, err := os.ReadDir(filepath.Dir(real))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	// A link to a file that is yet to be made.
	if err := os.Remove(real); err != nil {
		t.Fatal(err)
	}
	if err := AddKey(link, key("b")); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, real); len(got) != 1 || got[0] != "b" {
		t.Errorf("keys %v", got)
	}
}

func TestKeyEditFailures(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "keys.yaml")
	if err := AddKey(path, key("a")); err != nil {
		t.Fatal(err)
	}
	same := key("a")
	same.ID = "other"
	empty := Key{ID: "e", SHA256: sha256.Sum256(nil)}
	control := key("c")
	control.User = "a\nb"
	bad := key("bad id")
	for name, c := range map[string]struct {
		err  error
		is   error
		text string
	}{
		"duplicate id":     {AddKey(path, key("a")), ErrKeyExists, `id "a"`},
		"duplicate digest": {AddKey(path, same), ErrKeyExists, `the key of "a"`},
		"empty key":        {AddKey(path, empty), nil, "empty key"},
		"bad id":           {AddKey(path, bad), nil, "bad id"},
		"control":          {AddKey(path, control), nil, "control character"},
		"revoke nothing":   {RevokeKey(path, "b"), ErrNoKey, `id "b"`},
		"no directory":     {AddKey(filepath.Join(dir, "no/keys.yaml"), key("a")), nil, "no such file"},
		"a directory":      {AddKey(dir, key("a")), nil, "directory"},
	} {
		if c.err == nil || c.is != nil && !errors.Is(c.err, c.is) || !strings.Contains(c.err.Error(), c.text) {
			t.Errorf("%s: got %v, want %q", name, c.err, c.text)
		}
	}
	if got := ids(t, path); len(got) != 1 {
		t.Errorf("keys %v", got)
	}
}

// Forty writers add a key each, a few of them revoke one that was there: no
// edit is lost, and whoever reads meanwhile sees a whole file.
func TestConcurrentKeyEdits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	for i := range 5 {
		if err := AddKey(path, key(fmt.Sprintf("old%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	readers.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, report := ReadKeys(path); report.Err() != nil {
				t.Errorf("a reader saw: %v", report.Err())
				return
			}
		}
	})
	for i := range 40 {
		writers.Go(func() {
			if err := AddKey(path, key(fmt.Sprintf("new%d", i))); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 5 {
		writers.Go(func() {
			if err := RevokeKey(path, fmt.Sprintf("old%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	got := map[string]bool{}
	for _, id := range ids(t, path) {
		got[id] = true
	}
	if len(got) != 40 {
		t.Errorf("%d keys: %v", len(got), got)
	}
	for i := range 40 {
		if !got[fmt.Sprintf("new%d", i)] {
			t.Errorf("new%d was lost", i)
		}
	}
}

func TestExpiry(t *testing.T) {
	for in, want := range map[string]string{
		"2027-06-30":                     "2027-07-01T00:00:00Z",
		"2028-02-29":                     "2028-03-01T00:00:00Z",
		"2027-06-30T18:00:00+05:30":      "2027-06-30T12:30:00Z",
		"2027-06-30T18:00:00.123456789Z": "2027-06-30T18:00:00.123456789Z",
	} {
		got, err := ParseExpiry(in)
		if err != nil || got.Format(time.RFC3339Nano) != want {
			t.Errorf("%s: got %v, %v, want %s", in, got, err, want)
		}
		if again, err := ParseExpiry(FormatExpiry(got)); err != nil || !again.Equal(got) {
			t.Errorf("%s is written %s and read as %v, %v", in, FormatExpiry(got), again, err)
		}
	}
	for _, in := range []string{"", "2027-02-29", "30.6.2027", "2027-06-30T18:00", "tomorrow"} {
		if got, err := ParseExpiry(in); err == nil {
			t.Errorf("%s: got %v", in, got)
		}
	}
}

// Whatever a key file looks like: an edit that says it worked did just that.
func FuzzKeyEdits(f *testing.F) {
	a := "{id: a, sha256: " + digest("a") + "}"
	for _, s := range []string{"", "keys:\n  - " + a, "keys: [" + a + "]", "keys: []", "keys: &x\n- " + a + "\nx-y: *x\n", "{keys: [" + a + ",]}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "keys.yaml")
		write(t, filepath.Dir(path), map[string]string{"keys.yaml": text})
		before, _ := ReadKeys(path)
		if err := AddKey(path, key("new")); err != nil {
			if data, _ := os.ReadFile(path); string(data) != text {
				t.Errorf("a refused edit changed %q to %q", text, data)
			}
			return
		}
		if got := ids(t, path); len(got) != len(before)+1 || got[len(got)-1] != "new" {
			t.Errorf("keys %v after %v", got, before)
		}
		if err := RevokeKey(path, "new"); err == nil && len(ids(t, path)) != len(before) {
			t.Errorf("keys %v after %v", ids(t, path), before)
		}
	})
}
