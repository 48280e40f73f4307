package auth_test

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"bouncer/gateway/auth"
)

const (
	keyOne   = "a key that somebody brought along"
	keyPlain = "plain-key-2"
)

// both accepts tokens, also in the cookie session, and keys.
func both(t testing.TB) *auth.Authenticator {
	issuer := hs256()
	issuer.Cookie = "session"
	return newAuth(t, auth.Options{
		Issuers: []auth.Issuer{issuer}, APIKeys: true,
		Keys: []auth.Key{key("k-1", keyOne), key("k-2", keyPlain)},
	})
}

// serve answers requests on a real socket as the pipeline would: 200 and the
// caller, or 401 and the reason, which no client of the gateway is told.
func serve(t *testing.T, a *auth.Authenticator) (exchange func(fields string) string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := a.Authenticate(r, auth.Check{})
		if err != nil {
			w.Header()["Www-Authenticate"] = a.Challenges()
			w.WriteHeader(http.StatusUnauthorized)
			if refused, ok := errors.AsType[*auth.RefusedError](err); ok {
				fmt.Fprint(w, refused.Reason)
			} else {
				fmt.Fprint(w, err)
			}
			return
		}
		fmt.Fprintf(w, "%s %s", p.Method, p.User)
	}))
	t.Cleanup(s.Close)
	return func(fields string) string {
		t.Helper()
		conn := must(net.Dial("tcp", s.Listener.Addr().String()))
		defer conn.Close()
		must(io.WriteString(conn, "GET /?api_key="+keyPlain+"&access_token=x HTTP/1.1\r\nHost: g\r\nConnection: close\r\n"+fields+"\r\n"))
		resp := must(http.ReadResponse(bufio.NewReader(conn), nil))
		defer resp.Body.Close()
		body := must(io.ReadAll(resp.Body))
		if resp.StatusCode == http.StatusUnauthorized {
			if got := strings.Join(resp.Header.Values("WWW-Authenticate"), ", "); got != `Bearer realm="gateway", ApiKey realm="gateway"` {
				t.Errorf("WWW-Authenticate: %s", got)
			}
		}
		return fmt.Sprint(resp.StatusCode, " ", string(body))
	}
}

// Schemes in any case, one or more spaces, and nothing else.
func TestSchemeSpellingAndSpacing(t *testing.T) {
	exchange := serve(t, both(t))
	x := token()
	for _, tt := range []struct{ fields, want string }{
		{"Authorization: Bearer " + x + "\r\n", "200 jwt priya123"},
		{"authorization: bearer " + x + "\r\n", "200 jwt priya123"},
		{"AUTHORIZATION: BEARER  " + x + "\r\n", "200 jwt priya123"},
		{"Authorization: bEARER     " + x + "\r\n", "200 jwt priya123"},
		{"Authorization: Bearer " + x + " \t \r\n", "200 jwt priya123"}, // not part of the value: RFC 9110 section 5.5
		{"Authorization:Bearer " + x + "\r\n", "200 jwt priya123"},
		{"Authorization: Bearer\t" + x + "\r\n", "401 malformed"},
		{"Authorization: Bearer \t" + x + "\r\n", "401 malformed"},
		{"Authorization: Bearer\r\n", "401 malformed"},
		{"Authorization: Bearer \r\n", "401 malformed"},
		{"Authorization: Bearer x,y\r\n", "401 malformed"},
		{"Authorization: Bearer " + x + ",\r\n", "401 malformed"},
		{"Authorization: Bearer " + x + ", Basic abc\r\n", "401 malformed"},
		{"Authorization: Bearer " + x + " " + x + "\r\n", "401 malformed"},
		{"Authorization: Bearer token=" + x + "\r\n", "401 malformed"},
		{"Authorization: Bearer \"" + x + "\"\r\n", "401 malformed"},
		{"Authorization: Bearer:" + x + "\r\n", "401 malformed"},
		{"Authorization: Bearer=" + x + "\r\n", "401 malformed"},
		{"Authorization: Bearer" + x + "\r\n", "401 no credentials"}, // some other scheme
		{"Authorization: Bearer\xc2\xa0" + x + "\r\n", "401 malformed"},
		{"Authorization: Bearer \xff" + x + "\r\n", "401 malformed"},
		{"Authorization: " + x + "\r\n", "401 no credentials"},
		{"Authorization: Token " + x + "\r\n", "401 no credentials"},
		{"Authorization: Basic " + x + "\r\n", "401 no credentials"},
		{"Authorization:\r\n", "401 no credentials"},
		{"Authorization: Bearer " + x + "\r\nAuthorization: Bearer " + x + "\r\n", "401 several"},
		{"Authorization: Basic abc\r\nAuthorization: Bearer " + x + "\r\n", "401 several"},
		{"Authorization: Bearer " + x + "\r\nAuthorization: \r\n", "401 several"},
		{"Authorization: Basic abc\r\nAuthorization: Basic def\r\n", "401 no credentials"},
		{"Authorization: ApiKey abc\r\nAuthorization: ApiKey abc\r\n", "401 several"},
		{"Authorization: ApiKey abc\r\nAuthorization: Bearer " + x + "\r\n", "401 several"},
		{"Authorization: Bearer " + x + "\x00\r\n", "400 400 Bad Request"},
		{"Authorization: Bearer " + strings.Repeat("x", 64<<10) + "\r\n", "401 oversize"},
		{"Authorization: Bearer " + strings.Repeat("x", auth.MaxTokenBytes) + "\r\n", "401 malformed"},
		{"Authorization: Bearer " + strings.Repeat("x", auth.MaxTokenBytes+1) + "\r\n", "401 oversize"},

		{"Authorization: ApiKey " + keyPlain + "\r\n", "200 api_key user-of-k-2"},
		{"Authorization: apikey   " + keyPlain + "\r\n", "200 api_key user-of-k-2"},
		{"Authorization: ApiKey\t" + keyPlain + "\r\n", "401 malformed"},
		{"Authorization: ApiKey\r\n", "401 malformed"},
		{"Authorization: ApiKey " + keyOne + "\r\n", "401 malformed"}, // one word only; it may come in its own field
		{"X-API-Key: " + keyOne + "\r\n", "200 api_key user-of-k-1"},
		{"x-api-key:   " + keyPlain + "\t\r\n", "200 api_key user-of-k-2"},
		{"X-API-Key:\r\n", "401 malformed"},
		{"X-API-Key: " + keyPlain + "\r\nx-api-key: " + keyPlain + "\r\n", "401 several"},
		{"X-API-Key: " + keyPlain + ", " + keyPlain + "\r\n", "401 unknown_key"},
		{"X_API_Key: " + keyPlain + "\r\n", "401 no credentials"},
		{"X-API-Key: " + strings.Repeat("x", auth.MaxKeyBytes) + "\r\n", "401 unknown_key"},
		{"X-API-Key: " + strings.Repeat("x", auth.MaxKeyBytes+1) + "\r\n", "401 oversize"},

		{"Cookie: session=" + x + "\r\n", "200 cookie priya123"},
		{"Cookie: a=1; session=" + x + "; b=2\r\n", "200 cookie priya123"},
		{"Cookie: a=1;session=\"" + x + "\"\r\n", "200 cookie priya123"},
		{"Cookie: a=1\r\nCookie: session=" + x + "\r\n", "200 cookie priya123"},
		{"Cookie: session=" + x + "; session=" + x + "\r\n", "200 cookie priya123"},
		{"Cookie: session=" + x + "; session=other\r\n", "401 several"},
		{"Cookie: session=" + x + "\r\nCookie: session=other\r\n", "401 several"},
		{"Cookie: session=" + x + "; session=\r\n", "401 several"},
		{"Cookie: session=" + x + "%3B\r\n", "401 malformed"},
		{"Cookie: session=other\r\n", "401 malformed"},
		{"Cookie: session=" + strings.Repeat("x", auth.MaxTokenBytes+1) + "\r\n", "401 oversize"},
		{"Cookie: session=\r\n", "401 no credentials"},
		{"Cookie: session\r\n", "401 no credentials"},
		{"Cookie: Session=" + x + "\r\n", "401 no credentials"},
		{"Cookie: xsession=" + x + "\r\n", "401 no credentials"},
		{"", "401 no credentials"},
	} {
		if got := exchange(tt.fields); got != tt.want {
			t.Errorf("%.90q: got %s, want %s", tt.fields, got, tt.want)
		}
	}
}

// One credential decides, and it decides alone.
func TestFirstCredentialPresentDecides(t *testing.T) {
	a := both(t)
	mine, cookies := token("sub", "header-user"), token("sub", "cookie-user")
	expired := token("exp", now.Unix()-1)
	for _, tt := range []struct {
		lines []string
		want  string
	}{
		{[]string{"Authorization: Bearer " + mine, "Cookie: session=" + cookies}, "user header-user"},
		{[]string{"Authorization: Bearer " + mine, "Cookie: session=" + expired}, "user header-user"},
		{[]string{"Authorization: Bearer " + expired, "Cookie: session=" + cookies}, "expired"},
		{[]string{"Authorization: Bearer", "Cookie: session=" + cookies}, "malformed"},
		{[]string{"Authorization: Bearer " + mine, "X-API-Key: wrong"}, "user header-user"},
		{[]string{"Authorization: Bearer wrong", "X-API-Key: " + keyPlain}, "malformed"},
		{[]string{"Cookie: session=" + cookies, "X-API-Key: " + keyPlain}, "user cookie-user"},
		{[]string{"Cookie: session=" + expired, "X-API-Key: " + keyPlain}, "expired"},
		{[]string{"Cookie: session=x; session=y", "X-API-Key: " + keyPlain}, "several"},
		{[]string{"Cookie: session=", "X-API-Key: " + keyPlain}, "user user-of-k-2"},
		{[]string{"X-API-Key: " + keyPlain, "Authorization: ApiKey wrong"}, "user user-of-k-2"},
		{[]string{"X-API-Key: wrong", "Authorization: ApiKey " + keyPlain}, "unknown_key"},
		{[]string{"X-API-Key: ", "Authorization: ApiKey " + keyPlain}, "malformed"},
		{[]string{"Authorization: Basic abc", "X-API-Key: " + keyPlain}, "user user-of-k-2"},
		{[]string{"Authorization: Basic abc", "Cookie: session=" + cookies}, "user cookie-user"},
		{[]string{"Authorization: ApiKey " + keyPlain, "Cookie: session=" + cookies}, "user cookie-user"},
		{[]string{"Authorization: ApiKey " + keyPlain, "Authorization: Bearer x", "Cookie: session=" + cookies}, "several"},
		{[]string{"Authorization: Basic abc", "Authorization: ApiKey x", "Cookie: session=" + cookies}, "several"},
		{[]string{"Authorization: Basic abc", "Authorization: Basic def", "Cookie: session=" + cookies}, "user cookie-user"},
		{[]string{"Authorization: \t Bearer " + mine + " "}, "user header-user"}, // HTTP/2 does not cut white space
		{[]string{"X-API-Key: a", "X-API-Key: b", "Authorization: Bearer " + mine}, "user header-user"},
		{[]string{"Cookie: a=1", "Authorization: ApiKey " + keyPlain}, "user user-of-k-2"},
	} {
		if got := reason(t, a, request(tt.lines...)); got != tt.want {
			t.Errorf("%.100q: got %s, want %s", tt.lines, got, tt.want)
		}
	}
}

// The token and the cookie are the same caller, told apart by how they came only.
func TestTokenAndCookieAreOneCaller(t *testing.T) {
	a := both(t)
	inHeader, err1 := a.Authenticate(bearer(token()), auth.Check{})
	inCookie, err2 := a.Authenticate(request("Cookie: session="+token()), auth.Check{})
	if err1 != nil || err2 != nil || inHeader.Method != auth.MethodJWT || inCookie.Method != auth.MethodCookie {
		t.Fatalf("%+v %v, %+v %v", inHeader, err1, inCookie, err2)
	}
	if !inCookie.SameOrigin || inHeader.SameOrigin {
		t.Errorf("header %+v, cookie %+v: a cookie is sent unasked, a field is not", inHeader, inCookie)
	}
	inCookie.Method, inCookie.SameOrigin = inHeader.Method, false
	if !reflect.DeepEqual(inCookie, inHeader) {
		t.Errorf("header %+v, cookie %+v", inHeader, inCookie)
	}
}

// A cookie takes the tokens of its own issuers only, also of those that the
// header made known.
func TestCookieBelongsToItsIssuers(t *testing.T) {
	one, two := hs256(), auth.Issuer{Issuer: issuerB, Algorithms: []string{"HS256"}, Secrets: [][]byte{secretB}, Cookie: "two"}
	one.Cookie = "one"
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{one, two}})
	tokenTwo := sign("HS256", secretB, nil, claims("iss", issuerB, "sub", "two"))
	for _, tt := range []struct{ line, want string }{
		{"Cookie: one=" + tokenTwo, "wrong_issuer"},
		{"Cookie: two=" + tokenTwo, "user two"},
		{"Cookie: one=" + tokenTwo, "wrong_issuer"},
		{"Authorization: Bearer " + tokenTwo, "user two"},
		{"Cookie: two=" + tokenTwo + "; one=" + token(), "user priya123"}, // in the order of the issuers
		{"Cookie: two=" + tokenTwo + "; one=bad", "malformed"},
	} {
		if got := reason(t, a, request(tt.line)); got != tt.want {
			t.Errorf("%.30s: got %s, want %s", tt.line, got, tt.want)
		}
	}
}

// What is not configured is no credential but the upstream's business.
func TestUnconfiguredIsNotLookedAt(t *testing.T) {
	onlyKeys := newAuth(t, auth.Options{APIKeys: true, Keys: []auth.Key{key("k-1", keyPlain)}, KeyHeader: "apikey"})
	onlyTokens := newAuth(t, auth.Options{Issuers: []auth.Issuer{hs256()}})
	nothing := newAuth(t, auth.Options{})
	emptyList := newAuth(t, auth.Options{APIKeys: true})
	for _, tt := range []struct {
		name string
		a    *auth.Authenticator
		line string
		want string
	}{
		{"only keys", onlyKeys, "Authorization: Bearer " + token(), "none"},
		{"only keys", onlyKeys, "Cookie: session=" + token(), "none"},
		{"only keys", onlyKeys, "X-API-Key: " + keyPlain, "none"}, // another header is configured
		{"only keys", onlyKeys, "ApiKey: " + keyPlain, "user user-of-k-1"},
		{"only keys", onlyKeys, "Authorization: ApiKey " + keyPlain, "user user-of-k-1"},
		{"only tokens", onlyTokens, "X-API-Key: " + keyPlain, "none"},
		{"only tokens", onlyTokens, "Authorization: ApiKey " + keyPlain, "none"},
		{"only tokens", onlyTokens, "Cookie: session=" + token(), "none"},
		{"nothing", nothing, "Authorization: Bearer " + token(), "none"},
		{"empty list", emptyList, "X-API-Key: " + keyPlain, "unknown_key"},
	} {
		if got := reason(t, tt.a, request(tt.line)); got != tt.want {
			t.Errorf("%s, %.30s: got %s, want %s", tt.name, tt.line, got, tt.want)
		}
	}
	for name, tt := range map[string]struct {
		a    *auth.Authenticator
		want string
	}{
		"only keys":   {onlyKeys, `Bearer realm="gateway", ApiKey realm="gateway"`},
		"only tokens": {onlyTokens, `Bearer realm="gateway"`},
		"nothing":     {nothing, `Bearer realm="gateway"`},
		"empty list":  {emptyList, `Bearer realm="gateway", ApiKey realm="gateway"`},
		"realm":       {newAuth(t, auth.Options{Realm: "weather api"}), `Bearer realm="weather api"`},
	} {
		if got := strings.Join(tt.a.Challenges(), ", "); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// Keys are compared whole, as bytes, and come in a header only.
func TestKeysAreComparedWhole(t *testing.T) {
	const long = "prefix-and-more"
	a := newAuth(t, auth.Options{APIKeys: true, Keys: []auth.Key{
		key("k-short", "prefix"), key("k-long", long), key("k-uni", "schlüssel"), key("k-space", "two words"),
		{ID: "k-7f3a", SHA256: sha256.Sum256([]byte("nameless")), Tenant: "acme", Plan: "free"},
	}})
	for _, tt := range []struct{ key, want string }{
		{"prefix", "user user-of-k-short"},
		{long, "user user-of-k-long"},
		{long[:len(long)-1], "unknown_key"},
		{long + "x", "unknown_key"},
		{"Prefix", "unknown_key"},
		{"schlüssel", "user user-of-k-uni"},
		{"schlu\u0308ssel", "unknown_key"}, // the same to the eye
		{"two words", "user user-of-k-space"},
		{"two  words", "unknown_key"},
		{"nameless", "user key:k-7f3a"},
		{"", "malformed"},
		{" ", "malformed"},
		{strings.Repeat("0", 64), "unknown_key"},
		{fmt.Sprintf("%x", sha256.Sum256([]byte("prefix"))), "unknown_key"}, // the digest is not the key
	} {
		if got := reason(t, a, request("X-API-Key: "+tt.key)); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.key, got, tt.want)
		}
	}
	p, err := a.Authenticate(request("X-API-Key: nameless"), auth.Check{})
	want := auth.Principal{Method: auth.MethodAPIKey, User: "key:k-7f3a", Tenant: "acme", Plan: "free", KeyID: "k-7f3a"}
	if err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v, %v; want %+v", p, err, want)
	}
	for _, query := range []string{"api_key", "apikey", "access_token", "key", "X-API-Key"} {
		r := request()
		r.URL.RawQuery = query + "=prefix"
		r.Form = map[string][]string{query: {"prefix"}}
		r.Trailer = http.Header{"X-Api-Key": {"prefix"}}
		if got := reason(t, a, r); got != "none" {
			t.Errorf("?%s: %s", query, got)
		}
	}
}
