package denials

import (
	"net/netip"
	"strings"
	"time"
)

// A Filter says which denials are wanted. What is empty is not looked at.
type Filter struct {
	User, KeyID, Route, Plan string
	// IP is where they came from; the zero Prefix is everywhere.
	IP netip.Prefix
	// Bucket is the client's address as limits count it.
	Bucket string
	// Limit is one that denied.
	Limit  string
	Status int
	// Since is when the first came.
	Since time.Time
	// Text is somewhere in what the request was, and who asked; letters match
	// whatever their case.
	Text string
}

func (f Filter) matcher() func(*Denial) bool {
	text := strings.ToLower(f.Text)
	return func(d *Denial) bool {
		switch {
		case f.User != "" && d.User != f.User,
			f.KeyID != "" && d.KeyID != f.KeyID,
			f.Route != "" && d.Route != f.Route,
			f.Plan != "" && d.Plan != f.Plan,
			f.Bucket != "" && d.bucket != f.Bucket,
			f.Status != 0 && d.Status != f.Status,
			!f.Since.IsZero() && d.Time.Before(f.Since),
			f.Limit != "" && !d.deniedBy(f.Limit),
			f.IP.IsValid() && !d.from(f.IP),
			text != "" && !d.says(text):
			return false
		}
		return true
	}
}

func (d *Denial) deniedBy(limit string) bool {
	if d.DeniedBy == limit {
		return true
	}
	for i := range d.Decisions {
		if c := &d.Decisions[i]; c.Limit == limit && !c.Allowed && c.Mode == "enforce" {
			return true
		}
	}
	return false
}

func (d *Denial) from(network netip.Prefix) bool {
	ip, err := netip.ParseAddr(d.ClientIP)
	return err == nil && network.Contains(ip.Unmap())
}

func (d *Denial) says(text string) bool {
	for _, s := range []string{
		d.User, d.KeyID, d.Tenant, d.ClientIP, d.Path, d.Host, d.Route, d.Plan, d.DeniedBy, d.RequestID, d.Method,
	} {
		if strings.Contains(strings.ToLower(s), text) {
			return true
		}
	}
	return false
}
