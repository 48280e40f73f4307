// Package tracing makes traces of requests, as OpenTelemetry has them, and sends them to a
// collector by OTLP over HTTP.
//
// A [Tracer] is where traces go; [Tracer.Begin] decides whether there is one of a request.
// Of that one a [Request] makes spans: the request itself, the decision about its limits,
// and each attempt at an upstream. A nil *Request is a request of which no trace is made,
// and all of its methods do nothing then.
//
// What it promises when things go wrong: no request waits for a collector, however slow or
// far away. At most a few thousand spans wait to be sent; those that find no room are
// dropped and counted, and so are those that the collector does not take.
//
// It is no place for who a caller is: spans have the request id, and what else there is
// to know stands in the access log under it. Neither queries nor header fields are in a span.
package tracing
