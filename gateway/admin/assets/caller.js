// The page of one caller.

import { change, json, query } from './api.js';
import { attr, bar, caller, card, el, keyed, name, put, setTime } from './dom.js';
import { millis, number, plural, seconds, unknown, visible } from './format.js';
import { Chart, Group } from './chart.js';
import { denials } from './decisions.js';

const every = 2000; // ms between two looks
const words = { user: 'User', key: 'Key', ip: 'Address' };

export function callerView({ mayChange, signIn, say }) {
	const group = new Group();
	const kind = el('span', { class: 'eyebrow' }), heading = el('h1');
	const state = el('p', { role: 'status' });
	const trouble = el('p', { class: 'flag bad', role: 'alert', hidden: true });
	const identity = el('dl', { class: 'facts' });
	const crowd = el('p', { class: 'crowd', hidden: true });
	const rows = el('tbody');
	const noLimits = el('p', { class: 'nothing-here' }, 'No limit is known for this caller.');
	const moreLimits = el('p', { class: 'note', hidden: true });
	const frame = el('div', { class: 'frame' }, el('table', { class: 'limits' }, el('caption', { class: 'unseen' }, 'Limits of this caller'),
		el('thead', null, el('tr', null, [['Limit'], ['Rule', 'wide'], ['Used', 'wide'], ['Left', 'num'], ['Frees in', 'num'], ['Source', 'wide'], ['']].map(([h, c]) => el('th', { scope: 'col', class: c }, h || el('span', { class: 'unseen' }, 'Reset'))))), rows));
	const reduced = el('p', { class: 'flag warn', hidden: true }, 'Redis is away: these are the figures of this instance alone.');
	const chart = new Chart({
		id: 'minutes', title: 'Requests', unit: 'a minute', stacked: true, group, height: 140, empty: 'No requests in this hour.',
		series: [{ name: 'allowed', label: 'allowed', look: 1 }, { name: 'denied', label: 'denied', look: 2, fill: 'hatch' }],
	});
	const list = denials({ caption: 'The last denials of this caller, newest first', empty: 'Nothing was denied lately.', withCaller: false });
	const allDenials = el('a', null, 'All, with filters');
	const dialog = el('dialog', { class: 'dialog', 'aria-labelledby': 'reset-title' });
	const parts = el('div', { class: 'view' },
		card('caller-identity', 'Who', identity, crowd),
		card('caller-limits', 'Limits, as they stand now', reduced, frame, noLimits, moreLimits),
		chart.node,
		card('caller-denials', 'Last denials', list.node, el('p', null, allDenials)));
	const node = el('div', { class: 'view' }, el('header', { class: 'caller-head' }, kind, heading, state), trouble, parts, dialog);
	let who = null, timer = 0, turn = null;

	async function load() {
		const mine = turn = {};
		clearTimeout(timer);
		try {
			const c = await json('/api/caller' + query(who));
			if (turn !== mine) return;
			trouble.hidden = true;
			parts.hidden = false;
			update(c);
		} catch (e) {
			if (turn !== mine) return;
			put(trouble, e.message);
			trouble.hidden = false;
			parts.classList.add('old');
			if (e.status === 400 || e.status === 404) parts.hidden = true;
			if (e.status === 400) {
				// It may be a whole key: neither the page nor the way back keeps it.
				heading.replaceChildren('Not shown');
				attr(allDenials, 'href', null);
				who = turn = null;
				history.replaceState(null, '', '#/caller');
				return;
			}
			if (e.status === 401) return;
		}
		again();
	}

	function again() {
		clearTimeout(timer);
		if (who) timer = setTimeout(() => document.hidden ? again() : load(), every);
	}

	function update(c) {
		parts.classList.remove('old');
		put(state, c.known ? '' : 'Not seen lately, and in no key file: what stands here is what such a caller would have.');
		state.hidden = c.known;
		showIdentity(c.identity ?? {});
		showCrowd(c.crowd);
		reduced.hidden = !c.reduced;
		const limits = c.limits ?? [];
		keyed(rows, limits, l => JSON.stringify([l.name, l.plan, l.route, l.partition]), limitRow, (tr, l) => tr.update(l));
		frame.hidden = limits.length === 0;
		noLimits.hidden = limits.length > 0;
		moreLimits.hidden = !c.more_limits;
		put(moreLimits, c.more_limits ? `${number(c.more_limits)} more limits are not shown.` : '');
		const m = c.minutes ?? { allowed: [], denied: [] };
		chart.draw({ until: millis(m.until), step: 60000, length: Math.max(m.allowed.length, m.denied.length), values: n => m[n] });
		list.update(c.denials);
	}

	function showIdentity(i) {
		const facts = [
			['User', i.user && caller('user', i.user, 64)], ['Tenant', i.tenant && name(i.tenant)],
			['Plan', i.plan && el('span', null, name(i.plan), i.plan_from ? el('span', { class: 'aside' }, ` from ${visible(i.plan_from)}`) : null)],
			['Key id', i.key_id && caller('key', i.key_id, 64)], ['Signs in by', i.auth_method && visible(i.auth_method)],
			['Addresses', i.client_ips?.length && i.client_ips.flatMap((ip, n) => [n ? ', ' : null, caller('ip', ip)])],
			['Last seen', i.last_seen && setTime(el('time'), i.last_seen, 'ago')],
			['Key expires', i.key && (i.key.expires ? setTime(el('time'), i.key.expires) : 'never')],
			['Key last used', i.key?.last_used && setTime(el('time'), i.key.last_used, 'ago')],
			['Routes of the key', i.key?.routes?.length && i.key.routes.map(visible).join(', ')],
		].filter(([, v]) => v);
		const sign = JSON.stringify({ ...i, last_seen: null, key: { ...i.key, last_used: null } });
		if (identity.sign === sign) {
			for (const dt of identity.querySelectorAll('dt')) {
				if (dt.textContent === 'Last seen') setTime(dt.nextSibling.firstChild, i.last_seen, 'ago');
			}
			return;
		}
		identity.sign = sign;
		identity.replaceChildren(...(facts.length ? facts : [['Nothing', 'is known about who this is.']]).map(([k, v]) => el('div', null, el('dt', null, k), el('dd', null, v))));
	}

	function showCrowd(c) {
		crowd.hidden = !c;
		if (!c) return;
		const least = c.at_least ? 'at least ' : 'about ';
		const seen = `Behind this address, lately: ${least}${plural(c.users, 'user')} with ${least}${plural(c.user_agents, 'user agent')}. `;
		put(crowd, seen + (c.users >= 5 ? 'That is many people behind one address; a limit by address hits them all.'
			: c.users <= 1 && c.user_agents <= 2 ? 'That is one caller, not a crowd.' : 'That is a few callers, not a crowd.'));
	}

	function limitRow(first) {
		const used = bar(), usedText = el('span', { class: 'after' });
		const left = el('td', { class: 'num' }), frees = el('td', { class: 'num' }), source = el('td', { class: 'wide' }), rule = el('td', { class: 'wide' });
		const verdict = el('span');
		const button = first.resettable ? el('button', { type: 'button', class: 'quiet', 'aria-label': 'Reset ' + visible(first.name), click: () => confirm(tr.limit) }, 'Reset') : null;
		const tr = el('tr', null,
			el('th', { scope: 'row' }, name(first.name), el('span', { class: 'kind' }, where(first)), verdict),
			rule, el('td', { class: 'wide' }, used, usedText), left, frees, source, el('td', { class: 'num' }, button));
		tr.update = l => {
			tr.limit = l;
			const whole = l.used === null || l.used === undefined ? l.capacity : l.used + l.remaining;
			const share = whole > 0 ? 1 - l.remaining / whole : 0;
			used.set(share);
			used.classList.toggle('near', share >= 0.9);
			put(usedText, l.used === null || l.used === undefined ? unknown : number(l.used));
			put(left, `${number(l.remaining)} of ${number(whole)}`);
			const wait = l.retry_after_s ?? null, full = l.reset_s ?? null;
			put(frees, wait !== null ? seconds(wait) : share > 0 && full !== null ? 'full in ' + seconds(full) : l.remaining > 0 ? 'now' : unknown);
			put(source, visible(l.source ?? ''));
			put(rule, visible(l.rule ?? ''));
			attr(rule, 'title', `${l.algorithm ?? ''}, per ${(l.per ?? []).join(', ')}: ${visible(l.partition ?? '')}`);
			verdict.className = l.remaining <= 0 ? 'flag bad' : l.mode && l.mode !== 'enforce' ? 'flag plain' : '';
			put(verdict, l.remaining <= 0 ? 'used up' : l.mode && l.mode !== 'enforce' ? visible(l.mode) : '');
		};
		return tr;
	}

	// confirm asks before a count is thrown away, and says what came of it.
	function confirm(l) {
		if (!mayChange()) {
			signIn('To reset a limit, sign in with the admin token.');
			return;
		}
		const result = el('p', { role: 'alert' });
		const doIt = el('button', { type: 'button', class: 'primary', click: act }, 'Reset');
		const close = el('button', { type: 'button', class: 'quiet', click: () => dialog.close() }, 'Cancel');
		const { kind, name: of } = who;
		async function act() {
			doIt.disabled = true;
			try {
				await change('/api/reset', { kind, name: of, limit: l.name, plan: l.plan, route: l.route });
				dialog.close();
				say(`${visible(l.name)} was reset for ${visible(of)}. The log has an audit line.`);
				load();
			} catch (e) {
				put(result, 'Not reset: ' + e.message);
				result.className = 'flag bad';
				doIt.disabled = false;
			}
		}
		dialog.replaceChildren(el('h2', { id: 'reset-title' }, 'Reset ', name(l.name), '?'),
			el('p', null, `${words[kind]} `, name(of), ` has ${number(l.remaining)} left of ${number(l.capacity)} (${visible(l.rule ?? '')}). A reset forgets what was used, and the caller begins anew. Other limits keep their count.`),
			el('p', { class: 'note' }, 'Partition ', el('code', null, name(l.partition ?? '', 80)), '. The gateway writes an audit line.'),
			result, el('p', { class: 'buttons' }, doIt, close));
		dialog.showModal();
		close.focus();
	}

	return {
		node, title: 'Caller',
		show([k, n]) {
			const changed = !who || who.kind !== k || who.name !== n;
			who = { kind: k, name: n };
			put(kind, words[k] ?? visible(k));
			heading.replaceChildren(name(n, 96));
			attr(allDenials, 'href', '#/denials' + query({ [{ user: 'user', key: 'key_id', ip: 'ip' }[k]]: n }));
			if (changed) {
				parts.hidden = true;
				state.hidden = true;
				trouble.hidden = true;
				identity.sign = '';
				chart.summed = 0;
			}
			load();
		},
		hide() {
			who = turn = null;
			clearTimeout(timer);
			if (dialog.open) dialog.close();
		},
	};

	function where(l) {
		const of = l.from === 'route' ? `route ${visible(l.route ?? '')}` : l.from === 'edge' ? 'by address, before all else' : l.plan ? `plan ${visible(l.plan)}` : l.from ?? '';
		return of;
	}
}

