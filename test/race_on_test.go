//go:build race

package test

// raceEnabled makes the gateway under test be built with the race detector too.
const raceEnabled = true
