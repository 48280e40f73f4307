package simulate

import (
	"bytes"
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A record is what one line says of one request.
type record struct {
	at     int64         // when it was written or arrived, µs since the epoch
	took   time.Duration // how long the request took
	begins bool          // at is the arrival, not the end
	seq    int64         // the order of lines of one time

	method, target, host   string
	url                    *url.URL // target, parsed
	remote                 string   // the peer, as http.Request has it
	forwarded              string   // the forwarded-for column; "" if there is none
	user, tenant, key, pln string
	// refused: our own log says that this one had no good credentials.
	refused bool
	// sampled: our own log has only some of such lines.
	sampled bool
}

// arrive turns the time of a line into that of the arrival.
func (r *record) arrive() {
	if !r.begins {
		r.at -= r.took.Microseconds()
	}
}

// The bounds of a time: what is outside is a misread number, not a log.
var (
	earliest = time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	latest   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
)

var (
	errTime    = errors.New("the time cannot be read")
	errAddress = errors.New("the address of the peer is none")
	errRequest = errors.New("the request is not METHOD TARGET HTTP/x")
	errShape   = errors.New("not a line of this format")
	// Of JSON, of which nobody can know what things are called.
	errNoTime    = errors.New("no known field has the time; -fields time=NAME names it")
	errNoAddress = errors.New("no known field has the address of the peer; -fields ip=NAME names it")
	errNoRequest = errors.New("no known field has the request; -fields request=NAME, or method=NAME,uri=NAME, names it")

	errLong  = errors.New("the line is longer than 64 KiB")
	errOther = errors.New("a line of the log that is about no request")
)

// layouts are the forms of a time in words that logs use.
var layouts = []string{
	time.RFC3339Nano,
	clfTime,
	"2006-01-02T15:04:05.999999999-0700",
	"2006/01/02 15:04:05",
	"2006-01-02 15:04:05",
}

const clfTime = "02/Jan/2006:15:04:05 -0700"

// A lineReader reads the lines of one source. It is not safe for concurrent use.
type lineReader struct {
	*kept
	lastTime string // lines of one second have one time
	lastAt   int64
	layout   int // of lastTime
	lastIP   string
	lastPeer string
	fields   []field // of JSON
	object   map[string]rawJSON
}

// when reads a time in words.
func (p *lineReader) when(b []byte) (int64, error) {
	if string(b) == p.lastTime && p.lastTime != "" {
		return p.lastAt, nil
	}
	if len(b) > 64 {
		return 0, errTime
	}
	s := string(b)
	if at, ok := epoch(s); ok {
		return at, nil
	}
	for i := range layouts { // that of the line before comes first
		layout := (p.layout + i) % len(layouts)
		t, err := time.Parse(layouts[layout], s)
		if err != nil {
			continue
		}
		at := t.UnixMicro()
		if at < earliest || at > latest {
			return 0, errTime
		}
		p.lastTime, p.lastAt, p.layout = s, at, layout
		return at, nil
	}
	return 0, errTime
}

// epoch reads a time in seconds since the epoch, with a fraction, or in milli-,
// micro- or nanoseconds: no two of these can be taken for each other in the
// years that a log can be of.
func epoch(s string) (int64, bool) {
	if !isNumber([]byte(s)) {
		return 0, false
	}
	whole, frac, _ := strings.Cut(s, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	var at int64
	switch {
	case n < 1e11:
		at = n * 1e6
		for i := range 6 {
			at += digit(frac, i) * [...]int64{100000, 10000, 1000, 100, 10, 1}[i]
		}
	case n < 1e14:
		at = n*1000 + digit(frac, 0)*100 + digit(frac, 1)*10 + digit(frac, 2)
	case n < 1e17:
		at = n
	default:
		at = n / 1000
	}
	return at, at >= earliest && at <= latest
}

func digit(s string, i int) int64 {
	if i >= len(s) || s[i] < '0' || s[i] > '9' {
		return 0
	}
	return int64(s[i] - '0')
}

// peer reads the address of the peer and sets it as a server would have.
func (p *lineReader) peer(b []byte, r *record) error {
	if string(b) == p.lastIP && p.lastIP != "" {
		r.remote = p.lastPeer
		return nil
	}
	s := string(b)
	if strings.HasPrefix(s, "unix:") || s == "unix" {
		r.remote = "@" // what a server says of a unix socket
		return nil
	}
	a, ok := address(s)
	if !ok {
		return errAddress
	}
	p.lastIP, p.lastPeer = s, netip.AddrPortFrom(a, 0).String()
	r.remote = p.lastPeer
	return nil
}

// address reads an address, in brackets or with a port too.
func address(s string) (netip.Addr, bool) {
	if len(s) > 80 {
		return netip.Addr{}, false
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return a.WithZone(""), true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().WithZone(""), true
	}
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		if a, err := netip.ParseAddr(s[1 : len(s)-1]); err == nil {
			return a.WithZone(""), true
		}
	}
	return netip.Addr{}, false
}

// request reads "METHOD TARGET HTTP/x".
func (p *lineReader) request(b []byte, r *record) error {
	first, last := bytes.IndexByte(b, ' '), bytes.LastIndexByte(b, ' ')
	if first <= 0 || last == first {
		return errRequest
	}
	if !isProtocol(b[last+1:]) {
		return errRequest
	}
	return p.ask(b[:first], b[first+1:last], r)
}

// ask sets method and target.
func (p *lineReader) ask(method, target []byte, r *record) error {
	if len(method) == 0 || len(target) == 0 || bytes.IndexByte(target, ' ') >= 0 {
		return errRequest
	}
	for _, c := range method {
		if !isTokenByte(c) {
			return errRequest
		}
	}
	r.method = p.text(method)
	// No query decides anything, and paths come again where queries do not.
	if i := bytes.IndexByte(target, '?'); i >= 0 {
		target = target[:i]
		if i == 0 {
			target = []byte{'?'}
		}
	}
	r.target, r.url = p.target(unescape(target))
	return nil
}

// isProtocol reports whether b is HTTP/ and a version.
func isProtocol(b []byte) bool {
	v, ok := bytes.CutPrefix(b, []byte("HTTP/"))
	if !ok || len(v) == 0 || len(v) > 3 || v[0] < '0' || v[0] > '9' {
		return false
	}
	return len(v) == 1 || len(v) == 3 && v[1] == '.' && v[2] >= '0' && v[2] <= '9'
}

// isTokenByte reports whether c may stand in a method (RFC 9110 section 5.6.2).
func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c != 0 && strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// unescape undoes the escapes of nginx (\xE4) and Apache (\", \\).
func unescape(b []byte) []byte {
	if bytes.IndexByte(b, '\\') < 0 {
		return b
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' || i+1 == len(b) {
			out = append(out, b[i])
			continue
		}
		if b[i+1] == 'x' && i+3 < len(b) {
			if n, err := strconv.ParseUint(string(b[i+2:i+4]), 16, 8); err == nil {
				out = append(out, byte(n))
				i += 3
				continue
			}
		}
		if b[i+1] == '"' || b[i+1] == '\\' {
			out = append(out, b[i+1])
			i++
			continue
		}
		out = append(out, b[i])
	}
	return out
}
