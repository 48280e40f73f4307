// Package auth finds out who is calling: it turns the credential of a request,
// a signed token (JWT), an API key or the certificate of a TLS client, into a [Principal].
//
// It is not for deciding what a caller may do, which is the plan's business,
// and not for answering: it returns an error, and the pipeline answers 401 with
// [Authenticator.Challenges], the same bytes whatever was wrong. It keeps no
// session, asks nobody over the network (a [KeySource] may), and reads no credential
// from a query string, which ends up in logs and Referer fields, unless
// Options.KeyQuery says so.
//
// # Which credential decides
//
// The first one present, in this order:
//
//  1. Authorization: Bearer, when tokens are configured;
//  2. a configured cookie, in the order of the issuers;
//  3. an API key in its own field;
//  4. Authorization: ApiKey, when keys are configured;
//  5. an API key in the query, when Options.KeyQuery names its parameter;
//  6. the client certificate of the connection, when they are configured.
//
// It decides alone. A bad one is refused even beside a good one, because
// falling through would let whoever can add a header or a cookie choose
// the identity under which somebody else's request runs.
//
// A certificate comes last since it belongs to the connection, not to the request:
// what is sent with the request itself is meant more. It is asked for without
// being insisted on, and verified here and not in the handshake, so that a bad one
// is a bad credential like any other, and nothing where nobody looks.
//
// A scheme matches in any case and may be followed by several spaces (RFC 9110
// section 11.4); anything else after it (a tab, a comma, nothing) is malformed
// and refused. Several Authorization fields of which one is ours, several key
// fields, the parameter of the query several times, and one cookie twice with
// different values are refused too: two
// readers could disagree on which counts. An Authorization field of another
// scheme (Basic, Digest, ...) is the upstream's business and no credential
// here. So is an empty Authorization field, and an empty cookie, which is what
// some programs leave behind after a logout; an empty key field is a bad key.
//
// # What it promises when things fail
//
// Bad input is never a panic and never an identity. No error contains a token,
// a key or a part of one. Refusals are never remembered, so what becomes valid
// later (nbf) works then. A key that a new configuration no longer has is gone
// at once, and so are the tokens of a key that its issuer's set no longer has.
// While an issuer's keys are not known, or a key that a token names is not and its
// provider cannot be asked for it, tokens are refused for that reason alone ([ReasonKeysUnavailable]), which is no fault of the caller.
//
// Identities become header fields of the upstream request, so a value with
// control characters, invalid UTF-8, space around it, or more than 256 bytes
// is refused. A token's user must not begin with "key:", which is how callers
// with an API key and no user are called, and neither may a certificate's. The users of
// tokens, keys and certificates are in one name space: the same name is the same
// caller, however it was shown.
//
// # Use
//
//	a, err := auth.New(auth.Options{
//		APIKeys: true,
//		Keys:    []auth.Key{{ID: "k-7f3a", SHA256: digest, User: "priya123", Plan: "free"}},
//	})
//	...
//	p, err := a.Authenticate(r, auth.Check{})
//	switch refused, ok := errors.AsType[*auth.RefusedError](err); {
//	case err == nil:
//		// p.User is calling.
//	case ok:
//		// 401; refused.Reason goes to the log and the metric.
//	case errors.Is(err, auth.ErrNoCredentials):
//		// 401, or the anonymous plan where credentials are optional.
//	}
//	a.Strip(outgoing.Header)
package auth
