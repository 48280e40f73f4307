// Package docs is what the documents of this directory are to the program: the runbook,
// which a gateway shows to whoever is called, since they need not have the repository.
//
// It is text and nothing else; the tests beside it keep the documents true.
package docs

import _ "embed" // the runbook

// Runbook is RUNBOOK.md, in Markdown.
//
//go:embed RUNBOOK.md
var Runbook string
