package config

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	wantedURL      = "redis://host:port/db, rediss:// for TLS, or unix:///path"
	wantedURLs     = "redis://host:port or rediss://host:port, for one or more servers of a cluster"
	wantedSentinel = "master, the name that the sentinels give it, and addresses, where they are"
	wantedForms    = "url for one server, urls for a cluster, or sentinel"

	redisPort, sentinelPort = "6379", "26379"
)

// readRedis reads store.redis. It returns nil if the url is empty or anything
// was wrong. No message repeats a url: a password may stand in it.
func readRedis(v value) *Redis {
	o, ok := v.object("url, timeout and key_prefix")
	if !ok {
		return nil
	}
	r := &Redis{Timeout: 50 * time.Millisecond, KeyPrefix: "rl"}
	none, good := false, false
	u, one := o.get("url", wantedURL)
	us, many := o.get("urls", wantedURLs)
	st, watched := o.get("sentinel", wantedSentinel)
	switch {
	case watched:
		if one {
			u.keyErrorf("beside sentinel; want %s", wantedForms)
		}
		if many {
			us.keyErrorf("beside sentinel; want %s", wantedForms)
		}
		r.Sentinel = readSentinel(st)
		r.Network, good = "tcp", r.Sentinel != nil
	case many:
		if one {
			u.keyErrorf("beside urls; want %s", wantedForms)
		}
		good = r.readURLs(us)
	default:
		if u, ok := o.need("url", wantedURL); ok {
			if s, ok := u.text(wantedURL); ok {
				if none = s == ""; !none {
					err := r.parseURL(s)
					if good = err == nil; err != nil {
						u.errorf("%v; want %s", err, wantedURL)
					}
				}
			}
		}
	}
	if s := o.word("username", "a user name"); s != "" {
		r.Username = s
	}
	if password, file, given := o.readPassword(); given {
		r.Password, r.PasswordFile = password, file
	}
	if good && r.Username != "" && r.Password == nil && !o.has("password") && !o.has("password_file") {
		o.errorf("a user name without a password; want password or password_file beside it")
	}
	if t, ok := o.get("tls", "ca_file, cert_file, key_file or server_name"); ok {
		if tls := readTLS(t); tls != nil {
			r.TLS = tls
		}
		if r.Network == "unix" {
			t.keyErrorf("a unix socket speaks no TLS; remove it, or use rediss://")
		}
	}
	r.Timeout = o.duration("timeout", r.Timeout, time.Millisecond, 10*time.Second)
	if t, ok := o.get("timeout", "a duration such as 50ms"); ok && good && r.Timeout < shortTimeout && !r.here() {
		t.warnf("%s is little for a Redis on another machine: a new connection takes three round trips, and whoever is out of time "+
			"is decided without Redis; want %s or more (gateway doctor measures the round trip)", formatDuration(r.Timeout), formatDuration(shortTimeout))
	}
	if p, ok := o.get("key_prefix", "a prefix of keys"); ok {
		if s, ok := p.word("a prefix of keys"); ok {
			if isKeyPrefix(s) {
				r.KeyPrefix = s
			} else {
				p.errorf("%s: want letters, digits and . _ -, at most 64", quote(s))
			}
		}
	}
	o.done()
	if none || !good {
		return nil
	}
	return r
}

// shortTimeout is what a store on another machine should have at least: three round
// trips of half a millisecond, as within one data centre, and time to decide and to
// be scheduled.
const shortTimeout = 5 * time.Millisecond

// here reports whether Redis is on this machine, as far as its addresses tell.
func (r *Redis) here() bool {
	addresses := r.Addresses
	if r.Sentinel != nil {
		addresses = r.Sentinel.Addresses
	}
	if len(addresses) == 0 {
		addresses = []string{r.Address}
	}
	return r.Network == "unix" || !slices.ContainsFunc(addresses, func(address string) bool {
		host, _, err := net.SplitHostPort(address)
		ip := net.ParseIP(host)
		return err == nil && host != "localhost" && (ip == nil || !ip.IsLoopback())
	})
}

// readURLs reads where a cluster is entered, and returns whether nothing was
// wrong. The servers of a cluster share credentials and speak TLS all or none,
// so the entries may not differ in them; those that give none have the others'.
func (r *Redis) readURLs(v value) bool {
	items, good := v.list("a list of " + wantedURLs)
	if good && len(items) == 0 {
		v.errorf("names no server; want %s", wantedURLs)
		return false
	}
	first := map[string]value{}
	for i, item := range items {
		s, ok := item.word(wantedURLs)
		if !ok {
			good = false
			continue
		}
		var e Redis
		err := e.parseURL(s)
		switch {
		case err != nil:
		case e.Network == "unix":
			err = errors.New("a cluster is not entered through a unix socket")
		case e.DB != 0:
			err = errors.New("a cluster has only database 0")
		case i > 0 && (e.TLS == nil) != (r.TLS == nil):
			err = errors.New("redis:// and rediss:// do not stand in one cluster")
		case e.Username+string(e.Password) != "" && r.Username+string(r.Password) != "" &&
			(e.Username != r.Username || string(e.Password) != string(r.Password)):
			err = errors.New("another user name or password than in the entries before; a cluster has one, best written beside urls")
		}
		if err != nil {
			item.errorf("%v; want %s", err, wantedURLs)
			good = false
			continue
		}
		if f, twice := first[e.Address]; twice {
			item.errorf("given twice; the first one is at line %d, column %d", f.n.Line, f.n.Column)
			good = false
			continue
		}
		first[e.Address] = item
		r.Network, r.TLS = "tcp", e.TLS
		r.Addresses = append(r.Addresses, e.Address)
		if e.Username+string(e.Password) != "" {
			r.Username, r.Password = e.Username, e.Password
		}
	}
	return good
}

// readSentinel reads who knows the master. It returns nil if anything was wrong.
func readSentinel(v value) *Sentinel {
	o, ok := v.object(wantedSentinel)
	if !ok {
		return nil
	}
	s := &Sentinel{}
	good := false
	if m, ok := o.need("master", "the name under which the sentinels watch it"); ok {
		s.Master, good = m.word("the name under which the sentinels watch it")
	}
	const wanted = "a list of host:port, where the sentinels are"
	if a, ok := o.need("addresses", wanted); !ok || !s.readAddresses(a, wanted) {
		good = false
	}
	s.Username = o.word("username", "a user name of the sentinels")
	var given bool
	s.Password, s.PasswordFile, given = o.readPassword()
	if s.Username != "" && !given {
		v.keyErrorf("a user name without a password; want password or password_file beside it")
		good = false
	}
	o.done()
	if !good {
		return nil
	}
	return s
}

// readAddresses reads where the sentinels are, and returns whether nothing was
// wrong.
func (s *Sentinel) readAddresses(v value, wanted string) bool {
	items, good := v.list(wanted)
	if good && len(items) == 0 {
		v.errorf("names no sentinel; want %s", wanted)
		return false
	}
	first := map[string]value{}
	for _, item := range items {
		text, ok := item.word("host:port of a sentinel")
		if !ok {
			good = false
			continue
		}
		address, err := parseHostPort(text, sentinelPort)
		if err != nil {
			// What is meant as a URL may hold a password.
			item.errorf("%v; want host:port of a sentinel, without redis:// and without a user", err)
			good = false
			continue
		}
		if f, twice := first[address]; twice {
			item.errorf("given twice; the first one is at line %d, column %d", f.n.Line, f.n.Column)
			good = false
			continue
		}
		first[address] = item
		s.Addresses = append(s.Addresses, address)
	}
	return good
}

// readPassword reads password or password_file, the latter with its path, and
// returns whether one of them is there, good or not.
func (o *object) readPassword() (password Secret, path string, given bool) {
	p, plain := o.get("password", "the password")
	f, file := o.get("password_file", "a file that holds the password")
	if plain && file {
		f.keyErrorf("beside password; want one of the two")
	}
	if plain {
		switch s, ok := p.text("the password"); {
		case ok && s == "":
			p.errorf("empty; want the password, or leave it out")
		case ok:
			password = Secret(s)
		}
	}
	if file {
		if name, secret, ok := f.secretFile("the password"); ok {
			password, path = secret, absolute(name)
		}
	}
	return password, path, plain || file
}

// isKeyPrefix reports whether s may begin every key. A colon ends it, and a
// brace would decide the slot of a cluster.
func isKeyPrefix(s string) bool {
	for i := range len(s) {
		c := s[i]
		if ('a' > c || c > 'z') && ('A' > c || c > 'Z') && ('0' > c || c > '9') && !strings.ContainsRune("._-", rune(c)) {
			return false
		}
	}
	return len(s) <= 64
}

// parseURL takes network, address, database, user and password from a URL.
//
// It is not url.Parse, whose errors quote the password, and which refuses
// passwords with #, / or ?: here the last @ ends the credentials, so that only
// % needs encoding, as %25. No error repeats any part of the URL.
func (r *Redis) parseURL(s string) error {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return errors.New("not a URL")
	}
	switch strings.ToLower(scheme) {
	case "redis":
	case "rediss":
		r.TLS = &TLS{}
	case "unix":
	default:
		return errors.New("unknown scheme")
	}
	r.Network = "tcp"
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		user, password, _ := strings.Cut(rest[:i], ":")
		rest = rest[i+1:]
		var err1, err2 error
		r.Username, err1 = url.PathUnescape(user)
		password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return errors.New("a % in user name or password must be written %25; or give them as username and password beside the url, as they are")
		}
		if password != "" {
			r.Password = Secret(password)
		}
	}
	if strings.EqualFold(scheme, "unix") {
		return r.parseSocket(rest)
	}
	if strings.ContainsAny(rest, "?#") {
		return errors.New("options in the url are not supported; use the fields beside it")
	}
	host, db, _ := strings.Cut(rest, "/")
	if err := r.parseDB(db); err != nil {
		return err
	}
	var err error
	r.Address, err = parseHostPort(host, redisPort)
	return err
}

// parseHostPort reads host:port, or host alone with the port that is usual. No
// error repeats any part of it.
func parseHostPort(s, port string) (string, error) {
	if strings.HasPrefix(s, "[") != strings.Contains(s, "]") {
		return "", errors.New("bad host")
	}
	name := s
	if h, p, err := net.SplitHostPort(s); err == nil {
		name, port = h, p
	} else if strings.HasPrefix(s, "[") {
		name = strings.Trim(s, "[]")
	}
	if !isHost(name) {
		return "", errors.New("bad host, or none")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("bad port")
	}
	return net.JoinHostPort(name, port), nil
}

// parseSocket reads what follows unix://: /path or /path?db=N.
func (r *Redis) parseSocket(s string) error {
	path, query, _ := strings.Cut(s, "?")
	if !strings.HasPrefix(path, "/") {
		return errors.New("the path of a unix socket must be absolute")
	}
	r.Network, r.Address = "unix", path
	if query == "" {
		return nil
	}
	db, ok := strings.CutPrefix(query, "db=")
	if !ok {
		return errors.New("unknown option; only db=N is known beside a unix socket")
	}
	return r.parseDB(db)
}

func (r *Redis) parseDB(s string) error {
	if s == "" {
		return nil
	}
	n, err := parseCount(s)
	if err != nil || n > 1<<20 {
		return errors.New("bad database number")
	}
	r.DB = int(n)
	return nil
}
