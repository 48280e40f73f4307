// How to read the page, in short. The whole is the runbook.

import { el } from './dom.js';

const causes = [
	['client', 'One client is noisy', 'One caller makes most of the denials, the others are served as ever.',
		['“Top denied” shows one bar far longer than the rest. Its page says who it is, from which addresses it comes and which limit it meets.',
			'The limit does its work: the others are safe. Tell the caller; do not raise the limit for one.',
			'Is it an address? Its page says how many users and user agents were seen behind it. Many of both are people behind one address; one of both is one client.']],
	['limit', 'A limit is too tight', 'Many different callers are denied by one limit, none of them stands out.',
		['“Denied” by limit names it; “Top denied” shows many short bars; “Near their limit” is long.',
			'Export the denials of this limit and let “gateway simulate” say which number would have let them pass, before you change it.']],
	['redis', 'It is Redis', 'The shared count is slow or away; what happens then is what each route says (on_store_failure).',
		['The panel “Redis” says since when, by which errors, and which modes are in use. Round trips that grow before it goes away speak for load or the network.',
			'Requests go on, with reduced accuracy where the mode is a local cap. The instance stays ready, and says that it is degraded.']],
	['upstream', 'It is the upstream', 'Requests fail or are slow behind the gateway.',
		['“Failed” grows while added latency is as it was; total latency grows alone. “Upstreams” names the target that is down, or whose errors rise.']],
	['gateway', 'It is us', 'The gateway itself is slow, overloaded or not ready.',
		['Added latency grows without Redis or the upstream: look at CPU, goroutines and in-flight of this process, then at the profiles.']],
	['config', 'The configuration', 'A change was rejected, or the instances do not have the same one.',
		['What is shown as in force stays in force. The mistakes stand under “Configuration” with file, line and column; “gateway check” says them again.']],
];

const words = [
	['allowed', 'answered by the upstream, or by the gateway without a complaint'],
	['denied', 'refused by a limit: 429, or 503 where the limit is the gateway’s own'],
	['failed', 'a 5xx of the gateway or the upstream'],
	['refused', 'not let in for another reason: 401, 403, 404, 405 and the like'],
	['added latency', 'the time of a request without its upstream'],
	['count ± error', 'the list of the heaviest is bounded; a count may hold as much of others as stands after ±'],
	['hatched grey', 'in a chart: a time of which nothing is known'],
];

const keys = [['← →', 'move the crosshair of a chart that has the focus'], ['Page Up, Page Down', 'move it a tenth of the chart'], ['Home, End', 'to the first and the last moment'], ['Esc', 'take it away']];

export function helpView() {
	const node = el('div', { class: 'view narrow' }, el('h1', null, 'What to do'),
		el('p', null, 'Is it us, is it Redis, is the limit too tight, or is one client noisy? The findings on the first page say what stands out; here is what each means. The whole is in the ', el('a', { href: '/runbook' }, 'runbook'), '.'),
		causes.map(([id, title, what, how]) => el('section', { class: 'card', id: 'help-' + id, tabindex: '-1', 'aria-labelledby': 'help-title-' + id },
			el('h2', { id: 'help-title-' + id }, title), el('p', null, what), el('ul', null, how.map(h => el('li', null, h))))),
		el('section', { class: 'card', 'aria-labelledby': 'help-words' }, el('h2', { id: 'help-words' }, 'Words'),
			el('dl', { class: 'facts wordlist' }, words.map(([k, v]) => el('div', null, el('dt', null, k), el('dd', null, v))))),
		el('section', { class: 'card', 'aria-labelledby': 'help-keys' }, el('h2', { id: 'help-keys' }, 'Keys'),
			el('dl', { class: 'facts wordlist' }, keys.map(([k, v]) => el('div', null, el('dt', null, el('kbd', null, k)), el('dd', null, v))))));
	return {
		node, title: 'Help', hide() {},
		show([cause]) {
			const part = cause && node.querySelector('#help-' + CSS.escape(cause));
			if (part) {
				part.scrollIntoView({ block: 'start' });
				part.focus({ preventScroll: true });
			}
		},
	};
}
