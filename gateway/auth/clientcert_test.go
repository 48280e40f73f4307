package auth_test

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/http"
	"testing"
	"time"

	"bouncer/gateway/auth"
)

// A verified certificate is known until it ends, by the Authenticator's clock, and as
// long as the same authorities count; and nothing else of an address that guesses is
// looked at.
func TestACertificateIsKnownUntilItsEndOrThatOfItsAuthority(t *testing.T) {
	authority := func(name string) *x509.Certificate {
		c := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
		}
		return must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, c, c, &p256.PublicKey, p256))))
	}
	ca, other := authority("one"), authority("other")
	leaf := must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "priya123"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(2 * time.Hour), // longer than its authority
	}, ca, &p256.PublicKey, p256))))
	at := now
	build := func(previous *auth.Authenticator, cas ...*x509.Certificate) *auth.Authenticator {
		return must(auth.New(auth.Options{ClientCerts: &auth.ClientCerts{CAs: cas}, Previous: previous, Now: func() time.Time { return at }}))
	}
	r := &http.Request{Header: http.Header{}, TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}}
	known := auth.Check{OnlyKnown: true}

	a := build(nil, ca)
	if _, err := a.Authenticate(r, known); !errors.Is(err, auth.ErrNotKnown) {
		t.Fatalf("before it was verified: %v", err)
	}
	p, err := a.Authenticate(r, auth.Check{})
	if err != nil || p.User != "priya123" || p.Method != auth.MethodClientCert || !p.Expires.Equal(now.Add(time.Hour).Add(1)) {
		t.Fatalf("%+v, %v", p, err)
	}
	if n := testing.AllocsPerRun(100, func() { _, err = a.Authenticate(r, known) }); n > 0 || err != nil {
		t.Errorf("a known one takes %v allocations, %v", n, err)
	}
	// The authorities in another order, and twice, are the same.
	both := build(nil, ca, other)
	if _, err := both.Authenticate(r, auth.Check{}); err != nil {
		t.Fatal(err)
	}
	if _, err := build(both, other, ca).Authenticate(r, known); err != nil {
		t.Errorf("after a reload that changes nothing: %v", err)
	}
	if _, err := build(both, ca).Authenticate(r, known); !errors.Is(err, auth.ErrNotKnown) {
		t.Errorf("with one authority less: %v", err)
	}
	// What was sent along belongs to what is remembered.
	longer := &http.Request{Header: http.Header{}, TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf, other}}}
	if _, err := a.Authenticate(longer, known); !errors.Is(err, auth.ErrNotKnown) {
		t.Errorf("with another certificate beside it: %v", err)
	}
	at = now.Add(time.Hour)
	if _, err := a.Authenticate(r, known); err != nil {
		t.Errorf("in its last instant: %v", err)
	}
	at = at.Add(1)
	if _, err := a.Authenticate(r, known); !errors.Is(err, auth.ErrNotKnown) {
		t.Errorf("after its end it is known: %v", err)
	}
	refused, _ := errors.AsType[*auth.RefusedError](second(a.Authenticate(r, auth.Check{})))
	if refused == nil || refused.Reason != auth.ReasonExpired {
		t.Errorf("after its end: %v", refused)
	}
}

func second(_ auth.Principal, err error) error { return err }

func TestNewNamesWhatIsWrongWithClientCerts(t *testing.T) {
	for _, c := range []auth.ClientCerts{{}, {User: "subject.serial"}} {
		if _, err := auth.New(auth.Options{ClientCerts: &c}); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}
