// How figures, times and names are written. Nothing here touches the page.

export const unknown = '–';

// All instants that are shown are the gateway's, so how long ago they were is told by
// its clock: the reader's may be off by an hour.
let apart = 0; // ms by which the reader's clock is ahead

// sync says what the gateway's clock shows now.
export function sync(t) {
	if (t !== null) apart = Date.now() - t;
}

// ahead is how far the reader's clock is ahead of the gateway's, ms.
export function ahead() {
	return apart;
}

// now is the moment by the gateway's clock, ms.
export function now() {
	return Date.now() - apart;
}

// age is how long ago an instant was, s; never less than nothing.
export function age(t) {
	return Math.max(0, (now() - t) / 1000);
}

// number writes v with as many digits as a glance can use. Thin spaces join the
// parts, so that no line breaks between a figure and its unit.
export function number(v) {
	if (v === null || v === undefined || !Number.isFinite(v)) return unknown;
	const a = Math.abs(v);
	if (a >= 1e9) return trim((v / 1e9).toFixed(a >= 1e11 ? 0 : 1)) + '\u202fG';
	if (a >= 1e6) return trim((v / 1e6).toFixed(a >= 1e8 ? 0 : 1)) + '\u202fM';
	if (a >= 1e4) return trim((v / 1e3).toFixed(a >= 1e5 ? 0 : 1)) + '\u202fk';
	if (a >= 100 || Number.isInteger(v)) return String(Math.round(v));
	if (a >= 10) return trim(v.toFixed(1));
	if (a >= 1) return trim(v.toFixed(1));
	if (a >= 0.005) return trim(v.toFixed(2));
	return v < 0 ? '-<0.01' : '<0.01';
}

function trim(s) {
	return s.includes('.') ? s.replace(/\.?0+$/, '') : s;
}

export function rate(v) {
	return v === null || v === undefined ? unknown : number(v) + '\u202f/s';
}

export function percent(v) {
	if (v === null || v === undefined || !Number.isFinite(v)) return unknown;
	const p = v * 100;
	if (p > 0 && p < 0.1) return '<0.1\u202f%';
	return (p >= 10 || Number.isInteger(p) ? Math.round(p) : trim(p.toFixed(1))) + '\u202f%';
}

// ms writes a number of milliseconds.
export function ms(v) {
	if (v === null || v === undefined || !Number.isFinite(v)) return unknown;
	if (v >= 10000) return number(v / 1000) + '\u202fs';
	if (v > 0 && v < 0.005) return Math.max(1, Math.round(v * 1000)) + '\u202fµs';
	return number(v) + '\u202fms';
}

export function bytes(v) {
	if (v === null || v === undefined) return unknown;
	for (const [size, unit] of [[2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']]) {
		if (v >= size) return number(v / size) + '\u202f' + unit;
	}
	return v + '\u202fB';
}

// seconds writes a duration in its two biggest units.
export function seconds(v) {
	if (v === null || v === undefined || !Number.isFinite(v)) return unknown;
	if (v > 0 && v < 1) return Math.round(v * 1000) + '\u202fms';
	v = Math.round(v);
	const d = Math.floor(v / 86400), h = Math.floor(v % 86400 / 3600), m = Math.floor(v % 3600 / 60), s = v % 60;
	const part = (n, unit) => n + '\u202f' + unit;
	if (d > 0) return part(d, 'd') + (h > 0 ? ' ' + part(h, 'h') : '');
	if (h > 0) return part(h, 'h') + (m > 0 ? ' ' + part(m, 'min') : '');
	if (m > 0) return part(m, 'min') + (s > 0 && m < 10 ? ' ' + part(s, 's') : '');
	return part(s, 's');
}

// millis is an instant as a number, null if there is none.
export function millis(at) {
	const t = at ? Date.parse(at) : NaN;
	return Number.isFinite(t) && t > -6e13 ? t : null; // Go's zero time is no time
}

const two = n => String(n).padStart(2, '0');

// clock writes an instant in the reader's zone; days that are not today are named.
export function clock(t, withSeconds = true) {
	if (t === null) return unknown;
	const d = new Date(t), today = new Date(now());
	const time = two(d.getHours()) + ':' + two(d.getMinutes()) + (withSeconds ? ':' + two(d.getSeconds()) : '');
	if (d.toDateString() === today.toDateString()) return time;
	return d.getFullYear() + '-' + two(d.getMonth() + 1) + '-' + two(d.getDate()) + ' ' + time;
}

export function utc(t) {
	return t === null ? '' : new Date(t).toISOString().replace('T', ' ').replace(/(\.\d+)?Z$/, ' UTC');
}

export function ago(t) {
	return t === null ? unknown : seconds(age(t)) + ' ago';
}

// plural writes a count with its noun.
export function plural(n, one, many = one + 's') {
	return number(n) + ' ' + (n === 1 ? one : many);
}

// What a name must not do: move the text around it, hide in it, or break the line.
// C0 and C1 controls, format and bidirectional controls, joiners and spaces of no
// width, separators, variation selectors, tags, private use, lone surrogates.
const unseen = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\u{e0100}-\u{e01ef}]/gu;

// visible is text in which every such character is spelled out.
export function visible(text) {
	return String(text).replace(unseen, c => {
		return '\u27e8U+' + c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0') + '\u27e9';
	});
}

// cut keeps the beginning and the end of a text of more than max characters, since
// names that are made by machines often differ in the end only. A letter with a
// tower of marks on it counts each of them.
export function cut(text, max = 48) {
	const all = Array.from(text);
	if (all.length <= max) return text;
	const tail = Math.floor(max / 4);
	return all.slice(0, max - tail - 1).join('') + '\u2026' + all.slice(-tail).join('');
}
