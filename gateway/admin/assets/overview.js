// The first view: what is the matter, then every figure that bears on it.

import { attr, card, choice, el, facts, name, put, setTime } from './dom.js';
import { age, bytes, clock, millis, ms, number, percent, plural, rate, seconds, unknown, visible } from './format.js';
import { Chart, Group, looks } from './chart.js';
import { callers, flag, named, once, table } from './tables.js';
import { findings, rejection, strip, verdict } from './verdict.js';
import { History, windows } from './history.js';
import { query } from './api.js';

const outcomes = [
	{ name: 'requests.allowed', label: 'allowed', look: 1 },
	{ name: 'requests.denied', label: 'denied', look: 2, fill: 'hatch' },
	{ name: 'requests.failed', label: 'failed', look: 3, fill: 'cross' },
	{ name: 'requests.refused', label: 'refused', look: 4, fill: 'dots' },
];

const families = [['limit', 'limit'], ['plan', 'plan'], ['route', 'route']];

export function overview() {
	const group = new Group();
	const history = new History(() => draw());
	let family = 'limit', wanted = false;

	const top = { strip: strip(), verdict: verdict(), findings: findings() };

	const requests = new Chart({ id: 'requests', title: 'Requests', unit: 'a second, by outcome', stacked: true, series: outcomes, group });
	const latency = new Chart({
		id: 'latency', title: 'Added latency', unit: 'ms, without the upstream', group, format: ms,
		series: [{ name: 'latency.added.p99_ms', label: 'p99', look: 2 }, { name: 'latency.added.p50_ms', label: 'p50', look: 1, dash: '5 3' }],
	});
	const denied = new Chart({ id: 'denied', title: 'Denied', unit: 'a second, by', group, empty: 'No denials in this time.' });
	denied.tools.append(choice('Denials by', families, family, f => {
		family = f;
		draw();
	}));
	const load = new Chart({
		id: 'in-flight', title: 'In flight', unit: 'requests', group, whole: true,
		series: [{ name: 'in_flight', label: 'in flight', look: 6 }],
	});
	const total = new Chart({
		id: 'total', title: 'Total latency', unit: 'ms, with the upstream', group, format: ms,
		series: [{ name: 'latency.total.p99_ms', label: 'p99', look: 3 }, { name: 'latency.total.p50_ms', label: 'p50', look: 5, dash: '5 3' }],
	});
	const storeLatency = new Chart({
		id: 'store-latency', title: 'Round trips', unit: 'ms', group, format: ms, height: 140, empty: 'No round trips in this time.',
		series: [{ name: 'store.p99_ms', label: 'p99', look: 2 }, { name: 'store.p50_ms', label: 'p50', look: 1, dash: '5 3' }],
	});
	const storeErrors = new Chart({
		id: 'store-errors', title: 'Errors', unit: 'a second', group, band: { name: 'store.away', label: 'away' }, height: 140, empty: 'No errors in this time.',
		series: [{ name: 'store.errors', label: 'errors', look: 3 }],
	});
	const main = [requests, denied, latency, total, load], redis = [storeLatency, storeErrors];

	const span = choice('Time shown', windows, history.window, w => history.choose(w));
	const trouble = el('p', { class: 'note', role: 'status' });

	const store = facts([['kind', 'Counts are kept in'], ['state', 'State'], ['modes', 'While it is away'], ['errors', 'Errors'],
		['leases', 'Leased blocks'], ['cache', 'Deny cache'], ['answers', 'Answered by it'], ['overflow', 'Overflow']]);
	const storeCard = card('store', 'Redis', el('div', { class: 'columns' }, store.node, ...redis.map(c => c.node)));

	const topDenied = callers('Callers that are denied most', 'Nobody is denied.', 'of all denials');
	const topNear = callers('Callers that have a tenth or less of a limit left', 'Nobody is near a limit.', 'of all that are near a limit');

	const upstreams = table({
		caption: 'Upstreams and their targets', empty: 'No upstreams.', key: t => t.upstream + '\u0000' + t.target,
		columns: [
			named('Target', t => t.target, { row: true }),
			named('Upstream', t => t.upstream),
			{ head: 'State', cell: (td, t) => flag(td, !t.up ? 'bad' : t.open ? 'warn' : 'good', !t.up ? 'down' + since(t.since) : t.open ? 'up, circuit open' : 'up') },
			{ head: 'Requests', num: true, text: t => rate(t.requests) },
			{ head: 'Errors', num: true, text: t => rate((t.errors ?? 0)) },
			{ head: '5xx', num: true, text: t => rate(t.status?.['5xx']) },
			{ head: 'In flight', num: true, wide: true, text: t => number(t.in_flight) + (t.max_in_flight ? ' of ' + number(t.max_in_flight) : '') },
			{ head: 'Refused', num: true, wide: true, text: t => rate(t.refused) },
			{ head: 'Retries', num: true, wide: true, text: t => rate(t.retries) },
		],
	});
	const routes = table({
		caption: 'Routes, busiest first', empty: 'No requests in the last seconds.', key: r => r.route,
		columns: [
			named('Route', r => r.route, { row: true }),
			{ head: 'Requests', num: true, text: r => rate(r.requests) },
			{ head: 'Denied', num: true, text: r => rate(r.denied) },
			{ head: 'Failed', num: true, text: r => rate(r.failed) },
			{ head: 'p50', num: true, wide: true, title: 'of the whole request', text: r => ms(r.p50_ms) },
			{ head: 'p99', num: true, title: 'of the whole request', text: r => ms(r.p99_ms) },
			{ head: 'In flight', num: true, wide: true, text: r => number(r.in_flight) },
		],
	});
	const limits = table({
		caption: 'Limits, busiest first', empty: 'No limit was asked in the last seconds.', key: l => JSON.stringify([l.plan, l.limit, l.route]),
		columns: [
			{ head: 'Limit', row: true, cell: once(l => el('a', { href: '#/denials' + query({ limit: l.limit, plan: l.plan }) }, name(l.limit))) },
			named('Plan', l => l.plan),
			named('Route', l => l.route, { wide: true }),
			{ head: 'Allowed', num: true, text: l => rate(l.allowed) },
			{ head: 'Denied', num: true, text: l => rate(l.denied) },
			{ head: 'Deny rate', num: true, text: l => percent(l.deny_rate) },
			{ head: 'Shadow', num: true, wide: true, title: 'what limits in shadow mode would have denied', text: l => rate(l.shadow_denied) },
			{ head: 'Candidate', num: true, wide: true, title: 'what a candidate configuration would have denied', text: l => rate(l.candidate_denied) },
			{ head: 'Decided by', wide: true, text: l => Object.entries(l.source ?? {}).filter(([, v]) => v > 0).sort((a, b) => b[1] - a[1]).map(([k, v]) => `${k} ${number(v)}`).join(', ') || unknown },
		],
	});
	const instances = table({
		caption: 'Instances of the fleet, oldest first', empty: 'Only this instance is known.', key: i => i.id,
		columns: [
			{ head: 'Instance', row: true, cell: once(i => el('span', null, name(i.hostname || i.id, 32), i.self ? el('span', { class: 'kind' }, 'this one') : null)) },
			{ head: 'Requests', num: true, text: i => rate(i.requests) },
			{ head: 'Denied', num: true, text: i => rate(i.denied) },
			{ head: 'Failed', num: true, text: i => rate(i.failed) },
			{ head: 'p99', num: true, wide: true, text: i => ms(i.p99_ms) },
			{ head: 'In flight', num: true, wide: true, text: i => number(i.in_flight) },
			{ head: 'Redis', cell: (td, i) => flag(td, i.memory || (i.store_away ?? null) === null ? 'plain' : i.store_away ? 'warn' : 'good', i.memory ? 'not used' : (i.store_away ?? null) === null ? 'not known' : i.store_away ? 'away' : 'there') },
			{ head: 'Configuration', wide: true, cell: (td, i) => put(td.firstChild ?? td.appendChild(el('code')), (i.config_hash ?? '').slice(0, 8) || unknown) },
			named('Version', i => i.version, { wide: true }),
			{ head: 'Up for', num: true, wide: true, text: i => millis(i.started_at) ? seconds(age(millis(i.started_at))) : unknown },
		],
	});
	const config = facts([['hash', 'In force'], ['loaded', 'Since'], ['reloads', 'Reloads']]);
	const loaded = el('time'), loadedAgo = el('span');
	config.values.loaded.append(loaded, loadedAgo);
	config.values.hash.append(el('code'));
	const rejected = rejection();
	const process = facts([['instance', 'Instance'], ['version', 'Version'], ['started', 'Running for'], ['cpu', 'CPU'], ['rss', 'Memory'], ['heap', 'Heap'],
		['goroutines', 'Goroutines'], ['files', 'Open files'], ['dropped', 'Log lines dropped'], ['streams', 'Pages open']]);

	const node = el('div', { class: 'view overview' },
		el('h1', { class: 'unseen' }, 'Overview'),
		top.strip.node, top.verdict.node, top.findings.node,
		el('section', { class: 'charts', 'aria-labelledby': 'traffic-title' },
			el('header', { class: 'row' }, el('h2', { id: 'traffic-title' }, 'Traffic'), span, trouble),
			el('div', { class: 'grid' }, main.map(c => c.node))),
		el('div', { class: 'grid two', id: 'callers' },
			card('top-denied', 'Top denied', topDenied.node),
			card('top-near', 'Near their limit', topNear.node)),
		storeCard,
		el('div', { class: 'grid wider' }, card('limits', 'Limits', limits.node), card('routes', 'Routes', routes.node)),
		el('div', { class: 'grid wider' }, card('upstreams', 'Upstreams', upstreams.node), card('config', 'Configuration', config.node, rejected.node)),
		el('div', { class: 'grid wider' }, card('instances', 'Instances', instances.node), card('process', 'This process', process.node)),
		card('endpoints', 'Endpoints', endpoints()));

	function draw() {
		const model = { until: history.until, step: history.step, length: history.length, values: n => history.values(n) };
		put(trouble, history.error ? 'The past could not be read: ' + history.error : '');
		if (history.until === null) return;
		const found = history.family(`denied.${family}:`).filter(f => f.sum > 0);
		denied.setSeries(found.slice(0, looks.length).map((f, i) => ({ name: f.name, label: f.label || '(none)', ...looks[i] })));
		// A limit that had denied nobody yet had denied nobody: no gap.
		const known = history.values('requests.denied');
		const whole = { ...model, known, values: n => history.values(n)?.map((v, i) => v ?? ((known?.[i] ?? null) === null ? null : 0)) };
		for (const c of [...main, ...redis]) if (c.node.isConnected) c.draw(c === denied ? whole : model);
	}

	return {
		node, live: true,
		// past asks for what was, after a beginning or a silence.
		past: () => wanted ? history.load() : undefined,
		show() {
			if (!wanted) {
				wanted = true;
				history.load();
			}
			draw();
		},
		hide: () => group.point(null),
		feed: s => history.add(s),
		update(s) {
			s.now ??= {};
			const more = s.more ?? {};
			for (const part of Object.values(top)) part.update(s);
			draw();
			topDenied.update(s.top_denied, more.top_denied);
			topNear.update(s.top_near, more.top_near);
			updateStore(s.store ?? {}, s.now);
			upstreams.update((s.upstreams ?? []).flatMap(u => (u.targets ?? []).map((t, i) => ({
				...t, upstream: u.upstream, open: u.circuit_open,
				...(i === 0 ? { in_flight: u.in_flight, max_in_flight: u.max_in_flight, refused: u.refused, retries: u.retries } : { in_flight: null, refused: null, retries: null }),
			}))), more.upstreams);
			routes.update(s.routes, more.routes);
			limits.update(s.limits, more.limits);
			const memory = s.store?.kind === 'memory';
			instances.update((s.instances ?? []).map(i => ({ ...i, memory: memory && i.self })), more.instances);
			put(config.values.hash.firstChild, (s.config?.hash ?? unknown));
			setTime(loaded, s.config?.loaded_at);
			put(loadedAgo, millis(s.config?.loaded_at) ? ', for ' + seconds(age(millis(s.config.loaded_at))) : '');
			config.put('reloads', `${plural(s.config?.reloads?.applied ?? 0, 'applied', 'applied')}, ${number(s.config?.reloads?.rejected ?? 0)} rejected`);
			rejected.update(s.config?.rejected);
			updateProcess(s);
		},
	};

	function updateStore(st, now) {
		const memory = st.kind === 'memory', away = st.away;
		store.put('kind', memory ? 'memory of this instance' : 'Redis, for all instances');
		flag(store.values.state, memory ? 'plain' : away ? 'bad' : 'good', memory ? 'no Redis is configured' : away
			? 'away' + (millis(st.since) ? ' since ' + clock(millis(st.since)) : '') + (st.away_nodes?.length ? ': ' + st.away_nodes.map(visible).join(', ') : '')
			: st.away_nodes?.length ? 'away: ' + st.away_nodes.map(visible).join(', ') : 'there');
		store.put('modes', (st.modes ?? []).join(', ') || unknown);
		const errors = Object.entries(st.errors ?? {}).filter(([, v]) => v > 0);
		store.put('errors', errors.map(([k, v]) => `${k} ${rate(v)}`).join(', ') || 'none');
		store.put('leases', number(st.lease_blocks));
		store.put('cache', plural(st.deny_cache_entries ?? 0, 'entry', 'entries'));
		store.put('answers', rate(now['deny_cache.answers']));
		store.put('overflow', rate(st.overflow));
		redis.forEach(c => { c.node.hidden = memory; });
		// Of a Redis that is not used there is nothing to say.
		for (const key of ['modes', 'errors', 'leases', 'cache', 'answers']) store.values[key].parentNode.hidden = memory;
		store.node.parentNode.classList.toggle('alone', memory);
	}

	function updateProcess(s) {
		const p = s.process ?? {};
		process.put('instance', visible(s.instance?.hostname ?? '') + (s.instance?.id ? ' (' + visible(s.instance.id) + ')' : ''));
		process.put('version', visible(s.instance?.version ?? unknown));
		process.put('started', millis(s.instance?.started_at) ? seconds(age(millis(s.instance.started_at))) : unknown);
		process.put('cpu', p.cpu === null || p.cpu === undefined ? unknown : number(p.cpu) + ' cores');
		process.put('rss', bytes(p.rss_bytes));
		process.put('heap', bytes(p.heap_bytes));
		process.put('goroutines', number(p.goroutines));
		process.put('files', number(p.open_files));
		process.put('dropped', rate(p.log_dropped));
		process.put('streams', number(s.streams));
		attr(process.values.dropped, 'class', p.log_dropped > 0 ? 'flag warn' : null);
	}
}

function since(at) {
	const t = millis(at);
	return t === null ? '' : ' for ' + seconds(age(t));
}

function endpoints() {
	return el('ul', { class: 'endpoints' }, [
		['/metrics', 'Prometheus metrics'], ['/healthz', 'alive'], ['/readyz', 'ready, and what is degraded'],
		['/api/live?once', 'what this page shows, as JSON'], ['/api/history?window=1h', 'the past of every figure'],
		['/api/status', 'the state in short'], ['/api/top-denied', 'callers that are denied most'],
		['/api/denials', 'the last denials'], ['/debug/pprof/', 'profiles; needs the token'],
	].map(([path, help]) => el('li', null, el('a', { href: path }, el('code', null, path)), ' ' + help)));
}
