package config

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ClientCerts says which certificates of TLS clients count, and where in them the
// identity stands.
type ClientCerts struct {
	CAFile string              // absolute
	CAs    []*x509.Certificate // of CAFile; at least one
	User   string              // one of userFields; default subject.cn
	Tenant string              // one of orgFields; empty: none
	Plan   string              // one of orgFields; empty: none
}

var (
	userFields = []string{"subject.cn", "san.dns", "san.email", "san.uri"}
	orgFields  = []string{"subject.o", "subject.ou"}
)

// wantedClientCerts is what auth.client_certs has.
const wantedClientCerts = "ca_file, user, tenant and plan"

// readClientCerts reads auth.client_certs.
func (a *authSection) readClientCerts(v value) {
	o, ok := v.object(wantedClientCerts)
	if !ok {
		a.unsure = true
		return
	}
	c := &ClientCerts{User: userFields[0]}
	if f, ok := o.need("ca_file", "a PEM file of the authorities that vouch for clients"); ok {
		c.CAFile, c.CAs = f.authorities()
	}
	choose := func(name string, words []string, into *string) {
		if f, ok := o.get(name, oneOf(words)); ok {
			*into, _ = f.choice(words)
		}
	}
	choose("user", userFields, &c.User)
	choose("tenant", orgFields, &c.Tenant)
	choose("plan", orgFields, &c.Plan)
	a.claimsTenant = a.claimsTenant || o.has("tenant")
	a.claimsPlan = a.claimsPlan || o.has("plan")
	o.done()
	a.ClientCerts, a.clientCertsAt = c, v
}

// authorities reads the file of those who vouch for clients, which v names.
func (v value) authorities() (file string, cas []*x509.Certificate) {
	path, data, ok := v.content("certificates")
	if !ok {
		return "", nil
	}
	cas, err := authorities(data)
	if err != nil {
		v.errorf("%s %v", path, err)
	}
	for _, ca := range cas {
		if time.Now().After(ca.NotAfter) {
			v.warnf("an authority in %s, %s, expired on %s, and vouches for nobody any more", path, certificateName(ca), ca.NotAfter.UTC().Format(time.DateOnly))
		}
	}
	return absolute(path), cas
}

// authorities returns the certificates in PEM data. Errors name kinds, never bytes.
func authorities(data []byte) ([]*x509.Certificate, error) {
	const wanted = "want PEM with CERTIFICATE blocks"
	var cas []*x509.Certificate
	for {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			break
		}
		switch {
		case strings.HasSuffix(b.Type, "PRIVATE KEY"):
			return nil, errors.New("holds a private key, which the gateway must not have; want the certificates alone")
		case b.Type != "CERTIFICATE":
			return nil, fmt.Errorf("holds a block of type %s; %s", quote(b.Type), wanted)
		}
		ca, err := x509.ParseCertificate(b.Bytes)
		switch {
		case err != nil:
			return nil, errors.New("holds a damaged CERTIFICATE block; " + wanted)
		case !ca.IsCA:
			return nil, fmt.Errorf("holds the certificate of %s, who is no authority and vouches for nobody; want the certificate of who signs those of clients", certificateName(ca))
		}
		cas = append(cas, ca)
	}
	if len(cas) == 0 {
		return nil, errors.New("holds no certificate; " + wanted)
	}
	return cas, nil
}

// certificateName is what a certificate is called in a message.
func certificateName(c *x509.Certificate) string {
	if c.Subject.CommonName != "" {
		return quote(c.Subject.CommonName)
	}
	return quote(c.Subject.String())
}

// checkClientCerts finds certificates that nobody could show.
func (f *routesFile) checkClientCerts() {
	if at := f.auth.clientCertsAt; at.given() && !f.httpsGiven {
		at.keyErrorf("nobody can show a certificate, since there is no listen.https; want that, or remove this")
	}
}

func describeClientCerts(d *differ, old, new *ClientCerts) {
	if old == nil {
		old = &ClientCerts{}
	}
	if new == nil {
		new = &ClientCerts{}
	}
	d.change("auth.client_certs.ca_file", old.CAFile, new.CAFile)
	if !sameAuthorities(old.CAs, new.CAs) && old.CAFile != "" && new.CAFile != "" {
		d.say("auth.client_certs: the authorities changed")
	}
	d.change("auth.client_certs.user", old.User, new.User)
	d.change("auth.client_certs.tenant", old.Tenant, new.Tenant)
	d.change("auth.client_certs.plan", old.Plan, new.Plan)
}

func sameAuthorities(a, b []*x509.Certificate) bool {
	return slices.EqualFunc(a, b, (*x509.Certificate).Equal)
}
