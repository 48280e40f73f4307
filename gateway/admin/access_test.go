package admin

import (
	"context"
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"testing"
)

// What keeps a page of another site from having an operator's browser change
// something holds for everything that is no mere read, whatever lets it in.
func TestAnotherSitesPageChangesNothing(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fields []string
		want   int
	}{
		{"a program", nil, 200},
		{"the gateway's own page", []string{"Sec-Fetch-Site: same-origin", "Origin: http://127.0.0.1:9090"}, 200},
		{"typed by hand", []string{"Sec-Fetch-Site: none"}, 200},
		{"another site", []string{"Sec-Fetch-Site: cross-site", "Origin: http://attacker.example"}, 403},
		{"another port of this machine", []string{"Sec-Fetch-Site: same-site", "Origin: http://127.0.0.1:8080"}, 403},
		{"another site, in an old browser", []string{"Origin: http://attacker.example"}, 403},
		{"a sandboxed frame", []string{"Origin: null"}, 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reloads := 0
			o := full()
			reload := o.Reload
			o.Reload = func(ctx context.Context) error { reloads++; return reload(ctx) }
			rec := ask(o, http.MethodPost, "http://127.0.0.1/-/reload", append([]string{bearer}, tc.fields...)...)
			if rec.Code != tc.want || (reloads == 1) != (tc.want == 200) {
				t.Errorf("%d after %d reloads, want %d: %s", rec.Code, reloads, tc.want, rec.Body)
			}
			if tc.want == 403 {
				problem(t, rec)
			}
		})
	}
}

// Nor does it look: a page of another site cannot read an answer, but it could take up
// all streams of the live state, so that who is on call gets none. A link from there to
// here is fine, and so is all that holds nothing of the operator.
func TestAnotherSitesPageTakesNoStream(t *testing.T) {
	const cross, same, link = "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate"
	for _, tc := range []struct {
		name, path string
		fields     []string
		want       int
	}{
		{"a script", "/api/status", []string{cross, "Sec-Fetch-Mode: no-cors"}, 403},
		{"a script on another port of this machine", "/api/status", []string{same, "Sec-Fetch-Mode: cors"}, 403},
		{"a frame", "/api/status", []string{cross, link, "Sec-Fetch-Dest: iframe"}, 403},
		{"a browser that says less", "/api/status", []string{cross}, 403},
		{"a link", "/api/status", []string{cross, link, "Sec-Fetch-Dest: document"}, 200},
		{"the gateway's own page", "/api/status", []string{"Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors"}, 200},
		{"typed by hand", "/api/status", []string{"Sec-Fetch-Site: none", link}, 200},
		{"a program", "/api/status", nil, 200},
		{"a profile", "/debug/pprof/goroutine", []string{bearer, cross}, 403},
		{"health", "/healthz", []string{cross}, 200},
		{"the page", "/", []string{cross, link, "Sec-Fetch-Dest: document"}, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := ask(full(), http.MethodGet, "http://127.0.0.1"+tc.path, tc.fields...)
			if rec.Code != tc.want {
				t.Errorf("%d, want %d: %s", rec.Code, tc.want, rec.Body)
			}
			if tc.want == 403 {
				problem(t, rec)
			}
		})
	}
}

func TestSessionTellsWhatTheRequestItselfMayDo(t *testing.T) {
	for _, tc := range []struct {
		name     string
		loopback bool
		token    string
		fields   []string
		want     string
	}{
		{"loopback", true, token, nil, `{"token_needed":false,"token_configured":true,"signed_in":false,"may_change":false}`},
		{"loopback, token", true, token, []string{bearer}, `{"token_needed":false,"token_configured":true,"signed_in":true,"may_change":true}`},
		{"loopback, none configured", true, "", []string{bearer}, `{"token_needed":false,"token_configured":false,"signed_in":false,"may_change":false}`},
		{"network", false, token, nil, `{"token_needed":true,"token_configured":true,"signed_in":false,"may_change":false}`},
		{"network, wrong token", false, token, []string{bearer + "x"}, `{"token_needed":true,"token_configured":true,"signed_in":false,"may_change":false}`},
		{"network, token", false, token, []string{bearer}, `{"token_needed":true,"token_configured":true,"signed_in":true,"may_change":true}`},
	} {
		o := full()
		o.Loopback, o.Token = tc.loopback, []byte(tc.token)
		rec := ask(o, http.MethodGet, "http://127.0.0.1/api/session", tc.fields...)
		if got := compact(t, rec.Body.Bytes()); rec.Code != 200 || got != tc.want {
			t.Errorf("%s: %d %s, want %s", tc.name, rec.Code, got, tc.want)
		}
	}
}

// A browser that lacks the token gets the page with the 401, so that it can ask for
// it; a program gets the problem document.
func TestPageIsShownToWhoHasToSignIn(t *testing.T) {
	o := full()
	o.Loopback = false
	const browser = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	rec := ask(o, http.MethodGet, "http://gateway.example.com/", browser)
	if rec.Code != 401 || rec.Header().Get("Content-Type") != "text/html; charset=utf-8" || rec.Header().Get("WWW-Authenticate") == "" ||
		!strings.Contains(rec.Body.String(), "<!doctype html>") {
		t.Errorf("a browser gets %d %v", rec.Code, rec.Header())
	}
	if rec := ask(o, http.MethodGet, "http://gateway.example.com/", "Accept: */*"); rec.Code != 401 {
		t.Errorf("a program gets %d", rec.Code)
	} else {
		problem(t, rec)
	}
	rec = ask(o, http.MethodGet, "http://gateway.example.com/", browser, bearer)
	if rec.Code != 200 || rec.Header().Get("WWW-Authenticate") != "" || rec.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("with the token %d %v", rec.Code, rec.Header())
	}
	// Another name on loopback may be another site's that points here.
	if rec := ask(full(), http.MethodGet, "http://127.0.0.1/", browser, "Host: attacker.example"); rec.Code != 421 {
		t.Errorf("under another name %d", rec.Code)
	}
}

func TestAssetsAreServedAsWhatTheyAre(t *testing.T) {
	for file, contentType := range map[string]string{"style.css": "text/css; charset=utf-8", "app.js": "text/javascript; charset=utf-8"} {
		rec := ask(full(), http.MethodGet, "http://127.0.0.1/assets/"+file)
		tag := rec.Header().Get("ETag")
		if rec.Code != 200 || rec.Header().Get("Content-Type") != contentType || rec.Header().Get("Cache-Control") != "no-cache" || len(tag) < 10 {
			t.Fatalf("%s: %d %v", file, rec.Code, rec.Header())
		}
		if want, err := assetFiles.ReadFile("assets/" + file); err != nil || rec.Body.String() != string(want) {
			t.Errorf("%s is not the file: %v", file, err)
		}
		rec = ask(full(), http.MethodGet, "http://127.0.0.1/assets/"+file, "If-None-Match: "+tag)
		if rec.Code != 304 || rec.Body.Len() != 0 {
			t.Errorf("%s, which the browser has: %d with %d bytes", file, rec.Code, rec.Body.Len())
		}
		rec = ask(full(), http.MethodHead, "http://127.0.0.1/assets/"+file)
		if rec.Code != 200 || rec.Body.Len() != 0 {
			t.Errorf("HEAD of %s: %d with %d bytes", file, rec.Code, rec.Body.Len())
		}
		if rec := ask(full(), http.MethodPost, "http://127.0.0.1/assets/"+file); rec.Code != 405 {
			t.Errorf("POST of %s: %d", file, rec.Code)
		}
	}
	for _, name := range []string{"/assets/../admin.go", "/assets/%2e%2e/admin.go", "/assets/style.css/", "/assets//style.css"} {
		if rec := ask(full(), http.MethodGet, "http://127.0.0.1"+name); rec.Code != 404 {
			t.Errorf("%s: %d, want 404", name, rec.Code)
		}
	}
}

var (
	inline = regexp.MustCompile(`(?i)<script(?:[^>]*)>\s*[^<\s]|<style|\sstyle=|\son[a-z]+=|javascript:`)
	abroad = regexp.MustCompile(`(?i)(?:src|href|url\(|import|from|fetch)[\s('"=]+(?:https?:)?//`)
)

// The page's files are within what the Content-Security-Policy lets them do, and ask
// nobody else for anything.
func TestPageConsistsOfItsOwnFiles(t *testing.T) {
	err := fs.WalkDir(assetFiles, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := assetFiles.ReadFile(name)
		if err != nil {
			return err
		}
		if found := inline.Find(body); path.Ext(name) == ".html" && found != nil {
			t.Errorf("%s has a script or style within: %q", name, found)
		}
		if found := abroad.Find(body); found != nil {
			t.Errorf("%s asks elsewhere: %q", name, found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	csp := ask(full(), http.MethodGet, "http://127.0.0.1/").Header().Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:"} {
		if !strings.Contains(csp, want) {
			t.Errorf("the policy lacks %s: %s", want, csp)
		}
	}
}

func compact(t *testing.T, b []byte) string {
	t.Helper()
	var v json.RawMessage
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%q: %v", b, err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
