package jwks

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"
)

// CheckURL says what is wrong with the URL of a set, of a discovery document or of
// an issuer that is to be discovered. It must be https, or http to this machine:
// whoever can change a set on its way can sign tokens.
func CheckURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Opaque != "":
		return errors.New("it is not a URL")
	case u.Scheme != "https" && u.Scheme != "http":
		return errors.New("it is not https")
	case u.Hostname() == "":
		return errors.New("it names no host")
	case u.Fragment != "" || strings.Contains(s, "#"):
		return errors.New("it has a fragment, which no request carries")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errors.New("it is http, over which anybody on the way can put in keys of their own; that is for this machine only (127.0.0.1, [::1], localhost)")
	}
	return nil
}

// isHTTP reports whether a URL that CheckURL lets pass is not https.
func isHTTP(s string) bool {
	u, err := url.Parse(s) // which lowers the scheme
	return err == nil && u.Scheme == "http"
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || strings.EqualFold(host, "localhost")
}

// Redact returns a URL without what stands before the @ and without its query, which
// may hold secrets.
func Redact(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// DiscoveryPath is what follows an issuer's name in the URL of its discovery document
// (OpenID Connect Discovery 1.0 section 4).
const DiscoveryPath = "/.well-known/openid-configuration"

// discoveryURL is where an issuer's discovery document is (OpenID Connect
// Discovery 1.0 section 4.1).
func discoveryURL(issuer string) string {
	return strings.TrimSuffix(issuer, "/") + DiscoveryPath
}
