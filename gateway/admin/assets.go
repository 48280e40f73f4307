package admin

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"strings"
	"time"
)

// This file is the page and its own files. They are the same for everybody and hold
// nothing of the operator, so that whoever has to sign in first can see where.

//go:embed assets
var assetFiles embed.FS

// indexFile is the page itself, below assets; it is served at / alone.
const indexFile = "index.html"

// assetPrefix is where the page's other files are.
const assetPrefix = "/assets/"

// An asset is one file of the page.
type asset struct {
	contentType string
	tag         string // the entity tag, of its content
	body        []byte
}

// contentTypes are those of the files that a page may consist of, by ending. The
// system's own table is not asked: it differs between machines.
var contentTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".json": "application/json",
	".png":  "image/png",
	".svg":  "image/svg+xml",
}

// pageAssets are the files by name. Any name that is not among them is no file, so
// that there is nothing to list and no way out of the directory.
var pageAssets = mustAssets()

func mustAssets() map[string]asset {
	all := map[string]asset{}
	err := fs.WalkDir(assetFiles, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := assetFiles.ReadFile(name)
		if err != nil {
			return err
		}
		contentType := contentTypes[path.Ext(name)]
		if contentType == "" {
			panic("bug: assets: no content type for " + name)
		}
		sum := sha256.Sum256(body)
		all[strings.TrimPrefix(name, "assets/")] = asset{
			contentType: contentType, body: body, tag: `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`,
		}
		return nil
	})
	if err != nil {
		panic("bug: assets: " + err.Error())
	}
	return all
}

// addAssets offers the page's files.
func (h *handler) addAssets() {
	get := []string{http.MethodGet, http.MethodHead}
	for name, a := range pageAssets {
		if name != indexFile {
			h.endpoints[assetPrefix+name] = endpoint{get, open, a.serve}
		}
	}
	h.endpoints["/"] = endpoint{get, open, h.index}
}

// serve answers with the file, or with 304 to whoever has it. A browser asks each
// time, so that a page never consists of the files of two versions.
func (a asset) serve(w http.ResponseWriter, r *http.Request, _ string) {
	hd := w.Header()
	hd.Set("Content-Type", a.contentType)
	hd.Set("Etag", a.tag)
	hd.Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.body))
}

// index is the page. Who has to sign in is told so by the status, and a browser gets
// the page with it, which has the form; a program gets the problem document.
func (h *handler) index(w http.ResponseWriter, r *http.Request, id string) {
	err := h.allowed(r, reading)
	if err != nil && !wantsHTML(r) {
		h.refuse(w, r, id, err)
		return
	}
	status := http.StatusOK
	if err != nil {
		status = err.Status
		maps.Copy(w.Header(), err.Header)
	}
	page := pageAssets[indexFile]
	write(w, r, status, page.contentType, page.body)
}

// wantsHTML reports whether it is a browser that asks: nothing else names the type.
func wantsHTML(r *http.Request) bool {
	for _, line := range r.Header.Values("Accept") {
		for one := range strings.SplitSeq(line, ",") {
			name, _, _ := strings.Cut(one, ";")
			if strings.EqualFold(strings.TrimSpace(name), "text/html") {
				return true
			}
		}
	}
	return false
}
