package redisstore

import (
	"bytes"
	"context"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// turnedAway is what a server wrote to a new connection before it hung up, without
// having read anything.
type turnedAway struct{ reply string }

func (e *turnedAway) Error() string { return "the server turned the connection away: " + e.reply }

// partings are how such a text begins: the server has as many clients as it takes,
// or is in protected mode and this is another machine.
var partings = [][]byte{[]byte("-ERR max number of clients"), []byte("-DENIED ")}

// dialer returns go-redis' own dialer for connections that understand a parting.
// To go-redis it looks like the answer of a server that knows no HELLO; it goes on,
// and learns from the next command only that the connection is lost.
func dialer(opt *redis.Options) func(ctx context.Context, network, address string) (net.Conn, error) {
	dial := redis.NewDialer(opt)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if _, ok := conn.(syscall.Conn); !ok {
			return conn, nil // TLS: what is written in the clear ends it
		}
		return &plainConn{Conn: conn}, nil
	}
}

// plainConn is a connection without TLS.
type plainConn struct {
	net.Conn
	greeted bool // something else than a parting was read
}

// Read implements [net.Conn].
func (c *plainConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.greeted || n == 0 {
		return n, err
	}
	c.greeted = true
	for _, parting := range partings {
		if bytes.HasPrefix(b[:n], parting) {
			line, _, _ := strings.Cut(string(b[1:n]), "\r\n")
			return 0, &turnedAway{line}
		}
	}
	return n, err
}

// SyscallConn lets go-redis see whether an idle connection was closed.
func (c *plainConn) SyscallConn() (syscall.RawConn, error) {
	return c.Conn.(syscall.Conn).SyscallConn()
}
