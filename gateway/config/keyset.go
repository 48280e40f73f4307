package config

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"bouncer/gateway/jwks"
)

// Provider is where an issuer's keys are fetched as a JWK set (RFC 7517).
type Provider struct {
	// Address is the URL of the set, with all that it may hold; nil: it is found by
	// the issuer (OpenID Connect Discovery).
	Address Secret
	// URL is Address, fit to be shown: what stands before the @ or in the query is
	// masked.
	URL               string
	Refresh, MaxStale time.Duration // default 10m and 24h
	TLS               *TLS          // nil: as the system trusts
}

const (
	minRefresh, maxRefresh = jwks.MinRefresh, day
	maxMaxStale            = 30 * day

	wantedSetURL = "https:// and where the set is, or http:// on this machine"
)

// keyFields are the fields of an issuer that say where its keys are. Where none of
// them is there, they are found by the issuer.
var keyFields = []string{"jwks_url", "jwks_file", "public_key_file", "secret_file"}

// fetchFields are those that say how keys are fetched.
var fetchFields = []string{"refresh", "max_stale", "tls"}

// readKeys reads where the keys of is are, of which exactly one may be said. hs
// and pk say which kinds of algorithms there are, which stand at algorithms.
func (o *object) readKeys(is *Issuer, issuer, algorithms value, hs, pk bool) {
	is.SecretEncoding = o.readSecretEncoding()
	at := map[string]value{}
	for field, wanted := range map[string]string{
		"secret_file":     "a file that holds the secret, or a list of them",
		"public_key_file": "a PEM file with a public key, or a list of them",
		"jwks_file":       "a file with a JWK set",
		"jwks_url":        "the URL of a JWK set",
	} {
		if v, ok := o.get(field, wanted); ok {
			at[field] = v
		}
	}
	secretAt, isSecret := at["secret_file"]
	switch {
	case isSecret && len(at) > 1:
		secretAt.keyErrorf("secrets and public keys never stand in one entry; make two entries, or remove one")
	case len(at) > 1:
		for _, field := range keyFields[1:] {
			if v, ok := at[field]; ok {
				v.keyErrorf("the keys are looked for in one place; want one of %s", oneOf(keyFields[:3]))
				break
			}
		}
	case isSecret:
		is.Secrets, is.KeyFiles = secretAt.readSecrets(is.Algorithms, is.SecretEncoding)
		if pk && !hs {
			algorithms.errorf("only HS256, HS384 and HS512 are verified with a secret_file; want those, or a public_key_file")
		}
	case hs && !pk && len(at) == 0 && !slices.ContainsFunc(keyFields, o.has):
		o.errorf("no secret to verify tokens with; want secret_file")
	default:
		o.readPublic(is, at, issuer, algorithms, hs)
		if hs && !pk {
			algorithms.errorf("HS256, HS384 and HS512 are verified with a secret, and a public key is none; want secret_file, or other algorithms")
		}
	}
	if is.Provider == nil {
		for _, field := range fetchFields {
			o.known = append(o.known, field)
			// Where jwks_url is there, something else is wrong with it.
			if v, ok := o.fields[field]; ok && !o.has("jwks_url") && len(at) > 0 {
				v.keyErrorf("is about keys that are fetched, and these are in a file; want jwks_url, or remove it")
			}
		}
	}
}

// readPublic reads where the public keys of is are: at one of the fields, or, if
// there is none, at the issuer's provider.
func (o *object) readPublic(is *Issuer, at map[string]value, issuer, algorithms value, quiet bool) {
	if v, ok := at["public_key_file"]; ok {
		is.PublicKeys, is.KeyFiles = v.readPublicKeys(is.Algorithms, algorithms, quiet)
		return
	}
	if v, ok := at["jwks_file"]; ok {
		is.KeySet, is.KeyFiles = v.readKeySet(is.Algorithms, algorithms, quiet)
		return
	}
	p := &Provider{}
	if v, ok := at["jwks_url"]; ok {
		p.readURL(v)
	} else if slices.ContainsFunc(keyFields, o.has) {
		return // it is there, and has no value
	} else if strings.HasSuffix(is.Issuer, jwks.DiscoveryPath) {
		issuer.errorf("this is where its discovery document is, and no token names it as its issuer; want what stands before %s", jwks.DiscoveryPath)
	} else if is.Issuer != "" {
		if err := checkDiscovery(is.Issuer); err != "" {
			issuer.errorf("no key to verify tokens with, and they cannot be found by the issuer (OIDC discovery): %s; want one of %s", err, oneOf(keyFields))
		}
	} else if !o.has("algorithms") {
		o.errorf("no key to verify tokens with; want one of %s, or an issuer whose keys can be found by its URL (OIDC discovery)", oneOf(keyFields))
	}
	is.Provider = p
	p.Refresh = o.duration("refresh", jwks.DefaultRefresh, minRefresh, maxRefresh)
	p.MaxStale = max(jwks.DefaultMaxStale, p.Refresh)
	if v, ok := o.get("max_stale", "a duration such as 24h"); ok {
		if d, ok := v.duration(minRefresh, maxMaxStale); ok {
			if d < p.Refresh {
				v.errorf("%s is less than refresh (%s), so that good keys would be dropped before they are fetched again; want that at least", formatDuration(d), formatDuration(p.Refresh))
			}
			p.MaxStale = d
		}
	}
	if v, ok := o.get("tls", "ca_file, cert_file, key_file or server_name"); ok {
		p.TLS = readTLS(v)
		if from := strings.ToLower(string(p.Address)); strings.HasPrefix(from, "http:") {
			v.keyErrorf("is for a provider that is spoken to by https; remove it, or want https:// in jwks_url")
		}
	}
}

// readURL reads jwks_url. Nothing of it is repeated: a password may stand in it.
func (p *Provider) readURL(v value) {
	s, ok := v.word(wantedSetURL)
	if !ok {
		return
	}
	u, err := url.Parse(s)
	if err == nil {
		err = jwks.CheckURL(s)
	} else {
		v.errorf("it is not a URL; want %s", wantedSetURL)
		return
	}
	switch {
	case err != nil:
		v.errorf("%v; want %s", err, wantedSetURL)
	case !isHost(u.Hostname()):
		v.errorf("bad host; want %s", wantedSetURL)
	case !isPort(u):
		v.errorf("bad port; want a number from 1 to 65535")
	default:
		p.Address, p.URL = Secret(s), shownURL(u)
	}
}

// shownURL is u with what may be secret in it masked.
func shownURL(u *url.URL) string {
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	s := shown.String()
	if u.User != nil {
		s = strings.Replace(s, "://", "://"+masked+"@", 1)
	}
	if u.RawQuery != "" {
		s += "?" + masked
	}
	return s
}

// checkDiscovery says why the keys of an issuer cannot be found by its name; empty
// if they can.
func checkDiscovery(issuer string) string {
	if err := jwks.CheckURL(issuer); err != nil {
		return strings.Replace(err.Error(), "it ", "the issuer ", 1)
	}
	if u, err := url.Parse(issuer); err != nil || u.User != nil || u.RawQuery != "" || u.ForceQuery || !isHost(u.Hostname()) || !isPort(u) {
		return "the issuer holds a user, a query, or a bad host or port"
	}
	return ""
}

// maxSkippedKeys is how many warnings there are of keys that a file's set has for
// nothing.
const maxSkippedKeys = 8

// readKeySet reads jwks_file. Every algorithm must have a key; that there are keys
// for others is how providers publish them. quiet leaves that out where the
// algorithms were wrong already.
func (v value) readKeySet(algorithms []string, at value, quiet bool) (*jwks.Set, []string) {
	path, data, ok := v.content("a JWK set")
	if !ok {
		return nil, nil
	}
	set, err := jwks.Parse(data)
	if err != nil {
		v.errorf("%s cannot be used: %v; want a JSON object whose keys are a list of public keys (RFC 7517)", path, err)
		return nil, nil
	}
	for n, line := range set.Skipped() {
		if n == maxSkippedKeys {
			v.warnf("%s: %d more keys are left out", path, len(set.Skipped())-n)
			break
		}
		v.warnf("%s: a key is left out: %s", path, line)
	}
	for _, alg := range algorithms {
		if !quiet && !slices.ContainsFunc(set.Keys(), func(k jwks.Key) bool { return KeyFits(k, alg) }) {
			at.errorf("no key of jwks_file fits %s; remove it, or add such a key", alg)
		}
	}
	return set, []string{absolute(path)}
}

// KeyFits reports whether tokens of an algorithm can be verified with a key of a
// set: it is of the right type, and for no other algorithm alone.
func KeyFits(k jwks.Key, alg string) bool {
	return keyFits(k.Public, alg) && (k.Algorithm == "" || k.Algorithm == alg)
}

// text is where the keys are fetched, as Describe tells it; empty if they are not.
func (p *Provider) text() string {
	switch {
	case p == nil:
		return ""
	case p.URL == "":
		return "found by the issuer"
	}
	return p.URL
}
