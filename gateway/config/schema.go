package config

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
)

// SchemaRoutes returns a JSON Schema (draft 2020-12) of routes.yaml, with which
// editors complete fields, show what they mean, and mark mistakes.
//
// It describes shapes: fields, words, numbers and how they are written. What
// needs more than one place, another file or the machine, as a reference to a
// plan or a cost that nobody can pay, only [Load] finds. What Load takes, the
// schema takes.
func SchemaRoutes() []byte { return routesSchema().document("routes.yaml", "the operator's file") }

// SchemaPlans returns a JSON Schema of plans.yaml; see [SchemaRoutes].
func SchemaPlans() []byte { return plansSchema().document("plans.yaml", "the product owner's file") }

// schema is a JSON Schema, or part of one. The words and the bounds in it are
// those that the checker itself compares with; that fields stand in both is
// held by tests.
type schema map[string]any

// document makes the whole of a schema of one file.
func (s schema) document(name, whose string) []byte {
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = name
	s["description"] = name + " of Bouncer, " + whose + ". gateway check finds more than an editor can: references, files, costs that nobody can pay."
	s["$defs"] = shared()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil {
		panic(err) // maps of plain values; a test makes both
	}
	return b.Bytes()
}

// says returns s with what the field means.
func (s schema) says(text string) schema { return s.with("description", text) }

// or returns s with what holds where the field is left out.
func (s schema) or(fallback any) schema { return s.with("default", fallback) }

func (s schema) with(keyword string, v any) schema {
	s = maps.Clone(s)
	s[keyword] = v
	return s
}

// def refers to one of [shared].
func def(name string) schema { return schema{"$ref": "#/$defs/" + name} }

// anyOf is what one of the forms is, or a value that comes from the environment.
func anyOf(forms ...schema) schema {
	return schema{"anyOf": append(slices.Clip(forms), def("variable"))}
}

// written is text of one form. wanted is what editors say where it has another.
func written(pattern, wanted string) schema {
	return schema{"type": "string", "pattern": pattern, "patternErrorMessage": "want " + wanted}
}

// enum is one of some words. On and off may stand without quotes, where YAML 1.1
// makes true and false of them.
func enum(list ...string) schema {
	var all []any
	for _, w := range list {
		all = append(all, w)
		switch w {
		case "on":
			all = append(all, true)
		case "off":
			all = append(all, false)
		}
	}
	return schema{"enum": all}
}

// words is one of some words, or a value from the environment.
func words(list ...string) schema { return anyOf(enum(list...)) }

// whole is a whole number from low to high; a high of 0 means without end.
func whole(low, high int64) schema {
	n := schema{"type": "integer", "minimum": low}
	if high > 0 {
		n["maximum"] = high
	}
	return anyOf(n)
}

// listOf is a list of different items.
func listOf(item schema) schema {
	return schema{"type": "array", "items": item, "uniqueItems": true}
}

// some is a list that may not be empty.
func some(item schema) schema { return listOf(item).with("minItems", 1) }

// oneOrSome is one item, or a list of them.
func oneOrSome(item schema) schema {
	return schema{"anyOf": []schema{item, some(item)}}
}

// fields is a mapping with these fields and no others.
func fields(of map[string]schema, required ...string) schema {
	s := schema{"type": "object", "properties": of, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// named is a mapping whose names the operator chooses.
func named(entry schema) schema {
	return schema{"type": "object", "propertyNames": written(namePattern, "lower-case letters, digits, - and _"), "additionalProperties": entry}
}

// file is a whole file: fields that begin with x- hold anchors.
func file(of map[string]schema, required ...string) schema {
	return fields(of, required...).with("patternProperties", schema{"^x-": true})
}

// either asks for exactly one of some fields.
func either(fields ...string) []schema {
	var forms []schema
	for _, f := range fields {
		forms = append(forms, schema{"required": []string{f}})
	}
	return forms
}

const (
	namePattern     = "^[a-z0-9_-]{1,100}$"
	headerPattern   = "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$"
	durationPattern = "(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h|d))+"
	listenPattern   = "^(unix:/.*|[^/\\s]*:[0-9]{1,5})$"
)

// ratePattern is how N/unit is written; n is how N is.
func ratePattern(n string) string {
	var per strings.Builder
	for _, u := range units {
		per.WriteString(u.name + "|")
	}
	return "^" + n + "/(" + per.String() + durationPattern + ")$"
}

// shared are the forms that many fields have.
func shared() schema {
	return schema{
		"variable": written("[$][{]", "${NAME} or ${NAME:-default}").
			says("A value from the environment: ${NAME}, or ${NAME:-default} for when it is unset or empty. $${ is a literal ${."),
		// An id of digits needs no quotes.
		"text":     schema{"type": []string{"string", "number"}, "minLength": 1},
		"name":     anyOf(written(namePattern, "lower-case letters, digits, - and _"), schema{"type": "integer"}),
		"header":   anyOf(written(headerPattern, "the name of a header"), schema{"type": "number"}),
		"boolean":  anyOf(schema{"type": "boolean"}, written("^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|[Oo][Nn]|[Oo][Ff][Ff]|[Yy][Ee][Ss]|[Nn][Oo])$", "true or false")),
		"duration": anyOf(written("^"+durationPattern+"$", "a duration with a unit such as 500ms, 30s, 5m, 1h or 1d")),
		"rate":     anyOf(written(ratePattern("(0|[1-9][0-9]{0,14})"), wantedRate)),
		"address":  anyOf(written(listenPattern, wantedAddress)),
		"timezone": words(zones()...),
		"identity": anyOf(schema{"type": "string", "minLength": 1, "maxLength": maxIdentity, "pattern": `^\S(.*\S)?$`}, schema{"type": "number"}),
	}
}

// spell is a duration, and what it is where it is left out.
func spell(fallback time.Duration, says string) schema {
	return def("duration").or(formatDuration(fallback)).says(says)
}
