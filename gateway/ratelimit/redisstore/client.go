package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// maxPasswordFile bounds what is read of a password file, in bytes.
const maxPasswordFile = 64 << 10

// A Client sends commands to wherever the counts are: those of [NewClient],
// [NewClusterClient] and [NewSentinelClient], and any other of go-redis.
type Client interface {
	// Process sends one command and returns the error that the command then holds.
	Process(ctx context.Context, cmd redis.Cmder) error
	Close() error
}

// ClientOptions say where one Redis is and how to log in. Only Address is
// required. User name and password are raw text, not percent-encoded.
type ClientOptions struct {
	// Network is "tcp" (the default) or "unix".
	Network string
	// Address is host:port, or the path of the socket.
	Address string
	// DB is the number of the database, 0 or more.
	DB int
	// Username is the ACL user; empty is the default user.
	Username string
	// Password is the user's; empty with an empty PasswordFile logs in without.
	Password string
	// PasswordFile names a file that holds the password; one final newline, LF
	// or CRLF, is cut. It is read for every new connection, so that a changed password is
	// used without a restart. At most one of Password and PasswordFile.
	PasswordFile string
	// TLS, if set, encrypts the connection. An empty ServerName is filled from
	// Address. The config is cloned.
	TLS *tls.Config
	// Timeout bounds each step of a call: connecting, writing, reading, and half
	// of it the wait for a free connection. Give it the store's own; default 50ms.
	Timeout time.Duration
	// PoolSize is how many calls may be under way at once; each holds one
	// connection. Further calls wait, for half of Timeout at most. Connections
	// are made when they are needed. Default: 16 for each processor that Go
	// uses, at least 32; a call takes one round trip, so 32 connections at 1 ms
	// carry 32,000 decisions a second.
	PoolSize int
}

// NewClient returns a client for one Redis server whose every call ends in time
// and is sent at most once. It connects to nothing, but reads PasswordFile to
// see that it can.
//
// go-redis' own settings would wait 5 s for each of several attempts, and repeat
// a call whose reply was lost, so that it is charged twice. It also prints each
// failed dial on standard error, through a logger that the whole process shares;
// the same errors are returned to the caller, so NewClient switches that logger
// off.
//
// After as many failed dials as PoolSize, go-redis stops dialling for each call
// and asks once a second in the background, so a server that comes back is
// noticed up to a second late; that goroutine ends within a second of Close.
func NewClient(o ClientOptions) (*redis.Client, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("redis client: %w", err)
	}
	return redis.NewClient(o.redis()), nil
}

// NewClusterClient returns a client for a Redis Cluster, which it gets to know
// through addresses, host:port of one or more of its nodes. Network, Address and
// DB of o stay empty, and PoolSize is that of each node. It keeps the promises of
// [NewClient].
//
// A node that has given a slot away says where it went and runs nothing, so up
// to three such redirections are followed, within the deadline of the call.
// Nothing else is sent again: go-redis repeats a command on a cluster whose reply
// was lost, whatever MaxRetries says, but those of [Store] forbid it.
func NewClusterClient(addresses []string, o ClientOptions) (*redis.ClusterClient, error) {
	if err := o.checkCluster(addresses); err != nil {
		return nil, fmt.Errorf("redis cluster client: %w", err)
	}
	opt := o.redis()
	cluster := &redis.ClusterOptions{
		Addrs:        slices.Clone(addresses),
		MaxRedirects: 3,
		// Commands go where their first key is; there is nothing to choose.
		DisableRoutingPolicies: true,
		// Redirections and errors have the slots asked for at once; this is for
		// nodes that nobody is sent to yet.
		ClusterStateReloadInterval: 10 * time.Second,

		ContextTimeoutEnabled:      opt.ContextTimeoutEnabled,
		MaxRetries:                 opt.MaxRetries,
		Dialer:                     opt.Dialer,
		DialerRetries:              opt.DialerRetries,
		DialTimeout:                opt.DialTimeout,
		ReadTimeout:                opt.ReadTimeout,
		WriteTimeout:               opt.WriteTimeout,
		PoolTimeout:                opt.PoolTimeout,
		PoolSize:                   opt.PoolSize,
		PipelinePoolSize:           opt.PipelinePoolSize,
		ConnMaxIdleTime:            opt.ConnMaxIdleTime,
		ReadBufferSize:             opt.ReadBufferSize,
		WriteBufferSize:            opt.WriteBufferSize,
		Protocol:                   opt.Protocol,
		MaintNotificationsConfig:   opt.MaintNotificationsConfig,
		DisableIdentity:            opt.DisableIdentity,
		Username:                   opt.Username,
		Password:                   opt.Password,
		CredentialsProviderContext: opt.CredentialsProviderContext,
	}
	if o.TLS != nil {
		// Each node is checked by the name it is reached by, if no other is given.
		cluster.TLSConfig = o.TLS.Clone()
	}
	return redis.NewClusterClient(cluster), nil
}

// redis returns the settings that every client has.
func (o *ClientOptions) redis() *redis.Options {
	quiet()
	opt := &redis.Options{
		Network: o.Network,
		Addr:    o.Address,
		DB:      o.DB,

		// Without this a deadline is only looked at between the steps, and a
		// frozen server holds a call for the read timeout.
		ContextTimeoutEnabled: true,
		// A repeated call is a second charge.
		MaxRetries:    -1,
		DialerRetries: 1,
		DialTimeout:   o.Timeout,
		ReadTimeout:   o.Timeout,
		WriteTimeout:  o.Timeout,
		// Shorter than the whole, so that it is this wait that ends and the error
		// says what was short.
		PoolTimeout: o.Timeout / 2,
		PoolSize:    o.PoolSize,
		// Nothing here is pipelined.
		PipelinePoolSize: -1,
		// Well below what load balancers and firewalls forget after.
		ConnMaxIdleTime: 5 * time.Minute,
		// A call and its answer are some hundred bytes; the script itself, sent
		// when the server does not know it, goes in two writes.
		ReadBufferSize:  4 << 10,
		WriteBufferSize: 4 << 10,

		// RESP 3 would look for pushed messages around each call.
		Protocol:                 2,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// Two commands less for every new connection.
		DisableIdentity: true,
	}
	if o.TLS != nil {
		opt.TLSConfig = o.TLS.Clone()
		if opt.TLSConfig.ServerName == "" && o.Network == "tcp" {
			opt.TLSConfig.ServerName, _, _ = net.SplitHostPort(o.Address)
		}
	}
	opt.Dialer = dialer(opt)
	switch {
	case o.PasswordFile != "":
		opt.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := readPassword(o.PasswordFile)
			if err != nil {
				return "", "", fmt.Errorf("%w: %w", errCredentials, err)
			}
			return o.Username, password, nil
		}
	default:
		opt.Username, opt.Password = o.Username, o.Password
	}
	return opt
}

// check validates o and fills in the defaults.
func (o *ClientOptions) check() error {
	if o.Network == "" {
		o.Network = "tcp"
	}
	switch {
	case o.Network != "tcp" && o.Network != "unix":
		return fmt.Errorf("network: want tcp or unix, got %q", o.Network)
	case o.Address == "":
		return errors.New("address: want host:port, or the path of a socket")
	}
	if err := o.checkRest(); err != nil {
		return err
	}
	if o.Network == "tcp" {
		if _, _, err := net.SplitHostPort(o.Address); err != nil {
			return fmt.Errorf("address: want host:port, got %q", o.Address)
		}
	}
	return nil
}

// checkCluster is check for the client of a cluster.
func (o *ClientOptions) checkCluster(addresses []string) error {
	if o.DB != 0 {
		return fmt.Errorf("db: want 0, the only one that a cluster has, got %d", o.DB)
	}
	return o.checkAddresses(addresses, "nodes of a cluster")
}

// checkAddresses is check where the server is found through others.
func (o *ClientOptions) checkAddresses(addresses []string, what string) error {
	switch {
	case o.Network != "" && o.Network != "tcp":
		return fmt.Errorf("network: want tcp, which %s talk, got %q", what, o.Network)
	case o.Address != "":
		return fmt.Errorf("address: want it among the addresses, got %q", o.Address)
	case len(addresses) == 0:
		return fmt.Errorf("addresses: want host:port of one or more %s", what)
	}
	for _, address := range addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("addresses: want host:port, got %q", address)
		}
	}
	return o.checkRest()
}

// checkRest validates what does not say where the server is.
func (o *ClientOptions) checkRest() error {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.PoolSize == 0 {
		o.PoolSize = max(32, 16*runtime.GOMAXPROCS(0))
	}
	switch {
	case o.DB < 0:
		return fmt.Errorf("db: want 0 or more, got %d", o.DB)
	case o.Password != "" && o.PasswordFile != "":
		return errors.New("password and password file: want at most one of them")
	case o.Username != "" && o.Password == "" && o.PasswordFile == "":
		return errors.New("username: want a password or a password file beside it")
	case o.Timeout < time.Millisecond:
		return fmt.Errorf("timeout: want 1ms or more, got %s", o.Timeout)
	case o.PoolSize < 1:
		return fmt.Errorf("pool size: want 1 or more, got %d", o.PoolSize)
	}
	if o.PasswordFile != "" {
		if _, err := readPassword(o.PasswordFile); err != nil {
			return err
		}
	}
	return nil
}

// readPassword returns what the file holds, without one final newline. No error
// of it shows any of the contents.
func readPassword(name string) (string, error) {
	f, err := os.Open(name) //nolint:gosec // the operator names the file
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, maxPasswordFile+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read the password: %w", err)
	case len(b) > maxPasswordFile:
		return "", fmt.Errorf("read the password: %s is longer than %d bytes; is it the right file?", name, maxPasswordFile)
	}
	password, cut := strings.CutSuffix(string(b), "\n")
	if cut {
		password = strings.TrimSuffix(password, "\r")
	}
	if password == "" {
		return "", fmt.Errorf("read the password: %s is empty", name)
	}
	return password, nil
}

// quiet switches go-redis' logger off, once for the process.
var quiet = sync.OnceFunc(logging.Disable)
