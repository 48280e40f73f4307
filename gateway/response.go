package gateway

import (
	"bufio"
	"net"
	"net/http"
	"strconv"
	"strings"

	"bouncer/gateway/config"
	"bouncer/gateway/door"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/scope"
	"bouncer/gateway/telemetry"
)

// A response counts what is sent to the client and puts the limits' fields
// beside whatever answer it is, the upstream's or our own, in the moment before
// its head is sent. It adds no buffering: Unwrap gives http.ResponseController
// the connection's own Flush, Hijack and deadlines.
type response struct {
	http.ResponseWriter
	id        string
	status    int // 0 until a final head was sent
	bytes     int64
	request   *http.Request
	body      *door.Body // of the request; nil unless it is one of HTTP/2
	scope     *scope.Request
	route     *route               // nil if there is none
	browser   browser              // who asks from another site's page
	own       bool                 // the answer is the gateway's, not an upstream's
	decisions []ratelimit.Decision // what the fields tell; empty: nothing
	cost      int64                // what was asked of them, in units
	fields    config.ClientHeaders
	leaving   bool // the gateway is being stopped
	telemetry *telemetry.Telemetry
	socket    telemetry.Flight // that of a WebSocket, once it is one
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the head. A 1xx answer is not the final one and passes.
func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
		w.finishHeader(status)
		w.body.Answered()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write sends body bytes, after a head of 200 if none was sent.
func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Hijack hands the connection over after an upgrade (101). The head is written
// by whoever hijacks, from Header, so the fields are put there now.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, brw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil && w.status == 0 {
		w.status = http.StatusSwitchingProtocols
		w.finishHeader(w.status)
		w.socket = w.telemetry.WebSocket(w.scope.Route)
	}
	return conn, brw, err
}

// finishHeader makes the route's changes, and adds what the gateway itself tells
// the client.
func (w *response) finishHeader(status int) {
	h := w.Header()
	if w.route != nil {
		kind, keep := h["Content-Type"], h["Cache-Control"]
		w.route.answer.Apply(h, w.request, w.scope)
		if w.own {
			// What it is does not change with what it is called, and a 401 or a 429 that a
			// cache keeps would be told to others.
			h["Content-Type"], h["Cache-Control"] = kind, keep
		}
	}
	w.browser.tell(h, w.request)
	h["X-Request-Id"] = []string{w.id} // the one the log has, whatever the upstream calls it
	if w.leaving {
		h["Connection"] = []string{"close"} // go elsewhere next time; HTTP/2 is told by GOAWAY
	}
	if len(w.decisions) > 0 && !redirect(status) {
		setLimitFields(h, w.decisions, w.cost, w.fields)
	}
}

func redirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// dialect is the text of the draft that the configuration calls name.
func dialect(name string) ratelimit.Dialect {
	switch name {
	case "draft-12":
		return ratelimit.Draft12
	case "both":
		return ratelimit.BothDrafts
	default:
		return ratelimit.Draft11
	}
}

// setLimitFields tells the client where it stands. The structured fields are
// lists (RFC 9651): items an upstream already put there stay in front of ours,
// in one field line. The legacy fields can hold one value only, so ours replace
// the upstream's: the client asked us first.
func setLimitFields(h http.Header, ds []ratelimit.Decision, cost int64, f config.ClientHeaders) {
	if f.IETF != "off" {
		var buf [256]byte
		setList(h, "Ratelimit-Policy", "RateLimit-Policy", ratelimit.AppendPolicyField(buf[:0], ds))
		setList(h, "Ratelimit", "RateLimit", ratelimit.AppendLimitField(buf[:0], ds, dialect(f.IETF), cost))
	}
	if f.Legacy {
		if limit, remaining, reset, ok := ratelimit.Legacy(ds); ok {
			for _, name := range [...]string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"} {
				delete(h, name)
			}
			h["X-RateLimit-Limit"] = []string{strconv.FormatInt(limit, 10)}
			h["X-RateLimit-Remaining"] = []string{strconv.FormatInt(remaining, 10)}
			h["X-RateLimit-Reset"] = []string{strconv.FormatInt(reset, 10)}
		}
	}
}

// setList sets a list field under the spelling its specification uses, after
// the members an upstream sent under the canonical one. An upstream's field
// that is no list of named items (empty, or the syntax of an older draft) is
// left out, since it would make the whole field unreadable.
func setList(h http.Header, canonical, spelling string, ours []byte) {
	value := string(ours)
	if value == "" {
		return // an empty list is not sent (RFC 9651 section 4.1)
	}
	if theirs := h[canonical]; len(theirs) > 0 {
		if joined := strings.Join(theirs, ", "); namedItems(joined) {
			value = joined + ", " + value
		}
		delete(h, canonical)
	}
	h[spelling] = []string{value}
}

// namedItems reports whether v is a list of strings with parameters (RFC 9651
// section 3.1), as the RateLimit fields are: "a";q=1, "b";r=2;pk=:AA==:. It
// checks the form, not what the parameters mean.
func namedItems(v string) bool {
	for {
		v = strings.TrimLeft(v, " \t")
		if v == "" || v[0] != '"' {
			return false
		}
		n, ok := quoted(v)
		if !ok {
			return false
		}
		v = v[n:]
		for v != "" && v[0] != ',' {
			switch c := v[0]; {
			case c == '"':
				if n, ok = quoted(v); !ok {
					return false
				}
				v = v[n:]
				continue
			case c == ' ', c == '\t', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
				strings.IndexByte(";=-_.*:/+?%@", c) >= 0:
			default:
				return false
			}
			v = v[1:]
		}
		if v == "" {
			return true
		}
		v = v[1:]
	}
}

// quoted returns how long the string is that v begins with.
func quoted(v string) (n int, ok bool) {
	for i := 1; i < len(v); i++ {
		switch c := v[i]; {
		case c == '"':
			return i + 1, true
		case c == '\\':
			i++
			if i == len(v) || (v[i] != '"' && v[i] != '\\') {
				return 0, false
			}
		case c < 0x20 || c > 0x7e:
			return 0, false
		}
	}
	return 0, false
}
