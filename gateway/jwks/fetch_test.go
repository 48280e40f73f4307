package jwks_test

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/jwks"
)

// over fetches once over a real connection and returns how the Source stands then.
func over(t *testing.T, o jwks.Options) jwks.State {
	t.Helper()
	s, err := jwks.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Close()
	select {
	case <-s.Tried():
	case <-time.After(20 * time.Second):
		t.Fatal("the first fetch does not end")
	}
	return s.State()
}

func TestAPasswordInTheURLIsSentAndNeverShown(t *testing.T) {
	t.Parallel()
	var good atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		good.Store(user == "us3r" && password == "canary" && r.URL.RawQuery == "t=canary")
		http.Error(w, "canary", http.StatusForbidden)
	}))
	defer srv.Close()
	u := strings.Replace(srv.URL, "http://", "http://us3r:canary@", 1) + "/keys?t=canary"
	st := over(t, jwks.Options{URL: u})
	if !good.Load() {
		t.Error("the provider did not get what stands in the URL")
	}
	srv.Close()
	for _, st := range []jwks.State{st, over(t, jwks.Options{URL: u})} {
		if st.Err == nil {
			t.Fatal("no error")
		}
		for _, secret := range []string{"us3r", "canary"} {
			if text := fmt.Sprint(st.From, st.Err); strings.Contains(text, secret) {
				t.Errorf("%s", text)
			}
		}
	}
}

func TestNothingThatAProviderSendsIsShown(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"no HTTP":        "canary\r\n\r\n",
		"a bad status":   "HTTP/1.1 canary\r\n\r\n",
		"a bad field":    "HTTP/1.1 200 OK\r\ncanary\r\n\r\n",
		"a bad length":   "HTTP/1.1 200 OK\r\nContent-Length: canary\r\n\r\n",
		"a redirect":     "HTTP/1.1 302 canary\r\nLocation: canary://%zz\r\n\r\n",
		"cut":            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"keys\":[canary",
		"a bad chunk":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ncanary\r\n",
		"bad JSON":       "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"canary\":canary}",
		"nothing":        "",
		"gzip it is not": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Encoding: gzip\r\n\r\ncanary",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = c.Read(make([]byte, 4096))
					_, _ = io.WriteString(c, raw)
					_ = c.Close()
				}
			}()
			st := over(t, jwks.Options{URL: "http://" + l.Addr().String() + "/keys"})
			if st.Err == nil || st.Set != nil || strings.Contains(st.Err.Error(), "canary") {
				t.Errorf("got %v", st.Err)
			}
		})
	}
}

func TestABombIsNotUnpacked(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(bytes.Repeat([]byte(" "), 4<<20))
	_ = z.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed.Bytes())
	}))
	defer srv.Close()
	if st := over(t, jwks.Options{URL: srv.URL}); st.Err == nil || !strings.Contains(st.Err.Error(), "more than") {
		t.Errorf("got %v", st.Err)
	}
}

func TestOnlyAProviderWithAGoodCertificateIsBelieved(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, set(keyA))
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // the first handshake is meant to fail
	srv.StartTLS()
	defer srv.Close()
	if st := over(t, jwks.Options{URL: srv.URL}); st.Err == nil || !strings.Contains(st.Err.Error(), "certificate") {
		t.Errorf("a provider whose CA nobody knows: %v", st.Err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	if st := over(t, jwks.Options{URL: srv.URL, TLS: &tls.Config{RootCAs: pool}}); st.Err != nil || !has(st.Set, "a") {
		t.Errorf("a provider whose CA is named: %v", st.Err)
	}
}
