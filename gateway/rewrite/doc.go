// Package rewrite changes a request on its way to an upstream, and an answer on
// its way back, as a route says: the path ([Path]) and header fields ([Fields]).
//
// It is not for what the gateway says in its own name, such as X-Forwarded-For
// and X-Auth-User, or RateLimit: package proxy and the gateway itself set those,
// behind what is done here, so that no route can forge them. It reads no files and
// decides nothing: a route is found and limits are charged by the path as it came.
//
// # What happens when things fail
//
// What is configured is checked when it is compiled ([StripPrefix], [Replace],
// [NewFields]); the errors say what is wanted instead. A request can only fail in
// one way: [Path.Of] reports a path that would come out with a dot segment, which
// an upstream could take for another one. Nothing here panics.
//
// # Use
//
//	path, err := rewrite.StripPrefix("/api")
//	to, ok := path.Of(r.URL)                    // "/api/weather?x" becomes "/weather?x"
//
//	fields, err := rewrite.NewFields(rewrite.Changes{Set: []rewrite.Field{{Name: "X-Caller", Value: "{user}"}}})
//	fields.Apply(header, r, s)
//
// Everything compiled is immutable and safe for concurrent use.
package rewrite
