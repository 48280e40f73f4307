package config

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// Bytes decide, and nothing else: not the time of the file, nor its number.
func TestUnchangedBytesAreNoChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans.yaml")
	put := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("plans: {}\n")
	f := File{Path: path, SHA256: sha256.Sum256([]byte("plans: {}\n"))}
	if f.Changed() {
		t.Error("changed before anything was done")
	}
	if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if f.Changed() {
		t.Error("another time is taken for a change")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if !f.Changed() {
		t.Error("a file that has gone is taken for the same")
	}
	put("plans: {}\n")
	if f.Changed() {
		t.Error("the same bytes in another file are taken for a change")
	}
	put("plans: {} \n")
	if !f.Changed() {
		t.Error("another byte is taken for none")
	}
}

// What stands at a watched path is looked at twice a second. A file that is no
// configuration must cost neither memory nor a wait there.
func TestWatchedFilesOfOtherKindsCostNothing(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	huge, err := os.Create(in("huge"))
	if err != nil {
		t.Fatal(err)
	}
	if err := huge.Truncate(5 << 30); err != nil { // all hole, and takes no disk
		t.Fatal(err)
	}
	if err := huge.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(in("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in("large"), make([]byte, maxFileSize), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, path := range map[string]string{
		"5 GiB": in("huge"), "a pipe nobody writes to": in("pipe"), "a directory": dir,
		"a device without an end": "/dev/zero", "nothing": in("nothing"), "the largest that is read": in("large"),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		same, other := (File{Path: path}).Changed(), (File{Path: path, SHA256: [32]byte{1}}).Changed()
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%s: %d bytes of memory", what, n)
		}
		// What cannot be read has no digest, so that it is tried once and not again.
		if same != (path == in("large")) || !other {
			t.Errorf("%s: changed %v where nothing could be read before, %v where there was a file", what, same, other)
		}
	}
}
