package jwks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// fetchTimeout bounds one fetch, discovery included.
const fetchTimeout = 5 * time.Second

// discoveryLife is how long a discovery document is believed. A set that cannot be
// fetched has it asked for anew.
const discoveryLife = time.Hour

// fetcher asks one provider. It is not safe for concurrent use: a Source fetches
// once at a time.
type fetcher struct {
	client     *http.Client
	issuer     string
	fixed      string // the set's URL as configured; empty: as the provider says
	discovered string
	until      time.Time // when discovered is asked for anew
	etag       string    // of the set that came last, from etagURL
	etagURL    string
}

// fetched is what a fetch found.
type fetched struct {
	set   *Set          // nil: as before
	fresh time.Duration // how long it is good for; negative: the provider does not say
}

// failure is a fetch that brought no set.
type failure struct {
	err   error
	after time.Duration // when to ask again, if the provider says so
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func newFetcher(o Options) *fetcher {
	transport := o.Transport
	if transport == nil {
		// A connection that is asked every ten minutes is not worth keeping.
		transport = &http.Transport{
			Proxy: proxy, TLSClientConfig: o.TLS, ForceAttemptHTTP2: true,
			DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		}
	}
	return &fetcher{
		issuer: o.Issuer, fixed: o.URL,
		client: &http.Client{
			Transport: transport,
			// Who may answer with a redirect could send us anywhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// proxy is the one that the environment names. The library's error would show its
// password.
func proxy(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, &net.OpError{Op: "proxyconnect", Net: "tcp", Err: errors.New("the proxy that the environment names is not a URL")}
	}
	return u, nil
}

// fetch asks for the set. The error says what was asked for, and what was wrong.
func (f *fetcher) fetch(ctx context.Context) (fetched, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	from := f.fixed
	if from == "" {
		if f.discovered == "" || !time.Now().Before(f.until) {
			if err := f.discover(ctx); err != nil {
				return fetched{}, err
			}
		}
		from = f.discovered
	}
	got, err := f.set(ctx, from)
	if err != nil {
		f.discovered = ""
		return fetched{}, fmt.Errorf("fetch JWK set from %s: %w", Redact(from), err)
	}
	return got, nil
}

// discover asks where the issuer's set is (OpenID Connect Discovery 1.0 section 4).
func (f *fetcher) discover(ctx context.Context) error {
	from := discoveryURL(f.issuer)
	at, err := func() (string, error) {
		got, err := f.get(ctx, from, "application/json", "")
		if err != nil {
			return "", err
		}
		var doc struct {
			Issuer string `json:"issuer"`
			Set    string `json:"jwks_uri"`
		}
		switch err := parseObject(got.body, &doc); {
		case err != nil:
			return "", err
		case doc.Issuer != f.issuer && strings.TrimSuffix(doc.Issuer, "/") == strings.TrimSuffix(f.issuer, "/"):
			// Not bent: its tokens have the one or the other.
			return "", fmt.Errorf("it is of issuer %s, which is %s but for the slash at its end, and that counts; write the issuer as the document does", quote(doc.Issuer), quote(f.issuer))
		case doc.Issuer != f.issuer:
			// Section 4.3: else any issuer of a provider could speak for another.
			return "", fmt.Errorf("it is of issuer %s; want exactly %s", quote(doc.Issuer), quote(f.issuer))
		case doc.Set == "":
			return "", errors.New("it has no jwks_uri")
		}
		if err := CheckURL(doc.Set); err != nil {
			return "", fmt.Errorf("its jwks_uri cannot be used: %w", err)
		}
		if !isHTTP(f.issuer) && isHTTP(doc.Set) {
			// OpenID Connect Discovery 1.0 section 3 wants https. That http to this machine
			// is good is the operator's to say, not the provider's: it would choose what
			// is asked here, and whoever listens here could sign for it.
			return "", errors.New("its jwks_uri cannot be used: it is http, and the issuer is https")
		}
		return doc.Set, nil
	}()
	if err != nil {
		return fmt.Errorf("fetch discovery document from %s: %w", Redact(from), err)
	}
	f.discovered, f.until = at, time.Now().Add(discoveryLife)
	return nil
}

func (f *fetcher) set(ctx context.Context, from string) (fetched, error) {
	etag := ""
	if from == f.etagURL {
		etag = f.etag
	}
	doc, err := f.get(ctx, from, "application/jwk-set+json, application/json", etag)
	if err != nil {
		return fetched{}, err
	}
	got := fetched{fresh: freshness(doc.header)}
	if doc.same {
		return got, nil
	}
	if got.set, err = Parse(doc.body); err != nil {
		return fetched{}, err
	}
	f.etag, f.etagURL = doc.header.Get("ETag"), from
	return got, nil
}

// document is an answer.
type document struct {
	header http.Header
	body   []byte
	same   bool // it is what the etag stands for
}

// get asks for one document. An answer other than 200, and 304 if an etag was given,
// is an error.
func (f *fetcher) get(ctx context.Context, from, accept, etag string) (document, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return document{}, errors.New("it is not a URL")
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("User-Agent", "bouncer")
	if etag != "" {
		r.Header.Set("If-None-Match", etag)
	}
	resp, err := f.client.Do(r)
	if err != nil {
		return document{}, notAnswered(ctx, err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read, or is given up
	switch s := resp.StatusCode; {
	case s == http.StatusOK, s == http.StatusNotModified && etag != "":
	case s == http.StatusNotModified:
		return document{}, errors.New("it is answered with status 304 (not modified), though no version of it was named; see what caches stand in front of the provider")
	case s >= 300 && s < 400:
		return document{}, fmt.Errorf("it is answered with a redirect (%d), which is not followed; name the URL where it is", s)
	default:
		return document{}, &failure{err: fmt.Errorf("it is answered with status %d", s), after: retryAfter(resp.Header)}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxBytes+1))
	switch {
	case ctx.Err() == context.DeadlineExceeded:
		return document{}, fmt.Errorf("the answer is not whole in %v", fetchTimeout)
	case err != nil:
		return document{}, errors.New("the answer breaks off")
	case len(body) > MaxBytes:
		return document{}, fmt.Errorf("the answer has more than %d bytes", MaxBytes)
	}
	return document{header: resp.Header, body: body, same: resp.StatusCode == http.StatusNotModified}, nil
}

// notAnswered says why there is no answer. Errors that quote what came are left out,
// and so is the URL, as it was given.
func notAnswered(ctx context.Context, err error) error {
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("no answer in %v", fetchTimeout)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return e
	}
	if e, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return e
	}
	return errors.New("what came is no HTTP answer, or breaks off")
}

// freshness is how long an answer may be used without asking again (RFC 9111
// section 4.2), negative if it does not say.
func freshness(h http.Header) time.Duration {
	fresh := time.Duration(-1)
	for _, line := range h.Values("Cache-Control") {
		for d := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(d), "=")
			switch strings.ToLower(name) {
			case "no-cache", "no-store":
				return 0
			case "max-age":
				// Of several the shortest: what contradicts itself is better asked again
				// (section 4.2.1).
				if d, ok := seconds(strings.Trim(value, `"`)); ok && (fresh < 0 || d < fresh) {
					fresh = d
				}
			}
		}
	}
	if age, ok := seconds(h.Get("Age")); ok && fresh >= 0 {
		fresh = max(fresh-age, 0)
	}
	return fresh
}

func retryAfter(h http.Header) time.Duration {
	d, _ := seconds(h.Get("Retry-After"))
	return d
}

// seconds reads delta-seconds, capped at a day.
func seconds(s string) (time.Duration, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 63)
	if errors.Is(err, strconv.ErrRange) {
		n, err = 86400, nil
	}
	return time.Duration(min(n, 86400)) * time.Second, err == nil
}

// quote shows a text that somebody else chose.
func quote(s string) string {
	const most = 100
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.QuoteToASCII(s)
}
