// The sign-in: one field for the admin token.

import { keepToken, session } from './api.js';
import { el, put } from './dom.js';

// signInForm calls done with the new session once the token is taken.
export function signInForm(why, done) {
	const reason = el('p', null, why);
	const trouble = el('p', { class: 'flag bad', role: 'alert', hidden: true });
	const input = el('input', { id: 'token', type: 'password', autocomplete: 'off', required: true, spellcheck: 'false', maxlength: 4096 });
	const button = el('button', { type: 'submit', class: 'primary' }, 'Sign in');
	const form = el('form', {
		class: 'signin', 'aria-label': 'Sign in', async submit(e) {
			e.preventDefault();
			const value = input.value.trim();
			trouble.hidden = true;
			// A field of HTTP carries these and no others.
			if (!/^[\x21-\x7e]+$/.test(value)) {
				complain('A token has no spaces and no letters beyond ASCII; was something else pasted?');
				return;
			}
			button.disabled = true;
			keepToken(value);
			try {
				const s = await session();
				if (s.signed_in) {
					input.value = '';
					done(s);
					return;
				}
				keepToken(null);
				complain(s.token_configured ? 'That is not the admin token of this gateway.' : 'No admin token is configured; set admin.token_file in routes.yaml.');
			} catch (err) {
				keepToken(null);
				complain('The gateway could not be asked: ' + err.message);
			} finally {
				button.disabled = false;
			}
		},
	}, reason, el('label', { for: 'token' }, 'Admin token'), input, trouble, el('p', { class: 'buttons' }, button));
	function complain(words) {
		put(trouble, words);
		trouble.hidden = false;
		input.select();
	}
	form.focusField = () => input.focus();
	form.because = words => put(reason, words + why);
	return form;
}

// signInView fills the page, for a listener that shows nothing without the token.
export function signInView(done) {
	const form = signInForm('This listener can be reached from other machines, so it shows figures only to those who have the admin token (the content of admin.token_file). The token stays in this tab and is forgotten with it.', done);
	return { node: el('div', { class: 'view narrow' }, el('section', { class: 'card', 'aria-labelledby': 'signin-title' }, el('h1', { id: 'signin-title' }, 'Sign in'), form)), title: 'Sign in', because: form.because, show: () => form.focusField(), hide() {} };
}

// signInDialog asks for the token in passing.
export function signInDialog(why, done) {
	const form = signInForm(why, s => {
		dialog.close();
		done(s);
	});
	form.lastChild.append(el('button', { type: 'button', class: 'quiet', click: () => dialog.close() }, 'Cancel'));
	const dialog = el('dialog', { class: 'dialog', 'aria-labelledby': 'signin-dialog', close: () => dialog.remove() }, el('h2', { id: 'signin-dialog' }, 'Sign in'), form);
	document.body.append(dialog);
	dialog.showModal();
	form.focusField();
}
