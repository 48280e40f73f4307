// Building the page. Text comes in as text only: nothing here reads markup.

import { ago, clock, cut, millis, unknown, utc, visible } from './format.js';

// el makes an element. Attributes that are functions are listeners, true and false
// say whether there is one at all, null and undefined leave it out.
export function el(tag, attributes, ...children) {
	return fill(document.createElement(tag), attributes, children);
}

const space = 'http://www.w3.org/2000/svg';

// svg is el for drawings.
export function svg(tag, attributes, ...children) {
	return fill(document.createElementNS(space, tag), attributes, children);
}

function fill(node, attributes, children) {
	for (const [name, value] of Object.entries(attributes ?? {})) {
		if (typeof value === 'function') node.addEventListener(name, value);
		else if (value === true) node.setAttribute(name, '');
		else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
	}
	for (const child of children.flat()) {
		if (child !== null && child !== undefined && child !== false) node.append(child);
	}
	return node;
}

// put changes a text only if it is another, so that a selection, and whoever
// listens to the page, is left alone.
export function put(node, text) {
	text = String(text);
	if (node.textContent !== text) node.textContent = text;
	return node;
}

export function attr(node, name, value) {
	if (value === null || value === undefined || value === false) node.removeAttribute(name);
	else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
	return node;
}

// name shows what somebody else has chosen: alone in its direction, with what
// cannot be seen made visible, cut, and whole where the pointer rests.
export function name(text, max) {
	const whole = visible(text ?? ''), short = cut(whole, max);
	return el('bdi', { class: 'name', dir: 'auto', title: short === whole && whole === text ? null : cut(whole, 4096) }, short === '' ? '(empty)' : short);
}

// callerHref is the address of a caller's page.
export function callerHref(kind, who) {
	return '#/caller/' + kind + '/' + encodeURIComponent(String(who).toWellFormed?.() ?? who);
}

// caller is a link to a caller's page, where there can be one.
export function caller(kind, who, max) {
	const shown = name(who, max);
	return ['user', 'key', 'ip'].includes(kind) && who !== '' ? el('a', { href: callerHref(kind, who) }, shown) : shown;
}

// time shows an instant; the pointer finds it in UTC, as the log has it.
export function time(at, how = 'clock') {
	const node = el('time');
	setTime(node, at, how);
	return node;
}

export function setTime(node, at, how = 'clock') {
	const t = millis(at);
	put(node, t === null ? unknown : how === 'ago' ? ago(t) : clock(t));
	attr(node, 'datetime', t === null ? null : new Date(t).toISOString());
	attr(node, 'title', t === null ? null : utc(t));
	return node;
}

// keyed makes the children of parent follow items: what stays is changed where it
// stands, so that focus, selection and an opened row outlive an update.
export function keyed(parent, items, keyOf, make, update) {
	const known = parent.known ??= new Map();
	const seen = new Set();
	let at = parent.firstChild;
	for (const item of items) {
		let key = keyOf(item);
		while (seen.has(key)) key += '\u0000';
		seen.add(key);
		let node = known.get(key);
		if (!node) known.set(key, node = make(item));
		update(node, item);
		if (node === at) at = at.nextSibling;
		else parent.insertBefore(node, at);
	}
	for (const [key, node] of known) {
		if (!seen.has(key)) {
			node.remove();
			known.delete(key);
		}
	}
}

// bar is a share of a whole: a drawing beside the figure, never instead of it.
export function bar() {
	const inner = el('i');
	const node = el('span', { class: 'bar', 'aria-hidden': 'true' }, inner);
	node.set = share => {
		inner.style.width = Math.max(0, Math.min(1, share || 0)) * 100 + '%';
		return node;
	};
	return node;
}

// spark draws a row of figures; what is null is a gap.
export function spark() {
	const w = 72, h = 16;
	const path = svg('path', { class: 'spark-line' });
	const node = svg('svg', { class: 'spark', width: w, height: h, viewBox: `0 0 ${w} ${h}`, 'aria-hidden': 'true' }, path);
	node.set = values => {
		const top = Math.max(1e-9, ...values.map(v => v ?? 0));
		let d = '', pen = false;
		values.forEach((v, i) => {
			if (v === null || v === undefined) {
				pen = false;
				return;
			}
			const x = (1 + i * (w - 2) / Math.max(1, values.length - 1)).toFixed(1);
			const y = (h - 2 - v / top * (h - 4)).toFixed(1);
			d += pen ? `L${x} ${y}` : `M${x} ${y}h.01`;
			pen = true;
		});
		attr(path, 'd', d);
		return node;
	};
	return node;
}

// choice is one of a few, as a row of radio buttons.
let choices = 0;
export function choice(legend, options, chosen, changed) {
	const group = 'choice-' + ++choices;
	return el('fieldset', { class: 'choice' }, el('legend', { class: 'unseen' }, legend),
		options.map(([value, label]) => el('label', null,
			el('input', { type: 'radio', name: group, value, checked: value === chosen, change: () => changed(value) }),
			el('span', null, label))));
}

// card is a part of the page with a heading of its own.
export function card(id, title, ...children) {
	return el('section', { class: 'card', id, 'aria-labelledby': id + '-title' },
		el('header', null, el('h2', { id: id + '-title' }, title)), children);
}

// facts is a list of names and values that follow what is known.
export function facts(names) {
	const values = {};
	const node = el('dl', { class: 'facts' }, names.map(([key, label]) =>
		el('div', null, el('dt', null, label), values[key] = el('dd'))));
	return { node, values, put: (key, text) => put(values[key], text) };
}
