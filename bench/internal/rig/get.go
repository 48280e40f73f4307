package rig

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Get asks for http://address/path. An answer other than 200 is an error; whoever gets
// one closes its body.
func Get(ctx context.Context, address, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s answers %s", path, resp.Status)
	}
	return resp, nil
}

// Metrics returns the text of the gateway's metrics; admin is its admin listener.
func Metrics(ctx context.Context, admin string) (string, error) {
	resp, err := Get(ctx, admin, "/metrics")
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// Metric returns the value of a series of the gateway; it is not ok if there is none.
func Metric(ctx context.Context, admin, series string) (value float64, ok bool, err error) {
	text, err := Metrics(ctx, admin)
	if err != nil {
		return 0, false, err
	}
	for line := range strings.Lines(text) {
		if n, found := strings.CutPrefix(line, series+" "); found {
			value, err = strconv.ParseFloat(strings.TrimSpace(n), 64)
			return value, err == nil, err
		}
	}
	return 0, false, nil
}
