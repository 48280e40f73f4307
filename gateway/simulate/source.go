package simulate

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
)

// A Format is how the lines of a log are written.
type Format string

// The formats.
const (
	// Auto finds out, for each file by the first line that can be read.
	Auto Format = ""
	// Combined is nginx's and Apache's, also with a forwarded-for column and the
	// request time behind it, and Traefik's, which is that with four more columns.
	Combined Format = "combined"
	// JSON is an object a line: nginx's with log_format … escape=json, Caddy's,
	// Traefik's, this gateway's own, or any other with Options.Fields.
	JSON Format = "json"
	// Envoy is Envoy's default text.
	Envoy Format = "envoy"
)

// ParseFormat reads the name of a format, or of whose log it is.
func ParseFormat(s string) (Format, error) {
	switch s {
	case "", "auto":
		return Auto, nil
	case "combined", "common", "nginx", "apache", "traefik":
		return Combined, nil
	case "json", "caddy", "gateway":
		return JSON, nil
	case "envoy":
		return Envoy, nil
	}
	return Auto, fmt.Errorf("there is no format %q; want auto, combined (nginx, apache, traefik), json (caddy, gateway) or envoy", s)
}

const (
	// maxLine bounds a line; what is longer is malformed.
	maxLine = 64 << 10
	// maxShown bounds the malformed lines that are shown.
	maxShown = 20
)

// A source is one log that is being read.
type source struct {
	name   string
	in     *bufio.Reader
	close  func() error
	format Format
	parse  lineReader
	line   int64
	head   *record // the next one; nil at the end
}

var records = sync.Pool{New: func() any { return new(record) }}

// open opens a log; "-" is in.
func open(path string, in io.Reader, o *Options, kept *kept, read *atomic.Int64) (*source, error) {
	s := &source{name: path, format: o.Format, close: func() error { return nil }}
	s.parse.fields, s.parse.object, s.parse.kept = o.fields, map[string]rawJSON{}, kept
	if path == "-" {
		s.name = "standard input"
	} else {
		f, err := os.Open(path) //nolint:gosec // the operator names the file
		if err != nil {
			return nil, fmt.Errorf("open the log: %w", err)
		}
		if info, err := f.Stat(); err == nil && info.IsDir() {
			return nil, errors.Join(fmt.Errorf("open the log: %s is a directory; name the files in it", path), f.Close())
		}
		in, s.close = f, f.Close
	}
	s.in = bufio.NewReaderSize(&counting{in, read}, maxLine)
	magic, err := s.in.Peek(2)
	if err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(s.in)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read %s: %w", s.name, err), s.close())
		}
		s.in = bufio.NewReaderSize(z, maxLine)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(fmt.Errorf("read %s: %w", s.name, err), s.close())
	}
	return s, nil
}

// counting counts what was read, for the progress.
type counting struct {
	io.Reader
	n *atomic.Int64
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// next reads on to the next request. An error is one of reading.
func (s *source) next(c *counts, arrival bool) error {
	s.head = nil
	for {
		line, err := s.in.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = s.in.ReadSlice('\n')
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s after line %d: %w", s.name, s.line, err)
		}
		if len(line) == 0 && err != nil {
			return nil
		}
		s.line++
		if s.line == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 || long {
			c.lines++
			bad := errLong
			r, _ := records.Get().(*record)
			if !long {
				bad = s.read(line, r)
			}
			if bad == nil {
				if arrival {
					r.arrive()
				}
				c.seq++
				if r.sampled {
					c.sampled++
				}
				r.seq = c.seq
				s.head = r
				return nil
			}
			records.Put(r)
			c.bad(s, bad)
		}
		if err != nil {
			return nil
		}
	}
}

// read reads one line.
func (s *source) read(line []byte, r *record) error {
	*r = record{}
	format := s.format
	if format == Auto {
		switch line[0] {
		case '{':
			format = JSON
		case '[':
			format = Envoy
		default:
			format = Combined
		}
	}
	var err error
	switch format {
	case JSON:
		err = s.parse.jsonLine(line, r)
	case Envoy:
		err = s.parse.envoy(line, r)
	default:
		err = s.parse.combined(line, r)
	}
	if err == nil {
		s.format = format
	}
	return err
}

// counts is what reading comes to.
type counts struct {
	lines, malformed, other, late int64
	seq                           int64
	sampled                       int64 // of a log that has only some of such lines
	shown                         []Malformed
}

func (c *counts) bad(s *source, err error) {
	if errors.Is(err, errOther) {
		c.other++
		return
	}
	c.malformed++
	if len(c.shown) < maxShown {
		c.shown = append(c.shown, Malformed{At: fmt.Sprintf("%s:%d", s.name, s.line), Why: err.Error()})
	}
}
