// Package config reads routes.yaml, plans.yaml and the files they name, and
// turns them into plain values that know their place in the file.
//
// It finds all mistakes at once, in all files, and says for each where it
// stands, what is wrong and what is wanted:
//
//	routes.yaml:9:12: routes[2].upstream: no upstream "weathr" (did you mean "weather"?)
//
// A configuration is used whole or not at all: [Load] returns a [Config] only
// if there is no error in any file. What is legal but dangerous is a warning.
// A field that the gateway will know later is refused as not supported yet,
// never ignored.
//
// It is not the gateway: it opens no socket, starts nothing, watches nothing
// and keeps nothing. Of the gateway's packages it knows
// rewrite alone, for what a route may change, so each of them
// can be tested without YAML.
//
// Hostile input is a problem in the report, never a panic: files are read up to
// 10 MiB, aliases are expanded within a budget, and a report holds at most a
// thousand problems. No text made here holds a secret.
//
// In string values of routes.yaml and plans.yaml ${NAME} stands for a variable
// of the environment, ${NAME:-default} for it or, when it is unset or empty,
// the default; $${ is a literal ${, and any other $ stands for itself. Values
// are expanded after the YAML was parsed and only once, so that the content of
// a variable changes no structure. keys.yaml is data and is not expanded.
//
//	c, report := config.Load(config.Options{Routes: "routes.yaml", Plans: "plans.yaml"})
//	if err := report.Err(); err != nil {
//		return err
//	}
//	fmt.Println("ok:", c.Summary())
package config
