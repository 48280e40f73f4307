package acme

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	protocol "golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
)

// take puts a certificate into force that is good.
func (d *domain) take(kept []byte) bool {
	cert, err := parse(kept, d.name)
	if err != nil {
		return false
	}
	d.cert.Store(cert)
	d.failed(nil)
	return true
}

func (d *domain) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil || d.err == nil {
		d.since = time.Now()
	}
	d.err = err
}

// watch sees when a certificate should have been renewed: that begins with a third of
// its time left, and at most thirty days, and is late at half of it. One that has
// ended is none.
func (d *domain) watch() {
	cert := d.cert.Load()
	if cert == nil {
		return
	}
	leaf, now := cert.Leaf, time.Now()
	if !now.Before(leaf.NotAfter) {
		d.cert.Store(nil)
		d.k.changed()
		return
	}
	late := min(leaf.NotAfter.Sub(leaf.NotBefore)/3, 30*24*time.Hour) / 2
	d.mu.Lock()
	known := d.err != nil
	d.mu.Unlock()
	if leaf.NotAfter.Sub(now) < late && !known {
		err := d.explain(errLate)
		d.failed(err)
		if d.k.o.Failed != nil {
			d.k.o.Failed(d.name, err, time.Hour)
		}
		d.k.changed()
	}
}

// explain adds what the authority said, which autocert does not pass on.
func (d *domain) explain(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if said, ok := errors.AsType[*protocol.Error](err); d.told == "" || ok && said.Detail == d.told {
		return err
	}
	return fmt.Errorf("%w; the authority said: %s", err, d.told)
}

// A cache is where the Manager of a domain keeps things. What is put there for the
// domain is the certificate that is in force from then on: when it is new, and when it
// is renewed. Challenges are kept in memory only.
type cache struct {
	autocert.DirCache
	d *domain
}

const (
	tlsToken  = "+token"
	httpToken = "+http-01"
)

// Get implements autocert.Cache.
func (c cache) Get(ctx context.Context, key string) ([]byte, error) {
	if strings.HasSuffix(key, tlsToken) || strings.HasSuffix(key, httpToken) {
		return nil, autocert.ErrCacheMiss // the Manager has its own in memory
	}
	return c.DirCache.Get(ctx, key)
}

// Put implements autocert.Cache.
func (c cache) Put(ctx context.Context, key string, data []byte) error {
	if strings.HasSuffix(key, tlsToken) {
		return nil
	}
	if token, ok := strings.CutSuffix(key, httpToken); ok {
		c.d.mu.Lock()
		defer c.d.mu.Unlock()
		c.d.tokens[token] = string(data)
		return nil
	}
	err := c.DirCache.Put(ctx, key, data)
	if key == c.d.name && c.d.take(data) {
		k := c.d.k
		if k.o.Got != nil {
			k.o.Got(c.d.name, c.d.cert.Load().Leaf.NotAfter)
		}
		k.changed()
	}
	return err
}

// Delete implements autocert.Cache.
func (c cache) Delete(ctx context.Context, key string) error {
	if strings.HasSuffix(key, tlsToken) {
		return nil
	}
	if token, ok := strings.CutSuffix(key, httpToken); ok {
		c.d.mu.Lock()
		defer c.d.mu.Unlock()
		delete(c.d.tokens, token)
		return nil
	}
	return c.DirCache.Delete(ctx, key)
}

// listening carries requests to the authority until the Keeper is closed, and hears
// why a challenge failed.
type listening struct {
	http.RoundTripper
	d *domain
}

// maxAnswer bounds an answer of the authority; a chain of certificates is the longest.
const maxAnswer = 1 << 20

// RoundTrip implements http.RoundTripper.
func (l listening) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := l.d.k.stopped.Err(); err != nil {
		return nil, err
	}
	res, err := l.RoundTripper.RoundTrip(r)
	if err != nil || !strings.Contains(res.Header.Get("Content-Type"), "json") {
		return res, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	_ = res.Body.Close()
	if err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	if said := complaint(body, res.StatusCode); said != "" {
		l.d.mu.Lock()
		l.d.told = said
		l.d.mu.Unlock()
	}
	return res, nil
}

// complaint returns what is wrong in the words of an answer: a problem (RFC 8555
// section 6.7), or that of a challenge or an order.
func complaint(body []byte, status int) string {
	type problem struct {
		Type   string `json:"type"`
		Detail string `json:"detail"`
	}
	var a struct {
		problem
		Error      *problem `json:"error"`
		Challenges []struct {
			Error *problem `json:"error"`
		} `json:"challenges"`
	}
	if json.Unmarshal(body, &a) != nil {
		return ""
	}
	said := ""
	switch {
	case strings.HasSuffix(a.Type, ":badNonce"): // it is sent again with a good one
	case status >= http.StatusBadRequest:
		said = a.Detail
	case a.Error != nil:
		said = a.Error.Detail
	}
	for _, c := range a.Challenges {
		if c.Error != nil {
			said = c.Error.Detail
		}
	}
	return said[:min(len(said), 500)]
}
