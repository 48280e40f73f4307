package gateway

import (
	"crypto/sha256"
	"encoding/hex"

	"bouncer/gateway/config"
)

// fingerprintBytes is how much of the digest of a secret is shown.
//
// The secrets of HS* have at least the length of a hash, 256 bits. Where they are
// random, 32 bits of a digest rule out nothing worth trying, and whoever has a token
// has a better test of a guess anyway: its signature. No other secret, a password
// or a token for people, is ever shown like this.
const fingerprintBytes = 4

// logSecrets says how many secrets each issuer has and how long they are, so that
// two sides whose tokens do not verify can see whether they have the same bytes.
func (g *Gateway) logSecrets(cfg *config.Config) {
	for _, is := range cfg.Auth.JWT {
		if len(is.Secrets) == 0 {
			continue
		}
		lengths, prints := make([]int, len(is.Secrets)), make([]string, len(is.Secrets))
		for i, s := range is.Secrets {
			sum := sha256.Sum256(s)
			lengths[i], prints[i] = len(s), hex.EncodeToString(sum[:fingerprintBytes])
		}
		g.log.Info("tokens are verified with secrets", "issuer", is.Issuer, "secrets", len(is.Secrets), "encoding", string(is.SecretEncoding),
			"bytes", lengths, "sha256_begins", prints)
	}
}
