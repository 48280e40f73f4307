package proxy

import (
	"context"
	"errors"
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

// dialError marks an error before there was a connection: certainly no byte of
// the request was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

func isDialError(err error) bool {
	_, ok := errors.AsType[*dialError](err)
	return ok
}

// newTransport returns the pool of one target. o has its defaults filled in.
func newTransport(o *Options) *http.Transport {
	dialer := &net.Dialer{Timeout: o.ConnectTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		// A gateway's way to its upstreams is configured, not inherited from
		// the environment of whoever started it.
		Proxy: nil,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		},
		TLSHandshakeTimeout:   o.ConnectTimeout,
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
