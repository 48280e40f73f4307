package main

import (
	"fmt"
	"strings"
)

// runbookURL is where the panels' links lead unless the variable runbook says
// otherwise; deploy/prometheus/rules.yml has the same.
const runbookURL = "https://example.com/bouncer/docs/RUNBOOK.md"

// here selects the instances that are chosen on top, and of their series those with
// the chosen values of these labels.
func here(labels ...string) string {
	matchers := []string{`job=~"$job"`, `instance=~"$instance"`}
	for _, l := range labels {
		matchers = append(matchers, fmt.Sprintf(`%s=~"$%[1]s"`, l))
	}
	return strings.Join(matchers, ",")
}

// rate is what a counter grows by in a second, summed by some labels. The selector is
// without its braces.
func rate(metric, selector string, by ...string) string {
	return fmt.Sprintf("%s (rate(%s{%s}[$__rate_interval]))", sum(by), metric, selector)
}

func sum(by []string) string {
	if len(by) == 0 {
		return "sum"
	}
	return "sum by (" + strings.Join(by, ", ") + ")"
}

// quantile reads a histogram from its classic buckets, and where Prometheus keeps only
// native histograms, from those.
func quantile(q, metric, selector string, by ...string) string {
	native := rate(metric, selector, by...)
	classic := rate(metric+"_bucket", selector, append([]string{"le"}, by...)...)
	return fmt.Sprintf("histogram_quantile(%s, %s) or histogram_quantile(%[1]s, %[3]s)", q, classic, native)
}

// total is the sum of what a histogram observed, in a second; count is how many.
func total(metric, selector string, by ...string) string {
	return fmt.Sprintf("(%s or histogram_sum(%s))", rate(metric+"_sum", selector, by...), rate(metric, selector, by...))
}

func count(metric, selector string, by ...string) string {
	return fmt.Sprintf("(%s or histogram_count(%s))", rate(metric+"_count", selector, by...), rate(metric, selector, by...))
}

// rows is the dashboard.
func rows() []row {
	return []row{overview(), limits(), callers(), store(), upstreams(), fleet()}
}

func overview() row {
	requests, route := "gateway_requests_total", here("route")
	failed := route + `,code=~"5.."`
	decisions, streams := "gateway_ratelimit_decisions_total", "gateway_stream_duration_seconds"
	return row{"Overview: is it us?", []panel{
		{
			title: "Requests", kind: "stat", unit: "reqps", width: 4,
			text:    "Answers a second, of all kinds. A fall to nothing is a matter of what stands in front, or of the gateway itself.",
			causes:  []string{"gatewaydown"},
			queries: []query{{rate(requests, route), "requests"}},
		},
		{
			title: "Denied by a limit", kind: "stat", unit: "percentunit", width: 4, look: .1, act: .33,
			text:    "The part of all verdicts of limits in force that are denials. What upstreams themselves answer with 429 is not among them.",
			causes:  []string{"noisy-client", "limit-too-tight"},
			queries: []query{{rate(decisions, here("route", "plan", "limit")+`,outcome="denied"`) + " / " + rate(decisions, here("route", "plan", "limit")+`,outcome=~"allowed|denied"`), "denied"}},
		},
		{
			title: "Failed", kind: "stat", unit: "percentunit", width: 4, look: .01, act: .05,
			text:    "The part of all answers with a status of 500 and above, the upstream's and our own. Which of them it is, the rows below tell.",
			causes:  []string{"upstream-failing", "circuit-open", "redis-away"},
			queries: []query{{"(" + rate(requests, failed) + " or vector(0)) / " + rate(requests, route), "failed"}},
		},
		{
			title: "Added latency, p99", kind: "stat", unit: "s", width: 4, look: .02, act: .1,
			text:    "What 99 of 100 requests lose at most to the gateway: all of their time but the upstream's. Redis is in it.",
			causes:  []string{"gateway-slow", "redis-slow"},
			queries: []query{{quantile("0.99", "gateway_added_latency_seconds", route), "p99"}},
		},
		{
			title: "Redis", kind: "stat", width: 4, words: []string{"decides", "away"}, bad: 1, act: 1,
			text:    "Away: some instance decides without Redis, or without a node of it, as on_store_failure of each route says.",
			causes:  []string{"redis-away"},
			queries: []query{{"max(gateway_fallback_active{" + here() + "}) or vector(0)", "Redis"}},
		},
		{
			title: "Instances", kind: "stat", width: 4, look: 1, act: 1, low: true,
			text:    "Gateways that Prometheus can read. Fewer than you run: one is down, or its admin listener cannot be reached.",
			causes:  []string{"gatewaydown"},
			queries: []query{{"sum(up{" + here() + "})", "up"}},
		},
		{
			title: "Requests by outcome", unit: "reqps", width: 12, stacked: true,
			text: "Answered: below 400. Denied: 429, of a limit or of an upstream. Refused: 401, 403, 404 and the like. Failed: 500 and above; a limit that cannot be counted with on_store_failure: deny is here. Left: clients that hung up.\n\n" +
				"Denied rises while answered stays: a client, or a limit. Answered falls while failed rises: upstream, or Redis.",
			causes: []string{"noisy-client", "limit-too-tight", "upstream-failing"},
			queries: []query{
				{rate(requests, route+`,code=~"[123].."`), "answered"},
				{rate(requests, route+`,code="429"`), "denied"},
				{rate(requests, route+`,code=~"4..",code!~"429|499"`), "refused"},
				{rate(requests, failed), "failed"},
				{rate(requests, route+`,code="499"`), "left"},
			},
		},
		{
			title: "Added latency", unit: "s", width: 12, look: .02, act: .1, exemplars: true,
			text: "All of a request's time but the upstream's. The dots are single requests with a trace: one leads to what it spent its time on.\n\n" +
				"High together with the time of Redis below: Redis. High alone: CPU, or clients that read slowly.",
			causes: []string{"gateway-slow", "redis-slow"},
			queries: []query{
				{quantile("0.5", "gateway_added_latency_seconds", route), "p50"},
				{quantile("0.9", "gateway_added_latency_seconds", route), "p90"},
				{quantile("0.99", "gateway_added_latency_seconds", route), "p99"},
			},
		},
		{
			title: "Whole duration by route, p99", unit: "s", exemplars: true,
			text:    "From the request's head to the end of its answer, as clients see it. Server-sent events and WebSockets are not among them: see the panel of streams.",
			causes:  []string{"upstream-slow", "gateway-slow"},
			queries: []query{{quantile("0.99", "gateway_request_duration_seconds", route, "route"), "{{route}}"}},
		},
		{
			title: "Requests by route", unit: "reqps", stacked: true,
			text:    "unmatched are those of no route: scans, or a path that somebody forgot in routes.yaml.",
			causes:  []string{"noisy-client"},
			queries: []query{{rate(requests, route, "route"), "{{route}}"}},
		},
		{
			title: "Streams and WebSockets, mean", unit: "s",
			text:    "How long server-sent events and WebSockets lasted, counted when they end: as long as both sides want, so it says nothing of speed. A sudden fall: something cuts them, a timeout in front or a restart.",
			causes:  []string{"upstream-failing"},
			queries: []query{{total(streams, route, "route") + " / " + count(streams, route, "route"), "{{route}}"}},
		},
		{
			title:   "In flight by route",
			text:    "Requests being served at this moment, WebSockets included. It climbs when answers become slow, and does not come down when something holds them.",
			causes:  []string{"upstream-slow"},
			queries: []query{{"sum by (route) (gateway_in_flight{" + route + "})", "{{route}}"}},
		},
		{
			title: "Alerts", kind: "table", width: 24, height: 6, instant: true,
			text:    "What Prometheus says is wrong now, or may soon be (pending). Each has a heading of its own in the runbook.",
			causes:  []string{"alerts"},
			queries: []query{{`max by (alertname, alertstate, severity, instance, route, plan, limit, upstream) (ALERTS{alertname!="",instance=~"$instance|"})`, ""}},
		},
	}}
}

func limits() row {
	decisions, all := "gateway_ratelimit_decisions_total", here("route", "plan", "limit")
	denied := all + `,outcome="denied"`
	live := all + `,outcome=~"allowed|denied"`
	ratio, of := "gateway_ratelimit_remaining_ratio", here("plan", "limit")
	return row{"Limits: too tight, or one client?", []panel{
		{
			title: "Deny rate by limit", unit: "percentunit", look: .1, act: .33, max: 1,
			text:    "The part of its verdicts that are denials. Whether one client makes them or many, the gateway's own page tells (top denied), or the access log: no label names callers.",
			causes:  []string{"noisy-client", "limit-too-tight"},
			queries: []query{{rate(decisions, denied, "plan", "limit") + " / " + rate(decisions, live, "plan", "limit"), "{{plan}} {{limit}}"}},
		},
		{
			title: "Denials by limit", unit: "reqps", stacked: true,
			text:    "Denials a second. A request that two limits deny counts at both.",
			causes:  []string{"noisy-client", "limit-too-tight"},
			queries: []query{{rate(decisions, denied, "plan", "limit"), "{{plan}} {{limit}}"}},
		},
		{
			title: "Denials by route", unit: "reqps", stacked: true,
			text:    "Where the denied requests wanted to go. One route alone: its cost or its own limits; all of a plan: the plan.",
			causes:  []string{"noisy-client", "limit-too-tight"},
			queries: []query{{rate(decisions, denied, "route"), "{{route}}"}},
		},
		{
			title: "Near a limit", unit: "percentunit", look: .1, act: .25, max: 1,
			text:   "The part of verdicts that left a caller a twentieth of the limit or less, the denied included. It rises before denials do: the time to raise a plan, or to call a customer.",
			causes: []string{"near-limit", "limit-too-tight"},
			queries: []query{{
				"(" + rate(ratio+"_bucket", of+`,le="0.05"`, "plan", "limit") + " / " + rate(ratio+"_count", of, "plan", "limit") + ")" +
					" or histogram_fraction(0, 0.05, " + rate(ratio, of, "plan", "limit") + ")", "{{plan}} {{limit}}",
			}},
		},
		{
			title: "What callers have left, median", unit: "percentunit", look: .25, act: .05, low: true, max: 1,
			text:    "Half of the verdicts left more than this of the limit. Low over all the day: the number is too small for what callers do.",
			causes:  []string{"near-limit", "limit-too-tight"},
			queries: []query{{quantile("0.5", ratio, of, "plan", "limit"), "{{plan}} {{limit}}"}},
		},
		{
			title: "Who decides", unit: "reqps", stacked: true,
			text:    "redis: a round trip. lease: from a block taken in advance. deny_cache: a denial told again without asking. memory: this instance alone. local_cap: Redis is away. none: let through without a decision.",
			causes:  []string{"redis-away"},
			queries: []query{{rate(decisions, all, "source"), "{{source}}"}},
		},
		{
			title: "On trial: shadow and candidate denials", unit: "reqps", width: 12,
			text:    "What would be denied by limits in shadow mode, and by candidates beside a live number. Nobody notices any of it. Compare with the denials of the number in force.",
			causes:  []string{"limit-too-tight"},
			queries: []query{{rate(decisions, all+`,outcome=~"shadow_denied|candidate_denied"`, "plan", "limit", "outcome"), "{{plan}} {{limit}} {{outcome}}"}},
		},
		{
			title: "Counted together, for want of room", unit: "reqps", width: 12, look: .01,
			text:   "A table in memory is full. Newcomers share one budget (store), charges of leased limits go to Redis one by one (lease), denials push out others (deny cache). An attack from very many addresses, or a table that is too small.",
			causes: []string{"overflow"},
			queries: []query{
				{rate("gateway_store_overflow_total", here(), "instance"), "store {{instance}}"},
				{rate("gateway_lease_overflow_total", here(), "instance"), "lease {{instance}}"},
				{rate("gateway_deny_cache_evictions_total", here(), "instance"), "deny cache {{instance}}"},
			},
		},
	}}
}

func callers() row {
	return row{"Callers: who comes in?", []panel{
		{
			title: "Credentials", unit: "reqps",
			text:    "Attempts to say who one is. refused: not valid. missing: none where one is needed. not_looked_at: from an address that has failed too often.",
			causes:  []string{"guessingcredentials"},
			queries: []query{{rate("gateway_auth_total", here(), "method", "outcome") + " > 0", "{{method}} {{outcome}}"}},
		},
		{
			title: "Credentials refused, by reason", unit: "reqps",
			text:    "Why; clients are told none of it. expired at a busy caller is no attack. unknown in great numbers is guessing.",
			causes:  []string{"guessingcredentials"},
			queries: []query{{rate("gateway_auth_refused_total", here(), "method", "reason") + " > 0", "{{method}} {{reason}}"}},
		},
		{
			title: "Forbidden and unknown plans", unit: "reqps",
			text:   "Callers who are known and may not (403), by route and what they lack; and credentials that name a plan that does not exist.",
			causes: []string{"unknownplan"},
			queries: []query{
				{rate("gateway_forbidden_total", here("route"), "route", "reason"), "{{route}} {{reason}}"},
				{rate("gateway_unknown_plan_total", here()), "unknown plan"},
			},
		},
		{
			title: "Issuers of tokens: age of their keys", unit: "s", look: 1800,
			text:    "Since the keys of an issuer were last fetched. Past max_stale its tokens are refused.",
			causes:  []string{"issueraway"},
			queries: []query{{"max by (issuer, instance) (time() - (gateway_jwks_last_success_timestamp_seconds{" + here() + "} > 0))", "{{issuer}} {{instance}}"}},
		},
		{
			title:  "Issuers of tokens: keys and fetches",
			text:   "Keys that tokens are verified with; 0: all tokens of that issuer are refused. And attempts to fetch them that failed, a second.",
			causes: []string{"issuerwithoutkeys"},
			queries: []query{
				{"min by (issuer) (gateway_jwks_keys{" + here() + "})", "keys {{issuer}}"},
				{rate("gateway_jwks_fetches_total", here()+`,outcome="failed"`, "issuer"), "failed {{issuer}}"},
			},
		},
		{
			title: "Whose word is not taken", unit: "reqps",
			text:   "Requests that say who their client is, from a peer that is not trusted (if most: a balancer that client_ip.trusted_proxies does not name, and all behind it share one bucket); and connections of trusted proxies closed at their PROXY header.",
			causes: []string{"proxynottrusted", "proxyheadersrefused"},
			queries: []query{
				{rate("gateway_untrusted_forwarding_total", here(), "instance"), "not trusted {{instance}}"},
				{rate("gateway_proxy_headers_refused_total", here(), "reason"), "PROXY header {{reason}}"},
			},
		},
		{
			title: "WebSockets", width: 12,
			text:    "Open at this moment by route. They count as requests in flight as well.",
			causes:  []string{"filedescriptorslow"},
			queries: []query{{"sum by (route) (gateway_websockets{" + here("route") + "})", "{{route}}"}},
		},
		{
			title: "Turned away or broken off", unit: "reqps", width: 12,
			text:   "Connections and WebSockets of callers that have too many, WebSockets that the gateway ended, and answers whose client read nothing of them for two minutes.",
			causes: []string{"noisy-client"},
			queries: []query{
				{rate("gateway_connections_refused_total", here()), "connections"},
				{rate("gateway_websockets_refused_total", here()), "WebSockets"},
				{rate("gateway_websockets_ended_total", here(), "reason"), "WebSockets ended: {{reason}}"},
				{rate("gateway_answers_not_read_total", here()), "answers not read"},
			},
		},
	}}
}

func store() row {
	took := "gateway_store_duration_seconds"
	return row{"Redis: is it Redis?", []panel{
		{
			title: "Decisions, how long", unit: "s", look: .02, act: .05,
			text:   "Time that the store takes to decide a request. The upper line is store.redis.timeout unless you say otherwise: what takes longer fails.",
			causes: []string{"redis-slow"},
			queries: []query{
				{quantile("0.5", took, here()), "p50"},
				{quantile("0.99", took, here()), "p99"},
				{quantile("0.999", took, here()), "p99.9"},
			},
		},
		{
			title: "Errors by kind", unit: "reqps",
			text:    "timeout: too late. connection: refused or lost. readonly: a former master. oom: full. A few at a change of masters are nothing; they open the breaker when they go on.",
			causes:  []string{"redis-away", "redis-slow"},
			queries: []query{{rate("gateway_store_errors_total", here(), "kind"), "{{kind}}"}},
		},
		{
			title: "Decisions a second", unit: "reqps",
			text:    "Calls of the store by instance. To nothing, while requests go on: the breaker is open.",
			causes:  []string{"redis-away"},
			queries: []query{{count(took, here(), "instance"), "{{instance}}"}},
		},
		{
			title: "Without Redis", kind: "state-timeline", words: []string{"Redis decides", "away"}, bad: 1, act: 1,
			text:    "While an instance decides without Redis, and what its routes do then. All instances at once: Redis. One alone: its way to Redis.",
			causes:  []string{"redis-away"},
			queries: []query{{"max by (instance, mode) (gateway_fallback_active{" + here() + "})", "{{instance}} {{mode}}"}},
		},
		{
			title: "Admitted without Redis", unit: "short", stacked: true,
			text:    "Units a second of limits that were admitted while Redis was away, by what became of them. settled: charged afterwards. lapsed: count no more. The others were given away.",
			causes:  []string{"redis-away"},
			queries: []query{{rate("gateway_fallback_units_total", here(), "outcome"), "{{outcome}}"}},
		},
		{
			title: "Shared or alone", kind: "state-timeline", words: []string{"counts alone", "shares its counts"}, act: 1, low: true,
			text:    "Where limits are counted. Of several instances none should count alone: each would grant the whole limit.",
			causes:  []string{"config-differs"},
			queries: []query{{"max by (instance) (gateway_store_shared{" + here() + "})", "{{instance}}"}},
		},
		{
			title: "Leases", width: 12,
			text:   "Blocks of budget that instances hold in advance, and units a second that were taken and are not known to be spent or back.",
			causes: []string{"overflow"},
			queries: []query{
				{"sum by (instance) (gateway_lease_blocks{" + here() + "})", "blocks {{instance}}"},
				{rate("gateway_lease_stranded_units_total", here(), "instance"), "stranded {{instance}}"},
			},
		},
		{
			title: "Deny cache", width: 12, look: 100000,
			text:    "Denials that are held to be told again without asking Redis, 100,000 at most. It fills when very many callers are denied.",
			causes:  []string{"overflow", "noisy-client"},
			queries: []query{{"sum by (instance) (gateway_deny_cache_entries{" + here() + "})", "{{instance}}"}},
		},
	}}
}

func upstreams() row {
	attempts, of := "gateway_upstream_requests_total", here("upstream")
	failed := of + `,code=~"5..|error"`
	duration, added, route := "gateway_request_duration_seconds", "gateway_added_latency_seconds", here("route")
	return row{"Upstreams: is it what stands behind?", []panel{
		{
			title: "Attempts that fail", unit: "percentunit", look: .01, act: .05, max: 1,
			text:    "The part of attempts with no answer, or one of 500 and above. Retries are attempts too, so callers may see less of it.",
			causes:  []string{"upstream-failing"},
			queries: []query{{"(" + rate(attempts, failed, "upstream") + " or 0 * " + rate(attempts, of, "upstream") + ") / " + rate(attempts, of, "upstream"), "{{upstream}}"}},
		},
		{
			title: "Attempts by status", unit: "reqps", stacked: true,
			text:    "error: no answer came. canceled: the client left first, which says nothing about the upstream. 429 is the upstream's own.",
			causes:  []string{"upstream-failing"},
			queries: []query{{rate(attempts, of, "upstream", "code"), "{{upstream}} {{code}}"}},
		},
		{
			title: "The upstream's time, mean", unit: "s", look: .5, act: 1,
			text:   "Of a request by route: its whole duration less what the gateway added. It rises alone: the upstream is slow. Server-sent events and WebSockets are not in it; other answers that go on and on are.",
			causes: []string{"upstream-slow"},
			queries: []query{{
				// What was added to streams is in the one and not in the other.
				"clamp_min((" + total(duration, route, "route") + " - " + total(added, route, "route") + ") / " + count(duration, route, "route") + ", 0)", "{{route}}",
			}},
		},
		{
			title: "Targets", kind: "state-timeline", words: []string{"away", "up"}, act: 1, low: true,
			text:    "away: a target is left out because it fails its health checks, or connections to it cannot be made. min over the instances: one that cannot reach it suffices.",
			causes:  []string{"upstream-failing"},
			queries: []query{{"min by (upstream, target) (gateway_upstream_up{" + of + "})", "{{upstream}} {{target}}"}},
		},
		{
			title: "Left alone", kind: "state-timeline", words: []string{"asked", "left alone"}, bad: 1, act: 1,
			text:    "left alone: so much of it failed that requests are answered 503 at once for a while, and one is let through to try.",
			causes:  []string{"circuit-open"},
			queries: []query{{"max by (upstream) (gateway_upstream_circuit_open{" + of + "})", "{{upstream}}"}},
		},
		{
			title: "Requests not sent", unit: "reqps",
			text:    "no_room: as many are in flight as max_in_flight allows, so the upstream has become slow. circuit_open: it is left alone.",
			causes:  []string{"upstream-slow", "circuit-open"},
			queries: []query{{rate("gateway_upstream_refused_total", of, "upstream", "reason"), "{{upstream}} {{reason}}"}},
		},
		{
			title: "Retries", unit: "reqps", width: 12,
			text:    "done: second attempts that were made. budget: those that were not, because more fails than now and then.",
			causes:  []string{"upstream-failing"},
			queries: []query{{rate("gateway_upstream_retries_total", of, "upstream", "outcome"), "{{upstream}} {{outcome}}"}},
		},
		{
			title: "Attempts by target", unit: "reqps", width: 12,
			text:    "Equal servers get about equal shares. One that gets little: it is slow (balance: least_requests), or comes back (slow_start).",
			causes:  []string{"upstream-slow"},
			queries: []query{{rate(attempts, of, "upstream", "target"), "{{upstream}} {{target}}"}},
		},
	}}
}

func fleet() row {
	return row{"Fleet and configuration", []panel{
		{
			title: "Instances", look: 1, act: 1, low: true,
			text:   "How many Prometheus can read, and how many each instance knows of through Redis. They differ: one cannot be scraped, or cannot reach Redis.",
			causes: []string{"gatewaydown"},
			queries: []query{
				{"sum(up{" + here() + "})", "read by Prometheus"},
				{"max(gateway_instances{" + here() + "})", "known to each other, at most"},
				{"min(gateway_instances{" + here() + "})", "known to each other, at least"},
			},
		},
		{
			title: "Configurations in force", look: 2,
			text:    "How many different ones the instances run. More than one for longer than a roll-out takes: a file did not arrive everywhere, or was refused somewhere.",
			causes:  []string{"config-differs"},
			queries: []query{{"count(count by (hash) (gateway_config_info{" + here() + "} == 1))", "configurations"}},
		},
		{
			title: "Last change of the configuration", kind: "state-timeline", words: []string{"refused", "applied"}, act: 1, low: true,
			text:    "refused: the changed files have mistakes, and the configuration before stays in force. The log of the instance has every mistake; so has gateway check.",
			causes:  []string{"config-rejected"},
			queries: []query{{"min by (instance) (gateway_config_last_reload_success{" + here() + "})", "{{instance}}"}},
		},
		{
			title: "Who runs which configuration", kind: "table", instant: true,
			text:   "The hash of the configuration by instance, and how long ago it came into force, in seconds.",
			causes: []string{"config-differs"}, unit: "s",
			queries: []query{{
				"max by (instance, hash) ((time() - gateway_config_last_reload_success_timestamp_seconds{" + here() + "}) * on (job, instance) group_left (hash) gateway_config_info{" + here() + "})", "",
			}},
		},
		{
			title: "Reloads", unit: "short",
			text:    "Changes of the configuration within the last hour, by outcome.",
			causes:  []string{"config-rejected"},
			queries: []query{{"sum by (outcome) (increase(gateway_config_reloads_total{" + here() + "}[1h]))", "{{outcome}}"}},
		},
		{
			title: "Certificates, until they end", unit: "s", look: 14 * 86400, act: 3 * 86400, low: true,
			text:    "Of the listener, of each domain of acme, and of the authorities of client certificates. A new file in the place of the old is noticed.",
			causes:  []string{"certificateexpires"},
			queries: []query{{"min by (subject) (gateway_certificate_expiry_timestamp_seconds{" + here() + "} - time())", "{{subject}}"}},
		},
		{
			title: "CPU", unit: "short", width: 6,
			text:   "Processors in use, by instance. At the number that the instance may use (GOMAXPROCS) it makes requests wait.",
			causes: []string{"gateway-slow"},
			queries: []query{
				{rate("process_cpu_seconds_total", here(), "instance"), "{{instance}}"},
				{"max by (instance) (go_sched_gomaxprocs_threads{" + here() + "})", "may use: {{instance}}"},
			},
		},
		{
			title: "Memory", unit: "bytes", width: 6,
			text:   "Resident memory by instance, and the limit that the runtime keeps to (GOMEMLIMIT).",
			causes: []string{"gateway-slow"},
			queries: []query{
				{"max by (instance) (process_resident_memory_bytes{" + here() + "})", "{{instance}}"},
				{"max by (instance) (go_gc_gomemlimit_bytes{" + here() + "} < 1e15)", "limit of {{instance}}"},
			},
		},
		{
			title: "Goroutines", width: 6,
			text:    "They follow the requests in flight. A climb that never comes down is a leak, or something that holds requests.",
			causes:  []string{"gateway-slow", "upstream-slow"},
			queries: []query{{"max by (instance) (go_goroutines{" + here() + "})", "{{instance}}"}},
		},
		{
			title: "Open files", unit: "percentunit", width: 6, look: .6, act: .8, max: 1,
			text:    "Of as many as the process may have; connections, for the most part. At the limit none is accepted.",
			causes:  []string{"filedescriptorslow"},
			queries: []query{{"max by (instance) (process_open_fds{" + here() + "} / process_max_fds{" + here() + "})", "{{instance}}"}},
		},
		{
			title: "Log lines and spans that are lost", unit: "short", width: 12, look: .01,
			text:   "A second, by instance. Lines: whatever reads standard output is too slow, or gone. Spans: the collector of traces is. Requests do not wait for either.",
			causes: []string{"log-dropped"},
			queries: []query{
				{rate("gateway_log_dropped_total", here(), "instance"), "lines {{instance}}"},
				{rate("gateway_trace_spans_total", here()+`,outcome!="sent"`, "instance", "outcome"), "spans {{outcome}} {{instance}}"},
			},
		},
		{
			title: "Restarts", kind: "state-timeline", width: 12, unit: "s",
			text:    "How long each process has been running: a colour that begins anew is a restart.",
			causes:  []string{"gatewaydown"},
			queries: []query{{"floor((time() - max by (instance) (process_start_time_seconds{" + here() + "})) / 600) * 600", "{{instance}}"}},
		},
	}}
}
