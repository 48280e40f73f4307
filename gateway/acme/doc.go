// Package acme gets certificates from a certificate authority and renews them
// (RFC 8555), and answers the challenges by which it proves that a domain is ours:
// TLS-ALPN-01 (RFC 8737), and HTTP-01 (RFC 8555 section 8.3).
//
// It is not a listener: whoever has one asks it for certificates and for the answers
// to challenges. It speaks for one instance. Several that are to have the same
// certificate get it elsewhere and read it from files.
//
// # What it promises
//
//   - Nobody but the configuration decides for which names certificates are got, and
//     when: a handshake asks for nothing, and what it finds is in memory.
//   - A challenge is answered only while it is open, and only for the domain and the
//     path that it is about. What stands in memory for it is never written anywhere.
//   - Where no certificate can be got, nothing waits for it: the handshakes for the
//     name fail, a later attempt follows, and [Keeper.State] says so.
//   - Keys and certificates are kept in a directory that only its owner can read, so
//     that a restart asks the authority for nothing.
//
// # Use
//
//	k, err := acme.New(acme.Options{…}) // reads what is kept, and starts nothing
//	k.Start()                           // once challenges reach it
//	defer k.Close()
package acme
