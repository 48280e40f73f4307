package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TLS names the files that a client of a [StartTLS] server needs.
type TLS struct {
	CAFile            string // whom the server's certificate is from
	CertFile, KeyFile string // the client's own, which the server asks for
}

// config is that of a client with the files; nil for nil.
func (f *TLS) config() *tls.Config {
	if f == nil {
		return nil
	}
	authority, err := os.ReadFile(f.CAFile)
	if err != nil {
		panic(err) // it was written by StartTLS
	}
	own, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12}
}

// StartTLS is [Start] for a server that speaks TLS alone on its port, with a
// certificate for 127.0.0.1 of an authority of its own, and wants the client's
// certificate as well. Its socket speaks no TLS.
func StartTLS(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t, nil)
	file := func(name string) string { return filepath.Join(s.dir, name) }
	authority := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority of a test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	key := writeCertificate(t, file("ca"), authority, nil, nil)
	for _, name := range []string{"server", "client"} {
		writeCertificate(t, file(name), &x509.Certificate{
			Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}, authority, key)
	}
	s.tls = &TLS{CAFile: file("ca.pem"), CertFile: file("client.pem"), KeyFile: file("client.key")}
	s.args = append([]string{
		"--port", "0",
		"--tls-ca-cert-file", s.tls.CAFile,
		"--tls-cert-file", file("server.pem"),
		"--tls-key-file", file("server.key"),
		"--tls-auth-clients", "yes",
	}, args...)
	startAll(t, lastPort, s)
	return s
}

// TLS returns the files for a client; nil where the server speaks plain TCP.
func (s *Server) TLS() *TLS { return s.tls }

// ClientTLS is the configuration of a client with the files of TLS.
func (s *Server) ClientTLS() *tls.Config { return s.tls.config() }

// writeCertificate makes a key and a certificate for it, signed by the authority
// or by itself, writes both to name.key and name.pem, and returns the key.
func writeCertificate(t testing.TB, name string, c, authority *x509.Certificate, signer *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	if authority == nil {
		authority, signer = c, key
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, authority, &key.PublicKey, signer)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatalf("redistest: %v", err)
		}
	}
	return key
}

// A User is somebody who may log in to a server.
type User struct {
	// Name has any characters but blanks, which Redis does not take.
	Name string
	// Password has any characters.
	Password string
	// Rules say what the user may do, as in "~rl:* +evalsha".
	Rules string
}

// ACLFile writes users, beside the default one who may do everything without a
// password, and returns the file for the argument --aclfile. They survive a
// Restart.
func ACLFile(t testing.TB, users ...User) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("user default on nopass ~* &* +@all\n")
	for _, u := range users {
		// The digest, since a file cannot hold a password with blanks.
		fmt.Fprintf(&text, "user %s on #%x %s\n", u.Name, sha256.Sum256([]byte(u.Password)), strings.TrimSpace(u.Rules))
	}
	name := filepath.Join(t.TempDir(), "users.acl")
	if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return name
}
