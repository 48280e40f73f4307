package main

import (
	"context"
	"fmt"
	"time"
)

// A storm is many gateways that lose their Redis at the same time, twice: once a
// proxy cuts every connection at once, once every call reaches Redis and no reply
// arrives. What is counted is what they do to Redis meanwhile and on the return.
type storm struct {
	Gateways int `json:"gateways"`
	// Connections and script calls, all gateways together, in the busiest second.
	CutConnections    int     `json:"cut_connections_per_s"`
	LostConnections   int     `json:"lost_connections_per_s"`
	LostCalls         int     `json:"lost_calls_per_s"`
	ReturnConnections int     `json:"return_connections_per_s"`
	ReturnCut         float64 `json:"return_after_cut_s"`
	ReturnLost        float64 `json:"return_after_lost_s"`
	// Requests is how many a second the clients send.
	Requests int      `json:"requests_per_s"`
	Broken   []string `json:"broken,omitempty"`
}

const stormGateways = 20

// A probe comes every 400 ms or later, so three a second at most, and for each that is
// late a connection is made ready with a call that charges nothing; the board, where
// instances tell each other who is alive, asks twice a second while it fails; and
// go-redis makes one connection a second to find out by itself.
const (
	stormCalls       = 8 * stormGateways
	stormConnections = 6 * stormGateways
	// On the return a gateway needs as many connections as it has requests at the
	// same moment.
	stormReturn = 4 * stormGateways
)

// measureStorm runs the storm.
func measureStorm(ctx context.Context, program string, t timing) (*storm, error) {
	x := &experiment{host: &host{ctx: ctx}, program: program, timing: t}
	out := &storm{Gateways: stormGateways}
	err := x.run(func() {
		n := x.network()
		x.site = newSite(x.host, program, stormGateways, storeAt(n.addr), plans{})
		var clients []client
		for i, g := range x.site.gateways {
			clients = append(clients, client{address: g.address, request: request("closed", "closed-0"), instance: i, route: "closed", caller: "closed-0", interval: 100 * time.Millisecond})
		}
		spread(clients)
		out.Requests = 10 * len(clients)
		l := drive(x.ctx, clients)
		x.Cleanup(l.cancel)
		x.sleep(t.warm)

		out.ReturnCut = x.storm(n, func() { n.set(trouble{reset: true}); n.cutAll() }, func(from, to, healed time.Time) {
			out.CutConnections, _ = n.busiest(from, to)
			out.ReturnConnections, _ = n.busiest(healed, time.Now())
		})
		out.ReturnLost = x.storm(n, func() { n.set(trouble{lose: 1}) }, func(from, to, healed time.Time) {
			out.LostConnections, out.LostCalls = n.busiest(from, to)
			returning, _ := n.busiest(healed, time.Now())
			out.ReturnConnections = max(out.ReturnConnections, returning)
		})
		l.stop()
	})
	out.judge()
	return out, err
}

// storm has n broken, waits for every gateway to notice, lets the time pass, and
// heals it. It returns how long the last gateway took to return, in seconds.
func (x *experiment) storm(n *network, inject func(), count func(from, to, healed time.Time)) float64 {
	inject()
	for deadline := time.Now().Add(noticed); x.site.open() < len(x.site.gateways); x.sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			x.Fatalf("%d of %d gateways have noticed within %v", x.site.open(), len(x.site.gateways), noticed)
		}
	}
	from := time.Now()
	x.sleep(max(x.timing.fault, 2500*time.Millisecond))
	to := time.Now()
	n.set(trouble{})
	shared := x.awaitShared(to)
	x.sleep(max(x.timing.after, time.Second))
	count(from, to, to)
	return shared.Sub(to).Seconds()
}

func (s *storm) judge() {
	for _, c := range []struct {
		what    string
		n, most int
	}{
		{"connections a second while all are cut", s.CutConnections, stormConnections},
		{"connections a second while replies are lost", s.LostConnections, stormConnections},
		{"calls a second while replies are lost", s.LostCalls, stormCalls},
		{"connections a second on the return", s.ReturnConnections, stormReturn},
	} {
		if c.n > c.most {
			s.Broken = append(s.Broken, fmt.Sprintf("storm: %d %s; at most %d", c.n, c.what, c.most))
		}
	}
	for _, r := range []float64{s.ReturnCut, s.ReturnLost} {
		if r > returnBar.Seconds() {
			s.Broken = append(s.Broken, fmt.Sprintf("return: %.1f s after the store was well; at most %v", r, returnBar))
		}
	}
}
