package auth

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"math"
	"slices"
	"strings"
)

// What a token grants is read once, when it is verified, and of it only that is
// kept which somebody asks for (Options.Scopes, Options.TokenClaims), in the words
// of the configuration. So a token with a thousand groups costs no more memory
// than one with none, and a request compares short lists.

// Claim is a claim of a token and one value that it may have: a string, a bool or
// an int64. The string "1" is another than the number 1.
type Claim struct {
	Name  string // the exact name first, then each dot goes one object down
	Value any
}

// asked is what is kept of tokens.
type asked struct {
	scopes map[string]string // each by itself
	claims map[Claim]Claim   // each by itself
	paths  []claimPath       // of the claims, each once
}

func newAsked(scopes []string, claims []Claim) (a asked, err error) {
	a.scopes, a.claims = make(map[string]string, len(scopes)), make(map[Claim]Claim, len(claims))
	for _, s := range scopes {
		a.scopes[s] = s
	}
	for _, c := range claims {
		switch c.Value.(type) {
		case string, bool, int64:
		default:
			return a, fmt.Errorf("claim %q: a value is a %T; want a string, a bool or an int64", c.Name, c.Value)
		}
		a.claims[c] = c
		if !slices.ContainsFunc(a.paths, func(p claimPath) bool { return p.name == c.Name }) {
			a.paths = append(a.paths, newClaimPath(c.Name))
		}
	}
	return a, nil
}

// ask says what is kept of tokens. It is part of what a token means: who asks for
// more has every token verified anew.
func (t *tokens) ask(scopes []string, claims []Claim) (err error) {
	if t.asked, err = newAsked(scopes, claims); err != nil {
		return err
	}
	h := sha256.New()
	write(h, t.fingerprint[:])
	t.asked.write(h)
	t.fingerprint = [32]byte(h.Sum(nil))
	return nil
}

// write hashes what is kept, for the fingerprint of what a token means.
func (a *asked) write(h hash.Hash) {
	writeList(h, slices.Sorted(maps.Keys(a.scopes)), func(s string) []byte { return []byte(s) })
	var claims []string
	for c := range a.claims {
		claims = append(claims, fmt.Sprintf("%q %T %v", c.Name, c.Value, c.Value))
	}
	slices.Sort(claims)
	writeList(h, claims, func(s string) []byte { return []byte(s) })
}

// granted reads which of the scopes asked for a token has: a string of words with
// spaces between (RFC 8693 section 4.2), or a list of words, as several issuers
// have it in scp. It has none if the claim is absent, null or empty.
func (a *asked) granted(from claimPath, claims map[string]any) (scopes []string, ref *refusal) {
	if from.name == "" {
		return nil, nil
	}
	v, whole := from.find(claims)
	if !whole {
		return nil, from.leadsNowhere()
	}
	add := func(s string) {
		if own, ok := a.scopes[s]; ok { // the token's own text is not kept
			scopes = append(scopes, own)
		}
	}
	switch v := v.(type) {
	case nil:
	case string:
		for s := range strings.SplitSeq(v, " ") {
			add(s)
		}
	case []any:
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, refuse(ReasonBadClaim, "the claim %s holds something that is not a string", from.name)
			}
			add(s)
		}
	default:
		return nil, refuse(ReasonBadClaim, "the claim %s is neither a string nor a list", from.name)
	}
	slices.Sort(scopes)
	return slices.Clip(slices.Compact(scopes)), nil
}

// has reads which of the claims asked for a token has. One of another type than
// is asked for is not there: tokens of other issuers may mean something else by
// the same name.
func (a *asked) has(claims map[string]any) (found []Claim) {
	for _, p := range a.paths {
		v, _ := p.find(claims)
		values := []any{v}
		if list, ok := v.([]any); ok {
			values = list
		}
		for _, v := range values {
			switch v := plainValue(v).(type) {
			case string, bool, int64:
				if own, ok := a.claims[Claim{p.name, v}]; ok && !slices.Contains(found, own) {
					found = append(found, own)
				}
			}
		}
	}
	return found
}

// plainValue returns a JSON number as an int64, if it is a whole one that every
// reader of JSON takes for the same (RFC 8259 section 6), and all else as it is.
func plainValue(v any) any {
	n, ok := v.(json.Number)
	if !ok {
		return v
	}
	f, err := n.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53-1 {
		return nil
	}
	return int64(f)
}
