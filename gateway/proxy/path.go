package proxy

import (
	"net/url"
	"strings"
)

// point directs out, a copy of the client's URL in, to the target: its scheme
// and host, and its path in front of the client's, which stays byte for byte
// as it came, since %2F and / are different things to many servers, and so are
// // and /. So does the query: out may have lost parameters that Go cannot
// parse (";", "%zz").
func (t *target) point(out, in *url.URL) {
	out.Scheme, out.Host = t.scheme, t.host
	out.RawQuery, out.ForceQuery = in.RawQuery, in.ForceQuery
	out.Path, out.RawPath, out.Opaque = t.path+in.Path, "", ""
	if in.RawPath == "" && t.path == t.rawPath {
		return
	}
	raw := t.rawPath + in.EscapedPath()
	if in.RawPath != "" && in.EscapedPath() != in.RawPath {
		// url.URL escapes the whole path anew, and so loses its %2F, when it
		// holds a byte that should have been escaped, such as | or a letter of
		// UTF-8. If RawPath does belong to Path, it goes out as it came.
		if path, err := url.PathUnescape(in.RawPath); err == nil && path == in.Path {
			raw = t.rawPath + in.RawPath
			out.Opaque = raw
			if strings.HasPrefix(raw, "//") {
				// As Opaque this would be taken for //host; the absolute form
				// means the same (RFC 9112 section 3.2.2).
				out.Opaque = "//" + t.host + raw
			}
		}
	}
	out.RawPath = raw
}
