package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Key is one API key. The key itself is not kept anywhere, only its digest.
type Key struct {
	ID      string   // what the key is called in logs, metrics and lists; not secret
	SHA256  [32]byte // SHA-256 of the key's bytes
	User    string   // empty: the caller is called "key:" and the id
	Tenant  string
	Plan    string
	Expires time.Time // the first instant at which it no longer works; zero: never
	// AllowIPs are the networks of the clients that may use it, masked; empty: any.
	// From anywhere else it is as bad as a wrong key.
	AllowIPs []netip.Prefix
	// Routes and Scopes become those of the Principal.
	Routes, Scopes []string
}

// keys is the table of API keys.
//
// A key is found by its SHA-256 in an ordinary map. That the time of such a
// look-up depends on what is looked for does not help whoever is guessing: a
// key that is right in all but its last byte has a digest that shares nothing
// with the right one, so no guess can be improved piece by piece, and a digest
// that begins like a stored one can only be found by trying.
type keys struct {
	header  string
	query   string // the parameter of the query that keys come in; empty: none
	entries map[[32]byte]*keyEntry
	ids     map[string]bool
}

type keyEntry struct {
	digest    [32]byte
	principal Principal
	expires   time.Time
	allowIPs  []netip.Prefix // nil: any
	// seen says that the key was presented while it was valid. It is shared
	// with the same key's entry in the configurations before and after.
	seen *atomic.Bool
}

func newKeys(o Options) (*keys, error) {
	list, header, previous := o.Keys, o.KeyHeader, o.Previous
	var errs []error
	if header == "" {
		header = DefaultKeyHeader
	}
	k := &keys{query: o.KeyQuery, header: http.CanonicalHeaderKey(header), entries: make(map[[32]byte]*keyEntry, len(list))}
	switch {
	case !isToken(header):
		errs = append(errs, fmt.Errorf("api keys: %q is not a field name", header))
	case k.header == "Authorization":
		errs = append(errs, errors.New("api keys: the header cannot be Authorization; `Authorization: ApiKey ...` works beside any other header"))
	case k.header == "Cookie":
		errs = append(errs, errors.New("api keys: the header cannot be Cookie; name a header of its own, such as X-API-Key"))
	}
	if !isUnreserved(k.query) {
		errs = append(errs, fmt.Errorf("api keys: %q is no name of a parameter; want letters, digits and - . _ ~", k.query))
	}
	ids := make(map[string]bool, len(list))
	k.ids = ids
	for i, key := range list {
		name := fmt.Sprintf("api key %d (%q)", i+1, key.ID)
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s: %w", name, fmt.Errorf(format, args...)))
		}
		if key.ID == "" {
			bad("it has no id")
		} else if ids[key.ID] {
			bad("another key has the same id; give each its own")
		}
		ids[key.ID] = true
		for _, f := range []struct{ name, value string }{
			{"id", key.ID}, {"user", key.User}, {"tenant", key.Tenant}, {"plan", key.Plan},
		} {
			if err := checkIdentity(f.value); err != nil {
				bad("its %s %w", f.name, err)
			}
		}
		switch other := k.entries[key.SHA256]; {
		case key.SHA256 == [32]byte{}:
			bad("it has no sha256")
		case key.SHA256 == sha256.Sum256(nil):
			bad("its sha256 is that of the empty key, which never matches")
		case other != nil:
			bad("key %q has the same sha256; one key cannot be two callers", other.principal.KeyID)
		}
		p := Principal{
			Method: MethodAPIKey, User: key.User, Tenant: key.Tenant, Plan: key.Plan, KeyID: key.ID, Expires: key.Expires,
			Scopes: slices.Clone(key.Scopes), Routes: slices.Clone(key.Routes),
		}
		if p.User == "" {
			p.User = keyUserPrefix + key.ID
		}
		e := &keyEntry{
			digest: key.SHA256, principal: p, expires: key.Expires, allowIPs: slices.Clone(key.AllowIPs), seen: new(atomic.Bool),
		}
		if previous != nil && previous.keys != nil {
			if old := previous.keys.entries[key.SHA256]; old != nil && old.principal.KeyID == key.ID {
				e.seen = old.seen
			}
		}
		k.entries[key.SHA256] = e
	}
	return k, errors.Join(errs...)
}

// authenticate looks a key up. Keys of any form are accepted as long as their
// digest is known: people bring their own.
func (k *keys) authenticate(key string, now time.Time, c Check) (Principal, *refusal) {
	switch {
	case key == "":
		return Principal{}, refuse(ReasonMalformed, "the key is empty")
	case len(key) > MaxKeyBytes:
		return Principal{}, refuse(ReasonOversize, "the key is %d bytes long; at most %d", len(key), MaxKeyBytes)
	}
	digest := digestOf(key)
	e := k.entries[digest]
	if e != nil && subtle.ConstantTimeCompare(e.digest[:], digest[:]) != 1 {
		e = nil
	}
	switch {
	case c.OnlyKnown && (e == nil || !e.seen.Load()):
		return Principal{}, notKnown
	case e == nil && strings.HasPrefix(key, keyPrefix) && !checksumFits(key):
		return Principal{}, k.guessed(key, refuse(ReasonChecksum, "the key's checksum does not fit: it was mistyped or cut"))
	case e == nil:
		return Principal{}, k.guessed(key, refuse(ReasonUnknownKey, "no such key"))
	case !e.expires.IsZero() && !now.Before(e.expires):
		return Principal{}, refuse(ReasonExpired, "key %s expired at %s", e.principal.KeyID, e.expires.UTC().Format(time.RFC3339))
	case !Within(e.allowIPs, c.ClientIP):
		return Principal{}, refuse(ReasonWrongAddress, "key %s is not for this address", e.principal.KeyID)
	}
	if !e.seen.Load() { // a store by every request would move the line between cores
		e.seen.Store(true)
	}
	return e.principal, nil
}

// guessed notes which key a wrong one was a guess at, if that is to be seen. Whoever
// guesses may make the checksum fit or not.
func (k *keys) guessed(key string, why *refusal) *refusal {
	if id := publicID(key); k.ids[id] {
		why.keyID = id
	}
	return why
}

// Within says whether ip is in one of the networks that a key is for; any address
// is where none is named. An address that is not known is in none.
func Within(networks []netip.Prefix, ip netip.Addr) bool {
	if len(networks) == 0 {
		return true
	}
	ip = ip.Unmap().WithZone("") // no network has a zone
	for _, n := range networks {
		if n.Contains(ip) {
			return true
		}
	}
	return false
}
