package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"bouncer/gateway/denials"
	"bouncer/gateway/httperr"
	"bouncer/gateway/scope"
)

// This file is what the operator asks about callers: who they are, how their limits
// stand, what was denied, and the reset of one limit.

// Callers are the functions behind it. They are safe for concurrent use. Names are
// of users, addresses and the ids of keys, never a credential.
type Callers struct {
	// Search finds callers by a part of their name.
	Search func(q string) (found []FoundCaller, more bool)
	// Caller tells all about one. The error is for the operator.
	Caller func(ctx context.Context, kind, name string) (*Caller, *httperr.Error)
	// Reset empties the bucket of one limit.
	Reset func(ctx context.Context, what Reset) (ResetDone, *httperr.Error)
	// Denials are the last ones.
	Denials *denials.Log
	// Credential reports whether a text is a whole key or token, or looks like one.
	// Such a text is refused, wherever it comes, and goes to no log.
	Credential func(text string) bool
}

// FoundCaller is a caller that a search has found.
type FoundCaller struct {
	Kind     string     `json:"kind"` // user, key or ip
	Name     string     `json:"name"`
	Plan     string     `json:"plan"`
	Tenant   string     `json:"tenant"`
	LastSeen *time.Time `json:"last_seen"` // nil: not of late
	Requests int64      `json:"requests"`  // of the last 60 minutes
	Denied   int64      `json:"denied"`
}

// Caller is all that is known of one.
type Caller struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Known bool   `json:"known"` // it was seen of late, or its key is in the key file

	Identity Identity      `json:"identity"`
	Crowd    *Crowd        `json:"crowd"` // nil of what is no address
	Limits   []CallerLimit `json:"limits"`
	// Reduced says that the shared store is away: what is told is what this instance
	// knows.
	Reduced    bool `json:"reduced"`
	MoreLimits int  `json:"more_limits"` // how many there are besides
	// Unlisted are the names of limits that count by a field of the request, which
	// nobody knows here.
	Unlisted []string          `json:"unlisted"`
	Minutes  Minutes           `json:"minutes"`
	Denials  []*denials.Denial `json:"denials"` // the last ones, newest first
}

// Identity is who a caller is, as far as that is known.
type Identity struct {
	User       string     `json:"user"`
	Tenant     string     `json:"tenant"`
	KeyID      string     `json:"key_id"`
	AuthMethod string     `json:"auth_method"`
	Plan       string     `json:"plan"`
	PlanFrom   string     `json:"plan_from"` // who says so, in words
	ClientIPs  []string   `json:"client_ips"`
	LastSeen   *time.Time `json:"last_seen"`
	Key        *KeyInfo   `json:"key"` // nil: it is in no key file
}

// KeyInfo is what the key file says of a key.
type KeyInfo struct {
	ID       string     `json:"id"`
	Expires  *time.Time `json:"expires"`   // nil: never
	LastUsed *time.Time `json:"last_used"` // nil: not known
	Routes   []string   `json:"routes"`    // that it is for; empty: any
}

// Crowd is about how many were seen behind an address in the last 10 to 20 minutes.
type Crowd struct {
	Users      int  `json:"users"`
	UserAgents int  `json:"user_agents"`
	AtLeast    bool `json:"at_least"` // there are too many to tell how many
}

// CallerLimit is how one limit of a caller stands.
type CallerLimit struct {
	Name       string   `json:"name"`
	Plan       string   `json:"plan"`  // "" of a limit that is no plan's
	Route      string   `json:"route"` // "" of one that is not of a route
	From       string   `json:"from"`  // plan, route or edge
	Per        []string `json:"per"`
	Partition  string   `json:"partition"`
	Mode       string   `json:"mode"`
	Algorithm  string   `json:"algorithm"`
	Rule       string   `json:"rule"`
	Quota      int64    `json:"quota"`
	WindowS    int64    `json:"window_s"`
	Capacity   int64    `json:"capacity"`
	Used       *int64   `json:"used"` // nil while only a local cap is known
	Remaining  int64    `json:"remaining"`
	ResetS     *int64   `json:"reset_s"`       // until more remains; nil: nothing is spent
	RetryAfter *int64   `json:"retry_after_s"` // until one unit is admitted; nil: it would be now, or never
	Source     string   `json:"source"`
	Resettable bool     `json:"resettable"`
}

// Minutes are requests in each of the last 60 minutes, oldest first.
type Minutes struct {
	Until   time.Time `json:"until"`
	Allowed []uint32  `json:"allowed"`
	Denied  []uint32  `json:"denied"`
	// Refused are those that something else than a limit refused: 401, 403, 404, …
	Refused []uint32 `json:"refused"`
}

// Reset says which limit of whom is to be emptied, as Caller has told of it.
type Reset struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Limit string `json:"limit"`
	Plan  string `json:"plan"`
	Route string `json:"route"`
	// From may be left out: where the limit comes from, if two have one name.
	From string `json:"from"`
}

// ResetDone is what was emptied.
type ResetDone struct {
	Limit, Partition string
}

const (
	// maxDenials is the most that /api/denials lists.
	maxDenials     = 2000
	defaultDenials = 200
	// maxQuery bounds what is searched for, in bytes.
	maxQuery = 256
	// maxRawQuery bounds a whole query, each word of which is held against all secrets.
	maxRawQuery = 8 << 10
	// maxReset bounds the body of a reset.
	maxReset = 4 << 10
)

// addCallers offers what is asked about callers.
func (h *handler) addCallers(c *Callers) {
	if c == nil {
		return
	}
	get := []string{http.MethodGet, http.MethodHead}
	h.endpoints["/api/callers"] = endpoint{get, reading, h.callers}
	h.endpoints["/api/caller"] = endpoint{get, reading, h.caller}
	h.endpoints["/api/denials"] = endpoint{get, reading, h.denials}
	h.endpoints["/api/denials.jsonl"] = endpoint{get, reading, h.denialLines}
	if c.Reset != nil {
		h.endpoints["/api/reset"] = endpoint{[]string{http.MethodPost}, guarded, h.reset}
	}
}

func badQuery(format string, args ...any) *httperr.Error {
	return &httperr.Error{Status: http.StatusBadRequest, Reason: "query", Detail: fmt.Sprintf(format, args...)}
}

// query reads a query that has only parameters of names, each once. What stands in it
// is never repeated in the answer.
func (h *handler) query(r *http.Request, names ...string) (url.Values, *httperr.Error) {
	if len(r.URL.RawQuery) > maxRawQuery {
		return nil, badQuery("the query is longer than %d bytes", maxRawQuery)
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badQuery("the query cannot be read; see that its values are percent-encoded")
	}
	for name, values := range q {
		switch {
		case !slices.Contains(names, name):
			return nil, badQuery("the query has a parameter that is not known here; it takes %s", strings.Join(names, ", "))
		case len(values) > 1:
			return nil, badQuery("%s is given more than once", name)
		case h.o.Callers.Credential != nil && h.o.Callers.Credential(values[0]):
			return nil, credentialGiven()
		}
	}
	return q, nil
}

// credentialGiven is the answer to whoever pastes a key or a token.
func credentialGiven() *httperr.Error {
	return &httperr.Error{
		Status: http.StatusBadRequest, Reason: "credential",
		Detail: "that looks like a whole key or token, which has no business here and was not looked at; search by the key's id (k-…), the user or the address. If somebody else may have seen it, revoke it",
	}
}

func (h *handler) callers(w http.ResponseWriter, r *http.Request, id string) {
	q, wrong := h.query(r, "q")
	if wrong == nil && (q.Get("q") == "" || len(q.Get("q")) > maxQuery) {
		wrong = badQuery("q is a part of a user, the id of a key or an address: 1 to %d bytes", maxQuery)
	}
	if wrong != nil {
		httperr.Write(w, r, id, wrong)
		return
	}
	found, more := h.o.Callers.Search(q.Get("q"))
	if found == nil {
		found = []FoundCaller{}
	}
	h.json(w, r, id, http.StatusOK, struct {
		Callers []FoundCaller `json:"callers"`
		More    bool          `json:"more"`
	}{found, more})
}

func (h *handler) caller(w http.ResponseWriter, r *http.Request, id string) {
	q, wrong := h.query(r, "kind", "name")
	if wrong == nil {
		wrong = named(q.Get("kind"), q.Get("name"))
	}
	var c *Caller
	if wrong == nil {
		c, wrong = h.o.Callers.Caller(r.Context(), q.Get("kind"), q.Get("name"))
	}
	if wrong != nil {
		httperr.Write(w, r, id, wrong)
		return
	}
	h.json(w, r, id, http.StatusOK, c)
}

// named checks what names a caller.
func named(kind, name string) *httperr.Error {
	switch kind {
	case "user", "key", "ip":
	default:
		return badQuery("kind is user, key or ip")
	}
	if name == "" || len(name) > maxQuery {
		return badQuery("name is the user, the id of the key, or the address: 1 to %d bytes", maxQuery)
	}
	return nil
}

// filter reads which denials are wanted, and how many.
func (h *handler) filter(r *http.Request, n int) (f denials.Filter, most int, wrong *httperr.Error) {
	q, wrong := h.query(r, "user", "key_id", "ip", "route", "plan", "limit", "status", "since", "q", "n")
	if wrong != nil {
		return f, 0, wrong
	}
	f = denials.Filter{
		User: q.Get("user"), KeyID: q.Get("key_id"), Route: q.Get("route"), Plan: q.Get("plan"), Limit: q.Get("limit"), Text: q.Get("q"),
	}
	var err error
	if s := q.Get("ip"); s != "" {
		ip, errAddr := netip.ParseAddr(s)
		if f.IP, err = netip.ParsePrefix(s); err != nil {
			if f.IP, err = ip.Unmap().WithZone("").Prefix(ip.Unmap().BitLen()); err != nil || errAddr != nil {
				return f, 0, badQuery("ip is an address or a network, such as 203.0.113.7 or 2001:db8::/64")
			}
		}
	}
	if s := q.Get("status"); s != "" {
		if f.Status, err = strconv.Atoi(s); err != nil || f.Status < 400 || f.Status > 599 {
			return f, 0, badQuery("status is what was answered, 429 or 503")
		}
	}
	if s := q.Get("since"); s != "" {
		if f.Since, err = time.Parse(time.RFC3339, s); err != nil {
			return f, 0, badQuery("since is a time such as 2026-11-30T12:00:00Z (RFC 3339)")
		}
	}
	if s := q.Get("n"); s != "" {
		if n, err = strconv.Atoi(s); err != nil || n < 1 || n > maxDenials {
			return f, 0, badQuery("n is how many are wanted, from 1 to %d", maxDenials)
		}
	}
	return f, n, nil
}

func (h *handler) denials(w http.ResponseWriter, r *http.Request, id string) {
	f, n, wrong := h.filter(r, defaultDenials)
	if wrong != nil {
		httperr.Write(w, r, id, wrong)
		return
	}
	list, s := h.o.Callers.Denials.List(f, n), h.o.Callers.Denials.Stats()
	if list == nil {
		list = []*denials.Denial{}
	}
	h.json(w, r, id, http.StatusOK, struct {
		Denials []*denials.Denial `json:"denials"`
		Kept    int               `json:"kept"`
		Skipped uint64            `json:"skipped"`
		Oldest  *time.Time        `json:"oldest"`
	}{list, s.Kept, s.Skipped, orNil(s.Oldest)})
}

// denialLines is the same as lines of the access log, with the decisions beside.
func (h *handler) denialLines(w http.ResponseWriter, r *http.Request, id string) {
	f, n, wrong := h.filter(r, maxDenials)
	if wrong != nil {
		httperr.Write(w, r, id, wrong)
		return
	}
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	for _, d := range slices.Backward(h.o.Callers.Denials.List(f, n)) {
		if err := lines.Encode(struct {
			Msg string `json:"msg"`
			*denials.Denial
		}{"request", d}); err != nil {
			h.o.Logger.Error("a denial does not marshal", "request_id", id, "err", err)
		}
	}
	w.Header().Set("Content-Disposition", `attachment; filename="denials.jsonl"`)
	write(w, r, http.StatusOK, "application/jsonl", b.Bytes())
}

// reset empties the bucket of one limit, and says so in the log.
func (h *handler) reset(w http.ResponseWriter, r *http.Request, id string) {
	what, wrong := h.readReset(w, r)
	var done ResetDone
	if wrong == nil {
		// Hanging up in the middle must not leave it half done.
		done, wrong = h.o.Callers.Reset(context.WithoutCancel(r.Context()), what)
	}
	if wrong != nil {
		httperr.Write(w, r, id, wrong)
		return
	}
	h.o.Logger.Warn("audit: a limit was reset", "request_id", id, "remote", scope.PeerName(r.RemoteAddr), "who", h.who(r),
		"kind", what.Kind, "name", what.Name, "limit", done.Limit, "plan", what.Plan, "route", what.Route, "partition", done.Partition)
	h.json(w, r, id, http.StatusOK, struct {
		Reset     bool   `json:"reset"`
		Limit     string `json:"limit"`
		Partition string `json:"partition"`
	}{true, done.Limit, done.Partition})
}

// readReset reads the body of a reset. What stands in it is never repeated.
func (h *handler) readReset(w http.ResponseWriter, r *http.Request) (what Reset, wrong *httperr.Error) {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return what, &httperr.Error{
			Status: http.StatusUnsupportedMediaType, Reason: "content_type",
			Detail: "this takes a body of Content-Type application/json",
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReset))
	if err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return what, &httperr.Error{
				Status: http.StatusRequestEntityTooLarge, Reason: "body",
				Detail: fmt.Sprintf("the body is larger than %d bytes, which names no limit", maxReset),
			}
		}
		return what, badBody("it broke off")
	}
	if !what.read(body) {
		return what, badBody(`it is no JSON object with the members kind, name, limit, plan and route, each once and a text`)
	}
	if is := h.o.Callers.Credential; is != nil &&
		slices.ContainsFunc([]string{what.Kind, what.Name, what.Limit, what.Plan, what.Route, what.From}, is) {
		return what, credentialGiven()
	}
	if what.Limit == "" {
		return what, badBody("it names no limit; one limit is reset at a time, as /api/caller lists them")
	}
	return what, named(what.Kind, what.Name)
}

// read reads one object of JSON that can be understood in one way only: what is reset
// must be what whoever looked at the body took it for. So a member twice or in other
// letters is a mistake, unlike to Unmarshal, and so are bytes that are no text.
func (what *Reset) read(body []byte) bool {
	members := map[string]*string{
		"kind": &what.Kind, "name": &what.Name, "limit": &what.Limit, "plan": &what.Plan, "route": &what.Route, "from": &what.From,
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') || !utf8.Valid(body) {
		return false
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return false
		}
		member, _ := name.(string)
		into := members[member]
		value, err := d.Token()
		text, ok := value.(string)
		if err != nil || into == nil || !ok {
			return false
		}
		*into = text
		delete(members, member)
	}
	if t, err := d.Token(); err != nil || t != json.Delim('}') {
		return false
	}
	_, err := d.Token()
	return errors.Is(err, io.EOF)
}

func badBody(why string) *httperr.Error {
	return &httperr.Error{
		Status: http.StatusBadRequest, Reason: "body",
		Detail: `the body cannot be used: ` + why + `. Want {"kind":"user","name":"…","limit":"…","plan":"…","route":"…"}, as /api/caller has them`,
	}
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
