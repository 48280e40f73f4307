package memory

import (
	"testing"

	"pgregory.net/rapid"
)

// Entries that come and go, few tags, many of them equal: each is found, and
// nothing else is.
func TestIndexEqualsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x index
		model := map[uint32]uint32{} // entry to tag
		tags := rapid.SampledFrom([]uint32{0, 1, 2, 3, 6, 7, 8, 15, 16, 1<<32 - 1, 1<<32 - 2})
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			entry := rapid.Uint32Range(0, 30).Draw(t, "entry")
			if tag, ok := model[entry]; ok {
				x.remove(tag, entry)
				delete(model, entry)
			} else {
				tag := tags.Draw(t, "tag")
				x.add(tag, entry)
				model[entry] = tag
			}
			if x.used != len(model) {
				t.Fatalf("%d in use, want %d", x.used, len(model))
			}
			for entry := range uint32(31) {
				tag, want := model[entry]
				if got := probe(&x, tag, entry); got != want {
					t.Fatalf("entry %d with tag %d: found %v, want %v in %v", entry, tag, got, want, x.slots)
				}
			}
		}
	})
}

// probe looks for an entry as a look-up does, up to the first free slot.
func probe(x *index, tag, entry uint32) bool {
	if x.used == 0 {
		return false
	}
	mask := uint32(len(x.slots) - 1)
	for i := tag & mask; x.slots[i].ref != 0; i = (i + 1) & mask {
		if x.slots[i] == (slot{tag, entry + 1}) {
			return true
		}
	}
	return false
}
