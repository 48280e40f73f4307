package proxy_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/proxy"
)

// A client that sends no more of its body, and reads still, hears that it was too slow:
// net/http ends its request's context for that, as if it had left. Neither kind of
// upstream is to blame.
func TestABodyThatStandsStillIs408(t *testing.T) {
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	http1 := httptest.NewServer(h)
	defer http1.Close()
	http2 := httptest.NewUnstartedServer(h)
	http2.Config.Protocols = new(http.Protocols)
	http2.Config.Protocols.SetUnencryptedHTTP2(true)
	http2.Start()
	defer http2.Close()
	for _, target := range []string{http1.URL, strings.Replace(http2.URL, "http:", "h2c:", 1)} {
		g := newGateway(t, settings{patient: 50 * time.Millisecond}, target) // as a listener that bounds a body
		for name, body := range map[string]string{
			"no byte": "Content-Length: 6\r\n\r\n", "a part": "Content-Length: 6\r\n\r\nabc",
			"chunks": "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
		} {
			res := roundTrip(t, g.address(), "POST / HTTP/1.1\r\nHost: a\r\n"+body)
			o := receive(t, g.outcomes, "an outcome")
			if res.StatusCode != 408 || o.err == nil || o.err.Reason != proxy.ReasonClientBody || !errors.Is(o.scope.UpstreamErr, proxy.ErrClient) {
				t.Errorf("%s to %s: %d, %+v; want 408", name, target, res.StatusCode, o.err)
			}
		}
	}
}
