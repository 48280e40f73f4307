package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	yaml "go.yaml.in/yaml/v4"
)

// ErrKeyExists is wrapped by the error of [AddKey] when the file has a key with
// that id or that digest already.
var ErrKeyExists = errors.New("the key is there already")

// ErrNoKey is wrapped by the error of [RevokeKey] when the file has no such key.
var ErrNoKey = errors.New("no such key")

// ReadKeys reads a key file. With errors in the report the keys are those that
// could be read. Plans are not looked up: only [Load] knows them.
func ReadKeys(path string) ([]Key, *Report) {
	s := newSource(nil)
	decls, _ := readKeysFile(s, path, nil)
	s.report.finish()
	return plainKeys(decls), s.report
}

func plainKeys(decls []keyDecl) []Key {
	var keys []Key
	for _, d := range decls {
		keys = append(keys, d.Key)
	}
	return keys
}

// AddKey appends a key to the key file at path. k.Pos is not looked at.
//
// A file that is not there is created, readable by its owner only. Otherwise
// the text of the file is kept as it is, with its comments, order, mode and
// owner, and one entry is added; a symbolic link is followed. The new file
// replaces the old one in one step, and a lock on the directory keeps other
// writers out until then, so that no concurrent edit is lost and no reader sees
// half a file. A file with mistakes is refused and left alone.
func AddKey(path string, k Key) error {
	return editKeys(path, func(text []byte, keys []keyDecl) ([]byte, error) {
		for _, have := range keys {
			if have.ID == k.ID {
				return nil, fmt.Errorf("add key to %s: id %s: %w; want another id, or revoke it first", path, quote(k.ID), ErrKeyExists)
			}
			if have.SHA256 == k.SHA256 {
				return nil, fmt.Errorf("add key to %s: it is the key of %s: %w", path, quote(have.ID), ErrKeyExists)
			}
		}
		entry, err := yamlLine(k.node(true))
		if err != nil {
			return nil, fmt.Errorf("add key to %s: %w", path, err)
		}
		want := append(plainKeys(keys), k)
		for candidate := range additions(text, entry) {
			if sameKeys(candidate, want) {
				return candidate, nil
			}
		}
		if err := checkKey(path, entry); err != nil {
			return nil, fmt.Errorf("add key to %s: %w", path, err)
		}
		return nil, fmt.Errorf("add key to %s: its layout is too unusual to edit; add by hand under keys: %s", path, entry)
	})
}

// RevokeKey removes the key with this id from the key file at path, under the
// same promises as [AddKey]. Comments are kept, but for those on the lines of
// the entry itself.
func RevokeKey(path, id string) error {
	return editKeys(path, func(text []byte, keys []keyDecl) ([]byte, error) {
		i := slices.IndexFunc(keys, func(k keyDecl) bool { return k.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("revoke key in %s: id %s: %w", path, quote(id), ErrNoKey)
		}
		want := slices.Delete(plainKeys(keys), i, i+1)
		for candidate := range removals(text, i) {
			if sameKeys(candidate, want) {
				return candidate, nil
			}
		}
		return nil, fmt.Errorf("revoke key in %s: its layout is too unusual to edit; remove the entry at line %d by hand", path, keys[i].Pos.Line)
	})
}

// parseKeys reads the text of a key file. Nothing, or comments alone, is a file
// without keys.
func parseKeys(name string, text []byte) ([]keyDecl, *Report) {
	s := newSource(nil)
	var keys []keyDecl
	if root, _, err := parseNodes(text); root != nil || err != nil {
		d := &doc{src: s, name: name, data: text, raw: true}
		if root, ok := d.parse(wantedKeys); ok {
			keys, _ = readKeys(root)
		}
	}
	s.report.finish()
	return keys, s.report
}

// sameKeys reports whether text is a key file without mistakes that holds
// exactly these keys. No edit is written that has not passed it, so the
// candidates below may be guesses.
func sameKeys(text []byte, want []Key) bool {
	decls, report := parseKeys("", text)
	return report.Err() == nil && slices.EqualFunc(plainKeys(decls), want, func(a, b Key) bool {
		return a.ID == b.ID && a.SHA256 == b.SHA256 && a.User == b.User && a.Tenant == b.Tenant &&
			a.Plan == b.Plan && a.Expires.Equal(b.Expires) &&
			slices.Equal(a.Routes, b.Routes) && slices.Equal(a.AllowIPs, b.AllowIPs) && slices.Equal(a.Scopes, b.Scopes)
	})
}

// checkKey says what is wrong with a key that could not be added.
func checkKey(name, entry string) error {
	_, report := parseKeys(name, []byte("keys:\n  - "+entry+"\n"))
	if es := report.Errors(); len(es) > 0 {
		return errors.New(strings.TrimPrefix(es[0].Path, "keys[0].") + ": " + es[0].Message)
	}
	return nil
}

// yamlLine writes a node in flow style on one line.
func yamlLine(n *yaml.Node) (string, error) {
	var b bytes.Buffer
	d, err := yaml.NewDumper(&b, yaml.WithLineWidth(-1))
	if err == nil {
		err = errors.Join(d.Dump(n), d.Close())
	}
	return strings.TrimSpace(b.String()), err
}

// newKeysFile heads a key file that is made here.
const newKeysFile = `# API keys: the SHA-256 of each, never the key itself. Written by "gateway
# keys"; may be edited by hand.
keys:
`

// keysNodeOf returns the list under keys and the node of its name; nil where
// it is not written out as such.
func keysNodeOf(text []byte) (name, list *yaml.Node) {
	root, _, err := parseNodes(text)
	if err != nil || root == nil || len(root.Content) == 0 {
		return nil, nil
	}
	m := root.Content[0].Content
	for i := 0; i+1 < len(m); i += 2 {
		if m[i].Value == "keys" {
			return m[i], m[i+1]
		}
	}
	return nil, nil
}

// lastLine is the last line on which a node below n begins.
func lastLine(n *yaml.Node) int {
	line := n.Line
	for _, c := range n.Content {
		line = max(line, lastLine(c))
	}
	return line
}

// splitLines cuts text into lines that keep their ends.
func splitLines(text []byte) []string {
	return slices.Collect(strings.Lines(string(text)))
}

// additions yields texts that may be the key file with one entry more.
func additions(text []byte, entry string) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		eol := "\n"
		if i := bytes.IndexByte(text, '\n'); i > 0 && text[i-1] == '\r' {
			eol = "\r\n"
		}
		name, list := keysNodeOf(text)
		if name == nil {
			comments := string(text)
			if comments != "" && !strings.HasSuffix(comments, "\n") {
				comments += eol
			}
			if comments == "" {
				comments = strings.TrimSuffix(newKeysFile, "keys:\n")
			}
			yield([]byte(comments + "keys:" + eol + "  - " + entry + eol))
			return
		}
		lines := splitLines(text)
		insertAfter := func(line int, added string) []byte {
			before := strings.Join(lines[:line], "")
			if !strings.HasSuffix(before, "\n") {
				before += eol
			}
			return []byte(before + added + eol + strings.Join(lines[line:], ""))
		}
		switch {
		case list.Kind == yaml.SequenceNode && list.Style&yaml.FlowStyle == 0 && len(list.Content) > 0:
			indent := strings.Repeat(" ", max(list.Column-1, 0))
			for line := lastLine(list); line <= len(lines); line++ {
				if !yield(insertAfter(line, indent+"- "+entry)) {
					return
				}
			}
		case list.Kind == yaml.SequenceNode && len(list.Content) == 0:
			// keys: [] becomes a list of lines.
			start := offset(text, list.Line, 0)
			open := bytes.IndexByte(text[start:], '[')
			shut := bytes.IndexByte(text[start:], ']')
			if open >= 0 && shut > open {
				before := strings.TrimRight(string(text[:start+open]), " ")
				after := string(text[start+shut+1:])
				rest, tail, _ := strings.Cut(after, "\n")
				yield([]byte(before + strings.TrimRight(rest, "\r") + eol + "  - " + entry + eol + tail))
			}
		case list.Kind == yaml.SequenceNode:
			for i := offset(text, lastLine(list), 0); i < len(text); i++ {
				if text[i] != ']' {
					continue
				}
				for _, comma := range []string{", ", " "} {
					before := strings.TrimRight(string(text[:i]), " \r\n")
					if !yield([]byte(before + comma + entry + string(text[i:]))) {
						return
					}
				}
			}
		default: // keys: with nothing
			yield(insertAfter(name.Line, "  - "+entry))
		}
	}
}

// removals yields texts that may be the key file without entry i.
func removals(text []byte, i int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		name, list := keysNodeOf(text)
		if name == nil || list.Kind != yaml.SequenceNode || i >= len(list.Content) {
			return
		}
		item := list.Content[i]
		lines := splitLines(text)
		if list.Style&yaml.FlowStyle != 0 {
			start := offset(text, item.Line, item.Column)
			for end := start; end < len(text); end++ {
				if text[end] != '}' {
					continue
				}
				before, after := string(text[:start]), string(text[end+1:])
				next, hasNext := strings.CutPrefix(strings.TrimLeft(after, " \r\n"), ",")
				previous, hasPrevious := strings.CutSuffix(strings.TrimRight(before, " \r\n"), ",")
				switch {
				case hasNext && !yield([]byte(before+strings.TrimLeft(next, " \r\n"))):
					return
				case !hasNext && hasPrevious && !yield([]byte(previous+after)):
					return
				case !hasNext && !hasPrevious && !yield([]byte(before+after)):
					return
				}
			}
			return
		}
		first, last := name.Line+1, len(lines)
		if i > 0 {
			first = lastLine(list.Content[i-1]) + 1
		}
		if i+1 < len(list.Content) {
			last = list.Content[i+1].Line - 1
		}
		for start := item.Line; start >= first; start-- {
			for end := lastLine(item); end <= last; end++ {
				rest := slices.Concat(lines[:start-1], lines[end:])
				if len(list.Content) == 1 {
					// An empty list says what is meant better than nothing does.
					empty := slices.Clone(rest)
					empty[name.Line-1] = strings.Replace(empty[name.Line-1], "keys:", "keys: []", 1)
					if !yield([]byte(strings.Join(empty, ""))) {
						return
					}
				}
				if !yield([]byte(strings.Join(rest, ""))) {
					return
				}
			}
		}
	}
}

// offset turns a line and a column, counted in characters, into an offset.
// Column 0 is the start of the line.
func offset(text []byte, line, column int) int {
	at := 0
	for ; line > 1; line-- {
		i := bytes.IndexByte(text[at:], '\n')
		if i < 0 {
			return len(text)
		}
		at += i + 1
	}
	for ; column > 1 && at < len(text); column-- {
		at += len(string([]rune(string(text[at:min(at+4, len(text))]))[:1]))
	}
	return at
}

// editKeys replaces the key file by what edit makes of it.
func editKeys(path string, edit func([]byte, []keyDecl) ([]byte, error)) error {
	target, err := followLinks(path)
	if err != nil {
		return fmt.Errorf("edit %s: %w", path, err)
	}
	unlock, err := lockDirectory(filepath.Dir(target))
	if err != nil {
		return fmt.Errorf("edit %s: %w", path, err)
	}
	defer unlock()
	mode, owner := fs.FileMode(0o600), (*syscall.Stat_t)(nil)
	var text []byte
	info, err := os.Stat(target)
	switch {
	case err == nil:
		if text, err = ReadFile(target); err != nil {
			return fmt.Errorf("edit %s: %w", path, err)
		}
		mode = info.Mode().Perm()
		owner, _ = info.Sys().(*syscall.Stat_t)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("edit %s: %w", path, plainError(err))
	}
	keys, report := parseKeys(path, text)
	if err := report.Err(); err != nil {
		return fmt.Errorf("edit %s: the file has mistakes and was left alone; correct them first:\n%w", path, err)
	}
	changed, err := edit(text, keys)
	if err != nil {
		return err
	}
	if err := replaceFile(target, changed, mode, owner); err != nil {
		return fmt.Errorf("edit %s: %w", path, err)
	}
	return nil
}

// followLinks returns the file that path stands for, which need not exist: a
// rename over a link would replace the link.
func followLinks(path string) (string, error) {
	for range 40 {
		to, err := os.Readlink(path)
		if err != nil {
			return path, nil // no link, or nothing there
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", errors.New("too many symbolic links")
}

// lockWait bounds the wait for other writers.
const lockWait = 30 * time.Second

// lockDirectory takes the advisory lock that all writers of files in dir take.
// It is the directory's own, so that no lock file is left behind, and the
// kernel gives it back when a process dies.
func lockDirectory(dir string) (unlock func(), err error) {
	d, err := os.Open(dir) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("lock the directory %s: %w", dir, plainError(err))
	}
	deadline := time.Now().Add(lockWait)
	for {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = d.Close() }, nil // closing gives the lock back
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) || time.Now().After(deadline) {
			_ = d.Close()
			return nil, fmt.Errorf("lock the directory %s: %w; is another gateway keys still running?", dir, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// replaceFile writes a file beside target and renames it over target, so that
// a reader sees the old content or the new one, also after a crash.
func replaceFile(target string, text []byte, mode fs.FileMode, owner *syscall.Stat_t) (err error) {
	dir := filepath.Dir(target)
	f, err := os.CreateTemp(dir, "."+filepath.Base(target)+".*") // 0600
	if err != nil {
		return fmt.Errorf("write into %s: %w", dir, plainError(err))
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name()) // the first error is the one to tell
		}
	}()
	if _, err := f.Write(text); err != nil {
		return plainError(err)
	}
	if owner != nil && (int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid()) {
		// Else a file of the gateway's user, edited by root, could not be read
		// by the gateway any more.
		if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("keep the owner of the file: %w; run this as its owner, or as root", plainError(err))
		}
	}
	if err := f.Chmod(mode); err != nil {
		return plainError(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return plainError(err)
	}
	if err := os.Rename(f.Name(), target); err != nil {
		return fmt.Errorf("replace %s: %w", target, err)
	}
	d, err := os.Open(dir) //nolint:gosec // the operator names the file
	if err != nil {
		return nil // renamed already; only the directory's own entry may be late on disk
	}
	_ = d.Sync() // not every file system can
	return d.Close()
}
