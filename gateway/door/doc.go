// Package door stands between a listener and net/http and lets in only requests
// that every parser reads alike. What is behind a gateway has a parser of its
// own; where the two disagree about where a request ends or whom it is for, a
// caller gets past the limits of one with what the other carries out (request
// smuggling). net/http forgives what RFC 9112 does not: a bare LF, a length
// beside a transfer coding, a Host that is none.
//
// It is not a parser for anybody else: it keeps nothing of what it reads, and
// hands the very bytes on. It knows no routes, and it does not judge paths or
// what fields mean, only where messages begin and end and whether a head is well
// formed. HTTP/2 frames its messages by itself: its frames are followed and pass
// untouched, as does what comes after an upgrade, and [Refused] looks at its requests
// when they are whole.
//
// # What it does
//
// The bytes of a connection are held back until a head is whole, and read
// strictly (RFC 9112, RFC 3986, RFC 9110 section 5). A body is followed to its
// end, chunk by chunk, so that the next head is found where it begins.
//
// In place of a head that is refused the server is given a request of our own,
// which names it by a secret of this process: [Refused] tells what is wrong with
// it, and the gateway answers, logs and counts it as any other request, in its
// turn behind those that came before. It is the last one of its connection.
// A body that goes wrong is cut short with bytes that net/http calls malformed.
//
// # What it promises
//
//   - A request that it lets in is one that net/http reads as it did: net/http
//     answers none in its own name.
//   - What is held back is bounded: a head by Options.MaxHeader and
//     Options.MaxFields, the line of a chunk, the trailers, what a client sends
//     before its upgrade was answered.
//   - A client that takes nothing of an answer for Options.BodyTimeout loses its
//     connection.
//   - A head that is not whole within Options.HeaderTimeout is refused (408); a
//     body of which nothing comes for Options.BodyTimeout ends its connection. Over
//     HTTP/2 a frame or a block of fields that is not whole in time ends the
//     connection, and a body that stands still its stream, see [Body].
//   - Whom a connection comes from is believed of those proxies only that
//     Options.Proxied names, and they have to say it.
//   - A connection for which Options.Enter has no place is closed before anything is
//     read from it; where a proxy says whom it comes from, when it has said so.
//   - A TLS handshake ends within Options.HeaderTimeout and keeps nobody else
//     waiting.
//
// # Use
//
//	l := door.Over(listener, door.Options{…})
//	door.Attach(server) // before Serve
//	server.Serve(l)
//	…
//	body := door.Follow(w, r) // in the handler
//	if refused := door.Refused(r); refused != nil { … }
//	…
//	body.Linger()
package door
