package config

import (
	"fmt"
	"math"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v4"
)

// WebSocket bounds the WebSockets of a route; nil bounds none.
type WebSocket struct {
	MaxConnections int           // that one caller has at the same time, on one instance; 0: any number
	Idle           time.Duration // without a byte, from either side; 0: any time
	Lifetime       time.Duration // since the handshake; 0: any time
}

const (
	wantedWebSocket = "max_connections, idle or lifetime"
	// The bounds of idle and lifetime.
	minSocketTime = time.Second
	maxSocketTime = 30 * day
)

// webSocket reads the bounds of WebSockets; nil if there are none.
func (v value) webSocket() *WebSocket {
	o, ok := v.object(wantedWebSocket)
	if !ok {
		return nil
	}
	w := &WebSocket{}
	if v, ok := o.get("max_connections", "a number of connections"); ok {
		n, _ := v.integer(1, math.MaxInt32)
		w.MaxConnections = int(n)
	}
	w.Idle = o.duration("idle", 0, minSocketTime, maxSocketTime)
	w.Lifetime = o.duration("lifetime", 0, minSocketTime, maxSocketTime)
	o.done()
	switch {
	case v.n.Kind == yaml.MappingNode && len(v.n.Content) == 0:
		v.warnf("has no effect: it bounds nothing; want %s, or no websocket", wantedWebSocket)
	case w.Lifetime > 0 && w.Idle >= w.Lifetime:
		v.warnf("idle has no effect: every WebSocket is ended by lifetime (%s) before it was quiet for %s; want less of idle, or none",
			formatDuration(w.Lifetime), formatDuration(w.Idle))
	}
	if *w == (WebSocket{}) {
		return nil
	}
	return w
}

// text is the bounds in a line; empty if there are none.
func (w *WebSocket) text() string {
	if w == nil {
		return ""
	}
	var parts []string
	if w.MaxConnections > 0 {
		parts = append(parts, fmt.Sprintf("%d at a time", w.MaxConnections))
	}
	if w.Idle > 0 {
		parts = append(parts, "idle for "+formatDuration(w.Idle))
	}
	if w.Lifetime > 0 {
		parts = append(parts, "open for "+formatDuration(w.Lifetime))
	}
	return strings.Join(parts, ", ")
}

// webSocket writes the bounds of WebSockets.
func (m mapping) webSocket(w *WebSocket) {
	if w == nil {
		return
	}
	n := newMapping(true)
	if w.MaxConnections > 0 {
		n.number("max_connections", int64(w.MaxConnections))
	}
	if w.Idle > 0 {
		n.duration("idle", w.Idle)
	}
	if w.Lifetime > 0 {
		n.duration("lifetime", w.Lifetime)
	}
	m.node("websocket", n.n)
}
