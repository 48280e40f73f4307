package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// keyDecl is a key and where its parts stand.
type keyDecl struct {
	Key
	at     value
	planAt value
	routes []ref
}

const wantedKeys = "keys: [] or a list of keys"

// readKeysFile reads a key file. named is where its name stands, for saying
// that it is missing; nil stands for the command line.
func readKeysFile(s *source, path string, named *value) ([]keyDecl, bool) {
	data, err := s.read(path)
	if err != nil {
		message := err.Error()
		if errors.Is(err, errNoFile) {
			message += "; make one with: gateway keys new -file " + path + " -user … -plan …"
		}
		if named != nil {
			named.errorf("read %s: %s", path, message)
		} else {
			s.report.add(Problem{Pos: Pos{File: path}, Message: message})
		}
		return nil, false
	}
	d := &doc{src: s, name: path, data: data, raw: true}
	root, ok := d.parse(wantedKeys)
	if !ok {
		return nil, false
	}
	return readKeys(root)
}

// readKeys reads the document of a key file. It returns the keys that have at
// least an id, also when others were wrong.
func readKeys(root value) ([]keyDecl, bool) {
	o, ok := root.object(wantedKeys)
	if !ok {
		return nil, false
	}
	o.extensions = true
	var items []value
	if v, ok := o.fields["keys"]; ok && isNull(v.n) {
		o.known = append(o.known, "keys") // all keys were taken out by hand
	} else if v, ok := o.need("keys", "a list of keys, [] if there are none"); ok {
		items, _ = v.list("a list of keys")
	}
	o.done()
	ids := map[string]value{}
	digests := map[[32]byte]keyDecl{}
	keys := make([]keyDecl, 0, len(items))
	for _, item := range items {
		o, ok := item.object("id, sha256, user, tenant, plan, expires, routes, allow_ips and scopes")
		if !ok {
			continue
		}
		k, idAt, digestAt := readKey(o)
		if k.ID == "" {
			continue
		}
		if first, twice := ids[k.ID]; twice {
			idAt.errorf("id %s is given twice; the first one is at line %d, column %d", quote(k.ID), first.n.Line, first.n.Column)
			continue
		}
		ids[k.ID] = idAt
		if digestAt.given() {
			if first, twice := digests[k.SHA256]; twice {
				digestAt.errorf("%s has the same key as %s at line %d; every caller needs a key of its own",
					k.ID, first.ID, first.Pos.Line)
			} else {
				digests[k.SHA256] = k
			}
		}
		keys = append(keys, k)
	}
	return keys, true
}

// emptyDigest is the digest of no bytes at all.
var emptyDigest = sha256.Sum256(nil)

// readKey reads one key. digestAt is not given if the digest was wrong.
func readKey(o *object) (k keyDecl, idAt, digestAt value) {
	k.at, k.Pos = o.value, o.pos()
	if v, ok := o.need("id", "a name for the key, such as k-7f3a"); ok {
		idAt = v
		if s, ok := v.word("a name for the key, such as k-7f3a"); ok {
			switch {
			case strings.HasPrefix(s, keyPrefix):
				// Not repeated: it stands in logs and in what upstreams get.
				v.errorf("looks like a key, which is a secret, and an id is not; want a name such as k-7f3a")
			case isKeyID(s):
				k.ID = s
			default:
				v.errorf("bad id %s; want letters, digits and . : _ -, at most %d", quote(s), maxName)
			}
		}
	}
	if v, ok := o.need("sha256", "the SHA-256 of the key in hex"); ok {
		// The text as written: 64 digits could pass for a number. It is never
		// repeated, since it may be the key itself.
		s, _, ok := v.scalar("the SHA-256 of the key in hex")
		switch sum, err := hex.DecodeString(s); {
		case !ok:
		case err != nil || len(sum) != len(k.SHA256):
			v.errorf("not a SHA-256: want 64 hex digits, got %d characters; gateway keys new makes a key and its digest", len([]rune(s)))
		case [32]byte(sum) == emptyDigest:
			v.errorf("is the SHA-256 of an empty key; gateway keys new makes a key and its digest")
		default:
			k.SHA256 = [32]byte(sum)
			digestAt = v
		}
	}
	if v, ok := o.get("user", "the name of the user"); ok {
		if k.User = v.identity("the name of the user"); strings.HasPrefix(k.User, keyUserPrefix) {
			v.errorf("begins with %s, as callers are called whose key has no user; want another name, or leave it out", keyUserPrefix)
		}
	}
	if v, ok := o.get("tenant", "the name of the tenant"); ok {
		k.Tenant = v.identity("the name of the tenant")
	}
	if v, ok := o.get("plan", "the name of a plan"); ok {
		k.Plan, _ = v.word("the name of a plan")
		k.planAt = v
	}
	if v, ok := o.get("expires", "a date such as 2027-06-30"); ok {
		if s, ok := v.text("a date such as 2027-06-30"); ok {
			t, err := ParseExpiry(s)
			if err != nil {
				v.errorf("%v", err)
			} else if !t.After(time.Now()) {
				v.warnf("the key %s has expired; gateway keys revoke %s removes it", quote(k.ID), k.ID)
			}
			k.Expires = t
		}
	}
	k.readKeyUse(o)
	o.done()
	return k, idAt, digestAt
}

// keyUserPrefix begins what a caller is called whose key has no user. Tokens and
// certificates may not name such a user either.
const keyUserPrefix = "key:"

// keyPrefix begins the keys that gateway keys makes.
const keyPrefix = "bn_live_"

// isKeyID reports whether s may name a key: it stands in headers and logs.
func isKeyID(s string) bool {
	for i := range len(s) {
		c := s[i]
		if ('a' > c || c > 'z') && ('A' > c || c > 'Z') && ('0' > c || c > '9') && !strings.ContainsRune(".:_-", rune(c)) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// ParseExpiry reads when a key ends: a date, which ends with its day in UTC,
// or an RFC 3339 time. It returns the first instant at which the key no longer
// works.
func ParseExpiry(s string) (time.Time, error) {
	if t, err := time.Parse(time.DateOnly, s); err == nil {
		return t.AddDate(0, 0, 1), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s is not a date; want one such as 2027-06-30, or a time such as 2027-06-30T18:00:00Z", quote(s))
	}
	return t.UTC(), nil
}
