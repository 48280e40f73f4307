package acme

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	protocol "golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
)

// Options say what to get, and where.
type Options struct {
	// Domains are the names to get certificates for, each its own; lower case, at
	// least one. The first is that of clients which name none.
	Domains []string
	// Email is where the authority may write to; empty: nowhere.
	Email string
	// CacheDir is where keys and certificates are kept. It is made if it is not there.
	CacheDir string
	// Directory is the URL of the authority's directory. Its terms of service are
	// accepted: ask before.
	Directory string
	// Roots are who is trusted at Directory; nil: as the system trusts.
	Roots *x509.CertPool
	// HTTP01 says that [Keeper.Answer] is asked for what comes in the clear.
	HTTP01 bool
	// Got and Failed, if not nil, are told of each certificate that was issued, and of
	// each attempt that came to nothing, with when there is another. They must
	// not block, and be safe for concurrent use.
	Got    func(domain string, notAfter time.Time)
	Failed func(domain string, err error, again time.Duration)
	// Changed, if not nil, is called after either, and when a certificate is late.
	Changed func()
}

const (
	// An authority has few attempts an hour for those that fail, so they are made with
	// longer and longer pauses.
	firstPause, longestPause = 5 * time.Minute, time.Hour
	// soonest is how soon after an attempt [Keeper.Retry] makes another.
	soonest = time.Minute
	// look is how often it is looked whether a certificate is late.
	look = time.Minute
	// requestTimeout bounds one request to the authority, and patience one attempt
	// that finds it busy.
	requestTimeout = 30 * time.Second
	mostRetries    = 4
)

// A Keeper has the certificates of some domains. It is safe for concurrent use.
type Keeper struct {
	o         Options
	domains   []*domain
	byName    map[string]*domain
	challenge *tls.Config
	wake      chan struct{}
	stop      context.CancelFunc
	stopped   context.Context
	once      sync.Once
	started   atomic.Bool
	done      chan struct{} // closed when the work has ended
}

// domain is one name and its certificate.
type domain struct {
	k       *Keeper
	name    string
	cert    atomic.Pointer[tls.Certificate]
	manager atomic.Pointer[autocert.Manager]

	// What follows is of the Keeper's own goroutine.
	due   time.Time
	tried time.Time
	pause time.Duration

	mu     sync.Mutex // protects the following fields
	tokens map[string]string
	told   string // what the authority said last
	err    error
	since  time.Time
}

// New reads what is kept, and starts nothing. The error says what is wrong with the
// directory.
func New(o Options) (*Keeper, error) {
	if len(o.Domains) == 0 {
		return nil, errors.New("want at least one domain")
	}
	if err := os.MkdirAll(o.CacheDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory for certificates: %w; make it, for the user that the gateway runs as", err)
	}
	if err := writable(o.CacheDir); err != nil {
		return nil, fmt.Errorf("write to the directory for certificates: %w; give it to the user that the gateway runs as", err)
	}
	k := &Keeper{o: o, byName: map[string]*domain{}, wake: make(chan struct{}, 1), done: make(chan struct{})}
	k.stopped, k.stop = context.WithCancel(context.Background())
	for _, name := range o.Domains {
		d := &domain{k: k, name: name, pause: firstPause, since: time.Now(), tokens: map[string]string{}}
		d.manager.Store(k.manage(d))
		if kept, err := autocert.DirCache(o.CacheDir).Get(k.stopped, name); err == nil {
			d.take(kept)
		}
		k.domains = append(k.domains, d)
		k.byName[name] = d
	}
	k.challenge = &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{protocol.ALPNProto},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			d := k.byName[hostOf(hello)]
			if d == nil {
				return nil, errNotOurs
			}
			return d.manager.Load().GetCertificate(hello)
		},
	}
	return k, nil
}

// writable reports why nothing can be written to dir.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".writable-")
	if err != nil {
		return err
	}
	_ = f.Close()
	return os.Remove(f.Name())
}

// manage makes what gets and renews the certificate of a domain. Each has its own, so
// that one whose attempt failed can be replaced: it would tell of its failure again
// for a while.
func (k *Keeper) manage(d *domain) *autocert.Manager {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: k.o.Roots}
	transport.MaxIdleConns, transport.IdleConnTimeout = 2, requestTimeout
	m := &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: cache{autocert.DirCache(k.o.CacheDir), d}, Email: k.o.Email,
		HostPolicy: autocert.HostWhitelist(d.name),
		Client: &protocol.Client{
			DirectoryURL: k.o.Directory, UserAgent: "bouncer",
			HTTPClient: &http.Client{Timeout: requestTimeout, Transport: listening{transport, d}},
			RetryBackoff: func(n int, _ *http.Request, _ *http.Response) time.Duration {
				if n > mostRetries || k.stopped.Err() != nil {
					return -1
				}
				return time.Second << n
			},
		},
	}
	if k.o.HTTP01 {
		m.HTTPHandler(nil) // it only has to know that somebody answers
	}
	return m
}

// Start begins to get what is missing, and to renew. Challenges have to reach the
// Keeper from now on. Close ends it. It may be called twice.
func (k *Keeper) Start() {
	k.once.Do(func() {
		k.started.Store(true)
		go k.run()
	})
}

// Close ends the Keeper. An attempt that is under way is given up.
func (k *Keeper) Close() {
	k.stop()
	if !k.started.Load() {
		return
	}
	select {
	case <-k.done:
	case <-time.After(time.Second): // it waits as an authority told it to, and ends then
	}
}

// Retry makes another attempt for what is missing, unless there was one just now. It
// does not wait for it.
func (k *Keeper) Retry() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *Keeper) run() {
	defer close(k.done)
	for _, d := range k.domains { // those that are kept are renewed from now on
		if d.cert.Load() != nil {
			k.get(d)
		}
	}
	ticks := time.NewTicker(look)
	defer ticks.Stop()
	for {
		for _, d := range k.domains {
			if k.stopped.Err() != nil {
				return
			}
			d.watch()
			if d.cert.Load() == nil && !time.Now().Before(d.due) {
				k.get(d)
			}
		}
		select {
		case <-k.stopped.Done():
			return
		case <-ticks.C:
		case <-k.wake:
			for _, d := range k.domains {
				if time.Since(d.tried) >= soonest {
					d.due = time.Time{}
				}
			}
		}
	}
}

// get asks for the certificate of a domain: it is the one that is kept, or a new one.
func (k *Keeper) get(d *domain) {
	d.tried = time.Now()
	d.mu.Lock()
	d.told = ""
	d.mu.Unlock()
	_, err := d.manager.Load().GetCertificate(&tls.ClientHelloInfo{ServerName: d.name, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}})
	switch {
	case k.stopped.Err() != nil:
	case err != nil:
		d.manager.Store(k.manage(d))
		again := d.pause + rand.N(d.pause/10) //nolint:gosec // only so that not all come at once
		d.due = time.Now().Add(again)
		d.pause = min(2*d.pause, longestPause)
		err = d.explain(err)
		d.failed(err)
		if k.o.Failed != nil {
			k.o.Failed(d.name, err, again)
		}
		k.changed()
	default:
		d.pause = firstPause
	}
}

func (k *Keeper) changed() {
	if k.o.Changed != nil {
		k.o.Changed()
	}
}

var (
	errNotOurs = errors.New("acme: no certificate is got for this name")
	errNoneYet = errors.New("acme: there is no certificate for this name yet")
	errLate    = errors.New("it was to be renewed by now; the attempts go on")
)

// Certificate is for tls.Config: the certificate of the name that a client asks for,
// or of the first domain where it names none.
func (k *Keeper) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	d := k.domains[0]
	if name := hostOf(hello); name != "" {
		if d = k.byName[name]; d == nil {
			return nil, errNotOurs
		}
	}
	if cert := d.cert.Load(); cert != nil {
		return cert, nil
	}
	return nil, errNoneYet
}

// Challenge returns how the handshake of an authority is answered that comes to see a
// challenge (RFC 8737); nil for all other handshakes.
func (k *Keeper) Challenge(hello *tls.ClientHelloInfo) *tls.Config {
	if len(hello.SupportedProtos) != 1 || hello.SupportedProtos[0] != protocol.ALPNProto {
		return nil
	}
	return k.challenge
}

// ChallengePath is what the path of an HTTP-01 challenge begins with.
const ChallengePath = "/.well-known/acme-challenge/"

// Answer returns what a request in the clear for host, without its port, and path is
// to be answered with, if it is an open challenge (RFC 8555 section 8.3).
func (k *Keeper) Answer(host, path string) (answer string, ok bool) {
	token, ok := strings.CutPrefix(path, ChallengePath)
	d := k.byName[host]
	if !ok || d == nil {
		return "", false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	answer, ok = d.tokens[token]
	return answer, ok
}

// State is what is known of one domain.
type State struct {
	Domain   string
	NotAfter time.Time // of its certificate; the zero time: there is none
	Err      error     // why there is none, or none that is fresh; nil: all is well
	Since    time.Time // of Err
}

// State returns what is known of each domain, in their order.
func (k *Keeper) State() []State {
	all := make([]State, len(k.domains))
	for i, d := range k.domains {
		all[i].Domain = d.name
		if cert := d.cert.Load(); cert != nil {
			all[i].NotAfter = cert.Leaf.NotAfter
		}
		d.mu.Lock()
		all[i].Err, all[i].Since = d.err, d.since
		d.mu.Unlock()
		if all[i].Err == nil && all[i].NotAfter.IsZero() {
			all[i].Err = errNoneYet
		}
	}
	return all
}

func hostOf(hello *tls.ClientHelloInfo) string {
	return strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
}

// Kept returns the certificate of a domain that is kept in a directory, if it is good
// still. The error is fs.ErrNotExist if there is none. It changes nothing.
func Kept(ctx context.Context, dir, domain string) (*x509.Certificate, error) {
	kept, err := autocert.DirCache(dir).Get(ctx, domain)
	if errors.Is(err, autocert.ErrCacheMiss) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	cert, err := parse(kept, domain)
	if err != nil {
		return nil, err
	}
	return cert.Leaf, nil
}

func parse(kept []byte, domain string) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(kept, kept)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if now.Before(cert.Leaf.NotBefore) || now.After(cert.Leaf.NotAfter) {
		return nil, errors.New("it is not valid today")
	}
	return &cert, cert.Leaf.VerifyHostname(domain)
}

// Reach asks the authority for its directory, and nothing else.
func Reach(ctx context.Context, directory string, roots *x509.CertPool) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	defer transport.CloseIdleConnections()
	c := &protocol.Client{
		DirectoryURL: directory, HTTPClient: &http.Client{Transport: transport},
		RetryBackoff: func(int, *http.Request, *http.Response) time.Duration { return -1 },
	}
	_, err := c.Discover(ctx)
	return err
}
