package telemetry

import (
	encodehex "encoding/hex"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"bouncer/gateway/scope"
)

// MaxValue is how many bytes of a value the access log keeps, before escaping.
const MaxValue = 512

// lineBuffers are buffers for one line each. Lines are bounded, so they are.
var lineBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// appendRequest appends the access-log line of a request. It is what
// slog.JSONHandler would write for the same attributes, byte for byte (a test
// holds it to that), at a fraction of the cost: the fields are fixed, so
// nothing is boxed, reflected on or allocated. authReason is the word for
// s.AuthError, unused if that is nil; sampled is the last field, as [sampling] has it.
func appendRequest(b []byte, r *http.Request, s *scope.Request, took time.Duration, authReason, sampled string) []byte {
	b = append(b, `{"time":"`...)
	b = s.Arrived.UTC().AppendFormat(b, timeLayout)
	b = append(b, `","level":"INFO","msg":"request"`...)
	b = appendField(b, "request_id", s.ID)
	b = append(b, `,"client_ip":`...)
	b = appendAddr(b, s.ClientIP)
	b = appendField(b, "method", r.Method)
	b = appendField(b, "host", r.Host)
	b = appendField(b, "path", path(r))
	route := s.Route
	if route == "" {
		route = Unmatched
	}
	b = appendField(b, "route", route)
	b = appendField(b, "user", s.User)
	b = appendField(b, "tenant", s.Tenant)
	b = appendField(b, "key_id", s.KeyID)
	b = appendField(b, "plan", s.Plan)
	b = append(b, `,"cost":`...)
	b = strconv.AppendInt(b, s.Cost, 10)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(s.Status), 10)
	b = appendField(b, "denied_by", s.DeniedBy)
	b = appendField(b, "source", s.Source)
	b = append(b, `,"duration_ms":`...)
	b = appendMillis(b, took)
	b = append(b, `,"upstream_ms":`...)
	b = appendMillis(b, s.UpstreamDuration)
	b = append(b, `,"bytes":`...)
	b = strconv.AppendInt(b, s.Bytes, 10)
	if s.Target != "" {
		b = appendField(b, "target", s.Target)
	}
	if s.UpstreamAttempts > 1 {
		b = append(b, `,"upstream_attempts":`...)
		b = strconv.AppendInt(b, int64(s.UpstreamAttempts), 10)
	}
	if s.AuthError != nil {
		b = appendField(b, "auth_error", authReason)
	}
	if s.StoreErr != nil {
		b = appendField(b, "store_error", errText(s.StoreErr))
	}
	if s.UpstreamErr != nil {
		b = appendField(b, "upstream_error", errText(s.UpstreamErr))
	}
	if s.TraceID != ([16]byte{}) {
		b = append(b, `,"trace_id":"`...)
		b = encodehex.AppendEncode(b, s.TraceID[:])
		b = append(b, '"')
	}
	b = append(b, sampled...)
	return append(b, '}', '\n')
}

// path is the request's path as it was sent, still escaped, because "/a%2Fb"
// and "/a/b" are two paths. The query is left out: people put tokens there.
func path(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	return r.URL.EscapedPath()
}

// errText is err's text, without the URL that net/http's client puts into its
// errors: the query may carry a secret.
func errText(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Op + ": " + errText(e.Err)
	}
	return err.Error()
}

// appendField appends a string attribute after others.
func appendField(b []byte, key, value string) []byte {
	b = append(b, ',', '"')
	b = append(b, key...)
	b = append(b, '"', ':')
	return appendString(b, value)
}

// appendAddr appends an address as a string, scope.NoAddress if there is none. A zone is
// whatever a peer wrote after the percent sign, so it goes the long way.
func appendAddr(b []byte, ip netip.Addr) []byte {
	if !ip.IsValid() {
		return append(b, `"`+scope.NoAddress+`"`...)
	}
	if ip.Zone() != "" {
		return appendString(b, ip.String())
	}
	b = append(b, '"')
	b = ip.AppendTo(b)
	return append(b, '"')
}

// appendMillis appends d in milliseconds with up to three decimals, the way
// encoding/json writes such a number: without trailing zeros.
func appendMillis(b []byte, d time.Duration) []byte {
	micros := max(d.Microseconds(), 0)
	b = strconv.AppendInt(b, micros/1000, 10)
	f := micros % 1000
	if f == 0 {
		return b
	}
	b = append(b, '.', hex[f/100])
	if f %= 100; f == 0 {
		return b
	}
	b = append(b, hex[f/10])
	if f %= 10; f == 0 {
		return b
	}
	return append(b, hex[f])
}

const hex = "0123456789abcdef"

// appendString appends s, cut at MaxValue bytes, as a JSON string (RFC 8259
// section 7), with the escapes that log/slog uses.
func appendString(b []byte, s string) []byte {
	s = cut(s)
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(b, s[start:i]...)
			b = append(b, `\ufffd`...)
			start = i + size
		case r == '\u2028' || r == '\u2029': // line ends in JavaScript
			b = append(b, s[start:i]...)
			b = append(b, `\u202`...)
			b = append(b, hex[r&0xf])
			start = i + size
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// cut bounds s to MaxValue bytes, without splitting a character.
func cut(s string) string {
	if len(s) <= MaxValue {
		return s
	}
	n := MaxValue
	for n > MaxValue-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
