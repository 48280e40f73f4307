package gateway

import (
	"bytes"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"syscall"
	"time"

	"bouncer/gateway/pulse"
)

// filesEvery is how often open files are counted, which takes the longer the more
// there are.
const filesEvery = 10 * time.Second

// machine is what this process takes of its machine.
type machine struct {
	goroutines       int
	rss, heap, files pulse.Value // bytes, and how many
	filesMax         float64     // 0: not known
	cpu              pulse.Value // how many CPUs it kept busy since the last look
	counted          time.Duration
	spent, at        time.Duration
	looked           bool
}

// look brings it up to date; now is of a clock that never steps.
func (m *machine) look(now time.Duration) {
	m.goroutines = runtime.NumGoroutine()
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(heap)
	m.heap, m.rss, m.cpu = pulse.Value(heap[0].Value.Uint64()), residentBytes(), pulse.Unknown()
	if !m.looked || now-m.counted >= filesEvery {
		m.files, m.counted = openFiles(), now
		var limit syscall.Rlimit
		if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
			m.filesMax = float64(limit.Cur)
		}
	}
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) == nil {
		spent := time.Duration(used.Utime.Nano() + used.Stime.Nano())
		if m.looked && now > m.at {
			m.cpu = pulse.Value(float64(spent-m.spent) / float64(now-m.at))
		}
		m.spent, m.at = spent, now
	}
	m.looked = true
}

// residentBytes is how much of its memory is in RAM, as Linux says (proc(5)).
func residentBytes() pulse.Value {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return pulse.Unknown()
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return pulse.Unknown()
	}
	pages, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return pulse.Unknown()
	}
	return pulse.Value(float64(pages) * float64(os.Getpagesize()))
}

// openFiles is how many files the process has open, sockets among them.
func openFiles() pulse.Value {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return pulse.Unknown()
	}
	defer dir.Close() //nolint:errcheck // nothing was written
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return pulse.Unknown()
	}
	return pulse.Value(len(names) - 1) // without the directory
}

// threadTime is how much of a CPU the calling thread has had; the time of day where
// that cannot be asked (getrusage(2), RUSAGE_THREAD is Linux's).
func threadTime() time.Duration {
	const thisThread = 1
	var used syscall.Rusage
	if syscall.Getrusage(thisThread, &used) != nil {
		return time.Duration(time.Now().UnixNano())
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
