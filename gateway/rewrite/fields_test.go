package rewrite_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"bouncer/gateway/rewrite"
	"bouncer/gateway/scope"
)

func TestFieldsAreRemovedThenSetThenAdded(t *testing.T) {
	t.Parallel()
	f, err := rewrite.NewFields(rewrite.Changes{
		Remove: []string{"x-old", "X-Both"},
		Set: []rewrite.Field{
			{Name: "X-Both", Value: "new"}, {Name: "x-caller", Value: "{user}@{tenant}"}, {Name: "X-Key", Value: "{key_id}"},
			{Name: "X-Where", Value: "{method} {host}{path}?{query} on {route} as {plan} from {client_ip}, {request_id}"},
			{Name: "X-Brace", Value: "{{user}"},
		},
		Add: []rewrite.Field{{Name: "X-List", Value: "c"}, {Name: "X-List", Value: "{key_id}"}, {Name: "X-Both", Value: "more"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	shared := []string{"a", "b"}
	h := http.Header{"X-Old": {"1"}, "X-Both": {"1", "2"}, "X-Key": {"forged"}, "X-List": shared[:1]}
	r := httptest.NewRequest("GET", "http://a.example/x%2Fy?q=1", nil)
	f.Apply(h, r, &scope.Request{
		User: "priya", Tenant: "acme", Plan: "free", Route: "weather", ID: "id-1", ClientIP: netip.MustParseAddr("192.0.2.7"),
	})
	want := http.Header{
		"X-Both": {"new", "more"}, "X-Caller": {"priya@acme"}, "X-List": {"a", "c"}, "X-Brace": {"{user}"},
		"X-Where": {"GET a.example/x%2Fy?q=1 on weather as free from 192.0.2.7, id-1"},
	}
	if !reflect.DeepEqual(h, want) {
		t.Errorf("%v\nwant %v", h, want)
	}
	if shared[1] != "b" {
		t.Error("the values of another header were written to")
	}
	var none *rewrite.Fields
	if none.Apply(h, r, &scope.Request{}); !reflect.DeepEqual(h, want) || none.Host(r, nil) != "" {
		t.Error("no changes change something")
	}
}

func TestTheHostIsKeptOrSet(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest("GET", "http://a.example:8080/x", nil)
	for value, want := range map[string]string{"{host}": "a.example:8080", "b.example": "b.example"} {
		f, err := rewrite.NewFields(rewrite.Changes{Set: []rewrite.Field{{Name: "host", Value: value}}})
		if err != nil {
			t.Fatal(err)
		}
		h := http.Header{}
		f.Apply(h, r, &scope.Request{})
		if got := f.Host(r, &scope.Request{}); got != want || len(h) != 0 {
			t.Errorf("%s: %q and %v; want %q and no field", value, got, h, want)
		}
	}
}

func TestAHostIsAHost(t *testing.T) {
	t.Parallel()
	for value, good := range map[string]bool{
		"a.example": true, "a.example:8080": true, "[::1]:80": true, "{host}": true, "{tenant}.example": true,
		"a/b": false, "https://a": false, "a b": false, "{path}": false, "{query}": false, "a{path}": false, "{tenant}/x": false,
		"a@b": false, strings.Repeat("a", 300): false,
	} {
		_, err := rewrite.NewFields(rewrite.Changes{Set: []rewrite.Field{{Name: "host", Value: value}}})
		if (err == nil) != good {
			t.Errorf("%q: %v", value, err)
		}
	}
}

func TestWhatNoRouteCanChange(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"", "a b", "a:b", "ü", "Connection", "transfer-encoding", "Content_Length", "X-Forwarded-For", "x_forwarded_anything", "X-Real-IP",
		"X-Auth-User", "x.auth.user", "X.Forwarded.For", "Via", "traceparent", "X-Request-ID", "RateLimit", "X-RateLimit-Limit",
	} {
		for _, c := range []rewrite.Changes{
			{Remove: []string{name}}, {Set: []rewrite.Field{{Name: name, Value: "x"}}}, {Add: []rewrite.Field{{Name: name, Value: "x"}}},
		} {
			if _, err := rewrite.NewFields(c); err == nil {
				t.Errorf("%+v is accepted", c)
			}
		}
	}
	for value, want := range map[string]string{
		"{nobody}": "{nobody} is no placeholder; want one of {client_ip}, {host}", "{user": "without a }",
		"a\r\nb": "control character", "{" + strings.Repeat("x", 100) + "}": "…}",
	} {
		if err := rewrite.CheckValue(value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", value, err, want)
		}
	}
}
