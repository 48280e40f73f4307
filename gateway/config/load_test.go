package config

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// pemFiles are key files of every kind, made once: no private key is kept in
// the repository, not even one for tests.
var pemFiles = sync.OnceValue(func() map[string][]byte {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	files := map[string][]byte{}
	public := func(name string, key any) {
		der, err := x509.MarshalPKIXPublicKey(key)
		must(err)
		files[name] = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	}
	strong, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	must(err)
	public("rsa.pem", &strong.PublicKey)
	public("rsa1024.pem", &weak.PublicKey)
	files["rsa-pkcs1.pem"] = pem.EncodeToMemory(&pem.Block{
		Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&strong.PublicKey),
	})
	for name, curve := range map[string]elliptic.Curve{"ec.pem": elliptic.P256(), "ec384.pem": elliptic.P384()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		must(err)
		public(name, &key.PublicKey)
	}
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	public("ed25519.pem", ed)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &strong.PublicKey, crypto.Signer(strong))
	must(err)
	files["cert.pem"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	der, err = x509.MarshalPKCS8PrivateKey(strong)
	must(err)
	files["key.pem"] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	der, err = x509.MarshalPKCS8PrivateKey(weak)
	must(err)
	files["other-key.pem"] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return files
})

// write puts files into dir.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// goodDir returns a directory with the files of testdata/good and PEM files.
func goodDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := os.ReadDir("testdata/good")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for name, data := range pemFiles() {
		files[name] = string(data)
	}
	for _, e := range entries {
		data, err := os.ReadFile("testdata/good/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
	}
	write(t, dir, files)
	return dir
}

// env answers for the environment from a map.
func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// load loads routes.yaml and plans.yaml of dir.
func load(dir string, vars map[string]string) (*Config, *Report) {
	return Load(Options{
		Routes: filepath.Join(dir, "routes.yaml"), Plans: filepath.Join(dir, "plans.yaml"), LookupEnv: env(vars),
	})
}

// text writes the problems of a report a line each, without the directory.
func text(r *Report, dir string) string {
	var b strings.Builder
	for _, p := range r.Problems {
		b.WriteString(strings.ReplaceAll(p.String(), dir+string(filepath.Separator), "") + "\n")
	}
	return b.String()
}

func TestGoodFilesLoad(t *testing.T) {
	dir := goodDir(t)
	c, report := load(dir, nil)
	if c == nil || len(report.Problems) > 0 {
		t.Fatalf("problems:\n%s", text(report, dir))
	}
}
