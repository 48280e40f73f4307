// The search for a caller: a box with suggestions.

import { json, query } from './api.js';
import { attr, callerHref, el, name, put } from './dom.js';
import { number, visible } from './format.js';

const words = { user: 'user', key: 'key', ip: 'address' };

export function search() {
	const list = el('ul', { class: 'suggestions', id: 'suggestions', role: 'listbox', 'aria-label': 'Callers', hidden: true });
	const said = el('p', { class: 'search-said', role: 'status', hidden: true });
	const input = el('input', {
		id: 'find', type: 'search', role: 'combobox', 'aria-expanded': 'false', 'aria-controls': 'suggestions', 'aria-autocomplete': 'list',
		placeholder: 'Find a caller', autocomplete: 'off', autocapitalize: 'none', spellcheck: 'false', maxlength: 4096,
		input: () => later(), keydown: e => key(e), focus: () => input.value && later(),
	});
	const form = el('form', { role: 'search', class: 'search', submit: e => { e.preventDefault(); enter(); } },
		el('label', { class: 'unseen', for: 'find' }, 'Find a caller by user, key id or address'), input, list, said);
	form.addEventListener('focusout', e => form.contains(e.relatedTarget) || close());
	let found = [], at = -1, timer = 0, controller = null, answered = '', refused = false;

	function later() {
		clearTimeout(timer);
		timer = setTimeout(() => look().catch(() => {}), 120);
	}

	async function look() {
		clearTimeout(timer);
		controller?.abort();
		const q = input.value.trim();
		if (q === '') {
			close();
			return;
		}
		const mine = controller = new AbortController();
		try {
			const a = await json('/api/callers' + query({ q }), { signal: mine.signal });
			if (mine.signal.aborted) return;
			answered = q;
			refused = false;
			found = a.callers ?? [];
			show(a.more);
		} catch (e) {
			if (mine.signal.aborted) return;
			answered = q;
			refused = true;
			found = [];
			show(false, e.message);
			throw e;
		}
	}

	function show(more, trouble = '') {
		at = -1;
		list.replaceChildren(...found.map((c, i) => el('li', { role: 'option', id: 'suggestion-' + i, 'aria-selected': 'false', pointerdown: e => { e.preventDefault(); go(c); } },
			el('span', { class: 'kind' }, words[c.kind] ?? visible(c.kind)), name(c.name, 40),
			el('span', { class: 'aside' }, [c.plan && visible(c.plan), c.denied > 0 && number(c.denied) + ' denied'].filter(Boolean).join(', ')))));
		list.hidden = found.length === 0;
		attr(input, 'aria-expanded', String(found.length > 0));
		attr(input, 'aria-activedescendant', null);
		put(said, trouble || (found.length === 0 ? 'Nobody of this name was seen lately.' : more ? 'There are more; write on.' : ''));
		said.hidden = said.textContent === '';
		said.classList.toggle('below', found.length > 0);
	}

	function close() {
		clearTimeout(timer);
		controller?.abort();
		list.hidden = true;
		said.hidden = true;
		attr(input, 'aria-expanded', 'false');
		attr(input, 'aria-activedescendant', null);
	}

	function key(e) {
		if (e.key === 'Escape') {
			close();
			return;
		}
		if (list.hidden || found.length === 0 || e.key !== 'ArrowDown' && e.key !== 'ArrowUp') return;
		e.preventDefault();
		at = (at + (e.key === 'ArrowDown' ? 1 : at < 0 ? 0 : -1) + found.length) % found.length;
		[...list.children].forEach((li, i) => attr(li, 'aria-selected', String(i === at)));
		attr(input, 'aria-activedescendant', 'suggestion-' + at);
		list.children[at].scrollIntoView({ block: 'nearest' });
	}

	// enter goes to the marked one, else to the one of exactly this name, else to
	// the first; a name that nobody has is taken as it stands, unless it was refused.
	async function enter() {
		const q = input.value.trim();
		if (q === '') return;
		if (at >= 0 && found[at]) {
			go(found[at]);
			return;
		}
		try {
			if (answered !== q || refused) await look();
		} catch {
			return;
		}
		const hit = found.find(c => c.name === q) ?? found[0];
		go(hit ?? { kind: /^[0-9a-f:.]*[.:][0-9a-f:.]*$/i.test(q) ? 'ip' : 'user', name: q });
	}

	function go(c) {
		close();
		input.value = '';
		input.blur();
		location.hash = callerHref(c.kind, c.name);
	}

	return form;
}
