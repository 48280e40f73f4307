package main

import (
	"fmt"
	"time"
)

// A network is a wire in front of a real Redis.
type network struct {
	*wire
	x *experiment
	s *server
}

func (x *experiment) network() *network {
	s := x.server()
	w, err := newWire(s.Addr())
	x.must(err, "make a wire")
	x.Cleanup(w.close)
	return &network{wire: w, x: x, s: s}
}

func (n *network) fault(inject, heal func()) fault {
	return fault{store: storeAt(n.addr), ports: []string{port(n.addr)}, wire: n.wire, inject: inject, heal: heal}
}

// troubled is a fault of the network as long as it lasts.
func troubled(t trouble) func(*experiment) fault {
	return func(x *experiment) fault {
		n := x.network()
		return n.fault(func() { n.set(t) }, func() { n.set(trouble{}) })
	}
}

// networkRows are the faults of the way to one server.
func networkRows() []row {
	return []row{
		{
			name: "refused", what: "the port is closed, connections are cut",
			opens: must, kinds: []string{"refused", "lost"},
			start: func(x *experiment) fault {
				n := x.network()
				return n.fault(n.refuse, func() { x.must(n.open(), "listen again") })
			},
		},
		{
			name: "unreachable", what: "connections are cut, the backlog is full: a SYN gets no answer",
			opens: must, kinds: []string{"timeout"},
			start: func(x *experiment) fault {
				n := x.network()
				var b *wall
				return n.fault(func() {
					var err error
					b, err = n.block()
					x.must(err, "fill the backlog")
				}, func() {
					b.close()
					x.must(n.open(), "listen again")
				})
			},
		},
		{
			name: "reads nothing", what: "a peer that accepts and never reads",
			opens: must, kinds: []string{"timeout"},
			start: troubled(trouble{hold: true}),
		},
		{
			name: "cut at once", what: "a peer that accepts and resets: a proxy without a backend",
			opens: must, kinds: []string{"lost"},
			start: func(x *experiment) fault {
				n := x.network()
				return n.fault(func() { n.set(trouble{reset: true}); n.cutAll() }, func() { n.set(trouble{}) })
			},
		},
		{
			name: "slow 40 ms", what: "each reply 40 ms late, within the timeout",
			opens: may,
			start: troubled(trouble{delay: 40 * time.Millisecond}),
		},
		{
			name: "slow 40 ms, connections cut", what: "the same, and each connection is new: two round trips",
			opens: may, kinds: []string{"timeout", "lost"},
			start: func(x *experiment) fault {
				n := x.network()
				var stop func()
				return n.fault(func() {
					n.set(trouble{delay: 40 * time.Millisecond})
					stop = x.background(200*time.Millisecond, func() error { n.cutAll(); return nil })
				}, func() {
					stop()
					n.set(trouble{})
				})
			},
		},
		{
			name: "slow 60 ms", what: "each reply 60 ms late, beyond the timeout",
			opens: must, kinds: []string{"timeout"},
			start: troubled(trouble{delay: 60 * time.Millisecond}),
		},
		{
			name: "slow 2 s", what: "each reply 2 s late",
			opens: must, kinds: []string{"timeout"},
			start: troubled(trouble{delay: 2 * time.Second}),
		},
		{
			name: "replies lost", what: "every call is charged and no reply arrives",
			opens: must, kinds: []string{"timeout"},
			start: troubled(trouble{lose: 1}),
		},
		{
			name: "a fifth of the replies lost", what: "the calls are charged",
			opens: may, kinds: []string{"timeout"},
			start: troubled(trouble{lose: .2}),
		},
		{
			name: "cut mid-reply", what: "of a quarter of the calls, half of the reply arrives and the connection breaks off",
			opens: may, kinds: []string{"lost"},
			start: troubled(trouble{cut: .25}),
		},
		{
			name: "half-open", what: "a firewall forgets all connections in silence; new ones are good",
			opens: may, kinds: []string{"timeout"},
			start: func(x *experiment) fault {
				n := x.network()
				return n.fault(n.forget, func() {})
			},
		},
		{
			name: "dribbling", what: "replies come byte by byte, 5 ms each",
			opens: must, kinds: []string{"timeout"},
			start: troubled(trouble{dribble: 5 * time.Millisecond}),
		},
		{
			name: "garbage", what: "something else than Redis answers",
			opens: must, kinds: []string{"corrupt"},
			start: troubled(trouble{garbage: true}),
		},
		{
			name: "READONLY", what: "failover: the old primary is a replica, its address moves to the new one later",
			opens: must, kinds: []string{"readonly"}, loses: lostUnits,
			start: func(x *experiment) fault {
				n := x.network()
				second := x.server()
				second.follow(n.s)
				return n.fault(func() {
					second.do("REPLICAOF", "NO", "ONE")
					n.s.do("REPLICAOF", "127.0.0.1", second.Port())
				}, func() {
					address := second.Addr()
					n.target.Store(&address) // for new connections; the old ones stay open
				})
			},
		},
		{
			name: "clients hang up", what: "replies are 20 ms late, and a third of the clients leave after 10 ms",
			start: func(x *experiment) fault {
				n := x.network()
				return n.fault(func() { n.set(trouble{delay: 20 * time.Millisecond}) }, func() { n.set(trouble{}) })
			},
			clients: leavers,
			check:   checkLeavers,
		},
	}
}

// follow makes s a replica of primary, and returns when it has its data.
func (s *server) follow(primary *server) { s.followAt(port(primary.Addr())) }

// followAt is follow by the port where the primary is reached.
func (s *server) followAt(port string) {
	s.do("REPLICAOF", "127.0.0.1", port)
	for range 400 {
		if info := s.rdb.InfoMap(s.x.ctx, "replication").Item("Replication", "master_link_status"); info == "up" {
			return
		}
		s.x.sleep(25 * time.Millisecond)
	}
	s.x.Fatalf("the replica does not follow")
}

// leavers ask and do not wait.
func leavers(x *experiment) []client {
	var out []client
	for i, g := range x.site.gateways {
		for range 6 {
			out = append(out, client{
				address: g.address, request: request("open", "victim"), instance: i, route: "open", caller: "victim",
				interval: 100 * time.Millisecond, patience: 10 * time.Millisecond,
			})
		}
	}
	spread(out)
	return out
}

func checkLeavers(r *result, samples []sample, at span) {
	left := 0
	for i := range samples {
		if s := &samples[i]; s.caller == "victim" && s.status == 0 {
			left++
		}
	}
	r.Note = fmt.Sprintf("%d clients left", left)
	if left == 0 {
		r.broken("answers: no client left")
	}
}
