package main

import (
	"io"
	"os"

	"golang.org/x/term"

	"bouncer/gateway/config"
)

// screenOf returns the terminal that w writes to; false if it is a file, a pipe,
// or anything else that no person looks at while it is written. There are no
// colours where NO_COLOR is set (no-color.org) or the terminal knows none.
func screenOf(w io.Writer) (config.Screen, bool) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return config.Screen{}, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		width = 0 // then it is as wide as most
	}
	return config.Screen{Width: width, Color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}, true
}
