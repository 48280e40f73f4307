package auth_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http/httptest"
	"time"

	"bouncer/gateway/auth"
)

func ExampleNew() {
	a, err := auth.New(auth.Options{
		APIKeys: true,
		Keys: []auth.Key{{
			ID: "k-7f3a", SHA256: sha256.Sum256([]byte("an example key")),
			User: "priya123", Tenant: "acme", Plan: "free",
			Expires: time.Date(2027, 7, 1, 0, 0, 0, 0, time.UTC),
		}},
		Now: func() time.Time { return time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := httptest.NewRequest("GET", "/api/weather", nil)
	r.Header.Set("X-API-Key", "an example key")
	p, err := a.Authenticate(r, auth.Check{})
	fmt.Println(p.Method, p.User, p.Tenant, p.Plan, p.KeyID, err)

	r.Header.Set("X-API-Key", "a guess")
	_, err = a.Authenticate(r, auth.Check{})
	if refused, ok := errors.AsType[*auth.RefusedError](err); ok {
		fmt.Println("401, for the log:", refused.Reason)
	}
	fmt.Println(a.Challenges())
	// Output:
	// api_key priya123 acme free k-7f3a <nil>
	// 401, for the log: unknown_key
	// [Bearer realm="gateway" ApiKey realm="gateway"]
}
