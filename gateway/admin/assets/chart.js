// Charts in SVG: lines and stacked areas over time, with a crosshair that all charts
// of a group share. What is not known is a gap, and is drawn as one.

import { attr, el, put, svg } from './dom.js';
import { clock, number, seconds, unknown, visible } from './format.js';

// A group of charts has one crosshair, so that a moment can be compared over all.
export class Group {
	constructor() {
		this.charts = new Set();
		this.at = null; // ms, null: no crosshair
	}

	point(at) {
		this.at = at;
		for (const chart of this.charts) chart.mark();
	}
}

// ticks are from three to six round figures from 0 to above top, of what can only
// be counted whole ones.
export function ticks(top, whole = false) {
	if (!(top > 0)) top = 1;
	const raw = top / 4, size = 10 ** Math.floor(Math.log10(raw));
	const steps = (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map(f => f * size);
	const step = Math.max(whole ? 1 : 0, steps.find(s => s >= raw * 0.999));
	const found = [];
	for (let i = 0; i === 0 || found.at(-1) < top * 0.999; i++) found.push(Number((i * step).toPrecision(12)));
	return found;
}

// Steps between the labels of the time axis, ms.
const strides = [15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 10800e3, 14400e3, 21600e3];

let charts = 0;

// A Chart draws series = [{name, label, look, dash, fill}]; look is the number of a
// colour, dash and fill tell lines and areas apart without it.
export class Chart {
	constructor({ id, title, unit, stacked = false, series = [], format = number, empty = '', group, height = 168, whole = false, band = null }) {
		Object.assign(this, { id, title, unit, stacked, format, empty, group, least: height, height, whole, band });
		this.n = ++charts;
		this.hidden = new Set();
		this.model = null;
		this.build();
		this.setSeries(series);
		group.charts.add(this);
		new ResizeObserver(() => this.later()).observe(this.plot);
	}

	build() {
		const id = this.id;
		this.legend = el('ul', { class: 'legend' });
		this.when = el('span', { class: 'when' });
		this.gridLines = svg('g', { class: 'rules' });
		this.labels = svg('g', { class: 'ticks' });
		this.gaps = svg('path', { class: 'gap', fill: `url(#${id}-gap)` });
		this.bandPath = svg('path', { class: 'band' });
		this.marks = svg('g', { class: 'marks' });
		this.hair = svg('path', { class: 'hair' });
		this.dots = svg('g');
		this.defs = svg('defs', null, svg('pattern', { id: id + '-gap', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
			svg('path', { d: 'M0 0V6', class: 'gap-line' })));
		this.drawing = svg('svg', { class: 'drawing', 'aria-hidden': 'true' },
			this.defs, this.gridLines, this.gaps, this.bandPath, this.marks, this.hair, this.dots, this.labels);
		this.nothing = el('p', { class: 'nothing', hidden: true }, this.empty);
		this.plot = el('div', {
			class: 'plot', tabindex: 0, role: 'application', 'aria-roledescription': 'chart',
			'aria-label': `${this.title}, ${this.unit}. Left and right arrow move through time.`, 'aria-describedby': id + '-summary',
			keydown: e => this.key(e),
			focus: () => this.group.at === null && this.model && this.moveTo(this.model.length - 1),
			blur: () => this.group.point(null),
			pointermove: e => this.follow(e), pointerdown: e => this.follow(e),
			pointerleave: e => e.pointerType === 'mouse' && this.group.point(null),
		}, this.drawing, this.nothing);
		this.spoken = el('p', { class: 'unseen', 'aria-live': 'polite', id: id + '-spoken' });
		this.summaryRows = el('tbody');
		this.summary = el('table', null,
			el('caption', null, `${this.title}, ${this.unit}`),
			el('thead', null, el('tr', null, ['Series', 'Last', 'Lowest', 'Mean', 'Highest'].map(h => el('th', { scope: 'col' }, h)))),
			this.summaryRows);
		this.tools = el('div', { class: 'tools' });
		this.node = el('section', { class: 'card chart', id, 'aria-labelledby': id + '-title' },
			el('header', null, el('h3', { id: id + '-title' }, this.title, ' ', el('span', { class: 'unit' }, this.unit)), this.tools),
			el('div', { class: 'legend-row' }, this.legend, this.when), this.plot, this.spoken, el('div', { class: 'unseen', id: id + '-summary' }, this.summary));
	}

	// setSeries changes what is drawn; nothing happens if it is the same.
	setSeries(series) {
		const sign = JSON.stringify(series.map(s => [s.name, s.label, s.look]));
		if (sign === this.sign) return;
		this.sign = sign;
		this.series = series;
		this.legend.replaceChildren();
		this.marks.replaceChildren();
		this.dots.replaceChildren();
		this.defs.querySelectorAll('.fill').forEach(p => p.remove());
		for (const s of series) {
			s.value = el('span', { class: 'value' });
			s.path = svg('path', { class: (this.stacked ? 'area' : 'line') + ' s' + s.look, 'stroke-dasharray': s.dash });
			s.dot = svg('circle', { r: 3, class: 'dot s' + s.look, visibility: 'hidden' });
			if (this.stacked) {
				s.texture = svg('path', { class: 'texture', fill: s.fill ? `url(#${this.id}-${s.fill})` : 'none' });
				if (s.fill && !this.defs.querySelector(`#${this.id}-${s.fill}`)) this.defs.append(texture(this.id, s.fill));
				s.edge = svg('path', { class: 'edge s' + s.look });
			}
			s.button = el('button', {
				type: 'button', class: 'key', 'aria-pressed': 'true', title: 'Show or hide this series',
				click: () => this.toggle(s),
			}, this.swatch(s), el('bdi', { class: 'label' }, visible(s.label)), ' ', s.value);
			this.legend.append(el('li', null, s.button));
			this.marks.append(...[s.path, s.texture, s.edge].filter(Boolean));
			this.dots.append(s.dot);
		}
		if (this.band) {
			this.band.value = el('span', { class: 'value' });
			this.legend.append(el('li', { class: 'key' }, svg('svg', { class: 'swatch', width: 16, height: 10, 'aria-hidden': 'true' }, svg('rect', { class: 'band', width: 16, height: 10 })), this.band.label, ' ', this.band.value));
		}
		if (this.model) this.draw(this.model);
	}

	swatch(s) {
		return svg('svg', { class: 'swatch', width: 16, height: 10, viewBox: '0 0 16 10', 'aria-hidden': 'true' },
			this.stacked ? [svg('rect', { class: 'area s' + s.look, width: 16, height: 10, rx: 2 }),
				s.fill ? svg('rect', { class: 'texture', width: 16, height: 10, rx: 2, fill: `url(#${this.id}-${s.fill})` }) : null]
				: svg('path', { class: 'line s' + s.look, d: 'M0 5H16', 'stroke-dasharray': s.dash }));
	}

	toggle(s) {
		const off = !this.hidden.delete(s.name);
		if (off) this.hidden.add(s.name);
		attr(s.button, 'aria-pressed', String(!off));
		this.later();
	}

	later() {
		if (this.due || !this.model) return;
		this.due = requestAnimationFrame(() => {
			this.due = 0;
			this.draw(this.model);
		});
	}

	// draw shows model = {until, step, length, values(name)}, times in ms; known, if
	// given, has a figure wherever something is known although no series has one.
	draw(model) {
		this.model = model;
		const width = Math.floor(this.plot.clientWidth);
		if (width === 0 || document.hidden) return;
		this.height = Math.max(this.least, Math.floor(this.plot.clientHeight));
		const { length, until, step } = model;
		const shown = this.series.filter(s => !this.hidden.has(s.name));
		for (const s of this.series) s.values = model.values(s.name) ?? [];
		// The top of each series: its value, or in a stack the sum up to it.
		let top = 0, any = false;
		const known = Array.from({ length }, (_, i) => (model.known?.[i] ?? null) !== null);
		const sum = new Array(length).fill(0);
		for (const s of shown) {
			s.low = this.stacked ? sum.slice() : null;
			s.high = new Array(length).fill(null);
			for (let i = 0; i < length; i++) {
				const v = s.values[i];
				if (v === null || v === undefined) continue;
				known[i] = true;
				if (v > 0) any = true;
				s.high[i] = this.stacked ? sum[i] += v : v;
				if (s.high[i] > top) top = s.high[i];
			}
		}
		if (this.stacked) {
			for (const s of shown) for (let i = 0; i < length; i++) if (known[i]) s.high[i] ??= s.low[i];
		}
		const marks = ticks(top, this.whole);
		const words = marks.map(v => this.format(v));
		const left = Math.max(28, 8 + 6.6 * Math.max(...words.map(w => w.length)));
		const box = this.box = { left, right: width - 10, top: 8, bottom: this.height - 20 };
		const max = marks.at(-1);
		this.x = i => box.left + (length < 2 ? 0 : i * (box.right - box.left) / (length - 1));
		this.y = v => box.bottom - v / max * (box.bottom - box.top);
		attr(this.drawing, 'width', width);
		attr(this.drawing, 'height', this.height);
		attr(this.drawing, 'viewBox', `0 0 ${width} ${this.height}`);
		this.axes(marks, words, model, width);
		for (const s of this.series) {
			const on = shown.includes(s);
			attr(s.path, 'd', on ? (this.stacked ? this.area(s, known) : this.line(s.high)) : '');
			if (s.texture) attr(s.texture, 'd', on ? s.path.getAttribute('d') : '');
			if (s.edge) attr(s.edge, 'd', on ? this.line(s.high.map((v, i) => s.values[i] > 0 ? v : null)) : '');
		}
		attr(this.gaps, 'd', this.runs(known.map(k => !k)));
		if (this.band) {
			this.band.values = model.values(this.band.name) ?? [];
			attr(this.bandPath, 'd', this.runs(Array.from({ length }, (_, i) => this.band.values[i] > 0)));
		}
		this.nothing.hidden = any || this.empty === '' || !known.includes(true);
		this.mark();
		if (!this.summed || Date.now() - this.summed > 5000) this.summarise();
	}

	axes(marks, words, { until, step, length }, width) {
		const { left, right, bottom, top } = this.box;
		attr(this.gridLines.firstChild ?? this.gridLines.appendChild(svg('path')), 'd',
			marks.map(v => `M${left} ${Math.round(this.y(v)) + 0.5}H${right}`).join(''));
		const texts = marks.map((v, i) => [left - 6, this.y(v) + 3.5, words[i], 'end']);
		const span = step * (length - 1), from = until - span;
		const room = Math.max(2, Math.floor((right - left) / 84));
		const stride = strides.find(s => span / s <= room) ?? 43200e3;
		const zone = new Date(until).getTimezoneOffset() * 60e3;
		for (let t = Math.ceil((from - zone) / stride) * stride + zone; t <= until; t += stride) {
			const x = left + (t - from) / Math.max(1, span) * (right - left);
			if (x < left + 12 || x > width - 22) continue;
			texts.push([x, bottom + 15, clock(t, stride < 60e3).slice(-8).replace(/^.* /, '').trim(), 'middle']);
		}
		while (this.labels.childNodes.length > texts.length) this.labels.lastChild.remove();
		texts.forEach(([x, y, text, anchor], i) => {
			const node = this.labels.childNodes[i] ?? this.labels.appendChild(svg('text'));
			attr(node, 'x', x.toFixed(1));
			attr(node, 'y', y.toFixed(1));
			attr(node, 'text-anchor', anchor);
			put(node, text);
		});
	}

	line(values) {
		let d = '', pen = false;
		for (let i = 0; i < values.length; i++) {
			const v = values[i];
			if (v === null || v === undefined) {
				pen = false;
				continue;
			}
			const x = this.x(i).toFixed(1), y = this.y(v).toFixed(1);
			d += pen ? `L${x} ${y}` : `M${x} ${y}h.01`; // a single point is a dot
			pen = true;
		}
		return d;
	}

	area(s, known) {
		let d = '';
		for (let i = 0; i < known.length; i++) {
			if (!known[i]) continue;
			let j = i, there = '', back = '';
			for (; j < known.length && known[j]; j++) {
				const x = this.x(j).toFixed(1);
				there += `${there ? 'L' : 'M'}${x} ${this.y(s.high[j]).toFixed(1)}`;
				back = `L${x} ${this.y(s.low[j]).toFixed(1)}` + back;
			}
			d += there + back + 'Z';
			i = j;
		}
		return d;
	}

	// runs are boxes over the times at which something holds.
	runs(holds) {
		let d = '';
		for (let i = 0; i < holds.length; i++) {
			if (!holds[i]) continue;
			let j = i;
			while (j + 1 < holds.length && holds[j + 1]) j++;
			const x1 = this.x(Math.max(0, i - 1)), x2 = this.x(Math.min(holds.length - 1, j + 1));
			d += `M${x1.toFixed(1)} ${this.box.top}H${x2.toFixed(1)}V${this.box.bottom}H${x1.toFixed(1)}Z`;
			i = j;
		}
		return d;
	}

	// index of the crosshair, null where there is none.
	index() {
		const m = this.model;
		if (!m || this.group.at === null || m.until === null || m.length === 0) return null;
		const i = m.length - 1 - Math.round((m.until - this.group.at) / m.step);
		return i >= 0 && i < m.length ? i : null;
	}

	timeOf(i) {
		return this.model.until - (this.model.length - 1 - i) * this.model.step;
	}

	// mark shows the crosshair and the values of its moment, else the last ones.
	mark() {
		if (!this.model || !this.box) return;
		const i = this.index();
		attr(this.hair, 'd', i === null ? '' : `M${this.x(i).toFixed(1)} ${this.box.top}V${this.box.bottom}`);
		put(this.when, i === null ? '' : clock(this.timeOf(i)));
		if (this.band) {
			const v = i === null ? last(this.band.values) : this.band.values?.[i];
			put(this.band.value, v === null || v === undefined ? unknown : v > 0 ? 'yes' : 'no');
		}
		for (const s of this.series) {
			const v = i === null ? last(s.values) : s.values?.[i];
			put(s.value, this.format(v ?? null));
			const high = i === null || this.hidden.has(s.name) ? null : s.high?.[i];
			const seen = high !== null && high !== undefined;
			attr(s.dot, 'visibility', seen ? 'visible' : 'hidden');
			if (seen) {
				attr(s.dot, 'cx', this.x(i).toFixed(1));
				attr(s.dot, 'cy', this.y(high).toFixed(1));
			}
		}
	}

	moveTo(i) {
		i = Math.max(0, Math.min(this.model.length - 1, i));
		this.group.point(this.timeOf(i));
		const said = this.series.filter(s => !this.hidden.has(s.name))
			.map(s => `${visible(s.label)} ${this.format(s.values?.[i] ?? null)}`.replace(unknown, 'not known'));
		put(this.spoken, `${clock(this.timeOf(i))}: ${said.join(', ')}`);
	}

	key(e) {
		if (!this.model || this.model.length === 0 || e.altKey || e.ctrlKey || e.metaKey) return;
		const at = this.index() ?? this.model.length - 1, far = Math.max(2, Math.round(this.model.length / 10));
		const to = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - far, PageDown: at + far, Home: 0, End: this.model.length - 1 }[e.key];
		if (e.key === 'Escape') this.group.point(null);
		else if (to !== undefined) this.moveTo(to);
		else return;
		e.preventDefault();
	}

	follow(e) {
		if (!this.model || !this.box || this.model.length < 2) return;
		const x = e.clientX - this.plot.getBoundingClientRect().left;
		const share = (x - this.box.left) / (this.box.right - this.box.left);
		const i = Math.round(Math.max(0, Math.min(1, share)) * (this.model.length - 1));
		this.group.point(this.timeOf(i));
	}

	// summarise writes the table that stands for the drawing.
	summarise() {
		this.summed = Date.now();
		const span = this.model.step * this.model.length / 1000;
		put(this.summary.caption, `${this.title}, ${this.unit}, over ${seconds(span)}`);
		this.summaryRows.replaceChildren(...this.series.map(s => {
			const known = (s.values ?? []).filter(v => v !== null && v !== undefined);
			const cells = known.length === 0 ? [unknown, unknown, unknown, unknown]
				: [known.at(-1), Math.min(...known), known.reduce((a, b) => a + b, 0) / known.length, Math.max(...known)].map(this.format);
			return el('tr', null, el('th', { scope: 'row' }, visible(s.label)), cells.map(c => el('td', null, c)));
		}));
	}
}

// last is the newest figure, if it is not older than a few steps.
function last(values) {
	for (let i = (values?.length ?? 0) - 1, n = 0; i >= 0 && n < 3; i--, n++) {
		if (values[i] !== null && values[i] !== undefined) return values[i];
	}
	return null;
}

function texture(id, kind) {
	const d = { hatch: 'M0 0V6', cross: 'M0 3H6M3 0V6', dots: 'M2 2h1.5v1.5h-1.5z' }[kind];
	return svg('pattern', {
		class: 'fill', id: `${id}-${kind}`, width: 6, height: 6, patternUnits: 'userSpaceOnUse',
		patternTransform: kind === 'dots' ? null : 'rotate(45)',
	}, svg('path', { d, class: kind === 'dots' ? 'texture-dot' : 'texture-line' }));
}

// looks are the colours and dashes of lines whose names are not known before.
export const looks = [
	{ look: 2 }, { look: 1, dash: '6 3' }, { look: 5, dash: '2 3' }, { look: 6, dash: '8 3 2 3' },
	{ look: 7, dash: '1 4' }, { look: 3, dash: '4 2' }, { look: 4, dash: '3 6' },
];

