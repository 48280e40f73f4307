package test

import (
	"bufio"
	encoding "encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// A monitor is told by a Redis of everything that it does: of each call, and of
// each step that a script takes, in the order and with the time of the server.
type monitor struct {
	t     testing.TB
	conn  net.Conn
	lines chan []monitorLine // once, at the end
}

// A monitorLine is one command.
type monitorLine struct {
	at     int64  // µs since the epoch
	client string // its address, or lua
	args   []string
}

// The command that ends a monitor, by which it knows that it has seen all.
const monitorEnd = "the end of the test"

func monitorRedis(t testing.TB, address string) *monitor {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	m := &monitor{t: t, conn: conn, lines: make(chan []monitorLine, 1)}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); line != "+OK\r\n" {
		t.Fatalf("MONITOR: %q, %v", line, err)
	}
	go func() {
		defer close(m.lines)
		var lines []monitorLine
		for {
			text, err := in.ReadString('\n')
			if err != nil {
				t.Errorf("what Redis does could not be read to its end: %v", err)
				return
			}
			line, err := parseMonitorLine(text)
			if err != nil {
				t.Errorf("%v: %q", err, text)
				return
			}
			if len(line.args) == 2 && line.args[1] == monitorEnd {
				m.lines <- lines
				return
			}
			lines = append(lines, line)
		}
	}()
	return m
}

// stop returns all that was done so far.
func (m *monitor) stop() []monitorLine {
	m.t.Helper()
	conn, err := net.Dial("tcp", m.conn.RemoteAddr().String())
	if err != nil {
		m.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "ECHO \""+monitorEnd+"\"\r\n"); err != nil {
		m.t.Fatal(err)
	}
	select {
	case lines := <-m.lines:
		_ = m.conn.Close()
		return lines
	case <-time.After(patience):
		m.t.Fatal("Redis does not tell what it did")
		return nil
	}
}

// parseMonitorLine reads +seconds.micros [db client] "command" "argument" …
func parseMonitorLine(text string) (l monitorLine, err error) {
	stamp, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(text), "+"), " [")
	seconds, micros, _ := strings.Cut(stamp, ".")
	if l.at, err = strconv.ParseInt(seconds+micros, 10, 64); err != nil || len(micros) != 6 {
		return l, fmt.Errorf("a line without a time: %w", err)
	}
	where, rest, found := strings.Cut(rest, "] ")
	if !found {
		return l, errors.New("a line without a client")
	}
	_, l.client, _ = strings.Cut(where, " ")
	for rest != "" {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return l, fmt.Errorf("an argument without quotes: %w", err)
		}
		arg, err := strconv.Unquote(quoted)
		if err != nil {
			return l, fmt.Errorf("an argument: %w", err)
		}
		l.args = append(l.args, arg)
		rest = strings.TrimPrefix(rest[len(quoted):], " ")
	}
	if len(l.args) == 0 {
		return l, errors.New("a line without a command")
	}
	return l, nil
}

// float64At reads a number as the scripts write it.
func float64At(s string) float64 {
	return math.Float64frombits(encoding.LittleEndian.Uint64([]byte(s[:8])))
}

// What the server says can be read whatever stands in it.
func TestAMonitorReadsWhatRedisDoes(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	m := monitorRedis(t, srv.Addr())
	hostile := "\x00\"\\ ] [0 lua] \r\n\xff \"x\""
	if err := rdb.Set(t.Context(), "k", hostile, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	for _, line := range m.stop() {
		if line.args[0] == "set" && line.args[2] == hostile {
			return
		}
	}
	t.Error("the command was not seen")
}
