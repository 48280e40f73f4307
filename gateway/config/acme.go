package config

import (
	"crypto/x509"
	"errors"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// ACME says which certificates are got from a certificate authority by itself
// (RFC 8555).
type ACME struct {
	Domains      []string // lower case, at least one; the first serves clients that name none
	Email        string   // for the authority; empty: none
	CacheDir     string   // absolute
	DirectoryURL string   // default that of Let's Encrypt
	CAFile       string   // absolute: whom to trust at DirectoryURL; empty: as the system trusts
	// AcceptTerms is always true: without it there is no ACME.
	AcceptTerms bool
}

const (
	wantedACME = "domains, cache_dir and accept_terms"
	// letsEncrypt is where its certificates are got.
	letsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"
	// maxDomains bounds the certificates of a listener: each is got and renewed alone.
	maxDomains = 100
)

// acme reads listen.https.acme; nil if anything was wrong.
func (v value) acme() *ACME {
	o, ok := v.object(wantedACME)
	if !ok {
		return nil
	}
	c, good := &ACME{DirectoryURL: letsEncrypt}, true
	if d, ok := o.need("domains", "a list of host names"); ok {
		c.Domains, ok = d.domains()
		good = good && ok
	} else {
		good = false
	}
	if e, ok := o.get("email", "an address such as ops@example.com"); ok {
		if c.Email, ok = e.word("an address such as ops@example.com"); ok {
			if a, err := mail.ParseAddress(c.Email); err != nil || a.Address != c.Email {
				e.errorf("%s is not an address; want one such as ops@example.com", quote(c.Email))
				ok = false
			}
		}
		good = good && ok
	}
	if d, ok := o.need("cache_dir", "a directory for keys and certificates"); ok {
		path, ok := d.file("a directory for keys and certificates")
		c.CacheDir = absolute(path)
		if ok {
			// What is not there is made; what cannot be looked at may be the gateway's alone.
			switch at, err := os.Stat(c.CacheDir); {
			case err == nil && !at.IsDir():
				d.errorf("%s is a file; want a directory for keys and certificates", path)
				ok = false
			case errors.Is(err, syscall.ENOTDIR):
				d.errorf("%s is inside of a file; want a directory for keys and certificates", path)
				ok = false
			}
		}
		good = good && ok
	} else {
		good = false
	}
	if d, ok := o.get("directory_url", "an https:// URL"); ok {
		if c.DirectoryURL, ok = d.word("an https:// URL"); ok {
			u, err := url.Parse(c.DirectoryURL)
			if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
				d.errorf("%s is not the URL of a directory; want one such as %s", quote(c.DirectoryURL), letsEncrypt)
				ok = false
			}
		}
		good = good && ok
	}
	if f, ok := o.get("ca_file", "a PEM file of certificates"); ok {
		path, data, ok := f.content("certificates")
		if ok && !x509.NewCertPool().AppendCertsFromPEM(data) {
			f.errorf("%s holds no certificate; want PEM with CERTIFICATE blocks", path)
			ok = false
		}
		c.CAFile = absolute(path)
		good = good && ok
	}
	const terms = "true, once you have read and accepted the terms of the certificate authority"
	if a, ok := o.need("accept_terms", terms); ok {
		if c.AcceptTerms, ok = a.boolean(); ok && !c.AcceptTerms {
			a.errorf("no certificate is issued without; want %s", terms)
		}
	}
	o.done()
	if !good || !c.AcceptTerms {
		return nil
	}
	return c
}

// domains reads names that certificates are issued for.
func (v value) domains() ([]string, bool) {
	const wanted = "host names such as api.example.com"
	vs, names, ok := v.words(wanted, false)
	switch {
	case !ok:
		return nil, false
	case len(vs) == 0 || len(vs) > maxDomains:
		v.errorf("%d domains; want 1 to %d", len(vs), maxDomains)
		return nil, false
	}
	seen := map[string]bool{}
	for i, name := range names {
		names[i] = strings.ToLower(name)
		_, err := netip.ParseAddr(name)
		switch {
		case strings.Contains(name, "*"):
			vs[i].errorf("%s: a name with * cannot be proved by TLS-ALPN-01 or HTTP-01; want %s, or cert_file and key_file", quote(name), wanted)
			ok = false
		case err == nil || !isHost(name) || !strings.Contains(strings.Trim(name, "."), ".") || strings.HasSuffix(name, "."):
			vs[i].errorf("%s is not a name that certificates are issued for; want %s", quote(name), wanted)
			ok = false
		case seen[names[i]]:
			vs[i].errorf("%s is there twice", quote(names[i]))
			ok = false
		}
		seen[names[i]] = true
	}
	return names, ok
}

// mapping writes what certificates are got.
func (c *ACME) mapping() mapping {
	n := newMapping(true)
	n.list("domains", c.Domains)
	n.text("email", c.Email)
	n.text("cache_dir", c.CacheDir)
	n.text("directory_url", c.DirectoryURL)
	n.text("ca_file", c.CAFile)
	n.boolean("accept_terms", c.AcceptTerms)
	return n
}

// acmeSchema describes listen.https.acme.
func acmeSchema() schema {
	name := anyOf(written(`^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*[.][0-9]*[A-Za-z_-][A-Za-z0-9_-]*$`, "a host name such as api.example.com"))
	return fields(map[string]schema{
		"domains":       some(name).with("maxItems", maxDomains).says("Names to get certificates for, each its own. Clients that name none get the first; any other name is refused."),
		"email":         anyOf(written("@", "an address such as ops@example.com")).says("Where the authority may write to. Default: none."),
		"cache_dir":     def("text").says("Directory for the account's key, and for certificates and their keys; made if it is not there, for its owner alone."),
		"directory_url": anyOf(written("^https://", "an https:// URL")).or(letsEncrypt).says("The ACME directory of the authority."),
		"ca_file":       def("text").says("PEM file of the certificates that are trusted at directory_url, for an authority of your own. Default: those of the system."),
		"accept_terms":  schema{"anyOf": []schema{{"enum": []any{true, "on", "yes", "true"}}, def("variable")}}.says("true, once you have read and accepted the terms of the authority."),
	}, "domains", "cache_dir", "accept_terms").says("Certificates that are got and renewed by themselves (RFC 8555), by TLS-ALPN-01, or by HTTP-01 where there is listen.http.")
}
