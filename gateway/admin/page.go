package admin

import (
	"bytes"
	_ "embed" // the page and its style
	"html/template"
	"net/http"
	"time"

	"bouncer/gateway/httperr"
)

//go:embed page.html
var pageHTML string

//go:embed style.css
var styleCSS []byte

// page escapes by context, so a hostile user name or file name is only text.
var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"utc": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"iso": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
}).Parse(pageHTML))

// A link is one line of the list of endpoints.
type link struct {
	Method, Path, Help string
	Follow             bool // a browser can go there
	Token              bool // it asks for the token
}

// index shows what the gateway is doing, rendered here: without a script there
// is nothing for an injected one to hide behind.
func (h *handler) index(w http.ResponseWriter, r *http.Request, id string) {
	data := struct {
		Ready  Readiness
		Status *Status
		Links  []link
		Token  bool
	}{Ready: h.readiness(), Links: h.links, Token: h.token != nil}
	if h.o.Info != nil {
		s := h.o.Info()
		data.Status = &s
	}
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		h.o.Logger.Error("admin page does not render", "request_id", id, "err", err)
		httperr.Write(w, r, id, &httperr.Error{
			Status: http.StatusInternalServerError, Reason: "render",
			Detail: "the page could not be rendered; the log says more under this request id",
		})
		return
	}
	write(w, r, http.StatusOK, "text/html; charset=utf-8", b.Bytes())
}

func (h *handler) style(w http.ResponseWriter, r *http.Request, _ string) {
	write(w, r, http.StatusOK, "text/css; charset=utf-8", styleCSS)
}
