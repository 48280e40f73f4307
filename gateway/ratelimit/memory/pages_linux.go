package memory

import (
	"syscall"
	"unsafe"
)

const hugePage = 2 << 20

// wantHugePages asks the kernel to keep a large block in pages of 2 MiB, and with it
// what lies beside it in the first and last of them: mostly other blocks. A look-up
// among a million keys then finds the page's address in the processor, which else
// reads it from memory before it reads the entry, in a virtual machine on two levels.
// It is a wish: nothing depends on it.
func wantHugePages(block []segment) {
	n := uintptr(len(block)) * unsafe.Sizeof(segment{})
	if n < hugePage {
		return
	}
	start := uintptr(unsafe.Pointer(&block[0])) //nolint:gosec // an address, to be rounded
	end := (start + n + hugePage - 1) &^ (hugePage - 1)
	start &^= hugePage - 1
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, start, end-start, syscall.MADV_HUGEPAGE)
}
