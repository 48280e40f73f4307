// What is the matter: the six places where it can be, and what the gateway found.

import { attr, callerHref, el, keyed, name, put, setTime, time } from './dom.js';
import { age, ago, ahead, millis, ms, now, number, percent, plural, rate, seconds, visible } from './format.js';
import { query } from './api.js';

const causes = [
	['gateway', 'Gateway', '#latency'], ['redis', 'Redis', '#store'], ['upstream', 'Upstreams', '#upstreams'],
	['limit', 'Limits', '#limits'], ['client', 'Callers', '#callers'], ['config', 'Configuration', '#config'],
];

// strip is the line that says in what state the instance is.
export function strip() {
	const ready = el('li'), degraded = el('li'), config = el('li'), fleet = el('li'), clocks = el('li', { hidden: true });
	const node = el('ul', { class: 'strip', 'aria-label': 'State of this instance' }, ready, degraded, config, fleet, clocks);
	const say = (li, kind, text) => {
		li.className = 'flag ' + kind;
		put(li, text);
	};
	return {
		node,
		update(s) {
			say(ready, s.ready ? 'good' : 'bad', s.ready ? 'Ready' : 'Not ready' + (s.reason ? ': ' + visible(s.reason) : ''));
			const parts = s.degraded ?? [];
			degraded.hidden = parts.length === 0;
			if (parts.length) say(degraded, 'warn', 'Degraded: ' + parts.map(d => visible(d.part) + (d.effect ? ', ' + visible(d.effect) : '') + (millis(d.since) ? ', for ' + seconds(age(millis(d.since))) : '')).join('; '));
			if (s.config?.rejected) say(config, 'warn', 'Last configuration rejected ' + ago(millis(s.config.rejected.at)));
			else say(config, 'good', 'Configuration in force for ' + seconds(age(millis(s.config?.loaded_at) ?? now())));
			const n = s.instances?.length ?? 0, hashes = new Set((s.instances ?? []).map(i => i.config_hash).filter(Boolean));
			say(fleet, hashes.size > 1 ? 'warn' : 'plain', plural(n, 'instance') + (hashes.size > 1 ? ` with ${hashes.size} configurations` : ''));
			fleet.hidden = n === 0;
			const off = ahead();
			clocks.hidden = Math.abs(off) < 10000;
			if (!clocks.hidden) say(clocks, 'plain', `Times are the gateway's; the clock of this browser is ${seconds(Math.abs(off) / 1000)} ${off > 0 ? 'ahead' : 'behind'}`);
		},
	};
}

// figures say for each place, in a few words, how it stands.
const figures = {
	gateway: s => `adds ${ms(s.now['latency.added.p99_ms'])} at p99, ${number(s.now.in_flight)} in flight`,
	redis(s) {
		const st = s.store ?? {};
		if (st.kind === 'memory') return 'not used: counts are in memory';
		const errors = Object.values(st.errors ?? {}).reduce((a, b) => a + b, 0);
		if (st.away) return 'away' + (millis(st.since) ? ' for ' + seconds(age(millis(st.since))) : '') + (st.modes?.length ? ', ' + st.modes.join(', ') : '');
		return `${ms(s.now['store.p99_ms'])} at p99, ${rate(errors)} errors`;
	},
	upstream(s) {
		const all = (s.upstreams ?? []).flatMap(u => u.targets ?? []);
		const bad = all.reduce((n, t) => n + (t.errors ?? 0) + (t.status?.['5xx'] ?? 0), 0);
		return `${all.filter(t => t.up).length} of ${plural(all.length, 'target')} up, ${rate(bad)} errors`;
	},
	limit(s) {
		// Of the last seconds, as the tables have it: a single second says little.
		const me = s.instances?.find(i => i.self);
		return me?.requests > 0 ? `${percent(me.denied / me.requests)} denied` : 'nothing asked for';
	},
	client(s) {
		const top = s.top_denied?.[0];
		return top ? `first makes ${percent(top.share)} of the denials` : 'nobody is denied';
	},
	config: s => `${(s.config?.hash ?? '').slice(0, 8)}, ${s.config?.rejected ? 'a later one rejected' : 'in force'}`,
};

// verdict is a row of the six places; a place with a finding says so first.
export function verdict() {
	const tiles = {};
	const node = el('ul', { class: 'verdict', 'aria-label': 'Where it can be' }, causes.map(([cause, label, href]) => {
		const t = tiles[cause] = { sign: el('span', { class: 'sign', 'aria-hidden': 'true' }), state: el('span', { class: 'tile-state' }), figure: el('span', { class: 'tile-figure' }) };
		t.link = el('a', { href, class: 'tile' }, el('span', { class: 'tile-name' }, el('span', null, t.sign, label), ' ', t.state), t.figure);
		return el('li', null, t.link);
	}));
	return {
		node,
		update(s) {
			for (const [cause] of causes) {
				const t = tiles[cause], found = (s.findings ?? []).filter(f => f.cause === cause);
				const act = found.some(f => f.severity === 'act');
				t.link.className = 'tile ' + (act ? 'act' : found.length ? 'look' : 'calm');
				put(t.sign, act ? '■' : found.length ? '▲' : '✓');
				put(t.state, act ? 'act' : found.length ? 'look' : 'calm');
				put(t.figure, figures[cause](s));
			}
		},
	};
}

const kinds = { user: 'User', key: 'Key', ip: 'Address' };

// findings is the list of what stands out, in the gateway's words.
export function findings() {
	const list = el('ul', { class: 'findings' });
	const calm = el('p', { class: 'flag good calm-line' }, 'Nothing stands out.');
	const node = el('section', { id: 'findings', 'aria-labelledby': 'findings-title' }, el('h2', { id: 'findings-title', class: 'unseen' }, 'Findings'), calm, list);
	const make = f => {
		const li = el('li', { class: 'finding ' + f.severity },
			el('p', { class: 'finding-title' }, el('span', { class: 'flag ' + (f.severity === 'act' ? 'bad' : 'warn') }, f.severity === 'act' ? 'Act' : 'Look'), ' '));
		li.title_ = el('strong');
		li.since = el('time');
		li.firstChild.append(li.title_, el('span', { class: 'since' }, ' since ', li.since));
		li.text = el('p');
		li.links = el('p', { class: 'links' }, links(f));
		li.append(li.text, li.links);
		return li;
	};
	return {
		node,
		update(s) {
			const found = s.findings ?? [];
			calm.hidden = found.length > 0;
			keyed(list, found, f => JSON.stringify([f.cause, f.severity, f.subject, f.runbook]), make, (li, f) => {
				put(li.title_, visible(f.title));
				put(li.text, visible(f.text));
				setTime(li.since, f.since);
			});
		},
	};
}

// links lead from a finding to what it is about, and to what to do.
function links(f) {
	const s = f.subject ?? {}, found = [];
	if (s.kind in kinds && s.name) found.push(el('a', { href: callerHref(s.kind, s.name) }, `${kinds[s.kind]} `, name(s.name, 32)));
	if (s.limit) found.push(el('a', { href: '#/denials' + query({ limit: s.limit, plan: s.plan }) }, 'Denials by ', name(s.limit)));
	else if (s.route && f.cause !== 'upstream') found.push(el('a', { href: '#/denials' + query({ route: s.route }) }, 'Denials on ', name(s.route)));
	const panel = { redis: ['#store', 'Redis'], upstream: ['#upstreams', 'Upstreams'], gateway: ['#latency', 'Latency'], config: ['#config', 'Configuration'], limit: ['#limits', 'Limits'], client: ['#callers', 'Callers'] }[f.cause];
	if (panel) found.push(el('a', { href: panel[0] }, panel[1]));
	if (f.runbook) found.push(el('a', { href: '/runbook#' + f.runbook }, 'What to do'));
	return found.flatMap((x, i) => i ? [' · ', x] : [x]);
}

// rejection shows the mistakes of a configuration that did not come into force.
export function rejection() {
	const node = el('div', { class: 'rejection', hidden: true });
	let shown = '';
	return {
		node,
		update(r) {
			node.hidden = !r;
			const sign = JSON.stringify(r ?? null);
			if (sign === shown) return;
			shown = sign;
			node.replaceChildren();
			if (!r) return;
			node.append(el('p', { class: 'flag warn' }, 'Rejected at ', time(r.at), '. What is shown above stays in force.'),
				el('ol', { class: 'mistakes' }, (r.mistakes ?? []).map(m => el('li', null, el('code', null, visible(m))))));
			attr(node, 'tabindex', '0');
			attr(node, 'role', 'region');
			attr(node, 'aria-label', 'Mistakes of the rejected configuration');
		},
	};
}
