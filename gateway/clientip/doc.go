// Package clientip answers one question: whose address is it?
//
// A gateway that believes X-Forwarded-For from anybody has no limit per IP at
// all: whoever types a new address into the field gets a fresh bucket, and
// whoever types somebody else's empties theirs. So a field counts only if the
// peer on the wire is a trusted proxy, and then it is read from the right: each
// proxy appends the address it saw, so the rightmost entries were written by
// our own hops and everything left of the first address that is not a trusted
// proxy is what a stranger claims. That first untrusted address is the client.
//
// Three kinds of field are understood:
//
//   - X-Forwarded-For, a list; several field lines are one list, in order.
//   - Forwarded (RFC 7239), the for parameter of each element, in the same way.
//   - any other name is a field with one address, such as CF-Connecting-IP. It
//     counts if there is exactly one line with exactly one address.
//
// It is not authentication, and an address is not a person: many share one, and
// one may have many. An IPv6 customer usually owns a whole /64, so limits count
// per prefix ([Result.Bucket]), while [Result.Client] keeps the whole address.
//
// It does not fail. What cannot be believed or understood (an obfuscated name,
// "unknown", an octal number, 10 kB of noise) ends the walk, and the last
// address that a trusted hop vouched for, at least the peer's own, is the
// answer. No text of a request becomes part of a bucket: all that leaves this
// package are addresses that were parsed and written anew.
//
//	resolver, err := clientip.New(clientip.Options{
//		Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
//	})
//	...
//	res := resolver.Resolve(r)
//	limitBy(res.Bucket)                              // "203.0.113.7" or "2001:db8::/64"
//	out.Header.Set("X-Forwarded-For", res.Forwarded) // "203.0.113.7, 10.0.0.2"
package clientip
