package auth

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
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
	entries map[[32]byte]*Entry
	ids     map[string]bool
	table   KeyTable // asked for what is not in entries; nil: nobody is
	uses    *UseLog  // told of keys that are used with success; nil: nobody is
}

func newKeys(o Options) (*keys, error) {
	list, header, previous := o.Keys, o.KeyHeader, o.Previous
	var errs []error
	if header == "" {
		header = DefaultKeyHeader
	}
	k := &keys{query: o.KeyQuery, header: http.CanonicalHeaderKey(header), entries: make(map[[32]byte]*Entry, len(list)), table: o.KeyTable, uses: o.UseLog}
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
		if key.ID != "" && ids[key.ID] {
			bad("another key has the same id; give each its own")
		}
		ids[key.ID] = true
		if other := k.entries[key.SHA256]; other != nil {
			bad("key %q has the same sha256; one key cannot be two callers", other.key.ID)
		}
		var former *Entry
		if previous != nil && previous.keys != nil {
			former = previous.keys.entries[key.SHA256]
		}
		e, err := NewEntry(key, former)
		if err != nil {
			bad("%w", err)
			continue
		}
		k.entries[key.SHA256] = e
	}
	return k, errors.Join(errs...)
}

// authenticate looks a key up. Keys of any form are accepted as long as their
// digest is known: people bring their own.
func (k *keys) authenticate(ctx context.Context, key string, now time.Time, c Check) (Principal, *refusal) {
	switch {
	case key == "":
		return Principal{}, refuse(ReasonMalformed, "the key is empty")
	case len(key) > MaxKeyBytes:
		return Principal{}, refuse(ReasonOversize, "the key is %d bytes long; at most %d", len(key), MaxKeyBytes)
	}
	digest := digestOf(key)
	e := k.entries[digest]
	if e != nil && subtle.ConstantTimeCompare(e.key.SHA256[:], digest[:]) != 1 {
		e = nil
	}
	mistyped := e == nil && strings.HasPrefix(key, keyPrefix) && !checksumFits(key)
	if e == nil && k.table != nil && !mistyped {
		var err error
		if e, err = k.table.Lookup(ctx, digest, c.OnlyKnown); err != nil && !c.OnlyKnown {
			return Principal{}, refuse(ReasonKeysUnavailable, "%v", err)
		}
	}
	switch {
	case c.OnlyKnown && (e == nil || !e.used.seen()):
		return Principal{}, notKnown
	case mistyped:
		return Principal{}, k.guessed(key, refuse(ReasonChecksum, "the key's checksum does not fit: it was mistyped or cut"))
	case e == nil:
		return Principal{}, k.guessed(key, refuse(ReasonUnknownKey, "no such key"))
	case !e.key.Expires.IsZero() && !now.Before(e.key.Expires):
		return Principal{}, refuse(ReasonExpired, "key %s expired at %s", e.key.ID, e.key.Expires.UTC().Format(time.RFC3339))
	case !Within(e.key.AllowIPs, c.ClientIP):
		return Principal{}, refuse(ReasonWrongAddress, "key %s is not for this address", e.key.ID)
	}
	e.used.note(now, k.uses)
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
