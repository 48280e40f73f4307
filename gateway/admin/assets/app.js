// The page as a whole: which view is shown, the stream, and how old what it says is.

import { ask, keepToken, onRefused, session, token } from './api.js';
import { attr, el, put } from './dom.js';
import { ahead, clock, millis, seconds, sync, utc, visible } from './format.js';
import { Live } from './live.js';
import { overview } from './overview.js';
import { callerView } from './caller.js';
import { denialsView } from './denials.js';
import { helpView } from './help.js';
import { search } from './search.js';
import { signInDialog, signInView } from './signin.js';

const old = 3000; // ms of silence after which what is shown is called old

const noLonger = 'The token of this tab is no longer taken: it was changed. ';

const $ = id => document.getElementById(id);
const main = $('main'), pulse = $('pulse'), lostBox = $('lost'), said = $('said'), sign = $('sign');
const lostWords = el('span', { role: 'alert' }), lostAge = el('span', { 'aria-hidden': 'true' }), retry = el('button', { type: 'button', class: 'quiet', click: () => live.hurry() }, 'Try now');
lostBox.append(lostWords, ' ', lostAge, ' ', retry);

let may = { token_needed: false, token_configured: false, signed_in: false, may_change: false };
let latest = null, heardAt = null, begun = Date.now(), reason = '', current = null, expired = false;

const say = words => {
	put(said, '');
	setTimeout(() => put(said, words), 50);
	said.classList.add('toast');
	clearTimeout(said.timer);
	said.timer = setTimeout(() => said.classList.remove('toast'), 8000);
};

const views = {
	overview: overview(),
	denials: denialsView(),
	caller: callerView({ mayChange: () => may.may_change, signIn: why => may.token_configured ? signInDialog(why, signedIn) : say('That needs the admin token, and none is configured: set admin.token_file in routes.yaml.'), say }),
	help: helpView(),
};

const live = new Live('/api/live', {
	state(s) {
		latest = s;
		heardAt = Date.now();
		sync(millis(s.at));
		reason = '';
		views.overview.feed(s);
		render();
		age();
	},
	began: () => views.overview.past(),
	lost(why) {
		reason = why;
		age();
	},
});

let due = false;

function render() {
	if (due || document.hidden) return;
	due = true;
	requestAnimationFrame(() => {
		due = false;
		if (latest && current?.live) current.update(latest);
		heading();
	});
}

function heading() {
	if (!latest) return;
	put($('instance'), visible(latest.instance?.hostname ?? ''));
}

// age says how old the figures are. It asks the clock rather than count, since a
// machine that sleeps does not count.
function age() {
	const shown = current && current !== views.signin;
	const silent = Date.now() - (heardAt ?? begun), lost = shown && silent > old;
	document.body.classList.toggle('old', Boolean(lost && heardAt));
	lostBox.hidden = !lost;
	if (lost) {
		put(lostWords, heardAt ? `The stream is lost: what is shown is from ${clock(heardAt - ahead())}.` : 'Nothing has come from the gateway yet.');
		const next = live.retryAt === null ? 'Asking…' : `Trying again in ${seconds(Math.max(0, Math.ceil((live.retryAt - Date.now()) / 1000)))}.`;
		put(lostAge, `Nothing heard for ${seconds(silent / 1000 | 0)}${reason ? ': ' + reason : ''}. ${next}`);
	}
	pulse.className = 'pulse ' + (lost ? 'bad' : heardAt ? 'good' : 'plain');
	put(pulse, lost ? 'Old' : heardAt ? 'Live ' + clock(heardAt - ahead()) : 'Connecting');
	attr(pulse, 'title', heardAt ? 'Last heard at ' + utc(heardAt - ahead()) : null);
	let mark = '';
	if (lost) mark = '? ';
	else if (latest && !latest.ready) mark = '■ ';
	else if (latest?.findings?.length) mark = (latest.findings.some(f => f.severity === 'act') ? '■ ' : '▲ ');
	const host = latest?.instance?.hostname ? ' · ' + visible(latest.instance.hostname) : '';
	const title = mark + (current?.title ? current.title + ' · ' : '') + 'Gateway' + host;
	if (document.title !== title) document.title = title;
}

// route shows the view that the address names. What does not begin with #/ is a
// place on the first view.
function route() {
	if (may.token_needed && !may.signed_in) {
		views.signin ??= signInView(signedIn);
		views.signin.because(expired ? noLonger : '');
		change('signin', [], new URLSearchParams());
		return;
	}
	const hash = location.hash;
	if (!hash.startsWith('#/')) {
		change('overview', [], new URLSearchParams());
		if (hash.length > 1) $(hash.slice(1))?.scrollIntoView();
		return;
	}
	const [path, search = ''] = hash.slice(2).split('?', 2);
	const parts = path.split('/').map(part => {
		try {
			return decodeURIComponent(part);
		} catch {
			return part;
		}
	});
	const [view, ...rest] = parts;
	const known = view === 'denials' || view === 'help' || view === 'caller' && ['user', 'key', 'ip'].includes(rest[0]) && rest[1];
	change(known ? view : 'overview', rest, new URLSearchParams(search));
}

function change(name, parts, params) {
	const next = views[name], first = !current;
	if (current !== next) {
		current?.hide();
		main.replaceChildren(next.node);
		current = next;
		if (!first) scrollTo(0, 0);
	}
	for (const a of document.querySelectorAll('[data-view]')) attr(a, 'aria-current', a.dataset.view === name ? 'page' : null);
	document.body.dataset.view = name;
	next.show(parts, params);
	if (next.live && latest) next.update(latest);
	if (!first && name !== 'signin' && name !== 'help') main.focus({ preventScroll: true });
	age();
}

function signedIn(s) {
	may = s;
	expired = false;
	begin();
}

function begin() {
	const locked = may.token_needed && !may.signed_in;
	document.body.classList.toggle('locked', locked);
	sign.hidden = !(may.signed_in && token()) && !(may.token_configured && !may.may_change && !locked);
	put(sign, may.signed_in && token() ? 'Sign out' : 'Sign in');
	if (locked) live.stop();
	else if (!live.running) {
		begun = Date.now();
		live.start();
	}
	route();
}

sign.addEventListener('click', async () => {
	if (!token()) {
		signInDialog('The admin token lets you reset a limit.', signedIn);
		return;
	}
	keepToken(null);
	live.stop();
	latest = heardAt = null;
	try {
		may = await session();
	} catch {
		may = { ...may, signed_in: false, may_change: false };
	}
	// Nothing that was shown to who has the token stays for who has not.
	if (may.token_needed) location.reload();
	else begin();
});

onRefused(async () => {
	if (may.token_needed && !may.signed_in) return;
	expired = token() !== null;
	keepToken(null);
	put(said, '');
	may = { ...may, token_needed: true, signed_in: false, may_change: false };
	latest = heardAt = null;
	try {
		may = await session();
	} catch { /* until it is known, nothing is shown */ }
	if (expired && !may.token_needed) {
		expired = false;
		say(noLonger);
	}
	begin();
});

// A link alone would come without the token, so the answer is fetched and shown.
main.addEventListener('click', async e => {
	const a = e.target.closest?.('.endpoints a');
	if (!a || !token() || e.defaultPrevented) return;
	e.preventDefault();
	try {
		const answer = await ask(a.getAttribute('href'));
		const text = new Blob([await answer.text()], { type: 'text/plain;charset=utf-8' });
		const url = URL.createObjectURL(text);
		open(url, '_blank', 'noopener');
		setTimeout(() => URL.revokeObjectURL(url), 60000);
	} catch (err) {
		say('Not shown: ' + err.message);
	}
});

$('skip').addEventListener('click', e => {
	e.preventDefault();
	main.focus();
	main.scrollIntoView();
});

$('search').append(search());
addEventListener('hashchange', route);
document.addEventListener('visibilitychange', () => {
	age();
	render();
});
setInterval(age, 1000);

for (let wait = 500; ; wait = Math.min(10000, wait * 2)) {
	try {
		may = await session();
		break;
	} catch (e) {
		// The page is here, so the gateway was: it will be again.
		reason = e.message;
		if (wait > 2000) put(main, 'The gateway does not answer. Asking again…');
		await new Promise(done => setTimeout(done, wait));
	}
}
begin();
