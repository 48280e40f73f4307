package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// CertField is where in a certificate a name stands.
type CertField string

// The fields (RFC 5280 sections 4.1.2.6 and 4.2.1.6).
const (
	SubjectCN CertField = "subject.cn"
	SubjectO  CertField = "subject.o"
	SubjectOU CertField = "subject.ou"
	SANDNS    CertField = "san.dns"
	SANEmail  CertField = "san.email"
	SANURI    CertField = "san.uri"
)

// ClientCerts says which client certificates count, and whom they name.
type ClientCerts struct {
	// CAs are the authorities whose certificates count, at least one. The
	// system's never do.
	CAs []*x509.Certificate
	// User is where the user stands; default SubjectCN. A certificate that has no
	// such name, several, or one unfit for an identity is refused.
	User CertField
	// Tenant and Plan may be empty: certificates name none. Where a certificate has
	// no such name it names none either; one with several is refused.
	Tenant, Plan CertField
}

// maxChain is how many certificates a client may send: its own, and those that
// lead from it to an authority.
const maxChain = 10

// certs verifies client certificates.
type certs struct {
	roots              *x509.CertPool
	user, tenant, plan CertField
	cache              *tokenCache
	fingerprint        [32]byte // over everything that decides whom a certificate names
}

var certObjects = map[CertField]asn1.ObjectIdentifier{
	SubjectCN: {2, 5, 4, 3}, SubjectO: {2, 5, 4, 10}, SubjectOU: {2, 5, 4, 11},
}

func newCerts(o ClientCerts) (*certs, error) {
	if o.User == "" {
		o.User = SubjectCN
	}
	var errs []error
	for _, f := range []CertField{o.User, o.Tenant, o.Plan} {
		if certObjects[f] == nil && !slices.Contains([]CertField{"", SANDNS, SANEmail, SANURI}, f) {
			errs = append(errs, fmt.Errorf("client certificates: there is no field %q", f))
		}
	}
	if len(o.CAs) == 0 {
		errs = append(errs, errors.New("client certificates: there is no authority whose certificates count"))
	}
	c := &certs{roots: x509.NewCertPool(), user: o.User, tenant: o.Tenant, plan: o.Plan}
	h := sha256.New()
	write(h, []byte(o.User), []byte(o.Tenant), []byte(o.Plan))
	// Their order is no difference.
	sorted := slices.SortedFunc(slices.Values(o.CAs), func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	writeList(h, sorted, func(ca *x509.Certificate) []byte { return ca.Raw })
	for _, ca := range sorted {
		c.roots.AddCert(ca)
	}
	c.fingerprint = [32]byte(h.Sum(nil))
	return c, errors.Join(errs...)
}

// inherit keeps what the former configuration verified, if that means the same.
func (c *certs) inherit(size int, previous *Authenticator) {
	if p := previous; p != nil && p.certs != nil && p.certs.fingerprint == c.fingerprint && p.certs.cache.size == size {
		c.cache = p.certs.cache
		return
	}
	c.cache = newTokenCache(size)
}

// authenticate says whom the certificates of a connection name; chain is not empty.
// It is asked for each request, not once for each connection, so that one that stays
// open does not outlast what its certificate was good for.
func (c *certs) authenticate(chain []*x509.Certificate, now time.Time, check Check) (Principal, *refusal) {
	if len(chain) > maxChain {
		return Principal{}, refuse(ReasonOversize, "%d certificates were sent; at most %d", len(chain), maxChain)
	}
	digest := digestOfChain(chain)
	v, ok := c.cache.get(digest, now)
	if !ok {
		if check.OnlyKnown {
			return Principal{}, notKnown
		}
		var ref *refusal
		if v, ref = c.verify(chain, now); ref != nil {
			return Principal{}, ref
		}
		c.cache.add(digest, v)
	}
	return v.principal, nil
}

// digestOfChain is over all that was sent: with other certificates on the way, the
// same one may not lead to an authority.
func digestOfChain(chain []*x509.Certificate) [32]byte {
	var buf [maxChain * sha256.Size]byte
	b := buf[:0]
	for _, cert := range chain {
		sum := sha256.Sum256(cert.Raw)
		b = append(b, sum[:]...)
	}
	return sha256.Sum256(b)
}

// verify checks a chain that is not in the cache (RFC 5280 section 6).
func (c *certs) verify(chain []*x509.Certificate, now time.Time) (verified, *refusal) {
	leaf := chain[0]
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	paths, err := leaf.Verify(x509.VerifyOptions{
		Roots: c.roots, Intermediates: between, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return verified{}, notVouchedFor(err, now)
	}
	p := Principal{Method: MethodClientCert}
	var ref *refusal
	if p.User, ref = nameIn(leaf, c.user); ref != nil {
		return verified{}, ref
	}
	switch {
	case p.User == "":
		return verified{}, refuse(ReasonMissingClaim, "the certificate has no %s, which is to name the user", c.user)
	case strings.HasPrefix(p.User, keyUserPrefix):
		// As in a token: it could spend the budget of an API key's caller.
		return verified{}, refuse(ReasonBadClaim, "the %s begins with %q, which is for callers with an API key", c.user, keyUserPrefix)
	}
	if p.Tenant, ref = nameIn(leaf, c.tenant); ref != nil {
		return verified{}, ref
	}
	if p.Plan, ref = nameIn(leaf, c.plan); ref != nil {
		return verified{}, ref
	}
	v := verified{principal: p}
	for _, path := range paths {
		// It is good as long as all on the way are, and NotAfter belongs to it.
		from, until := path[0].NotBefore, path[0].NotAfter.Add(1)
		for _, cert := range path[1:] {
			if cert.NotBefore.After(from) {
				from = cert.NotBefore
			}
			if end := cert.NotAfter.Add(1); end.Before(until) {
				until = end
			}
		}
		if until.After(v.until) {
			v.from, v.until = from, until
		}
	}
	v.principal.Expires = v.until
	return v, nil
}

// notVouchedFor translates what was wrong. The error's own text quotes names of the
// certificate, which anybody could have written there.
func notVouchedFor(err error, now time.Time) *refusal {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case ok && invalid.Reason == x509.Expired && invalid.Cert != nil && now.Before(invalid.Cert.NotBefore):
		return refuse(ReasonNotYetValid, "the certificate, or one on the way to an authority, is valid from %s", invalid.Cert.NotBefore.UTC().Format(time.RFC3339))
	case ok && invalid.Reason == x509.Expired && invalid.Cert != nil:
		return refuse(ReasonExpired, "the certificate, or one on the way to an authority, expired at %s", invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case ok && invalid.Reason == x509.IncompatibleUsage:
		return refuse(ReasonWrongUsage, "the certificate is not for clients: its extended key usage has no clientAuth")
	}
	return refuse(ReasonUntrusted, "no authority of ca_file vouches for the certificate (were those on the way sent along?)")
}

// nameIn returns the one name of a kind in a certificate; empty if there is none, or
// if none is asked for.
func nameIn(cert *x509.Certificate, f CertField) (string, *refusal) {
	var names []string
	switch f {
	case "":
		return "", nil
	case SANDNS:
		names = cert.DNSNames
	case SANEmail:
		names = cert.EmailAddresses
	case SANURI:
		for _, u := range cert.URIs {
			names = append(names, u.String())
		}
	default:
		// Subject itself keeps the last of several common names.
		for _, n := range cert.Subject.Names {
			if n.Type.Equal(certObjects[f]) {
				s, _ := n.Value.(string)
				names = append(names, s)
			}
		}
	}
	switch {
	case len(names) > 1:
		return "", refuse(ReasonBadClaim, "the certificate has %d of %s; want one", len(names), f)
	case len(names) == 0:
		return "", nil
	}
	if err := checkIdentity(names[0]); err != nil {
		return "", refuse(ReasonBadClaim, "the %s %v", f, err)
	}
	return names[0], nil
}
