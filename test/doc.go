// Package test drives the built program as its users do: real processes, real
// sockets, a real Redis. What a test here shows holds for the binary that is
// shipped, not for parts of it.
//
// It is not the place for what one package can show by itself. Every test
// starts its own gateway, upstream and Redis on free loopback ports and ends
// them; nothing is shared but the binary, which is built once.
package test
