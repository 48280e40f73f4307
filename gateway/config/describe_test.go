package config

import (
	"crypto"
	"crypto/x509"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/jwks"
)

// told are the words by which a line of Describe names a field, where they are
// not the field's name as the files have it: type and field → words. "-" is
// what no line is about.
var told = map[string]string{
	// They say where something stands, or are no part of what is in force.
	"Config.Files": "-", "Config.Hash": "-", "Config.Tests": "-",
	// By the names of what they hold; that itself is told at its own place.
	"Config.Limits": "", "Config.Upstreams": "", "Config.Routes": "", "Config.Plans": "", "Config.Overrides": "",
	"Auth.JWT": "", "APIKeys.Keys": "", "Plan.Limits": "",
	"Route.Access": "", "ClaimRule.Name": "", "ClaimRule.Values": "",
	"ClaimValue.V":    "-", // it is changed as a whole
	"ClientCerts.CAs": "auth.client_certs: the authorities changed",

	"Traces.Headers":      "traces.headers_file: the fields changed",
	"Admin.Token":         "admin.token_file: the token changed",
	"Admin.ClientCAs":     "admin.client_ca_file: the authorities changed",
	"ClientIP.TrustUnix":  "client_ip.trusted_proxies",
	"Store.MemoryMaxKeys": "store.memory.max_keys",
	"Redis.Network":       "-", // goes with the address
	"Redis.Address":       "store.redis.url", "Redis.DB": "store.redis.url",
	"Redis.Addresses": "store.redis.urls",
	"Redis.Password":  "store.redis: the password changed", "Sentinel.Password": "store.redis.sentinel: the password changed",
	"Rate.Quota":        "",
	"Rate.Window":       "",
	"Issuer.PublicKeys": ": the keys changed",
	"Issuer.Secrets":    ": the keys changed",
	"Issuer.KeyFiles":   "_file:",
	"Issuer.KeySet":     ": the keys changed", "Issuer.Provider": "",
	"Provider.URL": "jwks_url", "Provider.Address": ": the login or the query of jwks_url changed",
	"Provider.Refresh": "refresh", "Provider.MaxStale": "max_stale", "Provider.TLS": "tls",
	"Key.SHA256": ": another key", "APIKeys.RedisHash": "auth.api_keys.redis.hash",
	"Limit.Algorithm":    "(starts anew)",
	"Limit.Rate":         "",
	"Limit.Calendar":     "calendar",
	"Calendar.Unit":      "-", // goes with the window
	"Calendar.Location":  "calendar",
	"Calendar.WeekStart": "calendar",
	"Limit.Shadow":       "mode",
	"Candidate.Burst":    "",
	"Candidate.Quota":    "",
	"Lease.Size":         "",
	"Lease.TTL":          "",
	"Field.Name":         "", "Field.Value": "", // of changes to header fields
	"CORS.Origins": "cors", "CORS.Methods": "cors", "CORS.Headers": "cors", "CORS.Expose": "cors", "CORS.Credentials": "cors", "CORS.MaxAge": "cors",
	"Dimension.Kind":   "",
	"Dimension.Header": "",
	"Override.Plan":    "",
	"Target.URL":       "", "Target.Weight": "", "Upstream.HashBy": "balance",
	"WebSocket.MaxConnections": "websocket", "WebSocket.Idle": "websocket", "WebSocket.Lifetime": "websocket",
	"ACME.AcceptTerms": "-", // without it there is none
	"Circuit.Errors":   "circuit", "Circuit.Window": "circuit", "Circuit.Open": "circuit",
	"Retries.Attempts": "retries", "Retries.Budget": "retries",
	"Upstream.ConnectTimeout": "timeout.connect", "Upstream.ResponseHeaderTimeout": "timeout.response_header",
	"Upstream.IdleTimeout": "timeout.idle",
	"Field.Secret":         "-", // where a value stands is no change of it
}

// partWords are the words about a part that is there or not, where they are those
// about one of its fields.
var partWords = map[string]string{
	"Listen.HTTPS": "listen.https.address", "HTTPS.ACME": "listen.https.acme.domains", "Redis.Sentinel": "store.redis.sentinel.master", "Auth.APIKeys": "auth.api_keys.file",
	"Config.Traces": "traces.endpoint", "Traces.TLS": "traces.tls.ca_file", "Issuer.Provider": "jwks_url", "Provider.TLS": "tls.ca_file",
	"Route.Rewrite": "rewrite.match", "Route.WebSocket": "websocket", "Upstream.TLS": "tls.ca_file", "Upstream.Health": "health.path",
	"Route.RequestHeaders": "request_headers", "Route.ResponseHeaders": "response_headers",
}

// onlySome are fields that stand in some things of their kind, and mean nothing
// in the others.
var onlySome = []string{"Dimension.Header", "Candidate.Burst", "Limit.Burst", "Override.Key", "Override.User", "Override.Tenant", "Upstream.MaxInFlight"}

// restarts are the fields that only a restart applies.
var restarts = []string{"listen.http", "listen.https.address", "listen.admin", "store.memory.max_keys"}

var capital = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// wordOf is a field's name as the files have it.
func wordOf(name string) string {
	name = strings.NewReplacer("IPv6", "Ipv6_", "CAFile", "CaFile", "APIKeys", "ApiKeys", "ClientCerts", "ClientCerts").Replace(name)
	return strings.ToLower(capital.ReplaceAllString(name, "${1}_$2"))
}

// A fieldTest changes the fields of one configuration one by one.
type fieldTest struct {
	t        *testing.T
	old, now *Config
	seen     map[string]bool // type and field
	none     map[string]bool // what this configuration has no use for
}

// walk changes v, and what is in it. field is its type and field; names are what
// a line must say to tell which of several things is meant, and word is what it
// calls the field.
func (f *fieldTest) walk(v reflect.Value, field string, names []string, word string) {
	switch v.Interface().(type) {
	case *url.URL, *time.Location, *x509.Certificate, netip.Prefix, time.Time, Secret, [32]byte, ClaimValue, *jwks.Set:
		if x, ok := reflect.TypeAssert[*jwks.Set](v); ok && x == nil {
			return
		}
		f.change(v, names, word)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		if at, ok := partWords[field]; ok {
			f.change(v, names, at)
		} else if field != "" {
			f.change(v, names, word)
		}
		f.walk(v.Elem(), "", names, word)
	case reflect.Slice:
		if v.Len() == 0 {
			return
		}
		f.change(v, names, word)
		if field == "Config.Edge" || field == "Route.Limits" {
			return // they are the named limits, seen there
		}
		for i := range v.Len() {
			name := nameOf(v.Index(i))
			if name == "" {
				f.walk(v.Index(i), "", names, word)
			} else {
				f.walk(v.Index(i), "", append(slices.Clip(names), name), "")
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			sf := v.Type().Field(i)
			field := v.Type().Name() + "." + sf.Name
			if sf.Type == reflect.TypeFor[Pos]() || told[field] == "-" {
				continue
			}
			if f.none[field] || v.Field(i).IsZero() && slices.Contains(onlySome, field) ||
				field == "Calendar.WeekStart" && v.Interface().(Calendar).Unit != "week" {
				continue
			}
			f.seen[field] = true
			at, ok := told[field]
			switch {
			case !ok:
				at = strings.TrimPrefix(word+"."+wordOf(sf.Name), ".")
			case at == "":
				at = word
			}
			f.walk(v.Field(i), field, names, at)
		}
	default:
		f.change(v, names, word)
	}
}

// nameOf is how a line calls an item of a list; empty if it has no name.
func nameOf(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case *Limit:
		return x.Name
	case *Plan:
		return "plan " + x.Name
	case *Upstream:
		return "upstream " + x.Name
	case *Route:
		return "route " + x.Name
	case *Issuer:
		return "issuer " + x.Issuer
	case Key:
		return "key " + x.ID
	case Override:
		return "override " + x.subject()
	}
	return ""
}

// change puts another value into v, asks what is said of it, and puts the old
// one back.
func (f *fieldTest) change(v reflect.Value, names []string, word string) {
	before, after := reflect.New(v.Type()).Elem(), reflect.New(v.Type()).Elem()
	before.Set(v)
	v.Set(another(f.t, v))
	after.Set(v)
	lines, fixed := Describe(f.old, f.now), NeedsRestart(f.old, f.now)
	v.Set(before)
	if again := Describe(f.old, f.now); again != nil {
		f.t.Fatalf("%q %s: the old value is not back: %q", names, word, again)
	}

	const later = " (at the next restart)"
	words := append(slices.Clip(names), word)
	found := false
	for _, line := range lines {
		for _, secret := range secretsOf(f.old) {
			if strings.Contains(line, secret) {
				f.t.Errorf("a secret is in %q", line)
			}
		}
		switch left, right, arrow := strings.Cut(strings.TrimSuffix(line, later), " → "); {
		case strings.HasSuffix(line, " removed"), strings.HasSuffix(line, " added"):
			// Another name is another thing, and one less is one less.
			found = found || v.Kind() == reflect.String || v.Kind() == reflect.Slice
		case !containsAll(line, words):
		case arrow == keyed(v.Type()):
		case arrow && (!strings.Contains(left, textOf(before)) || !strings.Contains(right, textOf(after))):
		default:
			found = true
			if strings.HasSuffix(line, later) != slices.Contains(restarts, word) {
				f.t.Errorf("%s: %q", word, line)
			}
		}
	}
	if !found {
		f.t.Errorf("from %q to %q is told as %q, want a line with %q and both", textOf(before), textOf(after), lines, words)
	}
	if slices.Contains(restarts, word) != (len(fixed) > 0) {
		f.t.Errorf("%s: needs a restart: %q", word, fixed)
	}
}

// keyed reports whether values of a type are keys or secrets: of them is only
// said that they changed.
func keyed(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[Secret](), reflect.TypeFor[[]Secret](), reflect.TypeFor[[32]byte](),
		reflect.TypeFor[crypto.PublicKey](), reflect.TypeFor[[]crypto.PublicKey](), reflect.TypeFor[*jwks.Set](),
		reflect.TypeFor[*x509.Certificate](), reflect.TypeFor[[]*x509.Certificate]():
		return true
	}
	return false
}

// secretsOf are texts that no line may hold.
func secretsOf(c *Config) []string {
	secrets := []string{string(c.Admin.Token), string(c.Store.Redis.Password)}
	if s := c.Store.Redis.Sentinel; s != nil {
		secrets = append(secrets, string(s.Password))
	}
	secrets = append(secrets, "sesame-in-a-url", "sesame-in-a-query")
	for _, s := range c.Auth.JWT[1].Secrets {
		secrets = append(secrets, string(s))
	}
	return secrets
}

func containsAll(line string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(line, w) {
			return false
		}
	}
	return true
}

// textOf is how a value must stand in a line; empty where any form will do.
func textOf(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		if x == 0 || x%time.Second == 0 && x != 30*time.Second {
			return "" // it may be none, or the unit of a rate
		}
		return formatDuration(x)
	case Size:
		return x.String()
	case Share:
		return x.String()
	case Percent:
		return x.String()
	case *url.URL:
		return x.String()
	case netip.Prefix:
		return x.String()
	case ClaimValue:
		return x.String()
	case *time.Location:
		return x.String()
	case time.Weekday:
		return ""
	case DimensionKind:
		return string(x)
	case time.Time:
		if x.IsZero() {
			return "none"
		}
		return FormatExpiry(x)
	}
	switch v.Kind() {
	case reflect.String:
		if v.String() == "" {
			return ""
		}
		return v.String()
	case reflect.Int, reflect.Int64:
		if v.Int() == 0 {
			return "" // auto, none, or a zero
		}
		return strconv.FormatInt(v.Int(), 10)
	}
	return ""
}

// another is a value other than v.
func another(t *testing.T, v reflect.Value) reflect.Value {
	t.Helper()
	to := func(x any) reflect.Value { return reflect.ValueOf(x).Convert(v.Type()) }
	switch x := v.Interface().(type) {
	case time.Duration:
		return to(2*x + time.Second)
	case time.Weekday:
		return to((x + 1) % 7)
	case time.Time:
		return to(x.AddDate(1, 0, 0).Truncate(time.Second))
	case *url.URL:
		u := *x
		u.Host += "1"
		return to(&u)
	case *time.Location:
		return to(time.FixedZone("Elsewhere", 3600))
	case ClaimValue:
		return to(ClaimValue{"another"})
	case netip.Prefix:
		return to(netip.PrefixFrom(x.Addr(), x.Bits()-1))
	case Secret:
		return to(append(Secret("another "), x...))
	case [32]byte:
		x[0]++
		return to(x)
	case DimensionKind:
		if x == PerGlobal {
			return to(PerTenant)
		}
		return to(PerGlobal)
	}
	switch v.Kind() {
	case reflect.String:
		return to(v.String() + "x")
	case reflect.Bool:
		return to(!v.Bool())
	case reflect.Int, reflect.Int64:
		return to(v.Int() + 1)
	case reflect.Pointer, reflect.Interface:
		return reflect.Zero(v.Type())
	case reflect.Slice:
		return v.Slice(0, v.Len()-1)
	}
	t.Fatalf("no other value of %s is known; add one", v.Type())
	return reflect.Value{}
}

// TestEveryChangedFieldIsTold changes each field of configurations that use all
// of them, one by one, and wants a line that names the field and both values; of
// a secret only that it changed. A field that is added to Config and forgotten
// in Describe fails it.
func TestEveryChangedFieldIsTold(t *testing.T) {
	all := map[string]bool{}
	for name, form := range map[string]func(*Config){
		"one server": func(*Config) {},
		"a cluster": func(c *Config) {
			r := c.Store.Redis
			r.Addresses, r.Address, r.DB = []string{"a:7000", "b:7000"}, "", 0
		},
		"sentinels": func(c *Config) {
			r := c.Store.Redis
			r.Sentinel = &Sentinel{Master: "m", Addresses: []string{"a:26379", "b:26379"}, Username: "u", Password: Secret("sesame"), PasswordFile: "/p"}
			r.Address, r.DB = "", 0
		},
		"certificates by ACME": func(c *Config) {
			h := c.Listen.HTTPS
			h.CertFile, h.KeyFile = "", ""
			h.ACME = &ACME{[]string{"a.example.com", "b.example.com"}, "ops@example.com", "/cache", "https://ca.example.com/", "/ca", true}
		},
		"further fields": func(c *Config) {
			c.Overrides = append(c.Overrides, Override{Tenant: "acme", Plan: "pro"})
			c.Auth.APIKeys.Keys[0].Tenant, c.Auth.APIKeys.Query = "acme", "api_key"
			c.Auth.APIKeys.RedisHash = "api-keys"
			*c.Store.Redis.TLS = TLS{"/ca", "/cert", "/key", "name"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := goodDir(t)
			f := fieldTest{t: t, seen: all, none: map[string]bool{}}
			if name == "a cluster" || name == "sentinels" {
				f.none["Redis.Network"], f.none["Redis.Address"], f.none["Redis.DB"] = true, true, true
			}
			if name == "certificates by ACME" {
				f.none["HTTPS.CertFile"], f.none["HTTPS.KeyFile"] = true, true
			}
			for _, c := range []**Config{&f.old, &f.now} {
				loaded, report := load(dir, nil)
				if loaded == nil {
					t.Fatal(text(report, dir))
				}
				form(loaded)
				*c = loaded
			}
			if got := Describe(f.old, f.now); got != nil {
				t.Fatalf("nothing changed, but %q", got)
			}
			f.walk(reflect.ValueOf(f.now), "", nil, "")
		})
	}
	// Every field was met.
	var visit func(typ reflect.Type)
	visited := map[reflect.Type]bool{}
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || visited[typ] || typ.PkgPath() != reflect.TypeFor[Config]().PkgPath() {
			return
		}
		visited[typ] = true
		for sf := range typ.Fields() {
			field := typ.Name() + "." + sf.Name
			if sf.Type == reflect.TypeFor[Pos]() || told[field] == "-" {
				continue
			}
			if !all[field] {
				t.Errorf("%s is in none of the configurations", field)
			}
			visit(sf.Type)
		}
	}
	visit(reflect.TypeFor[Config]())
}

// Another way to write the same is no change.
func TestAnotherSpellingIsNoChange(t *testing.T) {
	dir := goodDir(t)
	old, report := load(dir, nil)
	if old == nil {
		t.Fatal(text(report, dir))
	}
	for _, c := range []struct{ file, from, to string }{
		{"routes.yaml", "    header: X-API-Key\n", ""},
		{"routes.yaml", "header: X-API-Key", "header: x-api-key"},
		{"routes.yaml", "header: X-API-Key", "header: X-Api-Key"},
		{"routes.yaml", "header: X-Forwarded-For", "header: x-forwarded-for"},
		{"routes.yaml", "header:x-account-id", "header:X-ACCOUNT-ID"},
		{"routes.yaml", "drain_delay: 1m30s", "drain_delay: 90s"},
		{"routes.yaml", "shutdown_timeout: 30s", "shutdown_timeout: 0.5m"},
		{"routes.yaml", "shutdown_timeout: 30s\n", ""},
		{"routes.yaml", "failure_limit: 60/minute", "failure_limit: 60/1m"},
		{"routes.yaml", "limit: 5/15m", "limit: 5/900s"},
		{"routes.yaml", "limit: 90/30d", "limit: 90/month"},
		{"routes.yaml", "ipv6_prefix: ${IPV6_PREFIX:-56}", "ipv6_prefix: 56"},
		{"routes.yaml", "10.0.0.0/8", "10.1.2.3/8"},
		{"routes.yaml", "legacy: on", `legacy: "on"`},
		{"routes.yaml", "host: API.Example.com:443", "host: api.example.com"},
		{"routes.yaml", "audience: weather-api", "audience: [weather-api]"},
		{"routes.yaml", "count_rejected: true", "count_rejected: yes"},
		{"routes.yaml", ", mode: enforce", ""},
		{"routes.yaml", "lease: {size: 20, ttl: 500ms}", "lease: {ttl: 0.5s, size: 20}"},
		{"routes.yaml", "usage_path: /usage", "usage_path: '/usage' # for callers"},
		{"routes.yaml", "    <<: *pool\n", "    timeout: {idle: 1m30s}\n"},
		{"routes.yaml", "  - {name: health,   path: /healthz, upstream: weather, auth: none, cost: 0}\n", "  - {path: /healthz, auth: none, upstream: weather, cost: 0, name: health}\n"},
		{"plans.yaml", "timezone: Asia/Kolkata, limit: 100/day", "limit: 100/day, timezone: Asia/Kolkata"},
		{"plans.yaml", "limit: 100/second, candidate: {limit: 200/second}", "limit: 100/second, burst: 100, candidate: {limit: 200/1s, burst: 200}"},
		{"plans.yaml", "algorithm: token_bucket, limit: 100/minute, burst: 20", "per: user, algorithm: token_bucket, limit: 100/60s, burst: 20"},
		{"keys.yaml", "2077-06-30}", "2077-07-01T00:00:00Z}"},
		{"keys.yaml", "18:00:00+02:00", "16:00:00Z"},
	} {
		data, err := ReadFile(dir + "/" + c.file)
		if err != nil {
			t.Fatal(err)
		}
		text1 := strings.Replace(string(data), c.from, c.to, 1)
		if text1 == string(data) {
			t.Fatalf("%q is not in %s", c.from, c.file)
		}
		write(t, dir, map[string]string{c.file: text1})
		now, report := load(dir, nil)
		write(t, dir, map[string]string{c.file: string(data)})
		if now == nil {
			t.Errorf("%q: %s", c.to, text(report, dir))
			continue
		}
		if got := append(Describe(old, now), NeedsRestart(old, now)...); got != nil {
			t.Errorf("%q → %q is said to be a change: %q", c.from, c.to, got)
		}
	}
}
