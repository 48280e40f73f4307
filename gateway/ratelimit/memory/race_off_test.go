//go:build !race

package memory

// manyKeys is a number of callers that a test may make.
const manyKeys = 1_000_000
