package simulate

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// readAll reads text as a log.
func readAll(t testing.TB, text string, o Options) ([]record, counts) {
	t.Helper()
	o.Logs = []string{"-"}
	var err error
	if o.fields, err = parseFields(o.Fields); err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	s, err := open("-", strings.NewReader(text), &o, newKept(), &n)
	if err != nil {
		t.Fatal(err)
	}
	m := merged{sources: []*source{s}, arrival: o.Arrival}
	if err := m.start(); err != nil {
		t.Fatal(err)
	}
	var all []record
	for {
		r, err := m.next()
		if err != nil {
			t.Fatal(err)
		}
		if r == nil {
			return all, m.counts
		}
		all = append(all, *r)
	}
}

func TestEveryFormatIsRecognised(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 2, 8, 58, 0, 0, time.UTC).UnixMicro()
	for name, c := range map[string]struct {
		line string
		want record
	}{
		"common": {`203.0.113.7 - - [02/Nov/2026:08:58:00 +0000] "GET /a HTTP/1.0" 200 2`,
			record{at: at, method: "GET", target: "/a", remote: "203.0.113.7:0"}},
		"combined": {`203.0.113.7 - bob [02/Nov/2026:14:28:00 +0530] "GET /a?b=c HTTP/1.1" 200 2 "-" "curl \x22x\x22"`,
			record{at: at, method: "GET", target: "/a", remote: "203.0.113.7:0", user: "bob"}},
		"combined, forwarded, time": {`2001:db8::1 - - [02/Nov/2026:08:58:00 +0000] "GET /\xE4\xB8\xAD HTTP/2.0" 200 2 "-" "-" "10.9.9.9, 10.0.0.1" 0.041`,
			record{at: at, took: 41 * time.Millisecond, method: "GET", target: "/中", remote: "[2001:db8::1]:0", forwarded: "10.9.9.9, 10.0.0.1"}},
		"apache's quotes": {`203.0.113.7 - - [02/Nov/2026:08:58:00 +0000] "GET /a HTTP/1.1" 200 2 "-" "a \"b\" c" "-" rt=0.5`,
			record{at: at, took: 500 * time.Millisecond, method: "GET", target: "/a", remote: "203.0.113.7:0"}},
		"traefik": {`203.0.113.7 - - [02/Nov/2026:08:58:00 +0000] "GET /a HTTP/1.1" 200 2 "-" "-" 4 "api@file" "http://10.0.0.1:80" 3ms`,
			record{at: at, took: 3 * time.Millisecond, begins: true, method: "GET", target: "/a", remote: "203.0.113.7:0"}},
		"envoy": {`[2026-11-02T08:58:00.000Z] "POST /a HTTP/2" 204 - 154 0 226 100 "198.51.100.4, 203.0.113.7" "curl" "cc21d9b0" "api.example.test" "tcp://10.0.2.1:80"`,
			record{at: at, took: 226 * time.Millisecond, begins: true, method: "POST", target: "/a", host: "api.example.test", remote: "203.0.113.7:0", forwarded: "198.51.100.4"}},
		"caddy": {`{"level":"info","ts":1793609880.0,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"203.0.113.7","remote_port":"1","client_ip":"198.51.100.4","proto":"HTTP/2.0","method":"GET","host":"api.example.test","uri":"/a?b","headers":{"X-Forwarded-For":["198.51.100.4"]}},"user_id":"bob","duration":0.25,"status":200}`,
			record{at: at, took: 250 * time.Millisecond, method: "GET", target: "/a", host: "api.example.test", remote: "203.0.113.7:0", forwarded: "198.51.100.4", user: "bob"}},
		"nginx's JSON": {`{"time_iso8601":"2026-11-02T08:58:00+00:00","remote_addr":"203.0.113.7","request":"GET /a HTTP/1.1","request_time":"0.5","http_x_forwarded_for":"-","remote_user":"-","http_user_agent":"\xE4"}`,
			record{at: at, took: 500 * time.Millisecond, method: "GET", target: "/a", remote: "203.0.113.7:0"}},
		"a key": {`{"time":"2026-11-02T08:58:00.000+00:00","remote_addr":"203.0.113.7","method":"GET","uri":"/a b","key":"key:partner-a"}`,
			record{at: at, method: "GET", target: "/a%20b", remote: "203.0.113.7:0", key: "partner-a"}},
		"a user as key": {`{"msec":"1793609880.000","remote_addr":"203.0.113.7","method":"GET","uri":"/a","key":"user:1006","tenant":"acme","plan":"pro"}`,
			record{at: at, method: "GET", target: "/a", remote: "203.0.113.7:0", user: "1006", tenant: "acme", pln: "pro"}},
		"this gateway": {`{"time":"2026-11-02T08:58:00.000000Z","level":"INFO","msg":"request","request_id":"x","client_ip":"203.0.113.7","method":"GET","host":"h","path":"/a","route":"api","user":"u","tenant":"","key_id":"k","plan":"free","cost":1,"status":200,"denied_by":"","duration_ms":1.5}`,
			record{at: at, took: 1500 * time.Microsecond, begins: true, method: "GET", target: "/a", host: "h", remote: "203.0.113.7:0", user: "u", key: "k", pln: "free"}},
	} {
		all, n := readAll(t, c.line+"\r\n", Options{})
		if len(all) != 1 || n.lines != 1 {
			t.Errorf("%s: %d records of %d lines; %v", name, len(all), n.lines, n.shown)
			continue
		}
		c.want.seq, c.want.url = all[0].seq, all[0].url
		if all[0] != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, all[0], c.want)
		}
	}
}

func TestFieldsOfJSONMayBeNamed(t *testing.T) {
	t.Parallel()
	all, n := readAll(t, `{"at":1793609880123,"peer":{"addr":"203.0.113.7:4711"},"verb":"GET","to":"/a","account":"u","ms_ms":12}`,
		Options{Fields: "time=at,ip=peer.addr,method=verb,uri=to,user=account,duration=ms_ms", Arrival: true})
	if len(all) != 1 || all[0].user != "u" || all[0].remote != "203.0.113.7:0" || all[0].at%1e6 != 111000 {
		t.Errorf("%+v, %v", all, n.shown)
	}
	for line, want := range map[string]error{
		`{"at":1793609880,"remote_addr":"203.0.113.7","method":"GET","uri":"/a"}`:   errNoTime,
		`{"time":1793609880,"peer":"203.0.113.7","method":"GET","uri":"/a"}`:        errNoAddress,
		`{"time":1793609880,"remote_addr":"203.0.113.7","verb":"GET","uri":"/a"}`:   errNoRequest,
		`{"time":1793609880,"remote_addr":"203.0.113.7","method":"GET","to":"/a"}`:  errNoRequest,
		`{"time":"noon","remote_addr":"203.0.113.7","method":"GET","uri":"/a"}`:     errTime,
		`{"time":1793609880,"remote_addr":"somewhere","method":"GET","uri":"/a"}`:   errAddress,
		`{"time":1793609880,"remote_addr":"203.0.113.7","request":"GET","uri":"/"}`: errRequest,
	} {
		if _, n := readAll(t, line, Options{}); n.malformed != 1 || n.shown[0].Why != want.Error() {
			t.Errorf("%s: %+v", line, n.shown)
		}
	}
	if _, err := parseFields("tim=at"); err == nil || !strings.Contains(err.Error(), "time, ip, forwarded") {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestMalformedLinesAreCountedShownAndSkipped(t *testing.T) {
	t.Parallel()
	good := `203.0.113.7 - - [02/Nov/2026:08:58:00 +0000] "GET /a HTTP/1.1" 200 2 "-" "-"`
	var b strings.Builder
	b.WriteString("\xef\xbb\xbf" + good + "\n\n")
	for _, bad := range []string{
		`203.0.113.12 - - [02/Nov/2026:09:08:01 +0000] "\x16\x03\x01" 400 157 "-" "-"`,
		`203.0.113.12 - - [02/Nov/2026:09:08:01 +0000] "" 400 0 "-" "-"`,
		`203.0.113.12 - - [02/Nov/2026:09:08:01 +0000] "-" 408 0 "-" "-"`,
		`203.0.113.12 - - [02/Nov/2026:09:08:01 +0000] "SSH-2.0-Go" 400 157 "-" "-"`,
		`203.0.113.12 - - [02/Nov/2026:09:08:01 +0000] "GET /a b c HTTP/1.1" 400 157 "-" "-"`,
		`not-an-address - - [02/Nov/2026:09:08:01 +0000] "GET /a HTTP/1.1" 200 157 "-" "-"`,
		`203.0.113.12 - - [31/Feb/2026:09:08:01 +0000] "GET /a HTTP/1.1" 200 157 "-" "-"`,
		`{"time":"2026-11-02T08:58:00Z"}`,
		strings.Repeat("x", maxLine+1),
	} {
		b.WriteString(bad + "\n")
	}
	b.WriteString(good) // without a line's end
	all, n := readAll(t, b.String(), Options{})
	if len(all) != 2 || n.lines != 11 || n.malformed != 9 || len(n.shown) != 9 {
		t.Fatalf("%d records, %+v", len(all), n)
	}
	if n.shown[0].At != "standard input:3" || n.shown[8].At != "standard input:11" || n.shown[8].Why != errLong.Error() {
		t.Errorf("%+v", n.shown)
	}
	many, n := readAll(t, strings.Repeat("no\n", 1000), Options{})
	if len(many) != 0 || n.malformed != 1000 || len(n.shown) != maxShown {
		t.Errorf("%d shown of %d", len(n.shown), n.malformed)
	}
}

func TestTheTimeOfALineIsThatOfItsEndUnlessArrivalIsAsked(t *testing.T) {
	t.Parallel()
	line := `203.0.113.7 - - [02/Nov/2026:08:58:10 +0000] "GET /a HTTP/1.1" 200 2 "-" "-" "-" 2.500`
	plain, _ := readAll(t, line, Options{})
	early, _ := readAll(t, line, Options{Arrival: true})
	if plain[0].at-early[0].at != 2_500_000 {
		t.Errorf("%d µs between", plain[0].at-early[0].at)
	}
	traefik := strings.Replace(line, `"-" 2.500`, `4 "r" "http://x" 2500ms`, 1)
	early, _ = readAll(t, traefik, Options{Arrival: true})
	if early[0].at != plain[0].at {
		t.Error("what Traefik writes is the arrival already")
	}
}

func TestSeveralLogsAreReadInTheOrderOfTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	line := func(second, path string) string {
		return `203.0.113.7 - - [02/Nov/2026:08:58:` + second + ` +0000] "GET /` + path + ` HTTP/1.1" 200 2 "-" "-"` + "\n"
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(line("01", "b") + line("05", "f") + line("03", "d")))
	_ = z.Close()
	var o Options
	var m merged
	var n atomic.Int64
	kept := newKept()
	for name, text := range map[string]string{"1.log": line("00", "a") + line("02", "c") + line("04", "e"), "2.log.gz": zipped.String()} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := open(path, nil, &o, kept, &n)
		if err != nil {
			t.Fatal(err)
		}
		m.sources = append(m.sources, s)
	}
	defer m.close()
	if err := m.start(); err != nil {
		t.Fatal(err)
	}
	got := ""
	for {
		r, err := m.next()
		if err != nil {
			t.Fatal(err)
		}
		if r == nil {
			break
		}
		got += r.target
	}
	if got != "/a/b/c/d/e/f" || m.counts.late != 0 {
		t.Errorf("%s, %d late", got, m.counts.late)
	}
}

func TestABrokenFileIsAnError(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(bytes.Repeat([]byte("x\n"), 10000))
	_ = z.Close()
	path := filepath.Join(t.TempDir(), "cut.gz")
	if err := os.WriteFile(path, zipped.Bytes()[:zipped.Len()/2], 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := load(t, routes, plans(""))
	if _, err := Run(t.Context(), Options{Config: cfg, Logs: []string{path}}); err == nil || !strings.Contains(err.Error(), "cut.gz after line") {
		t.Errorf("half a gzip file: %v", err)
	}
	if _, err := Run(t.Context(), Options{Config: cfg, Logs: []string{path + "x"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestWhatIsNoLogIsSaidToBeNone(t *testing.T) {
	t.Parallel()
	cfg := load(t, routes, plans(""))
	if _, err := Run(t.Context(), Options{Config: cfg, Logs: []string{t.TempDir()}}); err == nil || !strings.Contains(err.Error(), "is a directory; name the files in it") {
		t.Errorf("a directory: %v", err)
	}
	if _, err := Run(t.Context(), Options{Config: cfg, Logs: []string{"-"}, Stdin: strings.NewReader("\x1f\x8bhello world")}); err == nil || !strings.Contains(err.Error(), "read standard input: gzip") {
		t.Errorf("what begins as gzip and is none: %v", err)
	}
	for _, c := range []struct {
		name, text, note string
		unread           bool
	}{
		{"empty", "", "there is no line", false},
		{"binary", "\x7fELF\x00\x01\n\x00\xff\xfe\n", "none of 2 lines could be read", true},
		{"a line of a megabyte", strings.Repeat("x", 1<<20), "none of 1 line could be read", true},
		{"nothing but NUL", strings.Repeat("\x00", 1<<17) + "\r\n", "none of 1 line could be read", true},
		{"another format", "2026-11-02 host app: GET /\n", "none of 1 line could be read", true},
	} {
		r := run(t, Options{Config: cfg}, c.text)
		if len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0], c.note) || r.Unread() != c.unread {
			t.Errorf("%s: %v, %q", c.name, r.Unread(), r.Notes)
		}
	}
}

// Under the routes of another service nobody is denied, whatever the plans: the
// result says so rather than looking like good news.
func TestALogOfOtherRoutesIsSaidToBeOne(t *testing.T) {
	t.Parallel()
	other := `203.0.113.7 - - [02/Nov/2026:12:00:00 +0000] "GET /elsewhere HTTP/1.1" 200 2` + "\n"
	own := strings.Replace(other, "/elsewhere", "/api/x", 1)
	r := run(t, Options{Config: load(t, routes, plans(""))}, other+other+own)
	if want := "2 of 3 requests match no route"; len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0], want) {
		t.Errorf("two of three lines without a route: notes %q, want %q", r.Notes, want)
	}
	if r := run(t, Options{Config: load(t, routes, plans(""))}, other+own); len(r.Notes) != 0 {
		t.Errorf("one of two lines without a route: notes %q, want none", r.Notes)
	}
}

// A clock that is set back, and lines that stand far behind their time, lose
// nothing and let nobody in twice: time stands still until it is reached again.
func TestAClockThatIsSetBackFreesNothing(t *testing.T) {
	t.Parallel()
	var j journal
	for range window + 2 { // more than is put in order
		j.add(noon, "/healthz", "")
	}
	j.add(noon, "/api/x", `,"user":"a"`)
	j.add(noon, "/api/x", `,"user":"a"`)
	for range window + 2 {
		j.add(noon.Add(time.Hour), "/healthz", "")
	}
	for i := range 4 {
		j.add(noon.Add(time.Duration(i)*time.Minute), "/api/x", `,"user":"a"`)
	}
	cfg := load(t, routes, plans("{name: per-minute, algorithm: token_bucket, limit: 2/minute}"))
	r := run(t, Options{Config: cfg}, j.String())
	// An hour has passed for the last four, and no time between them.
	if c := r.caller(t, "a"); c.Requests != 6 || c.Denied != 2 || r.Late != 4 || len(r.Notes) != 1 {
		t.Errorf("%+v, %d late, %q", c, r.Late, r.Notes)
	}
}

func FuzzLines(f *testing.F) {
	for _, seed := range []string{
		`203.0.113.7 - bob [02/Nov/2026:08:58:00 +0000] "GET /a?b HTTP/1.1" 200 2 "-" "x \x22" "10.0.0.1" 0.041`,
		`203.0.113.7 - - [02/Nov/2026:08:58:00 +0000] "GET /a HTTP/1.1" 200 2 "-" "-" 4 "r" "http://x" 3ms`,
		`[2026-11-02T08:58:00.310Z] "POST /a HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "curl" "id" "host" "tcp://10.0.2.1:80"`,
		`{"ts":1793609880.5,"request":{"remote_ip":"::1","method":"GET","uri":"/","headers":{"X-Forwarded-For":["a"]}},"duration":1}`,
		`{"time":"2026-11-02T08:58:00.000+00:00","remote_addr":"203.0.113.101","method":"GET","uri":"/v1","key":"key:partner-a"}`,
		"\x1f\x8b", `1 [`, `[] "`, `{"time":[[[`, `::1 - - [02/Nov/2026:08:58:00 +0000] "CONNECT a:1 HTTP/1.1" 1 1`, "\\x", `{"msg":1}`,
		`[::1]:1 - - [02/Nov/2026:08:58:00 +0000] "GET http://h/%zz?x HTTP/1.1" 1 1 "" "" "" =9`,
	} {
		f.Add(seed)
	}
	cfg := load(f, routes, plans("{name: m, algorithm: token_bucket, limit: 2/minute}"))
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Run(t.Context(), Options{Config: cfg, Logs: []string{"-"}, Stdin: strings.NewReader(text)})
		if err != nil {
			return // what begins as gzip and is none
		}
		if r.Lines != r.Malformed+r.Requests+r.Other || r.Requests != r.Allowed+r.Denied+r.Refused {
			t.Errorf("%+v", r)
		}
		if err := r.WriteHTML(&bytes.Buffer{}, 10); err != nil {
			t.Error(err)
		}
	})
}

// Our own log may have only a share of what was served: the numbers are then too good, and
// the result says so.
func TestASampledLogIsSaidToBeOne(t *testing.T) {
	t.Parallel()
	line := `{"time":"2026-11-02T12:00:00.000000Z","level":"INFO","msg":"request","request_id":"a","client_ip":"203.0.113.7","method":"GET","host":"a","path":"/api/x","status":200,"duration_ms":1}` + "\n"
	sampled := strings.Replace(line, `"duration_ms"`, `"sampled":0.1,"duration_ms"`, 1)
	r := run(t, Options{Config: load(t, routes, plans(""))}, line+sampled+sampled)
	if want := "the log is a sample: the gateway that wrote 2 of these lines left out others"; len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0], want) {
		t.Errorf("two sampled lines of three: notes %q, want %q", r.Notes, want)
	}
	if r := run(t, Options{Config: load(t, routes, plans(""))}, line+line); len(r.Notes) != 0 || r.Requests != 2 {
		t.Errorf("no sampled line: %d requests, notes %q, want 2 and none", r.Requests, r.Notes)
	}
}
