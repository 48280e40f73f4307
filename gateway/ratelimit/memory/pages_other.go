//go:build !linux

package memory

// wantHugePages does nothing: other systems choose the size of pages themselves.
func wantHugePages([]segment) {}
