package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	"bouncer/gateway/admin"
	"bouncer/gateway/auth"
	"bouncer/gateway/config"
	"bouncer/gateway/jwks"
)

// This file is about identity providers whose keys are fetched: which there are,
// and what is said of them.

// How long requests wait for keys that were never fetched, all providers together.
const (
	firstKeysAtStart  = 2 * time.Second
	firstKeysAtReload = 500 * time.Millisecond
)

// A provider has the keys of one issuer. It lives as long as what it is configured
// with does not change, over any number of reloads, so that keys are not fetched
// anew, and hold, whatever else is edited while the provider is away.
type provider struct {
	issuer   string
	cfg      *config.Provider
	tlsFiles [sha256.Size]byte // of their contents
	source   *jwks.Source
	begun    time.Time // when it was started; zero: it was not
}

// makeProviders returns the providers of cfg by issuer: those of old that have not
// changed, and new ones, which are not started.
func makeProviders(cfg *config.Config, old map[string]*provider, hooks func(*config.Issuer, *jwks.Set) jwks.Hooks) (map[string]*provider, error) {
	made := map[string]*provider{}
	for _, is := range cfg.Auth.JWT {
		c := is.Provider
		if c == nil {
			continue
		}
		files := digest(c.TLS)
		if p := old[is.Issuer]; p != nil && reflect.DeepEqual(p.cfg, c) && p.tlsFiles == files {
			made[is.Issuer] = p
			continue
		}
		tlsConfig, err := clientTLS(c.TLS)
		if err != nil {
			return nil, fmt.Errorf("auth.jwt: issuer %s: tls: %w", is.Issuer, err)
		}
		o := jwks.Options{Issuer: is.Issuer, URL: string(c.Address), TLS: tlsConfig, Refresh: c.Refresh, MaxStale: c.MaxStale}
		var known *jwks.Set
		if p := old[is.Issuer]; p != nil && bytes.Equal(p.cfg.Address, c.Address) && reflect.DeepEqual(p.cfg.TLS, c.TLS) && p.tlsFiles == files {
			// Whoever raises max_stale does so while the provider is away.
			o.Previous, known = p.source, p.source.Keys()
		}
		if hooks != nil {
			o.Hooks = hooks(is, known)
		}
		source, err := jwks.New(o)
		if err != nil {
			return nil, fmt.Errorf("auth.jwt: issuer %s: %w", is.Issuer, err)
		}
		made[is.Issuer] = &provider{issuer: is.Issuer, cfg: c, tlsFiles: files, source: source}
	}
	return made, nil
}

// startProviders has those begin that have not.
func startProviders(all map[string]*provider) {
	for _, p := range all {
		if p.begun.IsZero() {
			p.begun = time.Now()
			p.source.Start()
		}
	}
}

// awaitProviders waits for the first fetch of each, well or not, until ctx ends at
// most.
func awaitProviders(ctx context.Context, all map[string]*provider) {
	for _, p := range all {
		select {
		case <-p.source.Tried():
		case <-ctx.Done():
			return
		}
	}
}

// startFirstProviders has those of the first configuration begin.
func (g *Gateway) startFirstProviders(ctx context.Context) {
	g.mu.Lock()
	all := g.providers
	startProviders(all)
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, firstKeysAtStart)
	defer cancel()
	awaitProviders(ctx, all)
}

// useProviders has new ones begin before anybody needs them. It is called once
// nothing can fail any more; dropProviders, when the old ones are not needed.
func (g *Gateway) useProviders(now map[string]*provider, running bool) {
	both := maps.Clone(now)
	for issuer, p := range g.providers {
		if both[issuer] == nil {
			both[issuer] = p
		}
	}
	g.telemetry.Issuers(slices.Collect(maps.Keys(both)))
	for issuer, p := range now {
		if g.providers[issuer] != p {
			s := p.source.State()
			g.telemetry.IssuerKeys(issuer, countOf(s.Set), s.Fetched)
		}
	}
	if running {
		ctx, cancel := context.WithTimeout(context.Background(), firstKeysAtReload)
		defer cancel()
		startProviders(now)
		awaitProviders(ctx, now)
	}
}

// dropProviders ends those that the configuration in force has no use for.
func (g *Gateway) dropProviders(now map[string]*provider) {
	for issuer, p := range g.providers {
		if now[issuer] != p {
			p.source.Close()
		}
	}
	g.telemetry.Issuers(slices.Collect(maps.Keys(now)))
	g.providers = now
}

// fetchOutcomes are all the labels gateway_jwks_fetches_total has.
func fetchOutcomes() (names []string) {
	for _, o := range jwks.Outcomes() {
		names = append(names, string(o))
	}
	return names
}

// keySource is where the keys of an issuer are, if they are a JWK set.
func keySource(is *config.Issuer, providers map[string]*provider) auth.KeySource {
	switch p := providers[is.Issuer]; {
	case is.KeySet != nil:
		return auth.FixedKeys(is.KeySet)
	case p != nil:
		return p.source
	}
	return nil
}

// providerHooks say, once each time, how it stands with the keys of an issuer, in
// the log and in the metrics.
// known is the set that is in force to begin with, or nil.
func (g *Gateway) providerHooks(is *config.Issuer, known *jwks.Set) jwks.Hooks {
	log := g.log.With("issuer", is.Issuer)
	trusted := known != nil // hooks are told one at a time
	return jwks.Hooks{
		Fetched: func(o jwks.Outcome) {
			g.telemetry.IssuerFetched(is.Issuer, string(o))
			if o != jwks.Failed {
				trusted = true
				g.telemetry.IssuerKeys(is.Issuer, countOf(known), time.Now())
			}
		},
		Away: func(err error) {
			if trusted {
				log.Error("the keys of an issuer cannot be fetched; the ones that are known hold until they are as old as max_stale allows",
					"error", err, "keys", countOf(known), "max_stale", is.Provider.MaxStale.String(), "do", "see that the provider answers, and with what it should; gateway doctor asks it")
				return
			}
			log.Error("the keys of an issuer cannot be fetched, and none are known: its tokens are refused until they can be",
				"error", err, "do", "see that the provider answers, and with what it should; gateway doctor asks it")
		},
		Back: func(away time.Duration) {
			log.Warn("the keys of an issuer can be fetched again", "was_away", away.Round(time.Millisecond).String())
		},
		TooOld: func(age time.Duration) {
			trusted = false
			g.telemetry.IssuerTooOld(is.Issuer)
			log.Error("the keys of an issuer are too old to be trusted (max_stale), and its tokens are refused until they can be fetched again",
				"age", age.Round(time.Second).String(), "max_stale", is.Provider.MaxStale.String())
		},
		Changed: func(set *jwks.Set) {
			first := known == nil
			known, trusted = set, true
			g.telemetry.IssuerKeys(is.Issuer, len(set.Keys()), time.Now())
			serves, none := algorithmsOf(is, set)
			if first {
				log.Info("the keys of an issuer are known", "keys", len(set.Keys()), "algorithms", serves)
			} else {
				log.Info("the issuer has other keys than before", "keys", len(set.Keys()), "algorithms", serves)
			}
			if len(serves) == 0 {
				log.Warn("no key of the issuer is for an algorithm that is allowed, so that its tokens are all refused", "allowed", none)
			}
			if skipped := set.Skipped(); len(skipped) > 0 {
				log.Warn("keys of an issuer are left out; the others are used", "left_out", skipped)
			}
		},
	}
}

// countOf is how many keys a set has; nil has none.
func countOf(set *jwks.Set) int {
	if set == nil {
		return 0
	}
	return len(set.Keys())
}

// algorithmsOf lists which allowed algorithms a set has keys for, and which not.
func algorithmsOf(is *config.Issuer, set *jwks.Set) (serves, none []string) {
	serves = []string{}
	for _, alg := range is.Algorithms {
		if slices.ContainsFunc(set.Keys(), func(k jwks.Key) bool { return config.KeyFits(k, alg) }) {
			serves = append(serves, alg)
		} else {
			none = append(none, alg)
		}
	}
	return serves, none
}

// providersDegraded lists the issuers whose keys are not there, or older than they
// should be.
func (g *Gateway) providersDegraded() (list []admin.Degraded) {
	g.mu.Lock()
	all := g.providers
	g.mu.Unlock()
	for _, issuer := range slices.Sorted(maps.Keys(all)) {
		p := all[issuer]
		s := p.source.State()
		d := admin.Degraded{Part: "issuer " + issuer, Since: s.Since}
		switch {
		case s.TooOld:
			d.Since = s.Fetched.Add(p.cfg.MaxStale)
			d.Effect = "its keys are older than max_stale; its tokens are refused until they can be fetched"
		case s.Set == nil:
			if d.Since.IsZero() {
				d.Since = p.begun
			}
			d.Effect = "its keys were never fetched; its tokens are refused until they can be"
		case !s.Since.IsZero() && time.Since(s.Fetched) > p.cfg.Refresh:
			d.Effect = "its keys cannot be fetched; the ones that are known hold until " + s.Fetched.Add(p.cfg.MaxStale).UTC().Format(time.RFC3339)
		default:
			continue
		}
		list = append(list, d)
	}
	return list
}

// fetchKeys asks each provider once, for at most as long as ctx says, and lets go of
// them: what they know then stays. It returns what is wrong, a line each.
func fetchKeys(ctx context.Context, all map[string]*provider) (wrong []string) {
	startProviders(all)
	awaitProviders(ctx, all)
	for _, issuer := range slices.Sorted(maps.Keys(all)) {
		p := all[issuer]
		p.source.Close()
		switch s := p.source.State(); {
		case s.Err != nil:
			wrong = append(wrong, fmt.Sprintf("issuer %s: %v", issuer, s.Err))
		case s.Set == nil:
			wrong = append(wrong, fmt.Sprintf("issuer %s: the provider has not answered in time", issuer))
		}
	}
	return wrong
}

// keySets asks the providers of keys, and says what they have.
func (e *examination) keySets(ctx context.Context, cfg *config.Config) {
	ctx, cancel := context.WithTimeout(ctx, examineFor)
	defer cancel()
	made, err := makeProviders(cfg, nil, nil)
	if err != nil {
		e.add(LevelFail, "issuers", err.Error(), "see that the files it names are there and hold PEM")
		return
	}
	began := time.Now()
	fetchKeys(ctx, made)
	for _, is := range cfg.Auth.JWT {
		part := "issuer " + is.Issuer
		set, from := is.KeySet, "jwks_file"
		if p := made[is.Issuer]; p != nil {
			s := p.source.State()
			if s.Set == nil {
				what := "the provider has not answered within " + examineFor.String()
				if s.Err != nil {
					what = s.Err.Error()
				}
				e.add(LevelFail, part, what, keysHint(p.cfg, s.Err))
				continue
			}
			set, from = s.Set, s.From
			from += fmt.Sprintf(", fetched %s after it was asked for", short(s.Fetched.Sub(began)))
		}
		if set == nil {
			continue // its keys are PEM or a secret
		}
		serves, none := algorithmsOf(is, set)
		what := fmt.Sprintf("%s for %s (%s)", countKeys(len(set.Keys())), orNone(serves), from)
		switch {
		case len(serves) == 0:
			e.add(LevelFail, part, what, "no key is for an algorithm that is allowed, which are "+strings.Join(none, ", ")+": every token is refused; see auth.jwt.algorithms")
		case len(none) > 0:
			e.add(LevelWarn, part, what+", none for "+strings.Join(none, ", "), "allow only what the issuer signs with; see auth.jwt.algorithms")
		default:
			e.add(LevelOK, part, what, "")
		}
		if skipped := set.Skipped(); len(skipped) > 0 {
			e.add(LevelWarn, part, countKeys(len(skipped))+" left out: "+someOf(skipped), "nothing, if no token is signed with them")
		}
	}
}

func countKeys(n int) string {
	if n == 1 {
		return "1 key"
	}
	return fmt.Sprintf("%d keys", n)
}

func orNone(words []string) string {
	if len(words) == 0 {
		return "none of the allowed algorithms"
	}
	return strings.Join(words, ", ")
}

// keysHint is what to do about keys that cannot be fetched, for what is wrong; nil
// if the provider has not answered in time.
func keysHint(c *config.Provider, wrong error) string {
	const refused = "; until then its tokens are refused"
	if _, ok := errors.AsType[*tls.CertificateVerificationError](wrong); ok {
		return "see that the provider shows a certificate that this machine trusts, or name in the issuer's tls.ca_file who vouches for it" + refused
	}
	if _, ok := errors.AsType[*net.OpError](wrong); ok || wrong == nil {
		return "see that the provider runs, and that this machine can connect to it" + refused
	}
	if c.URL == "" {
		return "see that the issuer has a discovery document that names just this issuer, or give its keys with jwks_url" + refused
	}
	return "see that jwks_url is where its JWK set is" + refused
}
