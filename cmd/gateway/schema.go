package main

import (
	"fmt"

	"bouncer/gateway/config"
)

const aboutSchema = `
gateway schema prints a JSON Schema (draft 2020-12) of routes.yaml or plans.yaml,
with which editors complete fields, show what they mean, and mark mistakes.

Examples:

    gateway schema routes > routes.schema.json
    gateway schema plans > plans.schema.json

and as the first line of plans.yaml, for editors with the YAML language server:

    # yaml-language-server: $schema=plans.schema.json`

func (c *command) schema(args []string) int {
	fs := c.flags("schema", aboutSchema)
	positional, code, done := c.parse(fs, args)
	if done {
		return code
	}
	var text []byte
	switch {
	case len(positional) == 1 && positional[0] == "routes":
		text = config.SchemaRoutes()
	case len(positional) == 1 && positional[0] == "plans":
		text = config.SchemaPlans()
	default:
		fmt.Fprintln(c.stderr, "gateway schema: want one of routes and plans; see gateway schema -h")
		return exitUsage
	}
	if _, err := c.stdout.Write(text); err != nil {
		fmt.Fprintf(c.stderr, "gateway schema: write the schema: %v\n", err)
		return exitFindings
	}
	return exitOK
}
