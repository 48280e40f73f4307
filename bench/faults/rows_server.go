package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/internal/redistest"
)

// A server is one real Redis and a client to torment it with.
type server struct {
	*redistest.Server
	x   *experiment
	rdb *redis.Client
}

func (x *experiment) server(args ...string) *server {
	s := redistest.Start(x, args...)
	return &server{Server: s, x: x, rdb: s.Client(x)}
}

// do sends a command that must succeed.
func (s *server) do(args ...any) {
	s.x.must(s.rdb.Do(s.x.ctx, args...).Err(), "tell redis "+args[0].(string))
}

// direct is a fault of the server that the gateways talk to.
func (s *server) direct(inject, heal func()) fault {
	return fault{store: storeAt(s.Addr()), ports: []string{port(s.Addr())}, inject: inject, heal: heal}
}

// commanded is a fault that one command brings about and another ends.
func commanded(inject, heal []any, args ...string) func(*experiment) fault {
	return func(x *experiment) fault {
		s := x.server(args...)
		return s.direct(func() { s.do(inject...) }, func() { s.do(heal...) })
	}
}

// background calls f over and over until the returned function is called.
func (x *experiment) background(every time.Duration, f func() error) (stop func()) {
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			if err := f(); err != nil {
				ended <- err
				return
			}
			select {
			case <-done:
				ended <- nil
				return
			case <-x.ctx.Done():
				ended <- x.ctx.Err()
				return
			case <-time.After(every):
			}
		}
	}()
	return func() {
		close(done)
		x.must(<-ended, "go on with the fault")
	}
}

// serverRows are the faults of one server.
func serverRows() []row {
	return []row{
		{
			name: "frozen", what: "SIGSTOP: connections stay open, nobody answers",
			opens: must, kinds: []string{"timeout"},
			start: func(x *experiment) fault {
				s := x.server()
				return s.direct(s.Freeze, s.Thaw)
			},
		},
		{
			name: "paused", what: "CLIENT PAUSE ALL",
			opens: must, kinds: []string{"timeout"},
			start: func(x *experiment) fault {
				s := x.server()
				lasts := x.timing.fault + time.Second
				var ends time.Time
				return s.direct(func() {
					ends = time.Now().Add(lasts)
					s.do("CLIENT", "PAUSE", lasts.Milliseconds(), "ALL")
				}, func() { x.sleep(time.Until(ends)) }) // UNPAUSE would have to wait as well
			},
		},
		{
			name: "one slow command", what: "DEBUG SLEEP: Redis computes and answers nobody",
			opens: must, kinds: []string{"timeout"},
			start: func(x *experiment) fault {
				s := x.server("--enable-debug-command", "yes")
				slept := make(chan error, 1)
				seconds := (x.timing.fault + time.Second).Seconds()
				return s.direct(func() {
					rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: time.Minute, MaxRetries: -1})
					x.Cleanup(func() { _ = rdb.Close() })
					go func() { slept <- rdb.Do(x.ctx, "DEBUG", "SLEEP", seconds).Err() }()
				}, func() { x.must(<-slept, "let redis sleep") })
			},
		},
		{
			name: "busy", what: "another client's script runs for ever; SCRIPT KILL",
			opens: must, kinds: []string{"timeout", "busy"},
			start: func(x *experiment) fault {
				s := x.server("--busy-reply-threshold", "200")
				ended := make(chan struct{})
				return s.direct(func() {
					rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: time.Minute, MaxRetries: -1})
					x.Cleanup(func() { _ = rdb.Close() })
					go func() {
						defer close(ended)
						_ = rdb.Do(x.ctx, "EVAL", "while true do end", 0).Err() // that it was killed
					}()
				}, func() {
					s.do("SCRIPT", "KILL")
					<-ended
				})
			},
		},
		{
			name: "restart, empty", what: "SIGKILL; a second later it is back and has forgotten everything",
			opens: must, kinds: []string{"refused", "lost"}, forget: 1,
			start: func(x *experiment) fault {
				s := x.server()
				return s.direct(s.Kill, s.Restart)
			},
		},
		{
			name: "SCRIPT FLUSH", what: "ten times a second",
			start: func(x *experiment) fault {
				s := x.server()
				var stop func()
				return s.direct(func() {
					stop = x.background(100*time.Millisecond, func() error { return s.rdb.ScriptFlush(x.ctx).Err() })
				}, func() { stop() })
			},
		},
		{
			name: "LOADING", what: "SIGKILL; after the restart it reads its data for seconds",
			opens: must, kinds: []string{"loading"},
			start: func(x *experiment) fault {
				// 20,000 keys at 0.2 ms: some four seconds and more.
				s := x.server("--dbfilename", "dump.rdb", "--loading-process-events-interval-bytes", "1024", "--key-load-delay", "200")
				x.must(s.rdb.Eval(x.ctx, "for i = 1, 20000 do redis.call('SET', 'filler:' .. i, 'x') end return 1", nil).Err(), "fill redis")
				var loaded func()
				return s.direct(func() {
					s.do("CLIENT", "PAUSE", 10_000, "WRITE") // what is charged behind the SAVE would be forgotten
					s.do("SAVE")
					s.Kill()
					loaded = x.beside(s.Restart)
				}, func() { loaded() })
			},
		},
		{
			name: "OOM", what: "maxmemory reached under noeviction",
			opens: must, kinds: []string{"oom"},
			start: commanded([]any{"CONFIG", "SET", "maxmemory", 1}, []any{"CONFIG", "SET", "maxmemory", 0}),
		},
		{
			name: "keys evicted", what: "maxmemory reached under allkeys-random, by somebody else's data",
			forget: -1,
			start: func(x *experiment) fault {
				s := x.server("--maxmemory-policy", "allkeys-random", "--maxmemory", "4mb")
				var stop func()
				n := 0
				return s.direct(func() {
					value := string(make([]byte, 16<<10))
					stop = x.background(5*time.Millisecond, func() error {
						n++
						return s.rdb.Set(x.ctx, "filler:"+strconv.Itoa(n), value, 0).Err()
					})
				}, func() { stop() })
			},
		},
		{
			name: "wrong password", what: "rotated in Redis, all connections cut; the password file changes later",
			opens: must, kinds: []string{"auth"},
			start: func(x *experiment) fault {
				s := x.server("--requirepass", "first")
				file := x.TempDir() + "/password"
				x.must(writeFile(file, "first"), "write the password")
				f := s.direct(func() {
					s.do("CONFIG", "SET", "requirepass", "second")
					s.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
				}, func() { x.must(writeFile(file, "second"), "write the password") })
				f.store = `store: {redis: {url: "redis://` + s.Addr() + `/0", password_file: "` + file + `"}}`
				return f
			},
		},
		{
			name: "connection limit", what: "maxclients reached by somebody else, connections cut",
			opens: must, kinds: []string{"maxclients"},
			start: func(x *experiment) fault {
				s := x.server()
				var others *hoard
				return s.direct(func() {
					s.do("CONFIG", "SET", "maxclients", 40)
					s.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
					others = newHoard(s.Addr(), 200)
				}, func() {
					others.close()
					s.do("CONFIG", "SET", "maxclients", 1000)
				})
			},
		},
		{
			name: "foreign type", what: "a list stands at one caller's key; the others are not to notice",
			kinds: []string{"corrupt"},
			start: func(x *experiment) fault {
				s := x.server()
				return s.direct(func() { s.spoil("victim") }, func() {})
			},
			clients: victims,
			check:   checkVictims,
		},
	}
}

// beside runs f in a goroutine of its own. The returned function waits for it,
// and ends the experiment if f failed.
func (x *experiment) beside(f func()) (wait func()) {
	done := make(chan struct{})
	var failed any
	go func() {
		defer close(done)
		defer func() { failed = recover() }()
		f()
	}()
	x.Cleanup(func() { <-done })
	return func() {
		<-done
		if failed != nil {
			panic(failed) // x has the error
		}
	}
}

// writeFile replaces a file at once, as an editor does.
func writeFile(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// A hoard is many connections that do nothing.
type hoard struct{ conns []net.Conn }

func newHoard(address string, n int) *hoard {
	h := &hoard{}
	for range n {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			break
		}
		h.conns = append(h.conns, c)
	}
	return h
}

func (h *hoard) close() {
	for _, c := range h.conns {
		_ = c.Close()
	}
}

// spoil puts a list at every key of a caller.
func (s *server) spoil(user string) {
	keys, err := s.rdb.Keys(s.x.ctx, "*{user:"+user+"}*").Result()
	s.x.must(err, "look for the caller's keys")
	if len(keys) == 0 {
		s.x.Fatalf("%s has no key in redis", user)
	}
	for _, k := range keys {
		s.do("DEL", k)
		s.do("RPUSH", k, "a", "b")
	}
}

// victims asks for the caller whose key is spoiled.
func victims(x *experiment) []client {
	var out []client
	for i, g := range x.site.gateways {
		out = append(out, client{
			address: g.address, request: request("closed", "victim"), instance: i, route: "closed", caller: "victim",
			interval: 100 * time.Millisecond, offset: time.Duration(i) * 30 * time.Millisecond,
		})
	}
	return out
}

// checkVictims wants every request of the victim refused, and no other.
func checkVictims(r *result, samples []sample, at span) {
	refused := 0
	for i := range samples {
		s := &samples[i]
		if s.caller != "victim" || s.at.Before(at.failed.Add(100*time.Millisecond)) {
			continue
		}
		if s.status != http.StatusServiceUnavailable {
			r.broken("answers: the caller with the spoiled key got %d from a route that denies", s.status)
			return
		}
		refused++
	}
	r.Note = fmt.Sprintf("%d requests of that caller refused with 503", refused)
}
