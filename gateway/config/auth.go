package config

import (
	"crypto"
	"slices"
	"strings"
	"time"

	"bouncer/gateway/jwks"
)

// authSection is auth, and what later checks must know of it.
type authSection struct {
	Auth
	// given says that a way to authenticate was written down, right or wrong.
	given bool
	// keysFile is where api_keys.file stands; keysKnown says the file was read.
	keysFile  value
	redisKeys value // api_keys.redis, if it is there
	keysKnown bool
	keysName  string // the file, as problems show it
	keys      []keyDecl
	// clientCertsAt is where client_certs stands.
	clientCertsAt value
	// unsure says that some part could not be read, so that what was meant
	// cannot be known.
	unsure bool
	// hasKeys says that api_keys is there, right or wrong.
	hasKeys bool
	// claimsPlan says that some token may name a plan, claimsTenant a tenant.
	claimsPlan, claimsTenant bool
}

// readAuth reads auth.
func readAuth(top *object) authSection {
	a := authSection{Auth: Auth{FailureLimit: &Rate{Quota: 60, Window: time.Minute}}}
	v, ok := top.get("auth", "jwt, api_keys or client_certs")
	if !ok {
		return a
	}
	o, ok := v.object("jwt, api_keys, client_certs and failure_limit")
	if !ok {
		a.given, a.unsure = true, true
		return a
	}
	a.hasKeys = o.has("api_keys")
	if v, ok := o.get("jwt", "a list of issuers"); ok {
		a.given = true
		a.readIssuers(v)
	}
	if v, ok := o.get("api_keys", "file and header"); ok {
		a.given = true
		a.readAPIKeys(v)
	}
	if v, ok := o.get("client_certs", wantedClientCerts); ok {
		a.given = true
		a.readClientCerts(v)
	}
	if v, ok := o.get("failure_limit", "a rate such as 60/minute, or off"); ok {
		v.failureLimit(&a.FailureLimit)
	}
	o.done()
	return a
}

// failureLimit reads how often one may fail; nil for off.
func (v value) failureLimit(into **Rate) {
	if s, _, ok := v.scalar("a rate such as 60/minute, or off"); !ok {
		return
	} else if s == "off" || s == "false" {
		*into = nil
		return
	}
	r, ok := v.rate()
	if !ok {
		return
	}
	if r.Quota == 0 {
		v.errorf("0 would refuse every credential; want 1 or more, or off")
		return
	}
	if checkArithmetic(v, r, r.Quota, true) {
		*into = &r
	}
}

func (a *authSection) readIssuers(v value) {
	items, ok := v.list("a list of issuers")
	if !ok {
		a.unsure = true
		return
	}
	if len(items) == 0 {
		v.errorf("names no issuer; want at least one, or leave it out")
	}
	issuers := map[string]value{}
	for _, item := range items {
		o, ok := item.object("issuer, algorithms and a key")
		if !ok {
			a.unsure = true
			continue
		}
		is, at := a.readIssuer(o)
		if first, twice := issuers[is.Issuer]; twice && is.Issuer != "" {
			at.errorf("issuer %s is given twice; the first one is at line %d, column %d; put all its keys into one entry",
				quote(is.Issuer), first.n.Line, first.n.Column)
		} else if is.Issuer != "" {
			issuers[is.Issuer] = at
		}
		a.JWT = append(a.JWT, is)
	}
}

var (
	secretAlgorithms = []string{"HS256", "HS384", "HS512"}
	publicAlgorithms = []string{
		"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
	}
)

// readIssuer reads one entry of auth.jwt, and where its issuer stands.
func (a *authSection) readIssuer(o *object) (*Issuer, value) {
	is := &Issuer{Pos: o.pos(), Claims: Claims{User: "sub"}}
	at := o.value
	if v, ok := o.need("issuer", "the iss of its tokens, exactly as they have it"); ok {
		at = v
		is.Issuer, _ = v.word("the iss of its tokens, exactly as they have it")
	}
	if v, ok := o.get("audience", "the aud of its tokens"); ok {
		_, is.Audience, ok = v.words("audiences", true)
		if ok && len(is.Audience) == 0 {
			v.errorf("names no audience, so that no token would pass; want at least one, or leave it out")
		}
	} else if !o.has("audience") {
		o.warnf("audience is left out: a token that the issuer made for another service passes here too")
	}
	hs, pk, algorithmsAt := o.readAlgorithms(is)

	o.readKeys(is, at, algorithmsAt, hs, pk)

	if v, ok := o.get("cookie", "the name of a cookie"); ok {
		if s, ok := v.word("the name of a cookie"); ok {
			if !isToken(s) {
				v.errorf("%s is not the name of a cookie", quote(s))
			}
			is.Cookie = s
		}
	}
	if v, ok := o.get("cookie_cross_origin", "refuse or allow"); ok {
		s, _ := v.choice([]string{"refuse", "allow"})
		is.CookieCrossOrigin = s == "allow"
		if !o.has("cookie") {
			v.keyWarnf("has no effect: the issuer's tokens come in no cookie; want cookie, or remove it")
		}
	}
	if v, ok := o.get("leeway", "a duration such as 30s"); ok {
		if d, ok := v.duration(0, day); ok {
			if d > 5*time.Minute {
				v.warnf("expired tokens pass for %s more; clocks are rarely further apart than 1m", formatDuration(d))
			}
			is.Leeway = d
		}
	}
	if v, ok := o.get("claims", "user, tenant, plan or scopes"); ok {
		if c, ok := v.object("user, tenant, plan or scopes"); ok {
			if s := c.word("user", "the name of a claim"); s != "" {
				is.Claims.User = s
			}
			is.Claims.Tenant = c.word("tenant", "the name of a claim")
			is.Claims.Plan = c.word("plan", "the name of a claim")
			is.Claims.Scopes = c.word("scopes", "the name of a claim")
			a.claimsTenant = a.claimsTenant || c.has("tenant")
			c.done()
		} else {
			a.unsure = true
		}
	}
	if is.Claims.Plan != "" {
		a.claimsPlan = true
	}
	o.done()
	return is, at
}

// readAlgorithms reads algorithms and says whether some want a secret and some
// a public key.
func (o *object) readAlgorithms(is *Issuer) (secret, public bool, at value) {
	v, ok := o.need("algorithms", "a list such as [RS256, ES256]")
	if !ok {
		return false, false, o.value
	}
	vs, names, ok := v.words("algorithms", false)
	if ok && len(vs) == 0 {
		v.errorf("allows no algorithm; want at least one such as RS256")
	}
	for i, s := range names {
		switch {
		case strings.EqualFold(s, "none"):
			vs[i].errorf("tokens without a signature are never accepted; remove it")
			continue
		case slices.Contains(secretAlgorithms, s):
			secret = true
		case slices.Contains(publicAlgorithms, s):
			public = true
		default:
			all := slices.Concat(secretAlgorithms, publicAlgorithms)
			vs[i].errorf("unknown algorithm %s; want %s%s", quote(s), oneOf(all), suggest(s, all))
			continue
		}
		is.Algorithms = append(is.Algorithms, s)
	}
	if secret && public {
		v.errorf("HS256, HS384 and HS512 never stand beside public-key algorithms: a public key could then pass for the secret; make two entries")
	}
	return secret, public, v
}

// readPublicKeys reads public_key_file: one file or a list. Every key must fit
// some algorithm, and every algorithm some key; quiet leaves that out where
// the algorithms were wrong already.
func (v value) readPublicKeys(algorithms []string, at value, quiet bool) (keys []crypto.PublicKey, files []string) {
	complete := true
	for _, f := range v.fileList() {
		path, data, ok := f.content("a public key")
		if !ok {
			complete = false
			continue
		}
		ks, err := publicKeys(data)
		if err != nil {
			f.errorf("%s %v", path, err)
			complete = false
			continue
		}
		for _, k := range ks {
			fits := false
			for _, alg := range algorithms {
				fits = fits || keyFits(k, alg)
			}
			switch {
			case !fits && !quiet && len(algorithms) > 0:
				f.errorf("%s holds %s, which fits none of the algorithms %s", path, keyKind(k), strings.Join(algorithms, ", "))
				complete = false
			case slices.ContainsFunc(keys, func(other crypto.PublicKey) bool { return jwks.SameKey(other, k) }):
				f.errorf("%s holds a key that stands here twice; remove one", path)
			}
			keys = append(keys, k)
		}
		files = append(files, absolute(path))
	}
	for _, alg := range algorithms {
		fits := false
		for _, k := range keys {
			fits = fits || keyFits(k, alg)
		}
		if !fits && !quiet && complete && len(keys) > 0 {
			at.errorf("no key of public_key_file fits %s; remove it, or add such a key", alg)
		}
	}
	return keys, files
}

// fileList returns v itself, or its items if it is a list.
func (v value) fileList() []value {
	vs, _, ok := v.words("files", true)
	if ok && len(vs) == 0 {
		v.errorf("names no file; want at least one")
	}
	return vs
}

// readAPIKeys reads auth.api_keys and the file it names.
func (a *authSection) readAPIKeys(v value) {
	o, ok := v.object("file, redis and header")
	if !ok {
		return
	}
	k := &APIKeys{Header: "X-Api-Key", FailureLimit: &Rate{Quota: 60, Window: time.Minute}}
	if r, ok := o.get("redis", "hash"); ok {
		a.readRedisKeys(r, k)
	} else if !o.has("file") && !o.has("redis") {
		o.missing("file", "a file of keys, or redis with the name of a hash")
	}
	if f, ok := o.get("file", "a file of keys"); ok {
		if path, ok := f.file("a file of keys"); ok {
			k.File = absolute(path)
			a.keysFile, a.keysName = f, path
			a.keys, a.keysKnown = readKeysFile(f.d.src, path, &f)
		}
	}
	if h, ok := o.get("header", "the name of a header"); ok {
		switch s, ok := h.header(); {
		case !ok:
		case s == "Authorization":
			h.errorf("Authorization: ApiKey … works beside any header; want a header of its own such as X-API-Key, or leave it out")
		case s == "Cookie":
			h.errorf("a cookie is no place for API keys: browsers send it unasked; want a header of its own such as X-API-Key")
		case notForKeys(s):
			h.errorf("%s is about other things than who calls; want a header of its own such as X-API-Key", s)
		default:
			k.Header = s
		}
	}
	if q, ok := o.get("query", "the name of a parameter, or off"); ok {
		k.Query = q.queryParameter()
	}
	if v, ok := o.get("failure_limit", "a rate such as 60/minute, or off"); ok {
		v.failureLimit(&k.FailureLimit)
	}
	o.done()
	for _, d := range a.keys {
		k.Keys = append(k.Keys, d.Key)
	}
	a.APIKeys = k
}

// notForKeys reports whether a field has a meaning of its own that a key would disturb,
// is dropped or written by the gateway before anybody looks for a key, or is logged. name
// is in its canonical form.
func notForKeys(name string) bool {
	switch name {
	case "Accept", "Accept-Encoding", "Cache-Control", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Date", "Expect",
		"Forwarded", "Host", "Keep-Alive", "Origin", "Proxy", "Proxy-Authorization", "Proxy-Connection", "Range", "Referer", "Te",
		"Traceparent", "Tracestate", "Trailer", "Transfer-Encoding", "True-Client-Ip", "Upgrade", "User-Agent", "Via",
		"X-Auth-Key-Id", "X-Auth-Plan", "X-Auth-Tenant", "X-Auth-User", "X-Request-Id":
		return true
	}
	for _, prefix := range []string{"Access-Control-", "If-", "Sec-", "X-Forwarded-", "X-Ratelimit-", "X-Real-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// queryParameter reads the name of the parameter that keys may come in; empty for off.
func (v value) queryParameter() string {
	s, _, ok := v.scalar("the name of a parameter, or off")
	switch strings.ToLower(s) {
	case "off", "false", "no":
		return ""
	case "on", "yes", "true":
		v.errorf("%s names no parameter; want the name of one such as api_key, or off", quote(s))
		return ""
	}
	if !ok {
		return ""
	}
	if s, ok = v.word("the name of a parameter, or off"); !ok {
		return ""
	}
	if len(s) > maxName || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~") != "" {
		v.errorf("%s is not the name of a parameter; want letters, digits and - . _ ~, at most %d", quote(s), maxName)
		return ""
	}
	v.warnf("keys in URLs end up in browser histories, in the logs of every proxy and upstream on the way, and in Referer fields; " +
		"the gateway keeps them out of its own log and from the upstream, and can do no more; better a header")
	return s
}

// readRedisKeys reads auth.api_keys.redis.
func (a *authSection) readRedisKeys(v value, k *APIKeys) {
	a.redisKeys = v
	o, ok := v.object("hash")
	if !ok {
		return
	}
	if v, ok := o.need("hash", "a name such as api-keys"); ok {
		k.RedisHash = v.name("a hash")
	}
	o.done()
}

// keysSure says that every key is known here: the key file could be read, and no keys
// are anywhere else.
func (a *authSection) keysSure() bool {
	return !a.redisKeys.given() && (!a.keysFile.given() || a.keysKnown)
}
