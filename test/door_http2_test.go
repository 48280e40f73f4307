package test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// What HTTP/1 cannot say, or would say differently, is refused in HTTP/2 as well:
// the request is answered 400, or its stream is reset, and nothing of it reaches
// the upstream. The other streams of its connection go on.
func TestOnlyWhatEverybodyReadsAlikePassesOverHTTP2(t *testing.T) {
	t.Parallel()
	u := newRecorder(t)
	g := proxySite(t, u.url).start()
	good := []string{":method GET", ":scheme http", ":authority a", ":path /x"}
	with := func(fields ...string) []string { return append(slices.Clone(good), fields...) }
	instead := func(field string) []string {
		name, _, _ := strings.Cut(field, " ")
		f := slices.Clone(good)
		f[slices.IndexFunc(f, func(s string) bool { return strings.HasPrefix(s, name+" ") })] = field
		return f
	}
	without := func(name string) []string {
		return slices.DeleteFunc(slices.Clone(good), func(s string) bool { return strings.HasPrefix(s, name+" ") })
	}
	rows := []struct {
		name   string
		fields []string
		body   string // sent if it is not "-"
		answer string // a status, or "reset"
	}{
		{"a GET", good, "-", "200"},
		{"a body", with("content-length 3"), "abc", "200"},
		{"a body of unknown length", good, "abc", "200"},
		{"trailers are understood", with("te trailers"), "-", "200"},
		{"a Host alike", with("host a"), "-", "200"},
		{"a query", instead(":path /x?a=1;b=2&c=%zz"), "-", "200"},

		{"connection", with("connection close"), "-", "400"},
		{"keep-alive", with("keep-alive timeout=1"), "-", "400"},
		{"proxy-connection", with("proxy-connection close"), "-", "400"},
		{"a coding", with("transfer-encoding chunked"), "abc", "400"},
		{"a coding with an underscore", with("transfer_encoding chunked"), "abc", "400"},
		{"an upgrade", with("upgrade websocket"), "-", "400"},
		{"te gzip", with("te gzip"), "-", "400"},
		{"te with more than trailers", with("te trailers, deflate"), "-", "400"},
		{"a length that is too small", with("content-length 2"), "abc", "reset"},
		{"a length, and no body", with("content-length 3"), "-", "400"},
		{"two lengths", with("content-length 3", "content-length 3"), "abc", "400"},
		{"a length of letters", with("content-length abc"), "-", "400"},
		{"a signed length", with("content-length +3"), "-", "400"},
		{"a length with an underscore", with("content_length 3"), "abc", "400"},
		{"another Host", with("host b"), "-", "400"},
		{"two Hosts", with("host a", "host b"), "-", "400"},
		{"no authority", without(":authority"), "-", "400"},
		{"an empty authority", instead(":authority "), "-", "400"},
		{"an authority with a path", instead(":authority a/b"), "-", "400"},
		{"an authority with a user", instead(":authority user@a"), "-", "reset"},
		{"an authority with a blank", instead(":authority a b"), "-", "400"},
		{"an authority with a bad port", instead(":authority a:b"), "-", "400"},
		{"an authority with two ports", instead(":authority a:80:80"), "-", "400"},
		{"a path with a blank", instead(":path /a b"), "-", "400"},
		{"a path with a fragment", instead(":path /a#b"), "-", "400"},
		{"a star", instead(":path *"), "-", "400"},
		{"a whole URL for a path", instead(":path http://b/x"), "-", "400"},
		{"an unknown expectation", with("expect wonders"), "-", "417"},
		{"a tunnel", []string{":method CONNECT", ":authority a:443"}, "-", "501"},
		{"a trace", instead(":method TRACE"), "-", "501"},

		{"no method", without(":method"), "-", "reset"},
		{"no path", without(":path"), "-", "reset"},
		{"an empty path", instead(":path "), "-", "reset"},
		{"a path without a slash", instead(":path x"), "-", "reset"},
		{"a bad escape", instead(":path /%zz"), "-", "reset"},
		{"a method with a blank", instead(":method GET /y"), "-", "400"},
		{"a method with a line end", instead(":method GET\r\nX: y"), "-", "reset"},
		{"two paths", with(":path /y"), "-", "reset"},
		{"an unknown pseudo field", with(":evil 1"), "-", "reset"},
		{"a name in capitals", with("X-A 1"), "-", "reset"},
		{"a name with a colon", with("x:a 1"), "-", "reset"},
		{"a name with a line end", with("x\r\nhost 1"), "-", "reset"},
		{"a value with a line end", with("x-a 1\r\nx-b: 2"), "-", "reset"},
		{"a value with a NUL", with("x-a \x00"), "-", "reset"},
	}
	c := g.dial()
	c.say(http2.ClientPreface)
	framer := http2.NewFramer(c.Conn, c.in)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(framer.WriteSettings())
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for i, row := range rows {
		before, stream := len(u.seen()), uint32(2*i+1)
		block.Reset()
		for _, f := range row.fields {
			name, value, _ := strings.Cut(f, " ")
			must(enc.WriteField(hpack.HeaderField{Name: name, Value: value}))
		}
		must(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: row.body == "-", EndHeaders: true}))
		if row.body != "-" {
			must(framer.WriteData(stream, true, []byte(row.body)))
		}
		got := ""
		for got == "" {
			frame, err := framer.ReadFrame()
			if err != nil {
				t.Fatalf("%s: ended the connection: %v", row.name, err)
			}
			switch f := frame.(type) {
			case *http2.MetaHeadersFrame:
				if f.StreamID == stream {
					got = f.PseudoValue("status")
				}
			case *http2.RSTStreamFrame:
				if f.StreamID == stream {
					got = "reset"
				}
			case *http2.SettingsFrame:
				if !f.IsAck() {
					must(framer.WriteSettingsAck())
				}
			case *http2.GoAwayFrame:
				t.Fatalf("%s: ended the connection: %v", row.name, f)
			}
		}
		if got != row.answer {
			t.Errorf("%s: %s, want %s", row.name, got, row.answer)
		}
		reached := u.seen()[before:]
		if want := row.answer == "200"; len(reached) > 0 != want {
			t.Errorf("%s: the upstream got %q", row.name, reached)
		}
	}
	if a := g.get("/x"); a.status != 200 {
		t.Errorf("afterwards: %s", fmt.Sprint(a.status))
	}
}
