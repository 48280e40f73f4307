package simulate

import (
	"cmp"
	"net/http"
	"time"

	"bouncer/gateway"
	"bouncer/gateway/config"
)

// An asker makes requests of records and has them decided.
type asker struct {
	h       *gateway.Rehearsal
	keys    map[string]*config.Key
	host    string
	assume  string
	request http.Request
	field   string // what the forwarded-for column was, as a field
	value   [1]string
	as      gateway.Caller
}

func newAsker(cfg *config.Config, o *Options) (*asker, error) {
	ro := gateway.RehearsalOptions{}
	if cfg.Store.Redis != nil {
		ro.MaxKeys = 1 << 30 // Redis holds as many as there are
	}
	h, err := gateway.Rehearse(cfg, ro)
	if err != nil {
		return nil, err
	}
	a := &asker{h: h, keys: map[string]*config.Key{}, host: o.Host, assume: o.AssumePlan, field: "X-Forwarded-For"}
	if o.forwardedMapped {
		a.field = cfg.ClientIP.Header
	}
	if cfg.Auth.APIKeys != nil {
		for i := range cfg.Auth.APIKeys.Keys {
			k := &cfg.Auth.APIKeys.Keys[i]
			a.keys[k.ID] = k
		}
	}
	a.request = http.Request{Header: http.Header{}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}
	return a, nil
}

// do decides the request of r at a time, µs.
func (a *asker) do(r *record, at int64) gateway.Verdict {
	q := &a.request
	q.Method, q.RemoteAddr, q.RequestURI = r.method, r.remote, r.target
	q.URL = r.url
	q.Host = cmp.Or(q.URL.Host, r.host, a.host)
	if r.forwarded != "" {
		a.value[0] = r.forwarded
		q.Header[a.field] = a.value[:]
	} else {
		delete(q.Header, a.field)
	}
	a.as = a.who(r)
	return a.h.Do(gateway.Attempt{At: time.UnixMicro(at), Request: q, As: &a.as})
}

// who is the caller of a line. A key id that the key file knows says the rest.
func (a *asker) who(r *record) gateway.Caller {
	if r.refused {
		return gateway.Caller{Refused: true}
	}
	c := gateway.Caller{User: r.user, Tenant: r.tenant, KeyID: r.key, Plan: r.pln, Unsaid: true}
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

// callerOf is who asked: by name where the line or the key file knows one, else
// by address, as limits count it.
func (a *asker) callerOf(v *gateway.Verdict) (name string, named bool) {
	switch {
	case a.as.Refused || a.as.Unknown:
		return v.Request.IPBucket, false
	case a.as.User != "":
		return a.as.User, true
	default:
		return "tenant:" + a.as.Tenant, true
	}
}
