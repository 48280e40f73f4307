// The stream of states: read by fetch, since EventSource carries no Authorization.

import { ask, Refusal } from './api.js';

const silence = 8000; // ms without a byte, after which the connection counts as dead
const asleep = 60000; // ms out of sight, after which the stream is let go: a browser
// has six connections for all its tabs on one gateway

// A Live calls state(object) for each state, began() when a stream begins, and
// lost(reason) when it ends. It comes back by itself, ever more slowly.
export class Live {
	constructor(path, { state, began, lost }) {
		Object.assign(this, { path, state, began, lost });
		this.tries = 0;
		this.retryAt = null; // when it tries again, for whoever shows it
		this.running = false;
		document.addEventListener('visibilitychange', () => this.seen());
		addEventListener('online', () => this.hurry());
		addEventListener('pageshow', () => this.hurry());
	}

	start() {
		this.running = true;
		this.tries = 0;
		this.connect();
	}

	stop() {
		this.running = false;
		clearTimeout(this.timer);
		clearTimeout(this.nap);
		this.controller?.abort();
		this.controller = null;
		this.retryAt = null;
	}

	// hurry tries now rather than later.
	hurry() {
		if (this.running && !this.controller) {
			this.tries = 0;
			this.connect();
		}
	}

	seen() {
		clearTimeout(this.nap);
		if (!this.running) return;
		if (document.hidden) {
			this.nap = setTimeout(() => {
				clearTimeout(this.timer);
				this.sleeping = true;
				this.controller?.abort();
				this.controller = null;
			}, asleep);
			return;
		}
		this.sleeping = false;
		// A machine that slept may hold a connection that nobody is at the end of.
		if (this.controller && Date.now() - this.heard > silence) this.controller.abort();
		this.hurry();
	}

	async connect() {
		clearTimeout(this.timer);
		this.retryAt = null;
		const controller = this.controller = new AbortController();
		this.heard = Date.now();
		const watch = setInterval(() => {
			if (Date.now() - this.heard > silence) controller.abort();
		}, 1000);
		let reason = 'the gateway ended the stream', wait = 0;
		try {
			const answer = await ask(this.path, { headers: { Accept: 'text/event-stream' }, signal: controller.signal });
			this.began();
			await this.read(answer.body);
		} catch (e) {
			if (e instanceof Refusal) {
				reason = e.message;
				wait = e.retryAfter * 1000;
			} else if (controller.signal.aborted) {
				reason = 'nothing came any more';
			} else {
				reason = 'the gateway cannot be reached';
			}
		} finally {
			clearInterval(watch);
		}
		if (this.controller === controller) this.controller = null;
		if (!this.running || this.controller) return;
		this.lost(reason);
		if (this.sleeping) return;
		// Half a second, then twice as long each time, ten seconds at most; a little
		// chance keeps many pages from coming back in one moment.
		wait = Math.max(wait, Math.min(10000, 500 * 2 ** Math.min(this.tries++, 5)) * (0.75 + Math.random() / 2));
		this.retryAt = Date.now() + wait;
		this.timer = setTimeout(() => this.connect(), wait);
	}

	async read(body) {
		const reader = body.pipeThrough(new TextDecoderStream()).getReader();
		let rest = '', data = [];
		for (;;) {
			const { value, done } = await reader.read();
			if (done) return;
			this.heard = Date.now();
			rest += value;
			if (rest.length > 16 << 20) throw new Error('a line without end');
			const lines = rest.split(/\r\n|\n/);
			rest = lines.pop();
			for (const line of lines) {
				if (line.startsWith('data:')) data.push(line.slice(line[5] === ' ' ? 6 : 5));
				if (line !== '' || data.length === 0) continue;
				const text = data.join('\n');
				data = [];
				this.tries = 0;
				this.state(JSON.parse(text));
			}
		}
	}
}
