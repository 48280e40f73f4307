package admin

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// runbookPath is where the runbook is. The page's findings lead there, each to the
// heading that it names. Like the page's own files it is the same for everybody.
const runbookPath = "/runbook"

const runbookHead = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Runbook – Gateway</title>
<link rel="icon" href="/assets/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/assets/style.css">
</head>
<body>
<a class="skip" href="#main">Skip to the text</a>
<header class="top"><div class="brand"><a href="/">Gateway</a></div><nav aria-label="Views"><a href="/">Overview</a><a href="/#/denials">Denials</a><a href="/#/help">Help</a><a href="/runbook" aria-current="page">Runbook</a></nav></header>
<main id="main" tabindex="-1"><article class="card prose">
`

const runbookTail = "</article></main>\n</body>\n</html>\n"

// addRunbook offers the runbook, if there is one. It is rendered when it is first
// asked for.
func (h *handler) addRunbook() {
	if h.o.Runbook == "" {
		return
	}
	page := sync.OnceValues(func() ([]byte, error) { return renderRunbook(h.o.Runbook) })
	h.endpoints[runbookPath] = endpoint{[]string{http.MethodGet, http.MethodHead}, open, func(w http.ResponseWriter, r *http.Request, id string) {
		body, err := page()
		if err != nil {
			h.failed(w, r, id, "render", err)
			return
		}
		w.Header().Set("Content-Type", contentTypes[".html"])
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	}}
}

// renderRunbook makes a page of Markdown (CommonMark, with tables). Headings have the
// anchors that they have where the repository is looked at. What leads elsewhere in
// the repository, links and pictures, is not there: of a link its words stay.
func renderRunbook(markdown string) ([]byte, error) {
	source := []byte(markdown)
	md := goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	tree := md.Parser().Parse(text.NewReader(source))
	var links, pictures []ast.Node
	err := ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Link:
			if !strings.HasPrefix(string(n.Destination), "#") {
				links = append(links, n)
			}
		case *ast.Image:
			pictures = append(pictures, n)
			return ast.WalkSkipChildren, nil
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return nil, err
	}
	for _, n := range links {
		for c := n.FirstChild(); c != nil; c = n.FirstChild() {
			n.Parent().InsertBefore(n.Parent(), n, c)
		}
		n.Parent().RemoveChild(n.Parent(), n)
	}
	for _, n := range pictures {
		n.Parent().RemoveChild(n.Parent(), n)
	}
	b := bytes.NewBufferString(runbookHead)
	if err := md.Renderer().Render(b, source, tree); err != nil {
		return nil, err
	}
	b.WriteString(runbookTail)
	return b.Bytes(), nil
}
