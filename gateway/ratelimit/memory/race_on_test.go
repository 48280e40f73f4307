//go:build race

package memory

// manyKeys is a number of callers that a test may make under the race detector,
// which is ten times slower.
const manyKeys = 100_000
