package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// maxIdlePerTarget is how many unused connections a target may keep. The
	// default of net/http, 2, opens and closes a connection for most requests
	// of a busy upstream until the ports run out.
	maxIdlePerTarget = 256
	// maxAnswerHead bounds the head of an answer, in bytes.
	maxAnswerHead = 1 << 20
	// readBuffer takes the head and body of most answers in one read; larger
	// bodies are read past it. It is held by every open connection.
	readBuffer = 8 << 10
	// expectTimeout is how long a client's Expect: 100-continue waits for the
	// upstream's word before the body is sent anyway (RFC 9110 section 10.1.1).
	expectTimeout = time.Second
)

// dialError marks an error before there was a connection, TLS and all: certainly no
// byte of the request was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// NotConnected tells those who do not know this package.
func (e *dialError) NotConnected() bool { return true }

func isDialError(err error) bool {
	_, ok := errors.AsType[*dialError](err)
	return ok
}

// A dialer connects to one target.
type dialer struct {
	connect func(ctx context.Context, network, address string) (net.Conn, error)
	timeout time.Duration
	socket  string      // the path of a unix socket; empty: TCP
	tls     *tls.Config // of https; nil: as the system trusts
	// watch is told of each connection that was made ready, or why it was not; nil: nobody is.
	watch func(ctx context.Context, err error)
}

// newDialer returns a dialer of TCP. o has its defaults filled in.
func newDialer(o *Options) dialer {
	d := dialer{connect: o.dial, timeout: o.ConnectTimeout, tls: o.TLS}
	if d.connect == nil {
		d.connect = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	return d
}

func (d *dialer) told(ctx context.Context, conn net.Conn, err error) (net.Conn, error) {
	if d.watch != nil {
		d.watch(ctx, err)
	}
	if err != nil {
		return nil, &dialError{err}
	}
	return conn, nil
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.open(ctx, network, address)
	return d.told(ctx, conn, err)
}

func (d *dialer) open(ctx context.Context, network, address string) (net.Conn, error) {
	if d.socket != "" {
		network, address = "unix", d.socket
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	return d.connect(ctx, network, address)
}

// onlyHTTP1 is in the context of a request that HTTP/2 has no place for.
type onlyHTTP1 struct{}

// dialTLS does what net/http would, so that a handshake that fails is known for what
// it is: the target cannot be connected to, and nothing of a request was sent. (One
// of TLS 1.3 that fails because the server does not like our certificate is over for
// us before that: the first answer says so.)
func (d *dialer) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.open(ctx, network, address)
	if err != nil {
		return d.told(ctx, nil, err)
	}
	config := d.tls.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(address) // net/http has made it a pair
	}
	if ctx.Value(onlyHTTP1{}) == nil {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	secure := tls.Client(conn, config)
	timed, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if err := secure.HandshakeContext(timed); err != nil {
		_ = conn.Close()
		return d.told(ctx, nil, fmt.Errorf("TLS handshake: %w", err))
	}
	return d.told(ctx, secure, nil)
}

// newTransport returns a pool of connections to one target. o has its defaults filled in.
func newTransport(o *Options, d *dialer) *http.Transport {
	return &http.Transport{
		// A gateway's way to its upstreams is configured, not inherited from
		// the environment of whoever started it.
		Proxy:                 nil,
		DialContext:           d.dial,
		DialTLSContext:        d.dialTLS,
		ResponseHeaderTimeout: o.ResponseHeaderTimeout,
		ExpectContinueTimeout: expectTimeout,
		IdleConnTimeout:       o.IdleTimeout,
		MaxIdleConns:          maxIdlePerTarget,
		MaxIdleConnsPerHost:   maxIdlePerTarget,
		// Otherwise gzip would be asked for in the client's name and undone.
		DisableCompression:     true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
		MaxResponseHeaderBytes: maxAnswerHead,
		ReadBufferSize:         readBuffer,
		WriteBufferSize:        4 << 10,
	}
}

const copySize = 32 << 10

// buffers is an httputil.BufferPool for copying bodies. It keeps pointers to
// arrays, because putting a slice into a sync.Pool would allocate its header.
type buffers struct{ pool sync.Pool }

var copyBuffers = &buffers{pool: sync.Pool{New: func() any { return new([copySize]byte) }}}

func (b *buffers) Get() []byte    { return b.pool.Get().(*[copySize]byte)[:] }
func (b *buffers) Put(buf []byte) { b.pool.Put((*[copySize]byte)(buf)) }
