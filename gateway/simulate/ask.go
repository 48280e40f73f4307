package simulate

import (
	"cmp"
	"net/http"
	"net/url"
	"time"

	"bouncer/gateway"
	"bouncer/gateway/config"
)

// An asker makes requests of records and has them decided.
type asker struct {
	h       *gateway.Rehearsal
	keys    map[string]*config.Key
	field   string // what the forwarded-for column was, as a field
	host    string
	assume  string
	request http.Request
	header  http.Header
	as      gateway.Caller
	urls    map[string]*url.URL
}

// maxURLs bounds the targets that are kept parsed.
const maxURLs = 1 << 14

func newAsker(cfg *config.Config, o *Options) (*asker, error) {
	ro := gateway.RehearsalOptions{}
	if cfg.Store.Redis != nil {
		ro.MaxKeys = 1 << 30 // Redis holds as many as there are
	}
	h, err := gateway.Rehearse(cfg, ro)
	if err != nil {
		return nil, err
	}
	a := &asker{h: h, keys: map[string]*config.Key{}, host: o.Host, assume: o.AssumePlan, field: "X-Forwarded-For", header: http.Header{}, urls: map[string]*url.URL{}}
	if o.forwardedMapped {
		a.field = cfg.ClientIP.Header
	}
	if cfg.Auth.APIKeys != nil {
		for i := range cfg.Auth.APIKeys.Keys {
			k := &cfg.Auth.APIKeys.Keys[i]
			a.keys[k.ID] = k
		}
	}
	a.request = http.Request{Header: a.header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}
	return a, nil
}

// do decides the request of r at a time, µs.
func (a *asker) do(r *record, at int64) gateway.Verdict {
	q := &a.request
	q.Method, q.RemoteAddr, q.RequestURI = r.method, r.remote, r.target
	q.URL = a.url(r.target)
	q.Host = cmp.Or(q.URL.Host, r.host, a.host)
	if r.forwarded != "" {
		a.header[a.field] = []string{r.forwarded}
	} else {
		delete(a.header, a.field)
	}
	attempt := gateway.Attempt{At: time.UnixMicro(at), Request: q}
	if !r.refused {
		a.as = a.who(r)
		attempt.As = &a.as
	}
	return a.h.Do(attempt)
}

// who is the caller of a line. A key id that the key file knows says the rest.
func (a *asker) who(r *record) gateway.Caller {
	c := gateway.Caller{User: r.user, Tenant: r.tenant, KeyID: r.key, Plan: r.pln}
	if c.User == "" && c.KeyID != "" {
		c.User = "key:" + c.KeyID
		if k := a.keys[c.KeyID]; k != nil {
			c.User, c.Tenant, c.Plan = cmp.Or(k.User, c.User), cmp.Or(c.Tenant, k.Tenant), cmp.Or(c.Plan, k.Plan)
		}
	}
	if c.User == "" && c.Tenant == "" {
		c.Unknown, c.Plan = true, cmp.Or(c.Plan, a.assume)
	}
	return c
}

// url parses a target as a server does. What is none has no path, and so no
// route.
func (a *asker) url(target string) *url.URL {
	if u := a.urls[target]; u != nil {
		return u
	}
	u, err := url.ParseRequestURI(target)
	if err != nil {
		u = &url.URL{}
	}
	if len(a.urls) >= maxURLs {
		clear(a.urls)
	}
	a.urls[target] = u
	return u
}

// A callerKey is who asked: by name where the line or the key file knows one,
// else by address, as limits count it.
type callerKey struct{ name, ip string }

func (a *asker) keyOf(r *record, v *gateway.Verdict) callerKey {
	if !r.refused && !a.as.Unknown {
		return callerKey{name: cmp.Or(a.as.User, "tenant:"+a.as.Tenant)}
	}
	return callerKey{ip: v.Request.IPBucket}
}
