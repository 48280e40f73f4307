package config

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// A line of a file is shown beside a mistake in it, and may hold a secret. What
// follows decides by the text alone, since a file with a mistake may have no
// structure to go by, and rather hides too much: a password in a terminal's
// scrollback or a build log cannot be taken back.

var (
	// confidentialName matches names of fields whose value is not shown.
	confidentialName = regexp.MustCompile(`(?i)passw|passphrase|pwd|secret|token|credential|private|bearer|authorization|key$|^(jwks_)?urls?$|sha256|digest`)
	// knownHarmless matches those among them that hold a word, or the path of a
	// file, which the message shows anyway.
	knownHarmless = regexp.MustCompile(`^(forward_credentials|[a-z_]+_file)$`)
	// confidentialHeader matches names of header fields whose value is not shown.
	confidentialHeader = regexp.MustCompile(`(?i)signature|session|cookie|jwt|hmac|passcode|assertion|csrf|xsrf|(^|[^a-z])(access|auth|otp|pass|pat|pin|sid|sig)([^a-z]|$)`)
	// anyField finds the names of fields in a line, with what stands behind them
	// up to the value. A colon needs no blank behind it: where that is the
	// mistake, the value is as secret.
	anyField = regexp.MustCompile(`("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z_][A-Za-z0-9_.-]*)\s*[:=]\s*`)
	// fieldStart matches a line that begins with a field.
	fieldStart = regexp.MustCompile(`^(?:-\s+)*("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'#{}\[\],&*!|>%@-][^\s:]*)\s*:(?:\s|$)`)
	// nextField finds where the value of a field ends in a flow mapping.
	nextField = regexp.MustCompile(`,\s*["']?[A-Za-z_][A-Za-z0-9_-]*["']?\s*:(?:\s|$)`)
	// userInfo matches the name and password of a URL.
	userInfo = regexp.MustCompile(`:/+(.*)@`)
	// anchored matches a value that an alias may carry anywhere.
	anchored = regexp.MustCompile(`(?:^|\s)&\S+\s+([^\s{\[].*)`)
	// likeAKey matches what is too long and too mixed to be a name.
	likeAKey = regexp.MustCompile(`[A-Za-z0-9+_=]{20,}`)
	hexKey   = regexp.MustCompile(`^[0-9a-fA-F]{32,}$`)
	// telltale matches words that, where they name no field, may speak of a
	// secret beside them, as in a comment.
	telltale = regexp.MustCompile(`(?i)passw|passphrase|pwd|secret|bearer|-----BEGIN`)
)

// confidential reports whether the value of a field of this name is not shown.
func confidential(name string) bool {
	name = strings.Trim(name, `"'`)
	return confidentialBlock(name) && !knownHarmless.MatchString(name)
}

// confidentialBlock is confidential for a value on lines of its own, where even
// a file may turn out to be the secret itself. A misspelt name is confidential
// too: that is the very mistake the line is shown for.
func confidentialBlock(name string) bool {
	name = strings.ToLower(strings.Trim(name, `"'`))
	switch {
	case name == "forward_credentials":
		return false
	case confidentialName.MatchString(name), strings.HasPrefix(name, "x-") && confidentialHeader.MatchString(name):
		return true
	}
	return suggest(name, []string{"password", "passwd", "secret", "token", "credentials", "api_key", "url", "urls"}) != ""
}

// confidentialPath reports whether a field on the way of path is confidential.
func confidentialPath(path string) bool {
	for name := range strings.SplitSeq(path, ".") {
		name, _, _ = strings.Cut(name, "[")
		if confidential(name) {
			return true
		}
	}
	return false
}

// mask returns where the secrets in line stand, in bytes, and false if the line
// is better not shown at all.
func mask(line string) (spans [][2]int, ok bool) {
	hide := func(from, to int) {
		if from < to {
			spans = append(spans, [2]int{from, to})
		}
	}
	for at := 0; at < len(line); {
		m := anyField.FindStringSubmatchIndex(line[at:])
		if m == nil {
			break
		}
		name, value := line[at+m[2]:at+m[3]], at+m[1]
		if !confidential(name) {
			at = value
			continue
		}
		end := len(line)
		quoted := quotedLength(line[value:])
		if next := nextField.FindStringIndex(line[value+quoted:]); next != nil {
			end = value + quoted + next[0]
		}
		at = end
		// What closes a mapping of this line belongs to no value.
		if strings.ContainsAny(line[:value], "{[") {
			end = value + len(strings.TrimRight(line[value:end], "}] \t"))
		}
		hide(value, end)
	}
	for _, elsewhere := range []*regexp.Regexp{userInfo, anchored} {
		if m := elsewhere.FindStringSubmatchIndex(line); m != nil {
			hide(m[2], m[3])
		}
	}
	for _, m := range likeAKey.FindAllStringIndex(line, -1) {
		if s := line[m[0]:m[1]]; strings.ContainsAny(s, "0123456789") &&
			(hexKey.MatchString(s) || strings.ToLower(s) != s && strings.ToUpper(s) != s) {
			hide(m[0], m[1])
		}
	}
	// What is left may still speak of a secret.
	rest := []byte(line)
	for _, s := range spans {
		for i := s[0]; i < s[1]; i++ {
			rest[i] = ' '
		}
	}
	for _, m := range telltale.FindAllIndex(rest, -1) {
		word := strings.TrimLeft(string(rest[m[1]:]), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-\"'")
		if !strings.HasPrefix(strings.TrimLeft(word, " "), ":") && !strings.HasPrefix(word, "=") {
			return nil, false
		}
	}
	return spans, true
}

// quotedLength is the length of the text in quotes that s begins with, all of s
// if the quotes are not closed, 0 without quotes.
func quotedLength(s string) int {
	if s == "" || s[0] != '"' && s[0] != '\'' {
		return 0
	}
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && s[0] == '"':
			i++
		case s[i] == s[0]:
			return i + 1
		}
	}
	return len(s)
}

// hiddenLines returns which lines, counted from 0, are or may be part of a
// secret that begins in a line above: they are not shown.
func (d *doc) hiddenLines() []bool {
	if d.hidden != nil {
		return d.hidden
	}
	n := len(d.lineStarts())
	d.hidden = make([]bool, n)
	type level struct {
		indent int
		secret bool
	}
	var open []level
	pending := false // the last field that was named is confidential
	empty := false   // and nothing stands behind it, in the middle of a line
	quote := ""      // a secret in quotes that no line has closed yet
	for i := range d.hidden {
		text := d.line(i + 1)
		bare := strings.TrimLeft(text, " \t")
		if quote != "" {
			d.hidden[i] = true
			if strings.Contains(bare, quote) {
				quote = ""
			}
			continue
		}
		if bare == "" {
			continue
		}
		indent := len(text) - len(bare)
		item := strings.HasPrefix(bare, "-")
		for len(open) > 0 && (open[len(open)-1].indent > indent || open[len(open)-1].indent == indent && !item) {
			open = open[:len(open)-1]
		}
		under := len(open) > 0 && open[len(open)-1].secret
		start := fieldStart.FindStringSubmatchIndex(bare)
		d.hidden[i] = under || empty || start == nil && pending && !strings.HasPrefix(bare, "#")
		if start != nil {
			name := bare[start[2]:start[3]]
			open = append(open, level{indent + start[2], under || confidentialBlock(name)})
		}
		empty = false
		if all := anyField.FindAllStringSubmatchIndex(bare, -1); len(all) > 0 {
			last := all[len(all)-1]
			pending = confidentialBlock(bare[last[2]:last[3]])
			value := bare[last[1]:]
			empty = pending && value == "" && (start == nil || last[2] != start[2])
			if pending && value != "" && (value[0] == '"' || value[0] == '\'') && !strings.Contains(value[1:], value[:1]) {
				quote = value[:1]
			}
		}
	}
	return d.hidden
}

// hiddenRunes turns spans of bytes into a mark for every character.
func hiddenRunes(line string, spans [][2]int) []bool {
	bytes := make([]bool, len(line))
	for _, s := range spans {
		for i := s[0]; i < s[1]; i++ {
			bytes[i] = true
		}
	}
	marks := make([]bool, 0, len(line))
	for i := 0; i < len(line); {
		_, n := utf8.DecodeRuneInString(line[i:])
		marks = append(marks, bytes[i])
		i += n
	}
	return marks
}
