package redisstore_test

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A commands reads RESP requests, each an array of strings.
type commands struct{ r *bufio.Reader }

func redisCommands(r io.Reader) commands { return commands{bufio.NewReader(r)} }

func (c commands) next() ([]string, error) {
	n, err := c.length('*')
	if err != nil {
		return nil, err
	}
	out := make([]string, n)
	for i := range out {
		size, err := c.length('$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(c.r, b); err != nil {
			return nil, err
		}
		out[i] = string(b[:size])
	}
	return out, nil
}

func (c commands) length(kind byte) (int, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" || line[0] != kind {
		return 0, fmt.Errorf("want %q, got %q", kind, line)
	}
	return strconv.Atoi(line[1:])
}
