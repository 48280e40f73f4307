package gateway

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"bouncer/gateway/config"
)

// This file is the client side of TLS, to Redis and to upstreams.

// clientTLS reads the files of the client side of a TLS connection; nil for nil.
func clientTLS(c *config.TLS) (*tls.Config, error) {
	if c == nil {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := config.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s holds no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile != "" {
		cert, err := keyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file and key_file: %w", err)
		}
		t.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

// keyPair reads a certificate with its chain, and its key.
func keyPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := config.ReadFile(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := config.ReadFile(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// digest is of the contents of the files that c names: a renewed certificate
// under the same name is another one.
func digest(c *config.TLS) (sum [sha256.Size]byte) {
	if c == nil {
		return sum
	}
	h := sha256.New()
	for _, name := range []string{c.CAFile, c.CertFile, c.KeyFile} {
		content, err := config.ReadFile(name)
		one := sha256.Sum256(content)
		h.Write(one[:])
		if err != nil && name != "" {
			h.Write([]byte(err.Error()))
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}
