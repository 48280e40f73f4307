package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	yaml "go.yaml.in/yaml/v4"
)

// maxFileSize bounds every file that is read.
const maxFileSize = 10 << 20

// source is what the files of one load share.
type source struct {
	report *Report
	lookup func(string) (string, bool)
	seen   map[string]bool // absolute paths in report.Files
	hash   []byte          // digests of the contents, in the order of reading
}

func newSource(lookup func(string) (string, bool)) *source {
	if lookup == nil {
		lookup = os.LookupEnv
	}
	return &source{report: &Report{docs: map[string]*doc{}}, lookup: lookup, seen: map[string]bool{}}
}

// read returns the content of a file and notes that it was read or tried. The
// error names no path: the caller says where the file was named.
func (s *source) read(path string) ([]byte, error) {
	data, err := ReadFile(path)
	abs := absolute(path)
	if !s.seen[abs] {
		s.seen[abs] = true
		f := File{Path: abs}
		if err == nil {
			f.SHA256 = sha256.Sum256(data)
		}
		s.hash = append(s.hash, f.SHA256[:]...)
		s.report.Files = append(s.report.Files, f)
	}
	return data, err
}

// ReadFile returns the content of a file that a configuration names: a regular one
// of at most 10 MiB. It waits for nobody, also where the file has become a pipe. The
// error does not repeat the path.
func ReadFile(path string) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, plainError(err)
	}
	if len(data) > maxFileSize {
		return nil, errTooLarge
	}
	return data, nil
}

// Changed reports whether the file holds other bytes than those that were read.
// A file that cannot be read has none, as in [Report.Files]. It takes a buffer
// of memory, whatever the size, and never waits for a writer of a pipe.
func (f File) Changed() bool {
	sum, err := digestFile(f.Path)
	if err != nil {
		sum = [sha256.Size]byte{}
	}
	return sum != f.SHA256
}

// digestFile is the digest of what readFile returns.
func digestFile(path string) (sum [sha256.Size]byte, err error) {
	f, err := openRegular(path)
	if err != nil {
		return sum, err
	}
	defer func() { _ = f.Close() }() // it was only read
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, maxFileSize+1))
	if err == nil && n > maxFileSize {
		err = errTooLarge
	}
	return [sha256.Size]byte(h.Sum(nil)), err
}

// openRegular opens a file of ordinary kind and size, and no other: a pipe
// would be empty at the next reload, and opening one can block; a device may do
// anything.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, plainError(err)
	}
	if err := readable(info); err != nil {
		return nil, err
	}
	// What stands there now may be another than the one just looked at.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, plainError(err)
	}
	if info, err = f.Stat(); err == nil {
		err = readable(info)
	}
	if err != nil {
		_ = f.Close() // nothing was read of it
		return nil, plainError(err)
	}
	return f, nil
}

// readable says why a file is not read.
func readable(info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return errors.New("is a directory; want a file")
	case !info.Mode().IsRegular():
		return errors.New("is not a regular file, but a pipe, a socket or a device; want a file")
	case info.Size() > maxFileSize:
		return errTooLarge
	}
	return nil
}

var errTooLarge = fmt.Errorf("larger than %d MiB; is this the right file?", maxFileSize>>20)

// errNoFile says that there is no file of that name.
var errNoFile = errors.New("no such file")

// plainError takes operation and path out of a file error: they stand beside it.
func plainError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errNoFile
	case errors.Is(err, fs.ErrPermission):
		return errors.New("permission denied; the gateway's user must be able to read it")
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// absolute is filepath.Abs, which fails only where there is no working
// directory; the path as it was given is then as good as any.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// doc is one YAML document that is being read.
type doc struct {
	src    *source
	name   string // the path, as problems show it
	data   []byte
	starts []int     // where each line begins; made when first needed
	hidden []bool    // by line; made when first needed
	shown  shownLine // the last one that was asked for
	budget int       // nodes that may still be visited
	spent  bool      // the budget's end was reported
	raw    bool      // data: no ${NAME}, and no line is ever shown
}

// open reads and parses the YAML file at path. It reports what is wrong and
// returns false if there is no document.
func (s *source) open(path, wanted string) (value, bool) {
	data, err := s.read(path)
	if err != nil {
		s.report.add(Problem{Pos: Pos{File: path}, Message: err.Error()})
		return value{}, false
	}
	d := &doc{src: s, name: path, data: data}
	s.report.docs[path] = d
	return d.parse(wanted)
}

// parse returns the root of the only document of d.
func (d *doc) parse(wanted string) (value, bool) {
	if line, column, what := d.foreign(); what != "" {
		d.problem(line, column, "", false, "%s", what)
		return value{}, false
	}
	root, second, err := parseNodes(d.data)
	if err != nil {
		d.syntax(err)
		return value{}, false
	}
	if root == nil {
		d.problem(1, 1, "", false, "the file is empty; want %s", wanted)
		return value{}, false
	}
	if second != nil {
		d.problem(second.Line, second.Column, "", false,
			"a second document begins here; want one document a file")
		return value{}, false
	}
	if len(root.Content) == 0 || isNull(root.Content[0]) {
		d.problem(1, 1, "", false, "the file is empty; want %s", wanted)
		return value{}, false
	}
	// Without aliases every node is visited once. Twice that and some is more
	// than any honest use of anchors needs, and ends a bomb at once.
	d.budget = 2*countNodes(root) + 100_000
	return value{d: d, n: root.Content[0]}, true
}

// parseNodes parses the first document of data, and looks for a second. root
// is nil if there is none. A panic of the parser becomes an error: the files
// are edited by hand while the gateway runs, and no edit may end it.
func parseNodes(data []byte) (root, second *yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("the YAML parser gave up on this file")
		}
	}()
	ld, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithUniqueKeys(false))
	if err != nil {
		return nil, nil, err
	}
	var nodes [2]*yaml.Node
	for i := range nodes {
		var n yaml.Node
		if err := ld.Load(&n); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, err
		}
		nodes[i] = &n
	}
	return nodes[0], nodes[1], nil
}

// countNodes counts the nodes below n, not following aliases.
func countNodes(n *yaml.Node) int {
	sum := 1
	for _, c := range n.Content {
		sum += countNodes(c)
	}
	return sum
}

// syntax reports what the YAML parser said.
func (d *doc) syntax(err error) {
	le, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		d.problem(0, 0, "", false, "not valid YAML: %v", err)
		return
	}
	line, column := le.Mark.Line, le.Mark.Column
	if line == 0 {
		line, column = d.position(le.Mark.Index)
	}
	msg := le.Message
	if le.ContextMsg != "" {
		msg += " (" + le.ContextMsg + ")"
	}
	indent, _, _ := strings.Cut(strings.TrimLeft(d.line(line), " "), "\t")
	switch {
	case indent == "" && strings.Contains(d.line(line), "\t"):
		msg = "a tab cannot indent YAML; use spaces"
	case le.Stage == yaml.ReaderStage:
		msg = "not a text file in UTF-8: " + le.Message + "; save it as UTF-8, without that character"
	default:
		msg = "not valid YAML: " + msg
		if bareComparison.MatchString(d.line(line)) {
			msg += `; a comparison with > stands in quotes, as in "> 3"`
		}
	}
	d.problem(line, column, "", false, "%s", msg)
}

// bareComparison matches a comparison that YAML takes for a block of text.
var bareComparison = regexp.MustCompile(`:\s*>=?\s*[0-9]`)

// problem records a problem at a place of this document.
func (d *doc) problem(line, column int, path string, warning bool, format string, args ...any) {
	d.src.report.add(Problem{
		Pos:     Pos{File: d.name, Line: line, Column: column},
		Path:    path,
		Message: fmt.Sprintf(format, args...),
		Warning: warning,
	})
}
