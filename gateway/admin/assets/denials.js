// The last denials, filtered, and as a file that gateway simulate reads.

import { ask, json, query, token } from './api.js';
import { attr, el, put } from './dom.js';
import { millis, now, number, plural, clock } from './format.js';
import { denials as makeTable } from './decisions.js';

const fields = [['q', 'Anything', 'a word of the line'], ['user', 'User', ''], ['key_id', 'Key id', ''], ['ip', 'Address', ''],
	['route', 'Route', ''], ['plan', 'Plan', ''], ['limit', 'Limit', ''], ['status', 'Status', '429']];
const times = [['', 'all that is kept'], ['60', 'the last minute'], ['300', 'the last 5 min'], ['3600', 'the last hour']];
const every = 3000; // ms between two looks

export function denialsView() {
	const inputs = {};
	const since = el('select', { id: 'filter-since', change: () => navigate() }, times.map(([v, label]) => el('option', { value: v }, label)));
	const follow = el('input', { type: 'checkbox', id: 'follow', checked: true, change: () => again() });
	const form = el('form', { class: 'filters', 'aria-label': 'Filter', submit: e => { e.preventDefault(); navigate(); } },
		fields.map(([key, label, hint]) => {
			inputs[key] = el('input', { id: 'filter-' + key, type: 'text', placeholder: hint || null, autocomplete: 'off', autocapitalize: 'none', spellcheck: 'false', maxlength: 512, inputmode: key === 'status' ? 'numeric' : null, change: () => navigate() });
			return el('label', { for: 'filter-' + key }, el('span', null, label), inputs[key]);
		}),
		el('label', { for: 'filter-since' }, el('span', null, 'Since'), since),
		el('div', { class: 'buttons' }, el('button', { type: 'submit' }, 'Filter'), el('a', { href: '#/denials', class: 'button quiet' }, 'Clear')));
	const count = el('p', { class: 'note', role: 'status' });
	const trouble = el('p', { class: 'flag bad', role: 'alert', hidden: true });
	const exported = el('a', { id: 'export', class: 'button', download: 'denials.jsonl', click: e => save(e) }, 'Export as JSON lines');
	const list = makeTable({ caption: 'The last denials, newest first', empty: 'No denial fits.' });
	const node = el('div', { class: 'view' }, el('header', { class: 'row' }, el('h1', null, 'Denials'),
		el('label', { class: 'check', for: 'follow' }, follow, ' Follow'), exported),
	el('p', { class: 'note' }, 'What limits refused, newest first, from the memory of this instance. A row opens to the whole decision.'),
	form, count, trouble, el('section', { class: 'card', 'aria-label': 'Denials' }, list.node));
	let filter = {}, timer = 0, shown = false, turn = null;

	function chosen() {
		const f = {};
		for (const [key] of fields) f[key] = inputs[key].value.trim();
		f.within = since.value;
		return f;
	}

	function navigate() {
		const to = '#/denials' + query(chosen());
		if (location.hash === to) load();
		else location.hash = to;
	}

	// asked are the members that the gateway knows; since is an instant.
	function asked(n) {
		const { within, ...rest } = filter;
		return query({ ...rest, since: within ? new Date(now() - within * 1000).toISOString() : '', n });
	}

	async function load() {
		const mine = turn = {};
		clearTimeout(timer);
		try {
			const a = await json('/api/denials' + asked(200));
			if (turn !== mine || !shown) return;
			list.update(a.denials);
			const oldest = millis(a.oldest);
			put(count, `${plural(a.denials.length, 'denial')} shown; ${number(a.kept)} are kept`
				+ (oldest === null ? '' : `, the oldest from ${clock(oldest)}`)
				+ (a.skipped ? `; ${number(a.skipped)} came too fast to be kept` : '') + '.');
			trouble.hidden = true;
		} catch (e) {
			if (turn !== mine || !shown) return;
			put(trouble, 'The denials could not be read: ' + e.message);
			trouble.hidden = false;
			// What an earlier filter found is no answer to this one.
			if (e.status === 400) {
				history.replaceState(null, '', '#/denials');
				put(count, '');
				list.update(null);
			}
		}
		attr(exported, 'href', '/api/denials.jsonl' + asked());
		again();
	}

	function again() {
		clearTimeout(timer);
		if (shown && follow.checked) timer = setTimeout(() => document.hidden ? again() : load(), every);
	}

	// save fetches the file where a link alone would come without the token.
	async function save(e) {
		attr(exported, 'href', '/api/denials.jsonl' + asked());
		if (!token()) return;
		e.preventDefault();
		try {
			const blob = await (await ask('/api/denials.jsonl' + asked())).blob();
			const url = URL.createObjectURL(blob);
			el('a', { href: url, download: 'denials.jsonl' }).click();
			setTimeout(() => URL.revokeObjectURL(url), 60000);
		} catch (err) {
			put(trouble, 'The file could not be fetched: ' + err.message);
			trouble.hidden = false;
		}
	}

	return {
		node, title: 'Denials',
		show(_, params) {
			shown = true;
			filter = {};
			for (const [key] of fields) inputs[key].value = filter[key] = params.get(key) ?? '';
			since.value = filter.within = params.get('within') ?? '';
			load();
		},
		hide() {
			shown = false;
			clearTimeout(timer);
		},
	};
}
