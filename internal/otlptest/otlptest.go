// Package otlptest is a collector of traces for tests: it takes OTLP over HTTP, and keeps what
// it gets.
package otlptest

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A Collector is one. It is safe for concurrent use.
type Collector struct {
	*httptest.Server

	mu     sync.Mutex // protects the following fields
	spans  []*tracepb.Span
	fields []http.Header
	raw    []byte
	answer func(http.ResponseWriter)
}

// Start starts one that takes everything. It ends with the test.
func Start(t testing.TB) *Collector {
	c := &Collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(z)
		var got collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &got)
		}
		if err != nil {
			t.Error(err)
		}
		if answer := c.keep(&got, body, r.Header); answer != nil {
			answer(w)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *Collector) keep(got *collector.ExportTraceServiceRequest, body []byte, fields http.Header) func(http.ResponseWriter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fields = append(c.fields, fields)
	c.raw = append(c.raw, body...)
	if c.answer == nil {
		for _, rs := range got.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
	}
	return c.answer
}

// Answer has deliveries answered by f, and not kept; nil for taking them again.
func (c *Collector) Answer(f func(http.ResponseWriter)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = f
}

// Spans are those that came, in their order.
func (c *Collector) Spans() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Fields are those of each delivery.
func (c *Collector) Fields() []http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.fields)
}

// Raw is all that came, as it is between the two.
func (c *Collector) Raw() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.raw)
}

// Attributes are those of a span, by name, as text.
func Attributes(s *tracepb.Span) map[string]string {
	all := map[string]string{}
	for _, kv := range s.Attributes {
		if v := kv.Value; v.GetStringValue() != "" {
			all[kv.Key] = v.GetStringValue()
		} else {
			all[kv.Key] = fmt.Sprint(v.GetIntValue())
		}
	}
	return all
}
