package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"bouncer/gateway"
	"bouncer/gateway/auth"
	"bouncer/gateway/config"
)

const aboutKeys = `
gateway keys makes, lists and revokes API keys. The file holds SHA-256 digests,
never keys: a key is printed once, when it is made, and cannot be read back. A
running gateway follows the file within a second. With store.redis in routes.yaml,
list shows when each key was last used with success.

    gateway keys new    -user U [-tenant T] [-plan P] [-expires 2027-06-30] [-id ID]
                        [-route NAME]... [-allow-ip 10.0.0.0/8]... [-scope WORD]...
    gateway keys list   [-json]
    gateway keys revoke ID

Without -file, the file is auth.api_keys.file of routes.yaml.

Examples:

    gateway keys new -file keys.yaml -user priya123 -plan free
    KEY=$(gateway keys new -user priya123 -expires 2027-06-30)
    gateway keys new -user ci -route export -allow-ip 10.0.0.0/8
    gateway keys revoke k-7f3a`

func (c *command) keys(args []string) int {
	set := c.flags("keys", aboutKeys)
	file := set.String("file", "", "the key `file`; default: auth.api_keys.file of routes.yaml")
	var k config.Key
	set.StringVar(&k.User, "user", "", "new: the `user` the key stands for; default: key:<id>")
	set.StringVar(&k.Tenant, "tenant", "", "new: the user's `tenant`")
	set.StringVar(&k.Plan, "plan", "", "new: the `plan` of plans.yaml; default: default_plan")
	set.StringVar(&k.ID, "id", "", "new: the public `id`; default: one is made")
	expires := set.String("expires", "", "new: the last `day` the key works (2027-06-30, UTC), or an RFC 3339 time")
	set.Func("route", "new: the `name` of a route the key is for; again for more; default: all", func(s string) error {
		k.Routes = append(k.Routes, s)
		return nil
	})
	set.Func("allow-ip", "new: a `network` or address that may use the key; again for more; default: any", func(s string) error {
		p, err := config.ParseAllowIP(s)
		k.AllowIPs = append(k.AllowIPs, p)
		return err
	})
	set.Func("scope", "new: a `word` for routes that ask for scopes; again for more", func(s string) error {
		if !config.IsScope(s) {
			return errors.New("wanted printable ASCII without blanks, quotes and backslashes")
		}
		k.Scopes = append(k.Scopes, s)
		return nil
	})
	asJSON := set.Bool("json", false, "list: print JSON")
	positional, code, done := c.parse(set, args)
	if done {
		return code
	}
	if len(positional) == 0 {
		fmt.Fprintln(c.stderr, "gateway keys: say what to do: new, list or revoke (gateway keys -h explains them)")
		return exitUsage
	}
	verb, rest := positional[0], positional[1:]
	switch {
	case (verb == "new" || verb == "list") && len(rest) == 0, verb == "revoke" && len(rest) == 1:
	case verb == "revoke":
		fmt.Fprintln(c.stderr, "gateway keys revoke: name one key by its id; gateway keys list shows them")
		return exitUsage
	default:
		fmt.Fprintf(c.stderr, "gateway keys: %q is not understood; wanted new, list or revoke ID\n", positional)
		return exitUsage
	}
	if !c.flagsFit(set, verb) {
		return exitUsage
	}
	path := *file
	if path == "" {
		var err error
		if path, err = config.KeysFile(c.routes); err != nil {
			fmt.Fprintf(c.stderr, "gateway keys: %v; name the key file with -file\n", err)
			return exitFindings
		}
	}
	switch verb {
	case "new":
		return c.keysNew(set, path, k, *expires)
	case "list":
		return c.keysList(path, *asJSON)
	default:
		return c.keysRevoke(path, rest[0])
	}
}

// flagsFit refuses flags that the verb would not look at, and flags without a value:
// whoever gives one expects something to come of it.
func (c *command) flagsFit(set *flag.FlagSet, verb string) bool {
	of := map[string]string{"user": "new", "tenant": "new", "plan": "new", "id": "new", "expires": "new", "route": "new", "allow-ip": "new", "scope": "new", "json": "list"}
	fit := true
	set.Visit(func(f *flag.Flag) {
		if want, ok := of[f.Name]; ok && want != verb {
			fmt.Fprintf(c.stderr, "gateway keys %s: -%s belongs to gateway keys %s\n", verb, f.Name, want)
			fit = false
		} else if ok && f.Value.String() == "" && f.Name != "route" && f.Name != "allow-ip" && f.Name != "scope" { // lists look for themselves
			// A variable of a script that holds nothing: a key that never ends, or is
			// nobody's, is not what was meant.
			fmt.Fprintf(c.stderr, "gateway keys %s: -%s is empty; give a value, or leave the flag out\n", verb, f.Name)
			fit = false
		}
	})
	return fit
}

func (c *command) keysNew(set *flag.FlagSet, path string, k config.Key, expires string) int {
	if expires != "" {
		at, err := config.ParseExpiry(expires)
		if err == nil && !at.After(time.Now()) {
			err = errors.New("it is in the past; want a day or a time to come")
		}
		if err != nil {
			fmt.Fprintf(c.stderr, "gateway keys new: -expires %s: %v\n", expires, err)
			return exitUsage
		}
		k.Expires = at
	}
	if err := c.knownPlan(set, k.Plan); err != nil {
		fmt.Fprintln(c.stderr, "gateway keys new:", err)
		return exitFindings
	}
	for _, name := range k.Routes {
		if err := c.knownRoute(set, name); err != nil {
			fmt.Fprintln(c.stderr, "gateway keys new:", err)
			return exitFindings
		}
	}
	key, id, digest, err := auth.NewKey(rand.Reader)
	if err != nil {
		fmt.Fprintln(c.stderr, "gateway keys new: read random bytes:", err)
		return exitFindings
	}
	if k.ID == "" {
		k.ID = id
	}
	k.SHA256 = digest
	if err := config.AddKey(path, k); err != nil {
		fmt.Fprintln(c.stderr, "gateway keys new:", err)
		return exitFindings
	}
	fmt.Fprintln(c.stdout, key)
	fmt.Fprintf(c.stderr, "key %s is in %s; it is shown this once, only its digest is kept\n", k.ID, path)
	return exitOK
}

// knownPlan refuses a plan that plans.yaml does not have, because the gateway
// would refuse the whole key file for it. Without a plans file there is
// nothing to hold the name against.
func (c *command) knownPlan(set *flag.FlagSet, plan string) error {
	if plan == "" {
		return nil
	}
	return unlessNamed(set, "plans", config.KnownPlan(c.plans, plan))
}

// knownRoute is knownPlan for a route of routes.yaml.
func (c *command) knownRoute(set *flag.FlagSet, name string) error {
	return unlessNamed(set, "routes", config.KnownRoute(c.routes, name))
}

// unlessNamed is err, but nil where it is that a file is not there and nobody named
// one with the flag.
func unlessNamed(set *flag.FlagSet, name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		named := false
		set.Visit(func(f *flag.Flag) { named = named || f.Name == name })
		if !named {
			return nil
		}
	}
	return err
}

func (c *command) keysList(path string, asJSON bool) int {
	keys, report := config.ReadKeys(path)
	if err := report.Err(); err != nil {
		fmt.Fprintln(c.stderr, err)
		return exitFindings
	}
	type row struct {
		ID       string `json:"id"`
		User     string `json:"user"`
		Tenant   string `json:"tenant,omitempty"`
		Plan     string `json:"plan,omitempty"`
		Expires  string `json:"expires,omitempty"`
		Expired  bool   `json:"expired"`
		LastUsed string `json:"last_used,omitempty"`

		Routes   []string `json:"routes,omitempty"`
		AllowIPs []string `json:"allow_ips,omitempty"`
		Scopes   []string `json:"scopes,omitempty"`
	}
	uses, asked := c.lastUses(keys)
	rows := make([]row, 0, len(keys))
	for _, k := range keys {
		r := row{ID: k.ID, User: k.User, Tenant: k.Tenant, Plan: k.Plan, Routes: k.Routes, Scopes: k.Scopes}
		for _, p := range k.AllowIPs {
			r.AllowIPs = append(r.AllowIPs, p.String())
		}
		if r.User == "" {
			r.User = "key:" + k.ID
		}
		if !k.Expires.IsZero() {
			r.Expires = k.Expires.UTC().Format(time.RFC3339)
			r.Expired = !k.Expires.After(time.Now())
		}
		if at, ok := uses[k.ID]; ok {
			r.LastUsed = at.Format(time.RFC3339)
		}
		rows = append(rows, r)
	}
	if asJSON {
		return exitCode(!c.printJSON("gateway keys list: write the list", rows))
	}
	if len(rows) == 0 {
		fmt.Fprintf(c.stderr, "%s holds no keys; gateway keys new makes one\n", path)
		return exitOK
	}
	tw := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	heading := "ID\tUSER\tTENANT\tPLAN\tEXPIRES\tROUTES\tALLOW IPS\tSCOPES"
	if asked {
		heading += "\tLAST USE"
	}
	fmt.Fprintln(tw, heading)
	for _, r := range rows {
		when := r.Expires
		if r.Expired {
			when += " (expired)"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", r.ID, r.User, r.Tenant, r.Plan, when,
			strings.Join(r.Routes, " "), strings.Join(r.AllowIPs, " "), strings.Join(r.Scopes, " "))
		if asked {
			fmt.Fprint(tw, "\t"+lastUse(uses, r.ID))
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		fmt.Fprintln(c.stderr, "gateway keys list: write the list:", err)
		return exitFindings
	}
	return exitOK
}

// lastUses says when keys were last used. asked is whether there is a Redis to know;
// uses is nil if that does not say.
func (c *command) lastUses(keys []config.Key) (uses map[string]time.Time, asked bool) {
	redis, err := config.RedisOf(c.routes)
	if err == nil && redis == nil {
		return nil, false
	}
	if err == nil {
		ids := make([]string, len(keys))
		for i, k := range keys {
			ids[i] = k.ID
		}
		uses, err = gateway.LastUses(context.Background(), redis, ids)
	}
	if err != nil {
		fmt.Fprintln(c.stderr, "gateway keys list: when keys were last used is not known:", err)
		return nil, true
	}
	return uses, true
}

// lastUse is for people.
func lastUse(uses map[string]time.Time, id string) string {
	at, ok := uses[id]
	switch {
	case uses == nil:
		return "-"
	case !ok:
		return "never"
	}
	return at.Format("2006-01-02 15:04 UTC")
}

func (c *command) keysRevoke(path, id string) int {
	if _, err := os.Stat(path); err != nil {
		fmt.Fprintln(c.stderr, "gateway keys revoke:", err)
		return exitFindings
	}
	if err := config.RevokeKey(path, id); err != nil {
		fmt.Fprintln(c.stderr, "gateway keys revoke:", err)
		return exitFindings
	}
	fmt.Fprintf(c.stderr, "key %s is revoked; a running gateway refuses it within a second\n", id)
	return exitOK
}
