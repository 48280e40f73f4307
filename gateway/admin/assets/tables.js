// Tables that follow what the stream says, row by row.

import { bar, caller, el, keyed, name, put, spark } from './dom.js';
import { number, percent, plural, unknown } from './format.js';

// table makes one. columns = [{head, text(item) | cell(td, item), num, wide, row}]:
// text gives a string, cell changes the cell itself; num stands right, wide is left
// out on a phone, row heads the row. About one item of a key, text may change.
export function table({ caption, columns, key, empty, more = 'not shown' }) {
	const body = el('tbody');
	const rest = el('p', { class: 'note', hidden: true });
	const nothing = el('p', { class: 'nothing-here' }, empty);
	const cls = c => [c.num && 'num', c.wide && 'wide', c.cls].filter(Boolean).join(' ') || null;
	const frame = el('div', { class: 'frame' }, el('table', null,
		el('caption', { class: 'unseen' }, caption),
		el('thead', null, el('tr', null, columns.map(c => el('th', { scope: 'col', class: cls(c), title: c.title }, c.head)))),
		body));
	const node = el('div', { class: 'table' }, frame, nothing, rest);
	return {
		node,
		update(items = [], left = 0) {
			frame.hidden = items.length === 0;
			nothing.hidden = items.length > 0;
			keyed(body, items, key, () => el('tr', null, columns.map(c => el(c.row ? 'th' : 'td', { class: cls(c), scope: c.row ? 'row' : null }))),
				(tr, item) => columns.forEach((c, i) => {
					if (c.cell) c.cell(tr.cells[i], item);
					else put(tr.cells[i], c.text(item));
				}));
			rest.hidden = !left;
			put(rest, left ? `${plural(left, 'more')} ${more}`.replace('mores', 'more') : '');
		},
	};
}

// once fills a cell the first time only: what a row's key says does not change.
export function once(make) {
	return (td, item) => td.firstChild || td.append(make(item));
}

// named is a column of names that somebody else has chosen.
export function named(head, of, more = {}) {
	return {
		head, ...more, cell(td, item) {
			const text = of(item);
			if (td.shown === text) return;
			td.shown = text;
			td.replaceChildren(text === '' || text === null || text === undefined ? unknown : name(text));
		},
	};
}

// flag is a word with a sign before it, for states: the colour only repeats it.
export function flag(td, kind, text) {
	if (!td.firstChild) td.append(el('span'));
	td.firstChild.className = 'flag ' + kind;
	put(td.firstChild, text);
}

// callers is a list of the heaviest, with how sure it is.
export function callers(caption, empty, share) {
	return table({
		caption, empty, key: t => t.key,
		columns: [
			{ head: 'Caller', row: true, cell: once(t => t.kind === 'other' ? name(t.name || t.partition || t.key) : el('span', null, caller(t.kind, t.name, 30), el('span', { class: 'kind' }, t.kind))) },
			named('Limit', t => t.limit, { wide: true }),
			{ head: 'Share', title: share, cell(td, t) {
				if (!td.bar) td.append(td.bar = bar(), td.said = el('span', { class: 'after' }));
				td.bar.set(t.share);
				put(td.said, percent(t.share));
			} },
			{ head: 'a minute', num: true, text: t => number(t.per_minute) },
			{ head: 'Count', num: true, wide: true, title: 'A decaying count; after ± stands how much of it may belong to others', text: t => number(t.count) + (t.error > 0 ? ' ±\u202f' + number(t.error) : '') },
			{ head: 'Last 5 min', wide: true, cell(td, t) {
				if (!td.spark) td.append(td.spark = spark());
				td.spark.set(t.trend ?? []);
			} },
		],
	});
}
