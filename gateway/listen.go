package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
)

// listenOn opens "host:port", ":port" or "unix:/path".
func listenOn(address string) (net.Listener, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
		removeStaleSocket(path)
	}
	l, err := net.Listen(network, address)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: the address is in use; stop whatever else listens there, or choose another address", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: not permitted; ports below 1024 need CAP_NET_BIND_SERVICE, and a socket needs a directory that can be written", address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("listen on %s: this machine has no such address; use one of its own, or :PORT for all of them", address)
	default:
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
}

// removeStaleSocket removes what a process that was killed left behind: a
// socket that nobody answers on. Anything else stays where it is.
func removeStaleSocket(path string) {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return
	}
	_ = os.Remove(path)
}

// handedOver are listening sockets that whoever started the process opened: they go
// on listening between two processes, so that a restart leaves no gap.
type handedOver []net.Listener

// inheritedListeners returns the sockets that were handed over as systemd does it
// (sd_listen_fds(3)): LISTEN_FDS of them from file descriptor 3 on, for the process
// LISTEN_PID. Nobody else inherits them from this one.
func inheritedListeners() (handedOver, error) {
	ls, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("take over the sockets that were handed over (LISTEN_FDS): %w", err)
	}
	var all handedOver
	for _, l := range ls {
		if l != nil { // a datagram socket is none
			all = append(all, l)
		}
	}
	return all, nil
}

// take returns the one that listens where address says, and nil if there is none.
func (h handedOver) take(address string) net.Listener {
	for i, l := range h {
		if l != nil && listensOn(l.Addr(), address) {
			h[i] = nil
			return l
		}
	}
	return nil
}

// listensOn reports whether a socket at a is what listen has as address.
func listensOn(a net.Addr, address string) bool {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return a.Network() == "unix" && a.String() == path
	}
	host, port, err := net.SplitHostPort(address)
	at, errAt := netip.ParseAddrPort(a.String())
	if err != nil || errAt != nil || fmt.Sprint(at.Port()) != port || port == "0" {
		return false
	}
	if host == "" {
		return at.Addr().IsUnspecified()
	}
	want, err := netip.ParseAddr(host)
	return err == nil && want.Unmap() == at.Addr().Unmap()
}

// dismiss closes the sockets that nothing listens on here, and says so: whoever
// handed them over will hear no answer there.
func (g *Gateway) dismiss(h handedOver) {
	for _, l := range h {
		if l != nil {
			g.log.Warn("a socket was handed over that no listener is configured for; it is closed here", "address", l.Addr().String())
			_ = l.Close()
		}
	}
}
