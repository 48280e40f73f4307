package config

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// byteOrderMark may begin a file in UTF-8; it has no column.
const byteOrderMark = "\ufeff"

// foreign says what the document is where it is no YAML at all: the parser
// would complain of some character deep in it. what is empty if it may be YAML.
func (d *doc) foreign() (line, column int, what string) {
	switch encoding := wideEncoding(d.data); {
	case encoding != "":
		return 1, 1, "this file is " + encoding + "; save it as UTF-8"
	case bytes.HasPrefix(d.data, []byte("\x1f\x8b")):
		return 1, 1, "this file is compressed with gzip; unpack it"
	}
	if i := conflictAt(d.data); i >= 0 {
		line, column = d.position(i)
		return line, column, "a merge left its conflict here; choose one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>"
	}
	text := bytes.TrimPrefix(d.data, []byte(byteOrderMark))
	text = bytes.TrimLeft(text, " \t\r\n")
	if len(text) < 2 || text[0] != '<' {
		return 0, 0, ""
	}
	line, column = d.position(len(d.data) - len(text))
	start := strings.ToLower(string(text[:min(len(text), 15)]))
	c := start[1]
	switch {
	case strings.HasPrefix(start, "<!doctype html"), strings.HasPrefix(start, "<html"), strings.HasPrefix(start, "<head"), strings.HasPrefix(start, "<body"):
		return line, column, "this is an HTML page, not YAML; perhaps a download brought a login or error page instead of the file"
	case c == '?', c == '!', 'a' <= c && c <= 'z':
		return line, column, "this is XML or HTML, not YAML; is it the right file?"
	}
	return 0, 0, ""
}

// conflictAt is where a merge has left the first of its marks; -1 if it did not.
func conflictAt(data []byte) int {
	mark := []byte("\n<<<<<<< ")
	if bytes.HasPrefix(data, mark[1:]) {
		return 0
	}
	if i := bytes.Index(data, mark); i >= 0 {
		return i + 1
	}
	return -1
}

// wideEncoding is the name of an encoding of more than a byte a character, with
// or without a mark of the byte order; empty if data has none. A file of ours
// begins with an ASCII character, of which the other bytes are then zero.
func wideEncoding(data []byte) string {
	var b [4]byte
	n := copy(b[:], data)
	switch {
	case n == 4 && (b == [4]byte{0xff, 0xfe} || b == [4]byte{0, 0, 0xfe, 0xff}),
		n == 4 && (b[0] != 0 && b[1]|b[2]|b[3] == 0 || b[3] != 0 && b[0]|b[1]|b[2] == 0):
		return "UTF-32"
	case n >= 2 && (b[0] == 0xff && b[1] == 0xfe || b[0] == 0xfe && b[1] == 0xff || (b[0] == 0) != (b[1] == 0)):
		return "UTF-16"
	}
	return ""
}

// lineStarts returns where each line begins. A line ends where the parser ends
// it: at LF, CR, both, and the three further breaks of YAML 1.1.
func (d *doc) lineStarts() []int {
	if d.starts != nil {
		return d.starts
	}
	d.starts = []int{0}
	for i := 0; i < len(d.data); {
		n := breakAt(d.data[i:])
		i += max(n, 1)
		if n > 0 {
			d.starts = append(d.starts, i)
		}
	}
	return d.starts
}

// breakAt is the length of the line break that b begins with; 0 if there is none.
func breakAt(b []byte) int {
	switch b[0] {
	case '\n':
		return 1
	case '\r':
		if len(b) > 1 && b[1] == '\n' {
			return 2
		}
		return 1
	case 0xc2, 0xe2:
		if r, n := utf8.DecodeRune(b); r == '\u0085' || r == '\u2028' || r == '\u2029' {
			return n
		}
	}
	return 0
}

// position turns a byte offset into line and column, which counts characters.
func (d *doc) position(offset int) (line, column int) {
	offset = min(max(offset, 0), len(d.data))
	starts := d.lineStarts()
	for line < len(starts) && starts[line] <= offset {
		line++
	}
	before := d.data[starts[line-1]:offset]
	if line == 1 {
		before = bytes.TrimPrefix(before, []byte(byteOrderMark))
	}
	return line, utf8.RuneCount(before) + 1
}

// line returns line n of the document, without its end; empty if there is none.
func (d *doc) line(n int) string {
	starts := d.lineStarts()
	if n < 1 || n > len(starts) {
		return ""
	}
	text := d.data[starts[n-1]:]
	if n < len(starts) {
		text = text[:starts[n]-starts[n-1]]
	}
	s := strings.TrimRight(string(text), "\r\n\u0085\u2028\u2029")
	if n == 1 {
		s = strings.TrimPrefix(s, byteOrderMark)
	}
	return s
}
