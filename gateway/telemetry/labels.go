package telemetry

import (
	"net/http"
	"strconv"
	"strings"
)

// Unmatched is the route of a request that matched none.
const Unmatched = "unmatched"

// other stands for every label value that nobody configured: an unusual
// method, or a request that outlived the configuration of its route.
const other = "other"

// Labels is what the configuration in force can put into labels. Everything
// in it comes from the operator, nothing from a caller.
type Labels struct {
	// Routes are the names of all routes; Unmatched need not be among them.
	Routes []string
	// Limits are all limits that can be evaluated, for each route and plan they
	// can be evaluated for. A limit of unmatched requests has Unmatched as its route.
	Limits []Limit
	// Trials are those of them that are decided without being enforced; Limits
	// holds them too.
	Trials []Trial
	// Sources are who can decide: redis, memory, lease, deny_cache, local_cap, none.
	Sources []string
	// Upstreams are the names of all upstreams.
	Upstreams []string
	// Targets are all servers of all upstreams.
	Targets []Target
	// Forbidden are what callers of routes can be refused for with 403.
	Forbidden []Forbidden
	// Modes are the fail modes that some route uses: local_cap, deny, allow.
	Modes []string
}

// A Limit names what one verdict is counted by. Plan is empty where the limit
// is not a plan's and no plan is known, such as an edge limit.
type Limit struct{ Route, Plan, Limit string }

// A Role says what the verdict of a limit is for.
type Role uint8

// The roles.
const (
	Enforced  Role = iota // it denies
	Shadow                // it is only shown
	Candidate             // another number beside a live one, only counted
	roles     = iota
)

// A Trial is a limit that is decided without being enforced: in shadow mode, or
// as the candidate of a live one.
type Trial struct {
	Limit
	Role Role
}

// A Forbidden names a route and why it refuses a caller with 403: one of the words
// that the access log has in denied_by.
type Forbidden struct{ Route, Reason string }

// A Target is one server of an upstream, as the operator wrote it, without
// credentials.
type Target struct{ Upstream, Target string }

// The HTTP methods with a label of their own: those of RFC 9110 section 9.3
// and PATCH. A client may invent others without end.
var methodLabels = [...]string{
	other, http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
	http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace,
}

// methodIndex is the place of method in methodLabels.
func methodIndex(method string) int {
	switch method {
	case http.MethodGet, "": // the empty method means GET, see http.Request
		return 1
	case http.MethodHead:
		return 2
	case http.MethodPost:
		return 3
	case http.MethodPut:
		return 4
	case http.MethodPatch:
		return 5
	case http.MethodDelete:
		return 6
	case http.MethodOptions:
		return 7
	case http.MethodConnect:
		return 8
	case http.MethodTrace:
		return 9
	default:
		return 0
	}
}

// The sources of a decision with a label of their own.
var sourceLabels = [...]string{other, "redis", "memory", "lease", "deny_cache", "local_cap", "none"}

// sourceIndex is the place of source in sourceLabels.
func sourceIndex(source string) int {
	switch source {
	case "redis":
		return 1
	case "memory":
		return 2
	case "lease":
		return 3
	case "deny_cache":
		return 4
	case "local_cap":
		return 5
	case "none":
		return 6
	default:
		return 0
	}
}

// The outcomes of a decision, indexed by outcomeIndex.
var outcomeLabels = [2 * roles]string{
	"denied", "allowed", "shadow_denied", "shadow_allowed", "candidate_denied", "candidate_allowed",
}

func outcomeIndex(role Role, allowed bool) int {
	i := 2 * int(min(role, Candidate))
	if allowed {
		i++
	}
	return i
}

// maxCodes bounds the codes with a label of their own; see codes.
const maxCodes = 80

// statusClientClosed is the code of a client that left before the answer.
const statusClientClosed = 499

// codes gives every status a label out of a short list: a known status is
// itself, an unknown one its class ("5xx", which still matches the usual 5..),
// and anything else "other". An upstream that can be talked into any status
// therefore makes no more series than an honest one.
var codes = newCodeTable()

type codeTable struct {
	labels []string  // index → label; 0 is "other"
	index  [1000]int // status → index
}

func newCodeTable() *codeTable {
	t := &codeTable{labels: []string{other}}
	add := func(label string) int {
		t.labels = append(t.labels, label)
		return len(t.labels) - 1
	}
	var class [6]int
	for c := 1; c <= 5; c++ {
		class[c] = add(strconv.Itoa(c) + "xx")
	}
	for status := 100; status < 600; status++ {
		if http.StatusText(status) != "" || status == statusClientClosed {
			t.index[status] = add(strconv.Itoa(status))
		} else {
			t.index[status] = class[status/100]
		}
	}
	if len(t.labels) > maxCodes {
		panic("bug: more statuses than maxCodes")
	}
	return t
}

// of is the place of status in labels.
func (t *codeTable) of(status int) int {
	if status < 0 || status >= len(t.index) {
		return 0
	}
	return t.index[status]
}

// clean makes a label value that the metrics client takes. Values come from
// the operator; an odd byte in one is no reason to stop.
func clean(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
