package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a benchmark program until it is done or interrupted, and exits with
// 1 if it failed, saying why under the program's name.
func Main(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		stop()
		os.Exit(1)
	}
}

// A Report is what was measured. Scripts read its JSON. One that has a method
// Table() error prints itself with it; else its Markdown is printed.
type Report interface {
	Markdown() string // a section of a document
}

// Output is where a report goes.
type Output struct {
	Write   string // Markdown file whose section is replaced; empty: none
	Section string
	JSON    bool // JSON on standard output instead of a table
}

// Show puts r where it is to go.
func (o Output) Show(r Report) error {
	if o.Write != "" {
		if err := Replace(o.Write, o.Section, r.Markdown()); err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "wrote", o.Write)
	}
	if o.JSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	if t, ok := r.(interface{ Table() error }); ok {
		return t.Table()
	}
	_, err := fmt.Print(r.Markdown())
	return err
}
