package explain

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"

	"bouncer/gateway"
	"bouncer/gateway/config"
)

// WriteRoutes prints the routes in the order in which they are preferred: with a
// host before those without, and by path, segment by segment: what is written out
// before a parameter with a pattern, a plain parameter, and a wildcard.
func WriteRoutes(w io.Writer, cfg *config.Config) error {
	routes := slices.Clone(cfg.Routes)
	slices.SortStableFunc(routes, prefer)
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "ROUTE\tHOST\tPATH\tHEADERS\tMETHODS\tAUTH\tCOST\tLIMITS\tON STORE FAILURE\tUPSTREAM\tAT")
	for _, rt := range routes {
		var limits []string
		for _, l := range rt.Limits {
			limits = append(limits, l.Name)
		}
		var headers []string
		for _, f := range rt.Headers {
			headers = append(headers, f.Name)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", rt.Name, orElse(rt.Host, "any"), rt.Path, orElse(strings.Join(headers, ","), "any"),
			orElse(strings.Join(rt.Methods, ","), "all"), rt.Auth, rt.Cost, orElse(strings.Join(limits, ","), "the plan's"),
			rt.OnStoreFailure, rt.Upstream, rt.Pos)
	}
	return t.Flush()
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// prefer orders two routes as matching does.
func prefer(a, b *config.Route) int {
	if (a.Host == "") != (b.Host == "") {
		if a.Host != "" {
			return -1
		}
		return 1
	}
	if c := strings.Compare(a.Host, b.Host); c != 0 {
		return c
	}
	x, y := strings.Split(a.Path, "/"), strings.Split(b.Path, "/")
	for i := range min(len(x), len(y)) {
		if p, q := rank(x[i]), rank(y[i]); p != q {
			return p - q
		}
		if rank(x[i]) == 0 {
			if c := strings.Compare(x[i], y[i]); c != 0 {
				return c
			}
		}
	}
	return len(x) - len(y)
}

// rank is how general a segment of a pattern is.
func rank(segment string) int {
	switch {
	case strings.Contains(segment, "*"):
		return 3
	case !strings.Contains(segment, "{"):
		return 0
	case strings.Contains(segment, ":"):
		return 1
	default:
		return 2
	}
}

// whyRoute names the routes that match as well and are less specific.
func whyRoute(cfg *config.Config, chosen *config.Route, r *http.Request) string {
	var others []string
	for _, rt := range cfg.Routes {
		if rt != chosen && gateway.Matches(rt, r) {
			others = append(others, rt.Name)
		}
	}
	if len(others) == 0 {
		return "the only one that matches"
	}
	return "more specific than " + strings.Join(others, ", ")
}
