package acme

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/crypto/acme/autocert"
)

// keep puts a certificate for domain where the Keeper looks for it.
func keep(t *testing.T, dir, domain string, from, until time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	spec := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{domain}, NotBefore: from, NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, spec, spec, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	kept := append(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	if err := os.WriteFile(filepath.Join(dir, domain), kept, 0o600); err != nil {
		t.Fatal(err)
	}
	return kept
}

const day = 24 * time.Hour

func TestWhatIsKeptIsInForceAtOnce(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	keep(t, dir, "good.example.com", now.Add(-day), now.Add(80*day))
	keep(t, dir, "ended.example.com", now.Add(-90*day), now.Add(-day))
	if err := os.WriteFile(filepath.Join(dir, "broken.example.com"), []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := New(Options{Domains: []string{"good.example.com", "ended.example.com", "broken.example.com", "none.example.com"}, CacheDir: dir, Directory: "https://127.0.0.1:1/"})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for i, s := range k.State() {
		_, err := k.Certificate(&tls.ClientHelloInfo{ServerName: s.Domain})
		_, errKept := Kept(t.Context(), dir, s.Domain)
		if none := i == 3; errors.Is(errKept, fs.ErrNotExist) != none {
			t.Errorf("%s: %v", s.Domain, errKept)
		}
		if good := i == 0; (s.Err == nil) != good || s.NotAfter.IsZero() == good || (err == nil) != good || (errKept == nil) != good || s.Since.IsZero() {
			t.Errorf("%+v, %v, %v", s, err, errKept)
		}
	}
	for name, ok := range map[string]bool{"": true, "GOOD.example.com.": true, "other.example.com": false, "example.com": false} {
		if _, err := k.Certificate(&tls.ClientHelloInfo{ServerName: name}); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A certificate is late when half of the time in which it is renewed has gone, and
// that is told once.
func TestALateCertificateIsTold(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	keep(t, dir, "a.example.com", now.Add(-60*day), now.Add(20*day)) // of 80 days: late with 13 left
	var failed, changed int
	k, err := New(Options{
		Domains: []string{"a.example.com"}, CacheDir: dir, Directory: "https://127.0.0.1:1/",
		Failed: func(string, error, time.Duration) { failed++ }, Changed: func() { changed++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	d := k.domains[0]
	d.watch()
	if failed != 0 || k.State()[0].Err != nil {
		t.Error("one that is being renewed is late already")
	}
	late := keep(t, dir, "a.example.com", now.Add(-70*day), now.Add(10*day))
	if !d.take(late) {
		t.Fatal("it is not taken")
	}
	d.watch()
	d.watch()
	if s := k.State()[0]; failed != 1 || changed != 1 || s.Err == nil || s.NotAfter.IsZero() {
		t.Errorf("told %d times, %+v", failed, s)
	}
	if err := (cache{autocert.DirCache(dir), d}).Put(t.Context(), "a.example.com", keep(t, dir, "a.example.com", now.Add(-day), now.Add(80*day))); err != nil {
		t.Fatal(err)
	}
	if s := k.State()[0]; s.Err != nil || changed != 2 {
		t.Errorf("after it was renewed: %+v", s)
	}
	ended := *d.cert.Load()
	leaf := *ended.Leaf
	leaf.NotAfter = now.Add(-time.Second)
	ended.Leaf = &leaf
	d.cert.Store(&ended)
	d.watch()
	if s := k.State()[0]; s.Err == nil || !s.NotAfter.IsZero() || changed != 3 {
		t.Errorf("one that has ended: %+v", s)
	}
}

// Challenges are in memory, while they are open, and nowhere else.
func TestChallengesAreWrittenNowhere(t *testing.T) {
	dir := t.TempDir()
	k, err := New(Options{Domains: []string{"a.example.com", "b.example.com"}, CacheDir: dir, Directory: "https://127.0.0.1:1/", HTTP01: true})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	c := cache{autocert.DirCache(dir), k.domains[0]}
	for _, key := range []string{"token1+http-01", "a.example.com+token"} {
		if err := c.Put(t.Context(), key, []byte("answer")); err != nil {
			t.Fatal(err)
		}
	}
	if answer, ok := k.Answer("a.example.com", ChallengePath+"token1"); !ok || answer != "answer" {
		t.Errorf("%q, %v", answer, ok)
	}
	for host, path := range map[string]string{
		"b.example.com": ChallengePath + "token1", "a.example.com": ChallengePath + "token2", "c.example.com": ChallengePath + "token1", "": ChallengePath + "token1",
	} {
		if _, ok := k.Answer(host, path); ok {
			t.Errorf("%s%s is answered", host, path)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) > 0 {
		t.Errorf("%v are written", files)
	}
	_ = c.Delete(t.Context(), "token1+http-01")
	if _, ok := k.Answer("a.example.com", ChallengePath+"token1"); ok {
		t.Error("a challenge that is over is answered")
	}
}

func TestComplaint(t *testing.T) {
	for body, want := range map[string]string{
		`{"status":"valid"}`: "", `no json`: "", `{}`: "",
		`{"status":"invalid","challenges":[{"type":"http-01","status":"pending"},{"error":{"detail":"no such name"}}]}`: "no such name",
		`{"status":"invalid","error":{"detail":"the order failed"}}`:                                                    "the order failed",
	} {
		if got := complaint([]byte(body), 200); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
	if got := complaint([]byte(`{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many"}`), 429); got != "too many" {
		t.Errorf("%q", got)
	}
	if got := complaint([]byte(`{"type":"urn:ietf:params:acme:error:badNonce","detail":"old"}`), 400); got != "" {
		t.Errorf("%q", got)
	}
}
