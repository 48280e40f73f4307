package config

import (
	"crypto"
	"crypto/x509"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"bouncer/gateway/jwks"
	"bouncer/gateway/rewrite"
)

// Config is one whole configuration: both files and everything they name,
// checked, with defaults filled in and secrets read. It is plain values, and is
// never modified after Load.
type Config struct {
	// Files is every file that was read, for the watcher; absolute paths.
	Files []File
	// Hash identifies the content of all files together (hex, 16 digits).
	Hash string

	Listen          Listen
	Admin           Admin
	Log             Log
	Traces          *Traces       // nil: none
	ShutdownTimeout time.Duration // default 30s
	DrainDelay      time.Duration // default 0
	ClientIP        ClientIP
	Store           Store
	Auth            Auth
	Limits          []*Limit // named limits, in file order
	Edge            []*Limit // in the order of edge:
	Upstreams       []*Upstream
	Routes          []*Route
	ClientHeaders   ClientHeaders
	// UsagePath is the path on which callers see their own limits; empty: none.
	UsagePath string

	Plans         []*Plan // in file order
	DefaultPlan   string  // empty if none
	AnonymousPlan string  // empty if none
	Overrides     []Override
	Tests         []*Test // in file order; only "gateway test" looks at them
}

// Pos is a place in a file; Line and Column count from 1, 0 means unknown.
type Pos struct {
	File         string // as given on the command line or in the file that names it
	Line, Column int
}

// File is a file that belongs to the configuration.
type File struct {
	Path   string // absolute
	SHA256 [32]byte
}

// Secret is a value that is never printed.
type Secret []byte

// String masks the value.
func (Secret) String() string { return "********" }

// GoString masks the value in %#v too.
func (Secret) GoString() string { return "config.Secret(********)" }

// MarshalText masks the value in JSON and in log records, where encoding/json
// would write the bytes in base64.
func (Secret) MarshalText() ([]byte, error) { return []byte("********"), nil }

// Listen is where the gateway listens: "host:port", ":port" or "unix:/path".
type Listen struct {
	HTTP  string // empty: none
	HTTPS *HTTPS // nil: none
	Admin string // default 127.0.0.1:9090
	// MaxConnectionsPerIP is how many connections HTTP and HTTPS together take from
	// one address; 0: any number.
	MaxConnectionsPerIP int
}

// HTTPS is a TLS listener, with certificate files or with ACME.
type HTTPS struct {
	Address           string
	CertFile, KeyFile string // absolute; empty with ACME
	ACME              *ACME  // nil: certificate files
}

// Admin is who may change things on the admin listener.
type Admin struct {
	Token     Secret // nil: none counts
	TokenFile string // absolute; empty if Token is nil
	// ClientCAs vouch for the certificates that count as the token; nil: none counts.
	ClientCAs    []*x509.Certificate
	ClientCAFile string // absolute; empty if ClientCAs is nil
	// CertFile and KeyFile are what the listener shows; absolute. Empty: what
	// listen.https shows.
	CertFile, KeyFile string
}

// HTTPS says that the admin listener speaks it.
func (a *Admin) HTTPS() bool { return a.CertFile != "" || a.ClientCAFile != "" }

// ClientIP says whose word counts for the client's address.
type ClientIP struct {
	TrustedProxies []netip.Prefix // masked; none: the peer is the client
	TrustUnix      bool           // peers on a unix socket are trusted proxies, too
	Header         string         // canonical; default X-Forwarded-For
	IPv6Prefix     int            // 1..128, default 64
	ProxyProtocol  bool           // trusted proxies begin each connection with its header
}

// Store is where limits are counted. Redis nil means memory: there is no
// store.redis, or its url is empty, as ${REDIS_URL:-} makes it where the
// variable is not set.
type Store struct {
	MemoryMaxKeys int // default 1000000; bounds the local table beside Redis too
	Redis         *Redis
}

// Redis is one Redis (or Valkey) server, a cluster of them, or the one of several
// that sentinels name as the master. Address, TLS and
// credentials are already taken out of the URL.
type Redis struct {
	Network string // tcp or unix
	Address string // host:port or path; empty for a cluster and with sentinels
	// Addresses are where a cluster is entered, host:port each, in file order;
	// empty: no cluster. Network is then tcp and DB 0.
	Addresses []string
	// Sentinel says who knows the server; nil: no sentinels. Network is then tcp
	// and DB 0.
	Sentinel *Sentinel
	DB       int
	Username string
	Password Secret // nil: none
	// PasswordFile is read again for every new connection, so that a rotated
	// password needs no restart; empty if the password was given otherwise.
	PasswordFile string
	TLS          *TLS          // nil: plain
	Timeout      time.Duration // default 50ms; at most 10s
	KeyPrefix    string        // default rl
}

// Sentinel is where to ask for the address of a master.
type Sentinel struct {
	Master    string   // the name under which the sentinels watch it
	Addresses []string // of the sentinels, host:port each, in file order; not empty
	Username  string   // for the sentinels, as for the server
	Password  Secret   // nil: none
	// PasswordFile is read again for every new connection.
	PasswordFile string
}

// TLS is the client side of a TLS connection; paths are absolute.
type TLS struct {
	CAFile, CertFile, KeyFile, ServerName string
}

// Auth is how callers prove who they are.
type Auth struct {
	JWT     []*Issuer
	APIKeys *APIKeys
	// ClientCerts are the certificates of TLS clients; nil: none is asked for.
	ClientCerts *ClientCerts
	// FailureLimit is how many failed attempts an IP has; nil: off. Default 60/minute.
	FailureLimit *Rate
}

// Issuer is one issuer of tokens. One of PublicKeys, Secrets, KeySet and Provider
// is set.
type Issuer struct {
	Issuer     string
	Audience   []string // empty: not checked
	Algorithms []string // e.g. RS256; at least one
	// PublicKeys are of a kind that fits Algorithms: *rsa.PublicKey,
	// *ecdsa.PublicKey or ed25519.PublicKey.
	PublicKeys []crypto.PublicKey
	Secrets    []Secret // HS*: any of them verifies
	// SecretEncoding is how the files spell Secrets, which are decoded; empty
	// where there are none. Default raw.
	SecretEncoding SecretEncoding
	KeySet         *jwks.Set // of a file
	Provider       *Provider // where a set is fetched
	// KeyFiles are the files that PublicKeys, Secrets or KeySet came from; absolute.
	KeyFiles []string
	Cookie   string // empty: none
	// CookieCrossOrigin lets the cookie count for requests that pages of other origins
	// have a browser send.
	CookieCrossOrigin bool
	Leeway            time.Duration // default 0
	Claims            Claims
	Pos               Pos
}

// Claims names the claims that carry the identity, and what the token grants;
// Tenant and Plan may be empty.
type Claims struct {
	User   string // default sub
	Tenant string
	Plan   string
	// Scopes is the claim of the scopes; empty if it is neither given nor wanted by
	// any route, and then not looked at. Default scope.
	Scopes string
}

// APIKeys is the key file, read, or where else keys are. File or RedisHash is set, or
// both.
type APIKeys struct {
	File   string // absolute; empty: none
	Header string // canonical, so X-Api-Key for X-API-Key, the default
	// RedisHash names the hash in store.redis that has keys, too; empty: none.
	RedisHash string
	Query     string // the parameter of a query that keys may come in too; empty: none
	// FailureLimit is how many guesses at one key there may be, from all addresses; nil:
	// off. Default 60/minute.
	FailureLimit *Rate
	Keys         []Key
}

// Key is one entry of keys.yaml.
type Key struct {
	ID      string
	SHA256  [32]byte
	User    string
	Tenant  string
	Plan    string
	Expires time.Time // zero: never; the first instant at which it no longer works
	// Routes are the names of the routes it is for; nil: any.
	Routes []string
	// AllowIPs are the networks of the clients that may use it, masked; nil: any.
	AllowIPs []netip.Prefix
	// Scopes are words for routes that ask for some.
	Scopes []string
	Pos    Pos
}

// Rate is "N/unit": Quota units per Window.
type Rate struct {
	Quota  int64
	Window time.Duration // whole seconds, > 0
}

// DimensionKind is what a limit is counted per.
type DimensionKind string

// The dimensions.
const (
	PerIP     DimensionKind = "ip"
	PerUser   DimensionKind = "user"
	PerAPIKey DimensionKind = "api_key"
	PerTenant DimensionKind = "tenant"
	PerRoute  DimensionKind = "route"
	PerGlobal DimensionKind = "global"
	PerHeader DimensionKind = "header"
)

// Dimension is one part of a partition key.
type Dimension struct {
	Kind   DimensionKind
	Header string // canonical field name, for PerHeader
}

// The algorithms of a limit.
const (
	FixedWindow          = "fixed_window"
	SlidingWindowLog     = "sliding_window_log"
	SlidingWindowCounter = "sliding_window_counter"
	TokenBucket          = "token_bucket"
	LeakyBucket          = "leaky_bucket"
)

// Limit is a limit of a plan or a named one.
type Limit struct {
	Name      string
	Per       []Dimension // at least one
	Algorithm string      // one of the five above
	// Rate is the number and its window. The window of a calendar is nominal:
	// a day has 24 hours, a month 30 days.
	Rate  Rate
	Burst int64 // token_bucket only, >= 1; 0 elsewhere
	// Queue is how many drips of a leaky_bucket wait beside the one that goes
	// at once, >= 0; MaxDelay bounds the wait of one request, 0: not bounded.
	Queue    int64
	MaxDelay time.Duration
	// Calendar is where the windows of a fixed_window lie; nil: each opens at
	// the first request.
	Calendar *Calendar
	// CountRejected charges the limit for denied attempts too.
	CountRejected bool
	// Shadow decides and counts, and never denies.
	Shadow bool
	// Candidate is another number, decided beside this one and only counted;
	// nil: none.
	Candidate *Candidate
	// Lease is what an instance takes of the limit in advance; nil: nothing.
	Lease    *Lease
	LocalCap *Rate // named limits only; nil: its share
	Pos      Pos
}

// Calendar says where windows of the calendar begin.
type Calendar struct {
	Unit      string         // minute, hour, day, week or month
	Location  *time.Location // never nil
	WeekStart time.Weekday   // Monday unless Unit is week
}

// Candidate is the other number of a limit, over the limit's own window.
type Candidate struct {
	Quota int64
	Burst int64 // token_bucket only, >= 1; 0 elsewhere
}

// Lease is a block of a limit's budget that an instance takes out of the shared
// store in advance.
type Lease struct {
	Size int64         // units; 0: auto, what the bucket spends
	TTL  time.Duration // 100ms to 10s
}

// Plan is what its callers may use.
type Plan struct {
	Name     string
	Limits   []*Limit
	LocalCap *Rate // nil: each limit's share
	Pos      Pos
}

// Override gives a plan to a caller; exactly one of Key, User, Tenant is set.
type Override struct {
	Key, User, Tenant string
	Plan              string
	Pos               Pos
}

// Upstream is a set of equal servers.
type Upstream struct {
	Name    string
	Targets []Target
	TLS     *TLS       // to https targets; nil: as the system trusts
	Balance string     // round_robin, least_requests (default) or hash
	HashBy  *Dimension // of hash: whose requests go to one target: ip, user, api_key, tenant or a header; nil of others
	// ConnectTimeout (default 1s) and ResponseHeaderTimeout (default 10s) bound
	// a request; IdleTimeout (default 90s) bounds an idle connection.
	ConnectTimeout, ResponseHeaderTimeout, IdleTimeout time.Duration
	MaxInFlight                                        int      // 0: any number
	Circuit                                            *Circuit // nil: none
	Retries                                            *Retries // nil: none
	Health                                             *Health  // nil: nobody asks
	// SlowStart (default 10s) is how long a target that is new, or comes back, takes to
	// its whole share.
	SlowStart time.Duration
	Pos       Pos
}

// Target is one server of an upstream.
type Target struct {
	URL    *url.URL // http, https or h2c, with an optional path; or unix with a path alone
	Weight int      // its share beside those of the others, 1 (default) to 1000
}

// Circuit says when an upstream that fails is left alone.
type Circuit struct {
	Errors       Percent       // of the requests within Window; default 50 %
	Window, Open time.Duration // default 10s and 5s
}

// Retries says how often a request is attempted again that an upstream failed at.
type Retries struct {
	Attempts int     // after the first, 1 to 10; default 2
	Budget   Percent // of all requests; default 10 %
}

// Health says how each target is asked whether it is well.
type Health struct {
	Path               string        // with a query or not
	Interval, Timeout  time.Duration // default 2s, and 1s or the interval if that is less
	Healthy, Unhealthy int           // checks in a row; default 2 and 3
}

// Percent is a share, in whole percent.
type Percent int

// String is the share as the files have it.
func (p Percent) String() string { return strconv.Itoa(int(p)) + "%" }

// AuthMode says whether a route wants credentials.
type AuthMode string

// The auth modes of a route.
const (
	AuthRequired AuthMode = "required"
	AuthOptional AuthMode = "optional"
	AuthNone     AuthMode = "none"
)

// FailMode says what a route does while the store is away.
type FailMode string

// The fail modes of a route.
const (
	FailLocalCap FailMode = "local_cap"
	FailDeny     FailMode = "deny"
	FailAllow    FailMode = "allow"
)

// Route is one route.
type Route struct {
	Name    string
	Host    string   // lower case, no port; empty: any
	Path    string   // chi pattern
	Methods []string // empty: all
	// Headers are fields with the values that requests of the route have, by name;
	// empty: none is looked at.
	Headers            []rewrite.Field
	Upstream           string
	Auth               AuthMode
	Cost               int64
	Limits             []*Limit // named limits, in the order given
	OnStoreFailure     FailMode
	ForwardCredentials bool
	Access             // what it wants of callers besides credentials
	// What is changed in requests and answers. StripPrefix ("" for none) and
	// Rewrite are not both there.
	StripPrefix                     string
	Rewrite                         *Rewrite
	RequestHeaders, ResponseHeaders *rewrite.Changes
	CORS                            *CORS
	MaxBody                         Size          // of a request's body; AnySize: any
	Timeout                         time.Duration // until an answer begins; 0: as long as the upstream's own take
	WebSocket                       *WebSocket    // nil: no bounds
	Pos                             Pos
}

// Size is a number of bytes.
type Size int64

// AnySize is no bound.
const AnySize Size = -1

// Rewrite replaces a whole path; see rewrite.Replace.
type Rewrite struct{ Match, Replace string }

// CORS says which sites' pages may use a route from a browser (the Fetch
// standard, section 3.2).
type CORS struct {
	Origins     []string // as browsers send them, with one * for subdomains, or "*"
	Methods     []string // empty: those of the route
	Headers     []string // of requests; "*" for all
	Expose      []string // of answers, besides those that the gateway sets
	Credentials bool
	MaxAge      time.Duration // how long a browser may keep the answer to a preflight; 0: its own default
}

// ClientHeaders says which fields tell a client about its limits.
type ClientHeaders struct {
	IETF   string // draft-11, draft-12, both or off
	Legacy bool
}
