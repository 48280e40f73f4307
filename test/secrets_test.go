package test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// signedBy is a token of an issuer, signed with a secret.
func signedBy(t testing.TB, issuer string, secret []byte) string {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": issuer, "aud": "weather-api", "sub": "priya123", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString(secret)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// secretSite is a site with one issuer for each of a few texts of auth.jwt.
func secretSite(t testing.TB, u *upstream, issuers ...string) *site {
	s := newSite(t)
	s.write("plans.yaml", "default_plan: free\nplans: {free: {limits: []}}\n")
	s.write("routes.yaml", secretRoutes(u, issuers...))
	return s
}

func secretRoutes(u *upstream, issuers ...string) string {
	return "listen: {http: \"127.0.0.1:0\", admin: \"127.0.0.1:0\"}\nauth:\n  failure_limit: off\n  jwt:\n    - " + strings.Join(issuers, "\n    - ") +
		"\nupstreams: {weather: {targets: [\"" + u.URL + "\"]}}\nroutes: [{name: weather, path: /api/weather, upstream: weather}]\n"
}

// The encoding of a secret is said, never guessed: each file is taken for what
// secret_encoding says, and the bytes that a guess would have made of it verify
// nothing.
func TestE19HMACSecretRawBase64OrWithNewline(t *testing.T) {
	t.Parallel()
	random := make([]byte, 33)
	for i := range random {
		random[i] = byte(0xfb ^ i*37) // makes both - and _ of base64url
	}
	text := "a secret of words, which is longer than a hash"
	std, url, hexed := base64.StdEncoding.EncodeToString(random[:32]), base64.RawURLEncoding.EncodeToString(random), hex.EncodeToString(random)
	rows := []struct {
		name, encoding, file string
		good, bad            []byte // what tokens are signed with
	}{
		{"text", "", text, []byte(text), []byte(text + "\n")},
		{"text-and-newline", "raw", text + "\n", []byte(text), []byte(text + "\n")},
		{"text-and-crlf", "raw", text + "\r\n", []byte(text), []byte(text + "\r\n")},
		{"two-newlines", "raw", text + "\n\n", []byte(text + "\n"), []byte(text)},
		{"bytes", "raw", string(random), random, []byte(std)},
		{"looks-like-base64", "raw", std + "\n", []byte(std), random[:32]},
		{"looks-like-hex", "raw", hexed, []byte(hexed), random},
		{"base64", "base64", std + "\n", random[:32], []byte(std)},
		{"base64-bare", "base64", strings.TrimRight(std, "="), random[:32], []byte(std)},
		{"base64-wrapped", "base64", std[:20] + "\r\n" + std[20:] + "\n", random[:32], []byte(std)},
		{"base64url", "base64url", url, random, []byte(url)},
		{"hex", "hex", hexed + "\n", random, []byte(hexed)},
		{"hex-in-capitals", "hex", strings.ToUpper(hexed), random, []byte(hexed)},
	}
	u := newUpstream(t, nil)
	var issuers []string
	for _, r := range rows {
		said := ""
		if r.encoding != "" {
			said = ", secret_encoding: " + r.encoding
		}
		issuers = append(issuers, "{issuer: "+r.name+", audience: weather-api, algorithms: [HS256], secret_file: secret-"+r.name+said+"}")
	}
	s := secretSite(t, u, issuers...)
	for _, r := range rows {
		s.write("secret-"+r.name, r.file)
	}
	g := s.start()
	for _, r := range rows {
		if a := g.get("/api/weather", "Authorization", "Bearer "+signedBy(t, r.name, r.good)); a.status != 200 {
			t.Errorf("%s: %d with the secret, want 200", r.name, a.status)
		}
		if a := g.get("/api/weather", "Authorization", "Bearer "+signedBy(t, r.name, r.bad)); a.status != 401 {
			t.Errorf("%s: %d with the other reading of it, want 401", r.name, a.status)
		}
	}

	// The log says how long each is, and how its digest begins, and no more.
	told := g.all("tokens are verified with secrets")
	for _, r := range rows {
		sum := sha256.Sum256(r.good)
		i := slices.IndexFunc(told, func(line map[string]any) bool { return line["issuer"] == r.name })
		if i < 0 {
			t.Errorf("%s: the log says nothing of its secret", r.name)
		} else if fmt.Sprint(told[i]["bytes"], told[i]["sha256_begins"]) != fmt.Sprintf("[%d] [%x]", len(r.good), sum[:4]) || len(told[i]) != 8 {
			t.Errorf("%s: the log says %v of its secret", r.name, told[i])
		}
	}
	for _, hidden := range []string{text, std, url, hexed, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16]} {
		if strings.Contains(g.output(), hidden) {
			t.Errorf("the log has %q in it", hidden)
		}
	}
	// Whoever looks for the reason finds a hint.
	why := s.command("explain", "GET", "/api/weather", "-token", signedBy(t, "looks-like-base64", random[:32]))
	if !strings.Contains(why.stdout, "secret_encoding") {
		t.Errorf("explain gives no hint:\n%s%s", why.stdout, why.stderr)
	}
}

// A secret that is too short is refused, and it counts what is left after decoding.
func TestE19ShortSecrets(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	long := strings.Repeat("x", 31)
	for name, file := range map[string]struct{ encoding, text, want string }{
		"one byte":       {"raw", "x", "has 1 bytes; want at least the length of the hash, 32"},
		"eight bytes":    {"raw", long[:8], "has 8 bytes; want"},
		"31 bytes":       {"raw", long, "has 31 bytes; want"},
		"31 and newline": {"raw", long + "\n", "has 31 bytes; want"},
		"31 in base64":   {"base64", base64.StdEncoding.EncodeToString([]byte(long)), "has 31 bytes when it is decoded; want"},
		"31 in hex":      {"hex", hex.EncodeToString([]byte(long)), "has 31 bytes when it is decoded; want"},
		"no base64":      {"base64", long + "!" + long, "is not base64; want"},
		"nothing":        {"base64", "\n", "is empty; want"},
	} {
		s := secretSite(t, u, "{issuer: a, audience: weather-api, algorithms: [HS256], secret_file: file, secret_encoding: "+file.encoding+"}")
		s.write("file", file.text)
		r := s.command("check")
		if r.code != 1 || !strings.Contains(r.stdout+r.stderr, file.want) {
			t.Errorf("%s: exit %d, want the words %q:\n%s%s", name, r.code, file.want, r.stdout, r.stderr)
		}
		if strings.Contains(r.stdout+r.stderr, long[:8]) && len(file.text) > 7 {
			t.Errorf("%s: the secret is shown:\n%s%s", name, r.stdout, r.stderr)
		}
	}
}

// While a secret is rotated, both verify; each reload says which there are.
func TestE19TwoSecretsDuringRotation(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	of := func(files string) string {
		return "{issuer: a, audience: weather-api, algorithms: [HS256], secret_encoding: hex, secret_file: " + files + "}"
	}
	first, second := []byte(strings.Repeat("first", 8)), []byte(strings.Repeat("2nd", 11))
	s := secretSite(t, u, of("[old]"))
	s.write("old", hex.EncodeToString(first)+"\n")
	s.write("new", hex.EncodeToString(second)+"\n")
	g := s.start()
	ask := func(secret []byte) int {
		return g.get("/api/weather", "Authorization", "Bearer "+signedBy(t, "a", secret)).status
	}
	for _, step := range []struct {
		files       string
		first, then int
		bytes       string
	}{
		{"[old]", 200, 401, "[40]"},
		{"[new, old]", 200, 200, "[33 40]"},
		{"new", 401, 200, "[33]"},
	} {
		if step.bytes != "[40]" {
			s.write("routes.yaml", secretRoutes(u, of(step.files)))
			if !g.reload() {
				t.Fatalf("%s is not taken", step.files)
			}
		}
		if a, b := ask(first), ask(second); a != step.first || b != step.then {
			t.Errorf("secret_file: %s: the old secret is answered %d and the new one %d, want %d and %d", step.files, a, b, step.first, step.then)
		}
		if got := fmt.Sprint(g.logged("tokens are verified with secrets")["bytes"]); got != step.bytes {
			t.Errorf("secret_file: %s: the log says %s of the lengths, want %s", step.files, got, step.bytes)
		}
	}
}
