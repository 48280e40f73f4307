package simulate

import (
	"hash/maphash"
	"net/url"
)

// A kept keeps texts that lines say again and again, so that they are made once:
// each in the one place that its hash gives it, where a newer one takes the place
// of an older. So it is as large as it is, whatever a log holds. One serves all
// sources of a replay; it is not safe for concurrent use.
type kept struct {
	seed    maphash.Seed
	texts   [1 << 16]string
	targets [1 << 14]target
}

// A target is what was asked for, as a line has it and as a server would have
// parsed it.
type target struct {
	text string
	url  *url.URL
}

// none is the URL of a target that is none: it has no path, and so no route.
var none = &url.URL{}

func newKept() *kept { return &kept{seed: maphash.MakeSeed()} }

// text returns b as a string.
func (k *kept) text(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	s := &k.texts[maphash.Bytes(k.seed, b)%uint64(len(k.texts))]
	if *s != string(b) {
		*s = string(b)
	}
	return *s
}

// target returns b as a string and parsed.
func (k *kept) target(b []byte) (string, *url.URL) {
	t := &k.targets[maphash.Bytes(k.seed, b)%uint64(len(k.targets))]
	if t.text != string(b) || t.url == nil {
		t.text = string(b)
		u, err := url.ParseRequestURI(t.text)
		if err != nil {
			u = none
		}
		t.url = u
	}
	return t.text, t.url
}
