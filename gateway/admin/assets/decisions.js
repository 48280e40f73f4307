// Denials: one table for the last of them all, and for those of one caller.

import { attr, caller, el, keyed, name, setTime } from './dom.js';
import { ms, number, plural, seconds, unknown, visible } from './format.js';

// who is the caller of a request, by the best name there is.
export function who(d) {
	if (d.user) return ['user', d.user];
	if (d.key_id) return ['key', d.key_id];
	return ['ip', d.client_ip ?? ''];
}

// denials makes the table. A row opens, and shows the whole decision.
export function denials({ caption, empty, withCaller = true }) {
	const body = el('tbody');
	const heads = ['Time', withCaller && 'Caller', 'Request', 'Route', 'Denied by', 'Source', 'Status', 'Again in'].filter(Boolean);
	const wide = new Set(['Route', 'Source', 'Again in', 'Status', withCaller && 'Request']), num = new Set(['Status', 'Again in']);
	const cls = h => [wide.has(h) && 'wide', num.has(h) && 'num'].filter(Boolean).join(' ') || null;
	const frame = el('div', { class: 'frame', hidden: true }, el('table', { class: 'denials' }, el('caption', { class: 'unseen' }, caption),
		el('thead', null, el('tr', null, heads.map(h => el('th', { scope: 'col', class: cls(h) }, h)))), body));
	const nothing = el('p', { class: 'nothing-here', hidden: true }, empty);
	const node = el('div', { class: 'table' }, frame, nothing);
	let n = 0;

	function make(d) {
		const id = 'denial-' + ++n;
		const open = el('button', { type: 'button', class: 'opens', 'aria-expanded': 'false', 'aria-controls': id, click: () => toggle() }, el('time'));
		const opened = el('tr', { class: 'opened', id, hidden: true });
		const hit = decisive(d);
		const cells = {
			Time: el('th', { scope: 'row' }, open),
			Caller: withCaller && el('td', null, caller(...who(d), 24), d.plan ? el('span', { class: 'kind' }, name(d.plan, 16)) : null),
			Request: el('td', { class: 'request' }, visible(d.method ?? ''), ' ', name(d.path ?? '', 40)),
			Route: el('td', null, d.route ? name(d.route) : unknown),
			'Denied by': el('td', null, d.denied_by ? name(d.denied_by) : unknown),
			Source: el('td', null, d.source ? visible(d.source) : unknown),
			Status: el('td', null, String(d.status ?? unknown)),
			'Again in': el('td', null, hit?.retry_after_s === null || hit?.retry_after_s === undefined ? unknown : seconds(hit.retry_after_s)),
		};
		setTime(open.firstChild, d.time);
		const rows = el('tbody'); // never shown: keeps the two rows as one key
		rows.row = el('tr', null, heads.map(h => attr(cells[h], 'class', [cells[h].className, cls(h)].filter(Boolean).join(' ') || null)));
		rows.opened = opened;
		function toggle() {
			const now = open.getAttribute('aria-expanded') !== 'true';
			attr(open, 'aria-expanded', String(now));
			opened.hidden = !now;
			if (now && !opened.firstChild) opened.append(el('td', { colspan: heads.length }, whole(d)));
		}
		return rows;
	}

	const pairs = new Map();
	return {
		node,
		// update shows what was found; null is for what is not known.
		update(items) {
			const flat = [], seen = new Set();
			for (const d of items ?? []) {
				const key = (d.request_id ?? '') + ' ' + d.time;
				if (seen.has(key)) continue;
				seen.add(key);
				if (!pairs.has(key)) pairs.set(key, make(d));
				const pair = pairs.get(key);
				flat.push([key, pair.row], [key + ' opened', pair.opened]);
			}
			for (const key of pairs.keys()) if (!seen.has(key)) pairs.delete(key);
			keyed(body, flat, ([key]) => key, ([, row]) => row, () => {});
			frame.hidden = flat.length === 0;
			nothing.hidden = !items || flat.length > 0;
		},
	};
}

// decisive is the decision that denied.
function decisive(d) {
	const all = d.decisions ?? [];
	return all.find(x => !x.allowed && x.mode === 'enforce' && x.limit === d.denied_by) ?? all.find(x => !x.allowed && x.mode === 'enforce') ?? all.find(x => !x.allowed);
}

// whole is everything that is known about one denial.
function whole(d) {
	const pairs = Object.entries(d).filter(([k, v]) => k !== 'decisions' && v !== '' && v !== null && v !== undefined);
	const decisions = d.decisions ?? [];
	return el('div', { class: 'whole' },
		el('dl', { class: 'facts' }, pairs.map(([k, v]) => el('div', null, el('dt', null, visible(k)), el('dd', null, value(k, v))))),
		decisions.length ? el('div', { class: 'frame' }, el('table', { class: 'inner' },
			el('caption', null, `${plural(decisions.length, 'decision')} of this request`),
			el('thead', null, el('tr', null, ['Limit', 'Verdict', 'Left', 'Rule', 'Again in', 'Full in', 'Plan', 'Counted per', 'Partition', 'Mode', 'Source'].map(h => el('th', { scope: 'col' }, h)))),
			el('tbody', null, decisions.map(x => el('tr', null,
				el('th', { scope: 'row' }, name(x.limit ?? '')),
				el('td', null, el('span', { class: 'flag ' + (x.allowed ? 'good' : 'bad') }, x.allowed ? 'allowed' : 'denied')),
				el('td', { class: 'num' }, `${number(x.remaining)} of ${number(x.capacity)}`),
				el('td', null, `${number(x.quota)} in ${seconds(x.window_s)}`),
				el('td', { class: 'num' }, seconds(x.retry_after_s)),
				el('td', { class: 'num' }, seconds(x.reset_s)),
				el('td', null, x.plan ? name(x.plan) : unknown),
				el('td', null, (x.per ?? []).map(visible).join(', ') || unknown),
				el('td', null, name(x.partition ?? '', 40)),
				el('td', null, visible(x.mode ?? '')),
				el('td', null, visible(x.source ?? '')))))))
			: el('p', { class: 'note' }, 'No limit decided about this request.'));
}

function value(k, v) {
	if (k === 'time') return setTime(el('time'), v);
	if (k === 'user') return caller('user', v, 64);
	if (k === 'key_id') return caller('key', v, 64);
	if (k === 'client_ip') return caller('ip', v, 64);
	if (k.endsWith('_ms')) return ms(v);
	return typeof v === 'number' ? String(v) : name(typeof v === 'string' ? v : JSON.stringify(v), 120);
}

