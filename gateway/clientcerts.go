package gateway

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"time"

	"bouncer/gateway/config"
)

// This file is how certificates of clients are asked for. Package auth verifies them:
// a handshake that fails could be told from a 401, and would spare no route.

// askingTLS is own, a listener's side of TLS, for a configuration in which
// certificates of clients that cas vouch for count: it asks for one, says whose, and insists on none. It
// is nil where none counts, since a browser would bother people with the question.
func askingTLS(own *tls.Config, cas []*x509.Certificate) *tls.Config {
	if len(cas) == 0 {
		return nil
	}
	ask := own.Clone()
	ask.GetConfigForClient = nil
	ask.ClientAuth, ask.ClientCAs = tls.RequestClientCert, x509.NewCertPool()
	h := sha256.New()
	for _, ca := range cas {
		ask.ClientCAs.AddCert(ca)
		h.Write(ca.Raw)
	}
	// Who resumes a session is not asked again: one from before the question was put,
	// or was put otherwise, is not resumed. Tickets are sealed, so nobody else marks one.
	mark := h.Sum(nil)
	ask.WrapSession = func(cs tls.ConnectionState, s *tls.SessionState) ([]byte, error) {
		s.Extra = append(s.Extra, mark)
		return own.EncryptTicket(cs, s)
	}
	ask.UnwrapSession = func(identity []byte, cs tls.ConnectionState) (*tls.SessionState, error) {
		s, err := own.DecryptTicket(identity, cs)
		if err != nil || s == nil || !slices.ContainsFunc(s.Extra, func(b []byte) bool { return bytes.Equal(b, mark) }) {
			return nil, err
		}
		// A resumed session is wrapped anew, with the mark.
		s.Extra = slices.DeleteFunc(s.Extra, func(b []byte) bool { return bytes.Equal(b, mark) })
		return s, nil
	}
	return ask
}

// authoritiesEnd tells when the certificates of those who vouch for clients end.
func authoritiesEnd(cfg *config.Config, ends map[string]time.Time) {
	cas := cfg.Admin.ClientCAs
	if c := cfg.Auth.ClientCerts; c != nil {
		cas = slices.Concat(cas, c.CAs)
	}
	for _, ca := range cas {
		name := "client CA " + subject(ca)
		// Two of a name are an authority that renews its own.
		if at, ok := ends[name]; !ok || ca.NotAfter.Before(at) {
			ends[name] = ca.NotAfter
		}
	}
}
