package gateway

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"

	"bouncer/gateway/config"
)

// This file is the admin listener's side of TLS, where it speaks HTTPS.

// loadAdminCertificate reads the certificate that is the admin listener's own; nil if it
// has none.
func loadAdminCertificate(a *config.Admin) (*tls.Certificate, error) {
	if a.CertFile == "" {
		return nil, nil
	}
	cert, err := keyPair(a.CertFile, a.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("admin: cert_file and key_file: %w", err)
	}
	return &cert, nil
}

// useAdminCertificate puts a certificate, nil for that of the HTTPS listener, and those
// who vouch for operators, in force. A listener that speaks HTTPS does so until the
// next restart, so it keeps what it had where nothing is said any more.
func (g *Gateway) useAdminCertificate(cfg *config.Config, cert *tls.Certificate) {
	if !cfg.Admin.HTTPS() {
		g.adminAsking.Store(nil)
		return
	}
	g.adminCertificate.Store(cert)
	g.adminAsking.Store(askingTLS(g.adminTLS, cfg.Admin.ClientCAs))
}

// makeAdminTLS is the admin listener's side of TLS. Who is let in is package admin's to
// say: it looks at the certificate of each request, so that one of an authority that is
// no longer named lets nobody in, on no connection.
func (g *Gateway) makeAdminTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := g.adminCertificate.Load(); c != nil {
				return c, nil
			}
			return g.listenerTLS.GetCertificate(hello)
		},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return g.adminAsking.Load(), nil // nil: this one
		},
	}
}

// sameOperators reports whether what opens the admin listener is the same in both.
func sameOperators(a, b *config.Admin) bool {
	return bytes.Equal(a.Token, b.Token) && slices.EqualFunc(a.ClientCAs, b.ClientCAs, (*x509.Certificate).Equal)
}
