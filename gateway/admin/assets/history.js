// The past of every series, for one window at a time.

import { json } from './api.js';

export const windows = [['5m', '5 min'], ['1h', '1 h'], ['24h', '24 h']];

// How long the answer for a window stays good, ms. The shortest one is kept up to
// date by what the stream says.
const again = { '5m': Infinity, '1h': 10000, '24h': 60000 };

export class History {
	constructor(changed) {
		this.changed = changed;
		this.window = '5m';
		this.clear();
	}

	clear() {
		this.series = new Map();
		this.step = 1000;
		this.until = null;
		this.length = 0;
		this.loadedAt = 0;
		this.error = '';
	}

	choose(window) {
		if (this.window === window) return Promise.resolve();
		this.window = window;
		this.clear();
		this.changed();
		return this.load();
	}

	// load asks for the whole window: at the beginning, and after every silence.
	async load() {
		const window = this.window, turn = this.turn = {};
		this.waiting = [];
		try {
			const h = await json('/api/history?window=' + window);
			if (this.turn !== turn) return; // another was asked for meanwhile
			this.series = new Map(h.series.map(s => [s.name, { unit: s.unit, values: s.values }]));
			this.step = h.step_s * 1000;
			this.until = Date.parse(h.until);
			this.length = Math.max(0, ...h.series.map(s => s.values.length));
			this.error = '';
			this.loadedAt = Date.now();
			this.seq = undefined;
			const missed = this.waiting;
			this.waiting = null;
			for (const s of missed) this.add(s);
		} catch (e) {
			if (this.turn !== turn) return;
			this.waiting = null;
			this.error = e.message;
			this.retryAt = Date.now() + 5000;
		}
		this.changed();
	}

	// add appends the figures of one second; seconds that nobody told are gaps.
	add(s) {
		if (this.error) {
			if (!this.waiting && Date.now() > this.retryAt) this.load();
			return;
		}
		if (this.window !== '5m') {
			if (Date.now() - this.loadedAt > again[this.window] && !this.waiting) this.load();
			return;
		}
		if (this.waiting) {
			this.waiting.push(s);
			if (this.waiting.length > 300) this.waiting.shift();
			return;
		}
		const t = Date.parse(s.at), now = s.now ?? {};
		if (this.until === null || !Number.isFinite(t)) return;
		// States are numbered, one a second: the next one is the next second, however
		// early or late it was taken.
		let steps = Math.round((t - this.until) / this.step);
		if (steps <= 2 && steps >= 0 && this.seq !== undefined && s.seq === this.seq + 1) steps = 1;
		this.seq = s.seq;
		if (steps <= 0) return;
		this.until += steps * this.step;
		steps = Math.min(steps, this.length);
		for (const name of Object.keys(now)) {
			if (!this.series.has(name)) this.series.set(name, { unit: '', values: new Array(this.length).fill(null) });
		}
		for (const [name, { values }] of this.series) {
			for (let i = 1; i < steps; i++) values.push(null);
			values.push(now[name] ?? null);
			values.splice(0, values.length - this.length);
			if (!(name in now) && values.every(v => v === null)) this.series.delete(name);
		}
	}

	values(name) {
		return this.series.get(name)?.values ?? null;
	}

	// family returns the series whose names begin so, busiest first.
	family(prefix) {
		const found = [];
		for (const [name, s] of this.series) {
			if (!name.startsWith(prefix)) continue;
			let sum = 0;
			for (const v of s.values) sum += v ?? 0;
			found.push({ name, label: name.slice(prefix.length), sum });
		}
		return found.sort((a, b) => (a.label === '(others)') - (b.label === '(others)') || b.sum - a.sum || (a.label < b.label ? -1 : 1));
	}
}
