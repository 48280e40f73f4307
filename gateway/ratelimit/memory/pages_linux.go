package memory

import (
	"syscall"
	"unsafe"
)

const hugePage = 2 << 20

// wantHugePages asks the kernel to keep a block in pages of 2 MiB where it covers
// whole ones: a look-up among a million keys then finds the page's address in the
// processor, which else reads it from memory before it reads the entry, in a virtual
// machine on two levels. It is a wish: nothing depends on it.
func wantHugePages(block []segment) {
	start := uintptr(unsafe.Pointer(&block[0])) //nolint:gosec // an address to be rounded up
	from := -start & (hugePage - 1)
	if n := uintptr(len(block)) * unsafe.Sizeof(segment{}); from+hugePage <= n {
		b := unsafe.Slice((*byte)(unsafe.Pointer(&block[0])), n) //nolint:gosec // all of the block
		_ = syscall.Madvise(b[from:n-(n-from)%hugePage], syscall.MADV_HUGEPAGE)
	}
}
