package gateway

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"bouncer/gateway/acme"
	"bouncer/gateway/admin"
	"bouncer/gateway/config"
)

// This file is the certificates of the HTTPS listener: those in files, and those that
// are got from a certificate authority.

// ChallengeRoute is the name, in logs and metrics, of the route at which an authority
// looks at a challenge, while there is one.
const ChallengeRoute = "gateway:acme"

// certificates are what the listener shows under one configuration.
type certificates struct {
	file   *tls.Certificate // nil with ACME
	keeper *acme.Keeper     // nil with files
	cfg    *config.ACME
	ca     [sha256.Size]byte // of the contents of its ca_file
}

var errNoCertificate = errors.New("the listener has no certificates")

// makeCertificates returns the certificates of cfg: those in use, if nothing about
// them has changed. It starts nothing.
func (g *Gateway) makeCertificates(cfg *config.Config) (*certificates, error) {
	h := cfg.Listen.HTTPS
	switch {
	case h == nil:
		return nil, nil
	case h.ACME == nil:
		cert, err := loadCertificate(h)
		if err != nil {
			return nil, err
		}
		return &certificates{file: cert}, nil
	case g.bound.Listen.HTTPS == nil: // after a restart there is a listener
		return nil, nil
	}
	trust := &config.TLS{CAFile: h.ACME.CAFile}
	ca := digest(trust)
	if old := g.certificates.Load(); old != nil && old.keeper != nil && old.ca == ca && reflect.DeepEqual(old.cfg, h.ACME) {
		return old, nil
	}
	roots, err := clientTLS(trust)
	if err != nil {
		return nil, fmt.Errorf("listen.https.acme: %w", err)
	}
	keeper, err := acme.New(acme.Options{
		Domains: h.ACME.Domains, Email: h.ACME.Email, CacheDir: h.ACME.CacheDir, Directory: h.ACME.DirectoryURL, Roots: roots.RootCAs,
		HTTP01: g.bound.Listen.HTTP != "",
		Got: func(domain string, notAfter time.Time) {
			g.log.Info("a certificate was issued", "domain", domain, "expires", notAfter.UTC().Format(time.RFC3339))
		},
		Failed: func(domain string, err error, again time.Duration) {
			g.log.Error("no certificate could be got from the certificate authority", "domain", domain, "error", err, "do", acmeHint(err), "again_in", again.Round(time.Second).String())
		},
		Changed: g.showCertificates,
	})
	if err != nil {
		return nil, fmt.Errorf("listen.https.acme.cache_dir: %w", err)
	}
	return &certificates{keeper: keeper, cfg: h.ACME, ca: ca}, nil
}

// useCertificates puts certificates in force; running says that there are listeners.
func (g *Gateway) useCertificates(c *certificates, running bool) {
	old := g.certificates.Swap(c)
	if old != nil && old.keeper != nil && old != c {
		g.closing.Go(old.keeper.Close)
	}
	if c == nil || c.keeper == nil || !running {
		return
	}
	if old == c {
		c.keeper.Retry()
	}
	c.keeper.Start()
}

// startCertificates begins to get what is missing, once challenges are answered.
func (g *Gateway) startCertificates() {
	if c := g.certificates.Load(); c != nil && c.keeper != nil {
		c.keeper.Start()
	}
}

func (g *Gateway) closeCertificates() {
	if c := g.certificates.Load(); c != nil && c.keeper != nil {
		c.keeper.Close()
	}
}

// showCertificates tells the metric when each ends, and those that vouch for clients;
// one that there is not has ended long ago.
func (g *Gateway) showCertificates() {
	c, s := g.certificates.Load(), g.current.Load()
	ends := map[string]time.Time{}
	if s != nil {
		authoritiesEnd(s.cfg, ends)
	}
	if a := g.adminCertificate.Load(); a != nil {
		ends[subject(a.Leaf)] = a.Leaf.NotAfter
	}
	switch {
	case c == nil:
	case c.file != nil:
		ends[subject(c.file.Leaf)] = c.file.Leaf.NotAfter
	default:
		for _, s := range c.keeper.State() {
			if ends[s.Domain] = s.NotAfter; s.NotAfter.IsZero() {
				ends[s.Domain] = time.Unix(0, 0)
			}
		}
	}
	g.telemetry.Certificates(ends)
}

// certificatesDegraded lists the domains without a certificate, or with one that
// should have been renewed.
func (g *Gateway) certificatesDegraded() (list []admin.Degraded) {
	c := g.certificates.Load()
	if c == nil || c.keeper == nil {
		return nil
	}
	for _, s := range c.keeper.State() {
		switch {
		case s.Err == nil:
		case s.NotAfter.IsZero():
			list = append(list, admin.Degraded{Part: "certificate " + s.Domain, Since: s.Since, Effect: "there is none, so that TLS handshakes for the name fail"})
		default:
			list = append(list, admin.Degraded{Part: "certificate " + s.Domain, Since: s.Since, Effect: "it is not renewed, and expires on " + s.NotAfter.UTC().Format(time.DateOnly)})
		}
	}
	return list
}

// makeListenerTLS is the HTTPS listener's side of TLS.
func (g *Gateway) makeListenerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			switch c := g.certificates.Load(); {
			case c == nil:
				return nil, errNoCertificate
			case c.keeper != nil:
				return c.keeper.Certificate(hello)
			default:
				return c.file, nil
			}
		},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if c := g.certificates.Load(); c != nil && c.keeper != nil {
				if challenge := c.keeper.Challenge(hello); challenge != nil {
					return challenge, nil
				}
			}
			return g.current.Load().asking, nil // nil: this one
		},
	}
}

// challenge is the route of a request by which an authority looks at a challenge that
// is open; nil for all others.
func (g *Gateway) challenge(r *http.Request) *route {
	if r.TLS != nil || r.Method != http.MethodGet || !strings.HasPrefix(r.URL.Path, acme.ChallengePath) {
		return nil
	}
	c := g.certificates.Load()
	if c == nil || c.keeper == nil {
		return nil
	}
	answer, ok := c.keeper.Answer(hostname(r.Host), r.URL.Path)
	if !ok {
		return nil
	}
	return &route{name: ChallengeRoute, auth: config.AuthNone, challenge: answer}
}

// answerChallenge answers a request by which an authority looks at a challenge (RFC
// 8555 section 8.3).
func answerChallenge(w http.ResponseWriter, answer string) {
	h := w.Header()
	h["Content-Type"], h["Content-Length"] = []string{"application/octet-stream"}, []string{strconv.Itoa(len(answer))}
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, answer) //nolint:gosec // it is a token and a hash, of a type that no browser shows; an authority that left comes again
}

// noDirectory reports whether what answered at directory_url did so with no JSON.
func noDirectory(err error) bool {
	return errorIs[*json.SyntaxError](err) || strings.Contains(err.Error(), "invalid character")
}

// acmeHint says what to do about an error.
func acmeHint(err error) string {
	var unknown x509.UnknownAuthorityError
	_, network := errors.AsType[net.Error](err)
	text := err.Error()
	switch {
	case errors.As(err, &unknown):
		return "the certificate of acme.directory_url is not trusted: name its authority in acme.ca_file"
	case noDirectory(err):
		return "see that acme.directory_url is the whole address of the authority's directory, and that no other server answers there"
	case strings.Contains(text, "rateLimited"):
		return "the authority has had too many requests for this domain: wait, and see what went wrong before"
	case network:
		return "the authority cannot be reached: see that acme.directory_url is right, and that this machine may connect to it"
	case strings.Contains(text, "challenge"):
		return "the authority could not see this gateway under the domain: in DNS it has to name this machine, and port 443 has to be that of listen.https, or port 80 that of listen.http"
	default:
		return "see what the authority says; the gateway goes on trying, and a reload tries at once"
	}
}
