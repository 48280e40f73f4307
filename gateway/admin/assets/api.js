// Asking the gateway. The token stays in this tab and travels in Authorization only.

const place = 'admin-token';
let kept = null;

try {
	kept = sessionStorage.getItem(place);
} catch { /* a browser that keeps nothing keeps no token either */ }

export function token() {
	return kept;
}

export function keepToken(value) {
	kept = value || null;
	try {
		if (kept) sessionStorage.setItem(place, kept);
		else sessionStorage.removeItem(place);
	} catch { /* it lasts as long as the page */ }
}

// A Refusal is an answer that is no answer: its status, and the gateway's words.
export class Refusal extends Error {
	constructor(status, words, retryAfter) {
		super(words);
		this.status = status;
		this.retryAfter = retryAfter;
	}
}

let refused = () => {};

// onRefused is told when the token is asked for, or is no longer taken.
export function onRefused(f) {
	refused = f;
}

// ask is fetch with the token, and throws a Refusal for what is not 2xx.
export async function ask(path, options = {}) {
	const headers = new Headers(options.headers);
	if (kept) headers.set('Authorization', 'Bearer ' + kept);
	const answer = await fetch(path, { cache: 'no-store', credentials: 'same-origin', ...options, headers }).catch(e => {
		// A browser's own words for it help nobody.
		throw e.name === 'TypeError' ? new Error('the gateway cannot be reached') : e;
	});
	if (answer.ok) return answer;
	let words = 'the gateway answered ' + answer.status;
	try {
		const problem = JSON.parse(await answer.text());
		words = problem.detail || problem.title || words;
	} catch { /* no words */ }
	const refusal = new Refusal(answer.status, words, Number(answer.headers.get('Retry-After')) || 0);
	if (answer.status === 401 && !options.quiet) refused(refusal);
	throw refusal;
}

export async function json(path, options) {
	return (await ask(path, options)).json();
}

// change asks for something that alters state. The gateway takes it with this type
// of content only, which no form of another site can send.
export function change(path, body) {
	return json(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body), quiet: true });
}

// session says what this page may do.
export async function session() {
	try {
		return await json('/api/session', { quiet: true });
	} catch (e) {
		if (e instanceof Refusal && e.status === 401) {
			keepToken(null);
			return { token_needed: true, token_configured: true, signed_in: false, may_change: false };
		}
		throw e;
	}
}

// query writes the members that say something.
export function query(members) {
	const q = new URLSearchParams();
	for (const [name, value] of Object.entries(members)) {
		if (value !== '' && value !== null && value !== undefined) q.set(name, value);
	}
	const text = q.toString();
	return text ? '?' + text : '';
}
