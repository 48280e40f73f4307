package scope

import "net/netip"

// NoAddress is what a peer or client without an address is called wherever addresses are
// logged or counted: it is behind a unix socket.
const NoAddress = "unix"

// AddressName is a as text, and [NoAddress] for the zero Addr.
func AddressName(a netip.Addr) string {
	if !a.IsValid() {
		return NoAddress
	}
	return a.String()
}

// PeerName is a peer, named as in http.Request.RemoteAddr, as it is to be logged: one on a
// unix socket is "@", empty or a path there, and [NoAddress] here.
func PeerName(remote string) string {
	if remote == "" || remote[0] == '@' || remote[0] == '/' {
		return NoAddress
	}
	return remote
}
