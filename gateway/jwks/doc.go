// Package jwks holds the public keys that an identity provider publishes as a JWK
// set (RFC 7517): it reads such a set ([Parse]), and keeps one that is fetched over
// HTTP up to date in the background ([Source]).
//
// It is not for tokens. Which key of a set a token is verified with, for which
// algorithm, and what a token may say, is the business of package auth.
//
// # What it promises
//
//   - A set is read key by key. A key that is damaged, of a kind that nobody here
//     uses, for encryption, symmetric or private is left out with a line that says
//     why, and spoils no other (RFC 7517 section 5).
//   - Who asks for keys waits for nobody: [Source.Keys] is one load. Only
//     [Source.Missing] may wait, for at most [MaxWait], and all who call it together
//     cost the provider at most one fetch in [CoolDown].
//   - A fetch is bounded in time and size. It goes to https, or to this machine, and
//     follows no redirect.
//   - A provider that is away, or that answers with anything but a good set, changes
//     nothing: the last good set holds until it is [Options.MaxStale] old, and then no
//     longer. Both are told through [Hooks].
//   - A fetch that brings the same keys again keeps the same *[Set], so that whoever
//     remembers what was verified with a set knows by the pointer whether it is still
//     true.
//   - No error and no name that leaves this package holds what stands before the @ of
//     a URL, or a byte of what the provider sent but for its issuer.
//
// # Use
//
//	s, err := jwks.New(jwks.Options{Issuer: "https://login.example.com/"})
//	s.Start()
//	defer s.Close()
//	<-s.Tried() // or not: keys come when they come
//	set := s.Keys()
//	if set == nil {
//		// nothing can be verified now
//	}
//	if len(set.Find(kid)) == 0 {
//		set, heard = s.Missing(ctx) // not heard: nobody knows yet whether there is such a key
//	}
package jwks
