package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
)

// A KeyTable finds API keys that are kept elsewhere than in Options.Keys. It is asked
// for digests that are not there alone.
type KeyTable interface {
	// Lookup returns the key whose SHA-256 is digest, or nil if there is none. With
	// onlyKnown it asks nobody for a key that it does not know yet, and returns nil. The
	// error wraps ErrKeysUnavailable. It must return soon after ctx ends, be cheap for
	// a key that it knows, and be safe for concurrent use.
	Lookup(ctx context.Context, digest [32]byte, onlyKnown bool) (*Entry, error)
}

// ErrKeysUnavailable says that a [KeyTable] cannot look up a key at the moment, which
// is not the caller's doing.
var ErrKeysUnavailable = errors.New("keys cannot be looked up now")

// An Entry is a [Key] made ready for use. It is never changed, but for knowing when
// the key was last used with success.
type Entry struct {
	key       Key
	principal Principal
	used      *use
}

// NewEntry checks k and makes it ready. previous is what it replaces, or nil: a key of
// the same id and digest stays one that was used with success. k is copied.
func NewEntry(k Key, previous *Entry) (*Entry, error) {
	var errs []error
	if k.ID == "" {
		errs = append(errs, errors.New("it has no id"))
	}
	for _, f := range []struct{ name, value string }{
		{"id", k.ID}, {"user", k.User}, {"tenant", k.Tenant}, {"plan", k.Plan},
	} {
		if err := checkIdentity(f.value); err != nil {
			errs = append(errs, fmt.Errorf("its %s %w", f.name, err))
		}
	}
	switch k.SHA256 {
	case [32]byte{}:
		errs = append(errs, errors.New("it has no sha256"))
	case sha256.Sum256(nil):
		errs = append(errs, errors.New("its sha256 is that of the empty key, which never matches"))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	k.AllowIPs, k.Routes, k.Scopes = slices.Clone(k.AllowIPs), slices.Clone(k.Routes), slices.Clone(k.Scopes)
	e := &Entry{key: k, used: &use{id: k.ID}, principal: Principal{
		Method: MethodAPIKey, User: k.User, Tenant: k.Tenant, Plan: k.Plan, KeyID: k.ID, Expires: k.Expires,
		Scopes: k.Scopes, Routes: k.Routes,
	}}
	if k.User == "" {
		e.principal.User = keyUserPrefix + k.ID
	}
	if previous != nil && previous.key.SHA256 == k.SHA256 && previous.key.ID == k.ID {
		e.used = previous.used
	}
	return e, nil
}
