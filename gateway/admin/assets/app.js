// The page: what the gateway is doing now. What comes from the gateway is put
// in as text, never as markup.
const state = document.getElementById('state');

const session = await (await fetch('/api/session')).json();
if (session.token_needed && !session.signed_in) {
  state.textContent = 'This page needs the admin token.';
} else {
  const ready = await (await fetch('/readyz')).json();
  state.textContent = !ready.ready ? 'Not ready: ' + ready.reason : ready.degraded.length ? 'Ready, degraded' : 'Ready';
  document.getElementById('status').textContent = await (await fetch('/api/status')).text();
}
