package config

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// readTLS reads the client side of a TLS connection; nil if it is no mapping.
func readTLS(v value) *TLS {
	o, ok := v.object("ca_file, cert_file, key_file or server_name")
	if !ok {
		return nil
	}
	t := &TLS{}
	if f, ok := o.get("ca_file", "a PEM file of certificates"); ok {
		if path, data, ok := f.content("certificates"); ok {
			if !x509.NewCertPool().AppendCertsFromPEM(data) {
				f.errorf("%s holds no certificate; want PEM with CERTIFICATE blocks", path)
			}
			t.CAFile = absolute(path)
		}
	}
	t.CertFile, t.KeyFile, _ = o.keyPair(false)
	if f, ok := o.get("server_name", "the name in the server's certificate"); ok {
		if s, ok := f.word("the name in the server's certificate"); ok {
			if !isHost(s) {
				f.errorf("%s is not a host name", quote(s))
			}
			t.ServerName = s
		}
	}
	o.done()
	return t
}

// keyPair reads cert_file and key_file and checks that they belong together.
func (o *object) keyPair(required bool) (certFile, keyFile string, ok bool) {
	get := o.get
	if required || o.has("cert_file") || o.has("key_file") {
		get = o.need
	}
	c, okC := get("cert_file", "a PEM file with the certificate")
	k, okK := get("key_file", "a PEM file with the private key of the certificate")
	if !okC && !okK {
		return "", "", false
	}
	var cert, key []byte
	if okC {
		if certFile, cert, okC = c.content("a certificate"); okC && !strings.Contains(string(cert), "-----BEGIN CERTIFICATE-----") {
			c.errorf("%s holds no certificate; want PEM with CERTIFICATE blocks", certFile)
			okC = false
		}
	}
	if okK {
		if keyFile, key, okK = k.content("a private key"); okK && !strings.Contains(string(key), "PRIVATE KEY-----") {
			k.errorf("%s holds no private key; want PEM with a PRIVATE KEY block", keyFile)
			okK = false
		}
	}
	if !okC || !okK {
		return "", "", false
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		// The error speaks of kinds and mismatch, never of the key's bytes.
		k.errorf("%s does not fit the certificate in %s: %s", keyFile, certFile, strings.TrimPrefix(err.Error(), "tls: "))
		return "", "", false
	}
	return absolute(certFile), absolute(keyFile), true
}

// publicKeys returns every public key in PEM data: PKIX, PKCS #1 or the key of
// a certificate. Errors name kinds, never bytes.
func publicKeys(data []byte) ([]crypto.PublicKey, error) {
	const wanted = "want PEM with PUBLIC KEY or CERTIFICATE blocks"
	var keys []crypto.PublicKey
	for {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			break
		}
		var key any
		var err error
		switch {
		case strings.HasSuffix(b.Type, "PRIVATE KEY"):
			return nil, errors.New("holds a private key, which the gateway must not have; want the public key alone (openssl pkey -pubout)")
		case b.Type == "PUBLIC KEY":
			key, err = x509.ParsePKIXPublicKey(b.Bytes)
		case b.Type == "RSA PUBLIC KEY":
			key, err = x509.ParsePKCS1PublicKey(b.Bytes)
		case b.Type == "CERTIFICATE":
			var c *x509.Certificate
			if c, err = x509.ParseCertificate(b.Bytes); err == nil {
				key = c.PublicKey
			}
		default:
			return nil, fmt.Errorf("holds a block of type %s; %s", quote(b.Type), wanted)
		}
		if err != nil {
			return nil, fmt.Errorf("holds a damaged %s block; %s", b.Type, wanted)
		}
		switch k := key.(type) {
		case *rsa.PublicKey:
			if k.N.BitLen() < 2048 {
				return nil, fmt.Errorf("holds an RSA key of %d bits; want 2048 or more", k.N.BitLen())
			} else if k.N.BitLen() > 8192 {
				return nil, fmt.Errorf("holds an RSA key of %d bits, which takes too long to verify with; want 8192 or fewer", k.N.BitLen())
			}
		case *ecdsa.PublicKey:
			if k.Curve.Params().BitSize < 256 {
				return nil, fmt.Errorf("holds an EC key on %s, which no algorithm here uses; want P-256, P-384 or P-521", k.Curve.Params().Name)
			}
		case ed25519.PublicKey:
		default:
			return nil, errors.New("holds a key of a kind no algorithm here uses; want RSA, EC (P-256, P-384, P-521) or Ed25519")
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("holds no public key; " + wanted)
	}
	return keys, nil
}

// keyFits reports whether key can verify signatures of algorithm alg.
func keyFits(key crypto.PublicKey, alg string) bool {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(alg, "RS") || strings.HasPrefix(alg, "PS")
	case *ecdsa.PublicKey:
		return map[string]string{"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[alg] == k.Curve.Params().Name
	case ed25519.PublicKey:
		return alg == "EdDSA"
	}
	return false
}

// keyKind names the kind of a key.
func keyKind(key crypto.PublicKey) string {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return "an RSA key"
	case *ecdsa.PublicKey:
		return "an EC key on " + k.Curve.Params().Name
	case ed25519.PublicKey:
		return "an Ed25519 key"
	}
	return "a key"
}
