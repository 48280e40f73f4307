package config

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// A Screen is a terminal that problems are shown on.
type Screen struct {
	// Width is how many cells a line has; 0 means 80, and less than 40 means 40.
	Width int
	// Color allows for colours. Without them the same characters are shown.
	Color bool
}

// The colours of a screen, as SGR parameters.
const (
	bold   = "1"
	red    = "1;31"
	yellow = "1;33"
	faint  = "2"
)

func (s Screen) paint(color, text string) string {
	if !s.Color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// Show writes p, one of r's problems, for a person to read: the line that
// [Problem.String] makes, then the line of the file with a mark under the place.
//
//	routes.yaml:9:12: routes[2].upstream: no upstream "weathr" (did you mean "weather"?)
//	  9 |   - {name: a, upstream: weathr, path: /a}
//	    |                         ^^^^^^
//
// The values of secrets are masked, and a line that may be part of one is left
// out. A line too long for the screen is cut around the place.
func (r *Report) Show(w io.Writer, p Problem, s Screen) error {
	color, place := red, p.Pos.String()+":"
	text := strings.TrimPrefix(p.String(), place)
	if p.Warning {
		color = yellow
		text = strings.Replace(text, "warning:", s.paint(yellow, "warning:"), 1)
	}
	_, err := fmt.Fprintln(w, s.paint(bold, place)+text)
	if err != nil {
		return err
	}
	number := strconv.Itoa(p.Line)
	source, marks, ok := r.excerpt(p, max(s.screenWidth()-len(number)-6, 20))
	if !ok {
		return nil
	}
	_, err = fmt.Fprintf(w, "%s%s\n%s%s\n",
		s.paint(faint, "  "+number+" | "), source,
		s.paint(faint, "  "+strings.Repeat(" ", len(number))+" | "), marks.before+s.paint(color, marks.under))
	return err
}

func (s Screen) screenWidth() int {
	if s.Width == 0 {
		return 80
	}
	return max(s.Width, 40)
}

// markers are the line under a line: blanks, and what stands under the place.
type markers struct{ before, under string }

// A cell is what one position of a screen shows, and the characters it came from.
type cell struct {
	text  string
	width int
	from  int // the first character
}

const stars = "********"

// excerpt returns the line that p is about, in at most room cells, and what
// stands under it. ok is false where there is none, or none that may be shown.
func (r *Report) excerpt(p Problem, room int) (source string, m markers, ok bool) {
	d := r.docs[p.File]
	if d == nil || d.raw || p.Line == 0 || p.Column == 0 {
		return "", m, false
	}
	l := d.shownLine(p.Line)
	if !l.ok {
		return "", m, false
	}
	start := min(p.Column-1, len(l.runes))
	masked := l.masked
	// A value may be confidential by where it is used, and not where it stands.
	if confidentialPath(p.Path) && start < len(masked) && !masked[start] && !isFieldAt(l.runes[start:], p.Path) {
		masked = append([]bool(nil), masked...)
		for i := start; i < len(masked); i++ {
			masked[i] = true
		}
	}
	end := tokenEnd(l.runes, start)
	// Only what can be on the screen is looked at: a line may be megabytes long.
	first, last := max(0, start-2*room), min(len(l.runes), start+2*room)
	cells := cellsOf(l.runes, masked, first, last)
	from, to := 0, 0 // the place, in cells
	for i, c := range cells {
		if c.from <= start && c.from > cells[from].from {
			from = i
		}
		if c.from < end {
			to = i + 1
		}
	}
	if start >= last { // behind the line's end
		cells = append(cells, cell{text: "", width: 1, from: start})
		from, to = len(cells)-1, len(cells)
	}
	return window(cells, from, max(to, from+1), room, first > 0, last < len(l.runes))
}

// isFieldAt reports whether text begins with the last name of path, and not with
// its value.
func isFieldAt(text []rune, path string) bool {
	name := []rune(path[strings.LastIndexByte(path, '.')+1:])
	return len(text) > len(name) && string(text[:len(name)]) == string(name) && text[len(name)] == ':'
}

// window shows cells, and marks those from from to to. What does not fit into
// room is cut on both sides.
func window(cells []cell, from, to, room int, cutLeft, cutRight bool) (string, markers, bool) {
	total := 0
	for _, c := range cells {
		total += c.width
	}
	begin, end := 0, len(cells)
	if total > room || cutLeft || cutRight {
		// A third of the room goes to what stands before the place, more where
		// the line ends soon.
		left := 0
		for begin = from; begin > 0 && left+cells[begin-1].width <= room/3; begin-- {
			left += cells[begin-1].width
		}
		used := left
		for end = from; end < len(cells) && used+cells[end].width <= room-2; end++ {
			used += cells[end].width
		}
		for begin > 0 && used+cells[begin-1].width <= room-2 {
			begin--
			used += cells[begin].width
		}
	}
	var source, before, under strings.Builder
	if begin > 0 || cutLeft {
		source.WriteString("…")
		before.WriteString(" ")
	}
	for i := begin; i < end; i++ {
		c := cells[i]
		source.WriteString(c.text)
		switch {
		case i < from:
			before.WriteString(strings.Repeat(" ", c.width))
		case i < to:
			under.WriteString(strings.Repeat("^", c.width))
		}
	}
	if end < len(cells) || cutRight {
		source.WriteString("…")
	}
	return strings.TrimRight(source.String(), " "), markers{before.String(), under.String()}, true
}

// cellsOf lays out the characters from first to last.
func cellsOf(runes []rune, masked []bool, first, last int) []cell {
	var cells []cell
	for i := first; i < last; i++ {
		if masked[i] {
			// However long a secret is, it has as many stars.
			if i == first || !masked[i-1] {
				for _, star := range stars {
					cells = append(cells, cell{string(star), 1, i})
				}
			}
			continue
		}
		switch r := runes[i]; {
		case r == '\t':
			cells = append(cells, cell{"    ", 4, i})
		case joins(r) && len(cells) > 0 && i > first && !masked[i-1]:
			cells[len(cells)-1].text += string(r)
		case joins(r), isControl(r), unicode.Is(unicode.Cf, r), !unicode.IsPrint(r) && r != ' ':
			// It could move the cursor, or turn the line around.
			cells = append(cells, cell{"?", 1, i})
		default:
			n := 1
			switch width.LookupRune(r).Kind() {
			case width.EastAsianWide, width.EastAsianFullwidth:
				n = 2
			}
			cells = append(cells, cell{string(r), n, i})
		}
	}
	return cells
}

// joins reports whether r is drawn in the cell of the character before it:
// combining marks, the joiners of emoji, and the later parts of a syllable of
// Hangul that is written in parts.
func joins(r rune) bool {
	return unicode.In(r, unicode.Mn, unicode.Me) || r == '\u200d' || r == '\u200c' || 0x1160 <= r && r <= 0x11ff
}

// tokenEnd returns where the word that begins at start ends: a name, a value,
// or a sign of YAML.
func tokenEnd(runes []rune, start int) int {
	if start >= len(runes) {
		return start + 1
	}
	blank := func(i int) bool { return i >= len(runes) || unicode.IsSpace(runes[i]) }
	end := start + 1
	switch first := runes[start]; {
	case first == '"' || first == '\'':
		for ; end < len(runes) && runes[end] != first; end++ {
			if runes[end] == '\\' && first == '"' {
				end++
			}
		}
		end = min(end+1, len(runes))
	case strings.ContainsRune("{[]},", first), strings.ContainsRune("-?:|>", first) && blank(end):
	case strings.ContainsRune("&*!", first):
		for !blank(end) && !strings.ContainsRune(",]}", runes[end]) {
			end++
		}
	default:
		end = plainEnd(runes, end)
	}
	for end > start+1 && blank(end-1) {
		end--
	}
	return end
}

// plainEnd is where text without quotes ends, of which the character before i
// is the first. Brackets that it opens itself belong to it, as in /a/{id}.
func plainEnd(runes []rune, i int) int {
	depth := 0
	for ; i < len(runes); i++ {
		switch next := i + 1; runes[i] {
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth < 0 {
				return i
			}
		case ',':
			if depth == 0 {
				return i
			}
		case ':':
			if next == len(runes) || unicode.IsSpace(runes[next]) {
				return i
			}
		case '#':
			if unicode.IsSpace(runes[i-1]) {
				return i
			}
		}
	}
	return i
}

// shownLine is a line of a document, ready to be shown.
type shownLine struct {
	number int
	runes  []rune
	masked []bool // for each character
	ok     bool   // it may be shown
}

// shownLine returns line n. It keeps the last one: the problems of a line come
// one after the other.
func (d *doc) shownLine(n int) shownLine {
	if d.shown.number == n {
		return d.shown
	}
	d.shown = shownLine{number: n}
	hidden := d.hiddenLines()
	text := d.line(n)
	if n > len(hidden) || hidden[n-1] || strings.TrimSpace(text) == "" {
		return d.shown
	}
	spans, ok := mask(text)
	d.shown.ok = ok
	d.shown.runes, d.shown.masked = []rune(text), hiddenRunes(text, spans)
	return d.shown
}
