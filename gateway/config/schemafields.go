package config

import (
	"math"
	"slices"
	"strings"
	"time"

	"bouncer/gateway/jwks"
	"bouncer/gateway/rewrite"
)

// routesSchema describes routes.yaml, in the order of the documents.
func routesSchema() schema {
	return file(map[string]schema{
		"listen": fields(map[string]schema{
			"http": def("address").says("Where requests arrive: host:port, :port or unix:/path. HTTP/1.1, and HTTP/2 with prior knowledge. http, https or both. Needs a restart to change."),
			"https": fields(map[string]schema{
				"address":   def("address").says("Where requests arrive by TLS 1.2 or later: host:port, :port or unix:/path. Needs a restart to change."),
				"cert_file": def("text").says("PEM file with the certificate and its chain. A renewed one is taken over without a restart."),
				"key_file":  def("text").says("PEM file with the private key of the certificate."),
				"acme":      acmeSchema(),
			}, "address").with("oneOf", []schema{
				{"required": []string{"cert_file", "key_file"}},
				{"required": []string{"acme"}, "properties": map[string]any{"cert_file": false, "key_file": false}},
			}).says("A TLS listener; HTTP/2 is offered. With acme, or with cert_file and key_file."),
			"admin":                  def("address").or("127.0.0.1:9090").says("Where metrics, probes and the status page are: host:port, :port or unix:/path. Never the public address. Needs a restart to change."),
			"max_connections_per_ip": whole(0, math.MaxInt32).or(0).says("How many connections http and https together take from one address, as ipv6_prefix makes one; more are closed at once. Trusted proxies have any number. 0: any number."),
		}).with("anyOf", either("http", "https")).says("Where the gateway listens."),
		"admin": fields(map[string]schema{
			"token_file":     def("text").says("File with the token for everything on the admin listener but /healthz, /readyz and /metrics. Required where that listener is not on loopback, unless there is client_ca_file."),
			"client_ca_file": def("text").says("PEM file of the authorities that vouch for operators: a client certificate of theirs counts as the token, and the listener speaks HTTPS. It shows cert_file, else what listen.https shows."),
			"cert_file":      def("text").says("PEM file with the certificate of the admin listener, which then speaks HTTPS; and those that lead to its authority."),
			"key_file":       def("text").says("PEM file with its private key."),
		}).says("Who may use the admin listener."),
		"log":              logSchema(),
		"traces":           tracesSchema(),
		"shutdown_timeout": spell(30*time.Second, "How long requests in flight may take after SIGTERM, 0s to 1d; it ends as soon as nothing is in flight."),
		"drain_delay":      spell(0, "How long /readyz says 503 before the listeners close, 0s to 1d."),
		"client_ip": fields(map[string]schema{
			"trusted_proxies": listOf(anyOf(schema{"const": trustsUnix}, written("^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$", "a network such as 10.0.0.0/8"))).or([]string{}).
				says("Addresses and networks whose forwarding fields are believed, and unix for the peers of a unix socket. None: the peer is the client."),
			"header":         def("header").or("X-Forwarded-For").says("The field that carries the client's address: X-Forwarded-For, Forwarded, or one with a single address such as CF-Connecting-IP."),
			"ipv6_prefix":    whole(1, 128).or(64).says("How many bits make one IPv6 client for limits, 1 to 128."),
			"proxy_protocol": def("boolean").or(false).says("Whether the trusted proxies begin each connection with a header of the PROXY protocol, version 1 or 2. They have to, then; nobody else's is looked at."),
		}).with("if", schema{"properties": map[string]any{"proxy_protocol": schema{"enum": []any{true, "on", "yes"}}}, "required": []string{"proxy_protocol"}}).
			with("then", schema{"required": []string{"trusted_proxies"}, "properties": map[string]any{"trusted_proxies": schema{"minItems": 1}}}).
			says("Whose word counts for the client's address."),
		"store": fields(map[string]schema{
			"memory": fields(map[string]schema{
				"max_keys": whole(1, math.MaxInt32).or(1_000_000).says("Entries in each table in memory. Needs a restart to change."),
			}).says("The tables in this process: the store where there is no Redis, and what stands in while it is away."),
			"redis": redisSchema(),
		}).says("Where limits are counted. Left out: in this process, which is right for one instance."),
		"auth":      authSchema(),
		"limits":    named(limitSchema(true)).says("Limits by name. Routes and edge use them by name; all routes that name one share its counts."),
		"edge":      limitNamesSchema("Limits that are charged before authentication, for every request, in this instance's own memory: per ip, route, global or header:NAME."),
		"upstreams": named(upstreamSchema()).says("Servers behind the gateway, by name."),
		"routes": schema{"type": "array", "minItems": 1, "items": routeSchema()}.
			says("What goes where. The most specific route wins, never the first: a host before none, static segments before parameters before wildcards."),
		"forward_credentials": def("boolean").or(false).says("Hand verified credentials to the upstream: the default of all routes."),
		"client_headers": fields(map[string]schema{
			"ietf":   words("draft-11", "draft-12", "both", "off").or("draft-11").says("Which RateLimit fields answers carry: in the words of the draft's version 11 (r, t), of the text after it (a, w, c), or both side by side."),
			"legacy": words("on", "off").or("on").says("Whether answers carry X-RateLimit fields too."),
		}).says("Which fields tell clients about their limits."),
		"usage_path": schema{"anyOf": []schema{written("^/[^{}*%?#]*$", wantedUsage), words("off"), def("variable")}}.or("off").
			says("A fixed path at which callers can ask where they stand, free of charge; off: nowhere. No route may have it."),
	}, "listen", "upstreams", "routes")
}

func redisSchema() schema {
	const rediss = "[Rr][Ee][Dd][Ii][Ss][Ss]?"
	bothPasswords := schema{"required": []string{"password", "password_file"}}
	credentials := func(of map[string]schema) map[string]schema {
		of["username"] = def("text").says("User name, as it is; beats that of the URL. With it goes password or password_file.")
		of["password"] = def("text").says("Password, as it is; better in a file or in a variable. password or password_file.")
		of["password_file"] = def("text").says("File with the password; read anew for each connection, so that a rotation needs no restart.")
		return of
	}
	return fields(credentials(map[string]schema{
		"url": anyOf(written("^(("+rediss+"|[Uu][Nn][Ii][Xx])://|$)", wantedURL)).
			says("One server: redis://[user:password@]host:port/db, rediss:// for TLS, unix:///path?db=N. Empty: memory."),
		"urls": some(anyOf(written("^"+rediss+"://", wantedURLs))).says("A cluster: one or more servers at which it is entered, redis://host:port or rediss://host:port."),
		"sentinel": fields(credentials(map[string]schema{
			"master":    def("text").says("The name under which the sentinels watch the server."),
			"addresses": some(anyOf(written(`^[^/@\s]+$`, "host:port"))).says("Where the sentinels are, host:port each; the port is 26379 where it is left out."),
		}), "master", "addresses").with("not", bothPasswords).says("Sentinels that know which server is the master."),
		"tls":        tlsSchema().says("TLS to the server; rediss:// alone uses the system's certificates."),
		"timeout":    spell(50*time.Millisecond, "For one whole decision, 1ms to 10s. Then the route's on_store_failure applies."),
		"key_prefix": anyOf(written("^[A-Za-z0-9._-]{1,64}$", "letters, digits and . _ -, at most 64"), schema{"type": "number"}).or("rl").says("What every key begins with."),
	})).with("oneOf", either("url", "urls", "sentinel")).with("not", bothPasswords).
		says("Redis 6.2 or later, or Valkey: url for one server, urls for a cluster, or sentinel.")
}

func authSchema() schema {
	failures := schema{"anyOf": []schema{written(ratePattern("[1-9][0-9]{0,14}"), "a rate such as 60/minute, or off"), words("off", "false"), def("variable")}}
	files := func(says string) schema { return oneOrSome(def("text")).says(says) }
	claim := func(fallback, says string) schema {
		s := def("text").says(says)
		if fallback != "" {
			s = s.or(fallback)
		}
		return s
	}
	return fields(map[string]schema{
		"jwt": schema{"type": "array", "minItems": 1, "items": fields(map[string]schema{
			"issuer":   def("text").says("The iss of its tokens, exactly as they have it. Each issuer once."),
			"audience": oneOrSome(def("text")).says("A token must name one of these in aud. Left out: not checked, which is a warning."),
			"algorithms": some(words(slices.Concat(secretAlgorithms, publicAlgorithms)...)).
				says("What tokens may be signed with: HS256, HS384, HS512 with a secret, or the others with a public key; never both kinds in one entry."),
			"secret_file":         files("File with the secret of HS*, or a list of them while rotating; at least as long as the hash."),
			"secret_encoding":     words(secretEncodings...).or(string(EncodingRaw)).says("How secret_file spells the secret: raw takes the bytes as they are, and nothing is decoded that this does not say."),
			"public_key_file":     files("PEM file with public keys, or a list of them; for all algorithms but HS*."),
			"jwks_url":            anyOf(written(setURLPattern, wantedSetURL)).says("Where the issuer's JWK set is, for all algorithms but HS*; fetched in the background. Without any of jwks_url, jwks_file, public_key_file and secret_file it is found by the issuer (OIDC discovery)."),
			"jwks_file":           def("text").says("File with the issuer's JWK set, for all algorithms but HS*. A changed one is taken over without a restart."),
			"refresh":             def("duration").says("How often keys are fetched, 1m to 1d; default " + formatDuration(jwks.DefaultRefresh) + ". Sooner where the provider asks for it. An unknown key makes it sooner, at most once in 10s."),
			"max_stale":           def("duration").says("How old fetched keys may become while the provider is away, refresh to 30d; default " + formatDuration(jwks.DefaultMaxStale) + ". Then its tokens are refused."),
			"tls":                 tlsSchema().says("TLS to the provider."),
			"cookie":              def("header").says("The name of a cookie that may carry the token, besides Authorization: Bearer. Default: none."),
			"cookie_cross_origin": words("refuse", "allow").or("refuse").says("What becomes of a request with the cookie that a page of another origin has a browser send, if it may change something or opens a WebSocket: 403, but for pages that the route's cors lets in with credentials; or it counts."),
			"leeway":              spell(0, "By how much clocks may differ, 0s to 1d; more than 5m is a warning."),
			"claims": fields(map[string]schema{
				"user":   claim("sub", "The claim that says who the caller is."),
				"tenant": claim("", "The claim that says whom the caller belongs to. Default: none."),
				"plan":   claim("", "The claim that names the plan. Default: none."),
				"scopes": claim("", "The claim that says what the token grants: words with spaces between, or a list. Default: scope where a route wants scopes; else it is not looked at."),
			}).says("Names of claims: the exact name first, then dots descend, as in realm.org."),
		}, "issuer", "algorithms").with("oneOf", []schema{
			keysFrom("secret_file", secretAlgorithms, "secret_encoding"), keysFrom("public_key_file", publicAlgorithms), keysFrom("jwks_file", publicAlgorithms),
			keysFrom("jwks_url", publicAlgorithms, fetchFields...), keysFrom("", publicAlgorithms, fetchFields...),
		})}.says("Issuers of tokens."),
		"api_keys": fields(map[string]schema{
			"file":          def("text").says("The key file, which gateway keys writes: digests, never the keys."),
			"header":        def("header").or("X-API-Key").says("The field in which keys are sent; Authorization: ApiKey … works as well."),
			"failure_limit": failures.or("60/minute").says("Guesses at one key, from all addresses together; off switches it off. The key itself always works."),
			"query": schema{"anyOf": []schema{written("^[A-Za-z0-9._~-]{1,100}$", "the name of a parameter").with("not", schema{"pattern": "^([Oo][Nn]|[Yy][Ee][Ss]|[Tt][Rr][Uu][Ee])$"}), words("off", "false"), def("variable")}}.or("off").
				says("A parameter of the query that keys may come in too, which is a warning: URLs end up in logs of others. off: none."),
			"redis": fields(map[string]schema{
				"hash": written("^[a-z0-9_-]{1,100}$", "a name such as api-keys").says("The name of the hash, which is store.redis.key_prefix, \":v1:{keys}:\" and this in Redis."),
			}, "hash").says("Keys in the Redis of store.redis, beside the file or in place of it."),
		}).with("anyOf", either("file", "redis")).says("API keys."),
		"client_certs": fields(map[string]schema{
			"ca_file": def("text").says("PEM file with the certificates of the authorities that vouch for clients, and no others are trusted."),
			"user":    words(userFields...).or(userFields[0]).says("Where in the certificate the user stands, once."),
			"tenant":  words(orgFields...).says("Where the tenant stands. Default: certificates name none."),
			"plan":    words(orgFields...).says("Where the plan stands. Default: certificates name none."),
		}, "ca_file").says("Certificates of TLS clients, which listen.https asks for then."),
		"failure_limit": failures.or("60/minute").says("Wrong credentials per address; off switches it off."),
	}).says("How callers prove who they are.")
}

// setURLPattern is of https anywhere, and of http on this machine.
const setURLPattern = `^([Hh][Tt][Tt][Pp][Ss]://([^@/?#]*@)?[^@/?#]+([/?][^#]*)?|[Hh][Tt][Tt][Pp]://([^@/?#]*@)?(localhost|127[.][0-9.]+|\[::1\])(:[0-9]+)?([/?][^#]*)?)$`

// keysFrom is an issuer whose keys are where one of keyFields says, or, where that
// is empty, none of them; own are fields that only then make sense.
func keysFrom(field string, algorithms []string, own ...string) schema {
	of := map[string]any{"algorithms": some(words(algorithms...))}
	for _, other := range slices.Concat(keyFields, fetchFields, []string{"secret_encoding"}) {
		if other != field && !slices.Contains(own, other) {
			of[other] = false
		}
	}
	s := schema{"properties": of}
	if field != "" {
		s["required"] = []string{field}
	} else {
		of["issuer"] = anyOf(written(setURLPattern, "an issuer whose keys can be found by its URL"))
	}
	return s
}

// tlsSchema describes the client side of a TLS connection.
func tlsSchema() schema {
	return fields(map[string]schema{
		"ca_file":     def("text").says("PEM file of the certificates that are trusted. Default: those of the system."),
		"cert_file":   def("text").says("PEM file with a client certificate."),
		"key_file":    def("text").says("PEM file with the private key of the client certificate."),
		"server_name": def("text").says("The name in the server's certificate. Default: the host that is dialled."),
	}).with("dependentRequired", map[string][]string{"cert_file": {"key_file"}, "key_file": {"cert_file"}})
}

func upstreamSchema() schema {
	urls := []schema{
		written("^([Hh][Tt][Tt][Pp][Ss]?|[Hh]2[Cc])://[^/?#@]+[^?#]*$", "a URL such as http://127.0.0.1:9001 or https://api.example.com/base"),
		written("^[Uu][Nn][Ii][Xx]:(//)?/[^/].*$", "a socket such as unix:///run/api.sock"),
	}
	weighted := fields(map[string]schema{
		"url":    anyOf(urls...).says("The URL of the target."),
		"weight": whole(1, maxWeight).or(1).says("Its share of the requests beside the weights of the others."),
	}, "url")
	hash := fields(map[string]schema{
		"hash": fields(map[string]schema{
			"by": anyOf(enum(hashDimensions...), written("^header:"+headerPattern[1:], "header: and the name of a header")).
				says("What requests of one target have in common: ip, user, api_key, tenant or header:NAME. Where it is missing, the address stands in."),
		}, "by").says("The same target for all requests that have something in common."),
	}, "hash")
	return fields(map[string]schema{
		"targets": some(anyOf(append(urls, weighted)...)).says("URLs of equal servers: http://, https:// (HTTP/2 where it is offered), h2c:// (HTTP/2 in the clear), each with a path that is put in front, or unix:///path of a socket. {url, weight} for one that gets more, or less, than the others."),
		"balance": anyOf(enum("least_requests", "round_robin"), hash).or("least_requests").says("Which target is next: the one with the fewest requests for its weight, each in turn, or by hash: {by: user} the same one for the same caller."),
		"timeout": fields(map[string]schema{
			"connect":         spell(time.Second, "Until connected, 1ms to 1h; then another target, or 502."),
			"response_header": spell(10*time.Second, "Until the answer begins, 1ms to 1d; then 504. A body may take as long as it likes."),
			"idle":            spell(90*time.Second, "How long an unused connection is kept, 1ms to 1d; best below the upstream's own keep-alive time."),
		}).says("How long to wait for the upstream."),
		"tls":           tlsSchema().says("For https targets."),
		"max_in_flight": whole(1, math.MaxInt32).says("How many requests may be in flight; more wait for a tenth of a second and are 503 then, not charged. Default: any number."),
		"circuit": fields(map[string]schema{
			"errors": anyOf(written(percentPattern.String(), wantedPercent)).or("50%").says("Of at least twenty requests within the window: no answer, or one of 500 and above."),
			"window": spell(10*time.Second, "Over how long errors are counted, 1s to 1h."),
			"open":   spell(5*time.Second, "How long the upstream is left alone, 100ms to 1h; then a few requests at a time decide."),
		}).says("Leaves an upstream that fails alone: 503 with Retry-After, not charged."),
		"retries": fields(map[string]schema{
			"attempts": whole(1, maxRetries).or(2).says("How many after the first, 1 to 10."),
			"budget":   anyOf(written(percentPattern.String(), wantedPercent)).or("10%").says("The share of requests that there may be more because of it."),
		}).says("Attempts again what was lost or answered with 502, 503 or 504, where that does no harm: GET, HEAD, OPTIONS and what has an Idempotency-Key, with a body of at most 8 KiB. Default: none."),
		"health": fields(map[string]schema{
			"path":      anyOf(written(healthPath.String(), "a path such as /healthz")).says("What is asked for by GET, behind the path of the target; an answer of 200 to 299 says that it is well."),
			"interval":  spell(healthInterval, "The time between two checks, 100ms to 1h."),
			"timeout":   def("duration").says("How long a check may take, 1ms to the interval. Default: 1s, or the interval if that is less."),
			"healthy":   whole(1, maxChecks).or(defaultHealthy).says("How many in a row have to pass before a target that failed is well again."),
			"unhealthy": whole(1, maxChecks).or(defaultUnhealthy).says("How many in a row have to fail before one that was well is not."),
		}, "path").says("Asks each target whether it is well; one that is not gets no requests while another is. Default: nobody asks."),
		"slow_start": spell(defaultSlowStart, "How long a target that comes back, or is new after a reload, takes from a tenth of its share to the whole, 1ms to 1h."),
	}, "targets").with("if", schema{
		"properties": map[string]any{"targets": schema{"not": schema{"contains": schema{"pattern": "^([Hh][Tt][Tt][Pp][Ss]:|.*[$][{])"}}}},
		"required":   []string{"targets"},
	}).
		with("then", schema{"properties": map[string]any{"tls": false}}).
		says("A set of equal servers.")
}

func routeSchema() schema {
	network := anyOf(written("^[0-9A-Fa-f:.]+(/([0-9]{1,2}|1[01][0-9]|12[0-8]))?$", "an address such as 203.0.113.7, or a network such as 10.0.0.0/8"))
	return fields(map[string]schema{
		"name":    def("name").says("Unique; the route in metrics and logs."),
		"host":    anyOf(written(`^[A-Za-z0-9._:\[\]-]+$`, "a host name"), schema{"type": "number"}).says("A host name without a port. Default: any."),
		"path":    anyOf(written("^/", "a path such as /api/weather")).says("/fixed, /users/{id} for one segment, {id:regexp}, or /files/* for the rest. /a is not /a/."),
		"methods": some(anyOf(written("^[^a-z]+$", "a method in upper case such as GET").with("not", enum("CONNECT", "TRACE")))).says("Methods in upper case; GET includes HEAD. Default: all."),
		"headers": schema{
			"type": "object", "minProperties": 1, "maxProperties": maxMatched, "additionalProperties": def("text"),
			"propertyNames": written(headerPattern, "the name of a header").with("not", schema{"pattern": anyCase([]string{"host"})}),
		}.says("Fields with the values that requests of the route have, as they are. Of two routes of a path the one that wants more of them comes first."),
		"upstream": def("text").says("The name of an upstream."),
		"auth": words(string(AuthRequired), string(AuthOptional), string(AuthNone)).or(string(AuthRequired)).
			says("required: no or bad credentials are 401. optional: none is anonymous, bad is 401. none: not looked at, and passed on untouched."),
		"scopes":    scopesSchema(),
		"claims":    claimsSchema(),
		"plans":     some(def("text")).says("The plans whose callers may come; of others 403. Default: those of any."),
		"allow_ips": some(network).says("Addresses and networks whose clients may come; all others are 403. Default: all."),
		"deny_ips":  listOf(network).says("Addresses and networks whose clients are 403, also where allow_ips allows them."),
		"cost":      whole(0, 0).or(1).says("Units taken from every limit. 0: no limit is asked, nothing counted."),
		"limits":    limitNamesSchema("Named limits, in addition to those of the plan."),
		"on_store_failure": words(string(FailLocalCap), string(FailDeny), string(FailAllow)).or(string(FailLocalCap)).
			says("What happens while the store is away. local_cap: each instance admits its share. deny: 503. allow: everything passes."),
		"forward_credentials": def("boolean").says("Hand the verified credential to the upstream. Default: forward_credentials of the file."),
		"strip_prefix":        anyOf(written("^(/[^/{}*%?#]+)+$", "a path such as /api")).says("Whole segments that all paths of the route begin with, and that the upstream does not get: /api makes /weather of /api/weather."),
		"rewrite": fields(map[string]schema{
			"match":   def("text").says("A regular expression that a path has to match as a whole, in its normal form: capitals in escapes, none where none is needed, no empty segments."),
			"replace": anyOf(written(`^[/$]([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*$`, "a path such as /v2/$1")).says("What the upstream gets for a path that matches: $1 to $9 are what groups matched, $$ is a dollar. The query stays."),
		}, "match", "replace").says("Another path for the upstream. Limits and routes go by the path as it came."),
		"request_headers":  changesSchema(true).says("Fields of the request as the upstream gets it."),
		"response_headers": changesSchema(false).says("Fields of all answers of the route, the gateway's own too."),
		"cors":             corsSchema(),
		"max_body":         anyOf(written(sizePattern.String(), wantedSize), schema{"type": "integer", "minimum": 0}).says("The largest body of a request: bytes, or KB, MB, GB, KiB, MiB, GiB; beyond it 413. Default: any."),
		"timeout":          def("duration").says("Until the answer begins, with all of sending and connecting, 1ms to 1d; then 504. Default: what the upstream's own timeouts allow."),
		"websocket": fields(map[string]schema{
			"max_connections": whole(1, math.MaxInt32).says("How many one caller may have open at the same time on one instance; a further handshake is 429, not charged. Default: any number."),
			"idle":            def("duration").says("One on which nothing comes for so long, from either side, is ended, 1s to 30d. Default: none is."),
			"lifetime":        def("duration").says("One that is so old is ended, 1s to 30d. Default: none is."),
		}).says("Bounds of WebSockets. The route's timeout ends none, and an expired credential ends its own."),
	}, "name", "path", "upstream").with("not", schema{"required": []string{"strip_prefix", "rewrite"}}).
		with("if", schema{"properties": map[string]any{"auth": schema{"const": string(AuthNone)}}, "required": []string{"auth"}}).
		with("then", schema{"properties": map[string]any{"scopes": false, "claims": false}}).says("Requests that go to one upstream, and what they cost.")
}

// scopesSchema describes the scopes that a route wants.
func scopesSchema() schema {
	return some(anyOf(written(`^[!#-\[\]-~]{1,100}$`, "one word of visible ASCII characters"), schema{"type": "number"})).with("maxItems", maxScopes).
		says("Words that the credential has to grant, all of them; without one 403.")
}

// claimsSchema describes the claims that a route wants.
func claimsSchema() schema {
	one := anyOf(schema{"type": "string", "minLength": 1, "maxLength": maxIdentity}, schema{"type": "integer", "minimum": -maxClaimNumber, "maximum": maxClaimNumber}, schema{"type": "boolean"})
	return schema{
		"type": "object", "minProperties": 1, "maxProperties": maxClaims, "propertyNames": schema{"minLength": 1, "maxLength": maxIdentity},
		"additionalProperties": schema{"anyOf": []schema{one, some(one).with("maxItems", maxClaimValues)}},
	}.says("Claims that the token has to have, each with this value or one of a list; without one 403. Names as in the issuer's claims.")
}

// changesSchema describes changes to header fields.
func changesSchema(ofRequest bool) schema {
	value := anyOf(written("^([^{\\x00-\\x1f\\x7f]|[{][{]|[{]("+strings.Join(rewrite.Placeholders(), "|")+")[}])+$", "a value"), schema{"type": "number"})
	fixed := schema{"pattern": anyCase(rewrite.FixedNames())}
	names := func(host bool, values schema) schema {
		not := []schema{fixed}
		if !host {
			not = append(not, schema{"pattern": anyCase([]string{"host"})})
		}
		name := written(headerPattern, "the name of a header").with("not", schema{"anyOf": not})
		return schema{"type": "object", "propertyNames": name, "maxProperties": maxChanges, "additionalProperties": values}
	}
	removed := written(headerPattern, "the name of a header").with("not", schema{"anyOf": []schema{fixed, {"pattern": anyCase([]string{"host"})}}})
	return fields(map[string]schema{
		"set":    names(ofRequest, value).says("Fields with the one value they are to have, which may hold {" + strings.Join(rewrite.Placeholders(), "}, {") + "}; {{ is a brace."),
		"add":    names(false, oneOrSome(value)).says("Values beside those that are there; placeholders as in set."),
		"remove": listOf(anyOf(removed)).says("Fields that go, before others are set and added."),
	})
}

// anyCase is the pattern of some names of fields in every spelling that
// rewrite.SameName takes for the same; * at the end is anything.
func anyCase(names []string) string {
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteByte('|')
		}
		for _, c := range name {
			switch {
			case c == '-':
				b.WriteString("[^A-Za-z0-9]")
			case c == '*':
				b.WriteString(".*")
			default:
				b.WriteString("[" + strings.ToUpper(string(c)) + string(c) + "]")
			}
		}
	}
	return "^(" + b.String() + ")$"
}

func corsSchema() schema {
	names := listOf(schema{"anyOf": []schema{{"const": "*"}, def("header")}})
	return fields(map[string]schema{
		"origins":     some(anyOf(schema{"const": "*"}, written(originPattern.String(), "an origin such as https://app.example.com").with("not", schema{"pattern": "^(https:.*:443|http:.*:80)$"}))).says(`Whose pages may use the route: https://app.example.com, https://*.example.com for subdomains, or "*" for all.`),
		"methods":     some(anyOf(written("^[^a-z]+$", "a method in upper case such as GET").with("not", enum("CONNECT", "TRACE")))).says("Methods that pages may use. Default: those of the route."),
		"headers":     names.says(`Fields that pages may send, "*" for all. Default: those that need no leave.`),
		"expose":      names.says("Fields of answers that pages may read, besides Retry-After, X-Request-Id and those of limits."),
		"credentials": def("boolean").or(false).says("Whether pages may send cookies and the like; not with the origin \"*\"."),
		"max_age":     def("duration").says("How long a browser may keep the answer to a preflight, at most 1d. Default: its own, 5s."),
	}, "origins").with("not", schema{
		"properties": map[string]any{"origins": schema{"contains": schema{"const": "*"}}, "credentials": schema{"enum": []any{true, "on", "yes"}}},
		"required":   []string{"origins", "credentials"},
	}).says("Lets pages of other origins use the route from a browser. Preflights are answered here: not charged, and not asked for credentials. What an upstream says of it is left out.")
}

// limitNamesSchema is a list of names of limits.
func limitNamesSchema(says string) schema {
	return listOf(def("text")).with("maxItems", maxLimits).or([]string{}).says(says)
}

// plansSchema describes plans.yaml.
func plansSchema() schema {
	return file(map[string]schema{
		"default_plan":   def("text").says("The plan of callers whose credential names none, or one that does not exist."),
		"anonymous_plan": def("text").says("The plan of callers without credentials. Required where a route is optional or none and costs something."),
		"plans": named(fields(map[string]schema{
			"limits":    schema{"type": "array", "maxItems": maxLimits, "items": limitSchema(false)}.says("Every one of them must admit a request; [] for no limit at all."),
			"local_cap": capSchema("this plan's limits"),
		}, "limits").says("What the callers of one plan may use.")).says("Plans by name."),
		"overrides": schema{"type": "array", "items": fields(map[string]schema{
			"key":    def("identity").says("The id of an API key."),
			"user":   def("identity").says("A user."),
			"tenant": def("identity").says("A tenant."),
			"plan":   def("text").says("The plan that the caller has, whatever the credential says."),
		}, "plan").with("oneOf", either("key", "user", "tenant"))}.or([]string{}).
			says("Plans of single callers: each has plan, and one of key, user and tenant. Key beats user beats tenant, and all beat the credential."),
		"tests": testsSchema(),
	}, "plans")
}

// testsSchema describes the tests beside the plans.
func testsSchema() schema {
	text := anyOf(schema{"type": "string", "minLength": 1})
	count := anyOf(schema{"type": "integer", "minimum": 0}, written(comparison("(0|[1-9][0-9]*)"), wantedCount))
	span := written(comparison(durationPattern), wantedSpan)
	caller := fields(map[string]schema{
		"user":    def("identity").says("The user that the credential names."),
		"tenant":  def("identity").says("The tenant that the credential names."),
		"plan":    text.says("The plan that the credential names."),
		"key_id":  text.says("The id of a key in the key file: its user, tenant and plan."),
		"ip":      anyOf(written(`^[0-9a-fA-F:.]+$`, "an address such as 203.0.113.9")).says("The address of the peer. Default: 192.0.2.1."),
		"headers": schema{"type": "object", "additionalProperties": schema{"type": []string{"string", "number", "boolean"}}}.says("Fields of the request."),
	}).says("Who sends. With user, tenant, plan or key_id it has shown good credentials; without, none.")
	request := anyOf(written(`^ *([^a-z ]+ +)?(/|https?://[^/ ])[^ ]* *$`, wantedTarget)).says("A method and a path, or a path that is asked for with GET.")
	step := fields(map[string]schema{
		"send":            anyOf(schema{"type": "integer", "minimum": 1, "maximum": maxRequests}, written(`^\s*[1-9][0-9]*(\s+at\s+once|\s+every\s+`+durationPattern+`\s+for\s+`+durationPattern+`)?\s*$`, wantedSend)).says("How many requests: 30, 30 at once, or 1 every 500ms for 2m."),
		"wait":            def("duration").says("Moves the clock on by this much."),
		"at":              anyOf(schema{"type": "string", "pattern": "[0-9]:[0-9]"}).says("Moves the clock to the next such moment: 23:59:50 Asia/Kolkata."),
		"caller":          caller,
		"request":         request,
		ExpectAllowed:     count.says("How many are not refused: 20, <= 20, > 3 or 20..25."),
		ExpectDenied:      count.says("How many are refused, whatever by."),
		ExpectDeniedBy:    schema{"anyOf": []schema{{"type": "string", "minLength": 1}, {"type": "array", "items": schema{"type": "string", "minLength": 1}, "minItems": 1}}}.says("The limit or stage that refuses, or a list of those that may."),
		ExpectStatus:      anyOf(schema{"type": "integer", "minimum": 400, "maximum": 599}).says("The status of every answer, 400 to 599: no upstream answers in a test."),
		ExpectRetryAfter:  anyOf(schema{"const": "none"}, span).says("Of the last refusal: <= 1s, or none."),
		ExpectLongestWait: anyOf(span).says("The largest Retry-After of all refusals."),
		ExpectDelay:       anyOf(span).says("The longest wait in a queue."),
		ExpectRemaining:   schema{"type": "object", "minProperties": 1, "additionalProperties": count}.says("What is left of limits after the last request, by name."),
	}).with("oneOf", either("send", "wait", "at")).with("allOf", []schema{{
		"if":   schema{"not": schema{"required": []string{"send"}}},
		"then": schema{"properties": onlyBesideSend()},
	}}).
		says("Sends requests and says what must happen, or moves the clock.")
	return schema{"type": "array", "maxItems": maxTests, "items": fields(map[string]schema{
		"name":    text.says("A sentence that says what is tested."),
		"caller":  caller,
		"request": request,
		"steps":   schema{"type": "array", "minItems": 1, "maxItems": maxSteps, "items": step}.says("What is sent, in order."),
	}, "name", "steps").says("What these plans promise, tried on a clock of its own.")}.or([]string{}).
		says("What must happen to some callers; gateway test tries it.")
}

// comparison is the pattern of one, of two with .. between, or of a comparison.
func comparison(one string) string {
	return `^\s*(((<=|>=|<|>)\s*)?` + one + "|" + one + `\s*\.\.\s*` + one + `)\s*$`
}

// onlyBesideSend refuses the fields of a step that sends.
func onlyBesideSend() map[string]any {
	of := map[string]any{}
	for _, name := range besideSend {
		of[name] = false
	}
	return of
}

func capSchema(whose string) schema {
	return def("rate").says("What one caller may use on one instance while the store is away, in place of " + whose + ". Default: each limit's share.")
}

// limitSchema describes a limit: a named one, or one of a plan.
func limitSchema(named bool) schema {
	dimension := anyOf(enum(dimensions...), written("^header:"+headerPattern[1:], "header: and the name of a header"))
	per := oneOrSome(dimension).says("What is counted by: ip, user, api_key, tenant, route, global, header:NAME, or a list of them. Where a part is missing, the address stands in.")
	burst := whole(1, maxQuota).says("token_bucket: how many may come at once. Default: N of the rate.")
	of := map[string]schema{
		"algorithm": words(algorithms...).says("token_bucket: steady use with some haste. fixed_window: quotas by day or month. sliding_window_counter: large numbers without the edge of a window. " +
			"sliding_window_log: small numbers, exactly. leaky_bucket: requests one after the other, in a queue."),
		"limit":     def("rate").says("N/unit: second, minute, hour, day, week, month (30 days), or whole seconds as in 100/10s, 5/15m. 0/minute denies everything."),
		"burst":     burst,
		"queue":     whole(0, maxQuota-1).or(0).says("leaky_bucket: how many units wait their turn behind the one that goes at once."),
		"max_delay": def("duration").says("leaky_bucket: whoever would wait longer is denied instead, 1ms to 1h. Default: none."),
		"anchor": words("first_request", "calendar").or("first_request").
			says("fixed_window: the window opens with the caller's first request, or is one of the calendar, for which the rate is N/minute, N/hour, N/day, N/week or N/month."),
		"timezone":       def("timezone").or("UTC").says("With anchor: calendar, where its windows begin: an IANA name such as Asia/Kolkata."),
		"week_start":     words(weekdays...).or("monday").says("With anchor: calendar and N/week, the first day of the week."),
		"count_rejected": def("boolean").or(false).says("Charge denied attempts too."),
		"mode":           words("enforce", "shadow").or("enforce").says("shadow: decided, counted and shown in the metrics, never denied, and not told to clients."),
		"candidate": fields(map[string]schema{
			"limit": def("rate").says("Another number for the same window. Default: that of the limit."),
			"burst": burst,
		}).with("minProperties", 1).says("Another number, decided beside the limit in the same step and only counted."),
		"lease": fields(map[string]schema{
			"size": anyOf(schema{"const": "auto"}, schema{"type": "integer", "minimum": 1, "maximum": maxLeaseSize}).or("auto").says("Units of a block; auto follows what the instance spends."),
			"ttl":  spell(defaultLeaseTTL, "How long a block may be spent, 100ms to 10s. What is left then goes back."),
		}).says("Take blocks of the limit out of Redis in advance, for a limit that very many requests share."),
	}
	required := []string{"algorithm", "limit"}
	if named {
		of["per"] = per
		of["local_cap"] = capSchema("this limit")
		required = append(required, "per")
	} else {
		of["per"] = per.or(PerUser)
		of["name"] = def("name").says("What clients read. Two limits of one name on one request are an error.")
		required = append(required, "name")
	}
	return fields(of, required...).with("allOf", append(ownSchemas(), besideSchemas()...)).
		says("How much may be used in how much time.")
}

// besideSchemas refuse fields that do not stand beside others.
func besideSchemas() []schema {
	is := func(field string, values ...any) schema {
		return schema{"properties": map[string]any{field: schema{"enum": values}}, "required": []string{field}}
	}
	return []schema{
		{
			"if":   schema{"anyOf": []schema{{"not": schema{"required": []string{"anchor"}}}, is("anchor", "first_request")}},
			"then": schema{"properties": map[string]any{"timezone": false, "week_start": false}},
		},
		{
			"if":   is("anchor", "calendar"),
			"then": schema{"properties": map[string]any{"limit": anyOf(written("/("+strings.Join(calendarUnits, "|")+")$", "N/minute, N/hour, N/day, N/week or N/month"))}},
		},
		{
			"if":   schema{"anyOf": []schema{{"required": []string{"candidate"}}, is("algorithm", LeakyBucket), is("count_rejected", true, "on", "yes")}},
			"then": schema{"properties": map[string]any{"lease": false}},
		},
	}
}

// ownSchemas refuse the fields of one algorithm beside another.
func ownSchemas() []schema {
	var all []schema
	for _, a := range []string{FixedWindow, TokenBucket, LeakyBucket} {
		foreign := map[string]any{}
		for field, of := range ownFields {
			if of == a {
				foreign[field] = false
			}
		}
		if foreign["burst"] != nil {
			foreign["candidate"] = schema{"properties": map[string]any{"burst": false}, "required": []string{"limit"}}
		}
		others := slices.DeleteFunc(slices.Clone(algorithms), func(other string) bool { return other == a })
		all = append(all, schema{
			"if":   schema{"properties": map[string]any{"algorithm": enum(others...)}, "required": []string{"algorithm"}},
			"then": schema{"properties": foreign},
		})
	}
	return all
}
