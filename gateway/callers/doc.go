// Package callers remembers who called lately: each user, each key by its id, and
// each address as limits count it, with the plan it had, where it came from, and
// how many of its requests were let through, denied and refused in each of the
// last 60 minutes. Of an address it also knows about how many different users and
// user agents were behind it of late, so that many people behind one address can
// be told from one of them who asks too much.
//
// It is for people who look at one caller. It is not a limiter, not a count to bill
// by, and not a set of all callers: who was not seen for longest makes room, and is
// then unknown here.
//
// # What it promises
//
//   - At most [Options].PerKind callers of each kind are held, in shards, each of
//     which makes room for itself. One takes at most about 3.5 KiB, whatever it is called
//     and however long it stays, and half a KiB if it came once, so that the default,
//     4,096 of three kinds, is 43 MB at most, and 6 MB for a crowd that passes. A
//     crowd of one kind pushes out nobody of another.
//   - What is remembered of a name is at most [MaxText] bytes of valid UTF-8. Longer
//     ones that begin alike are one caller here.
//   - To note a request of callers that are known allocates nothing, and holds
//     three short locks, one after the other.
//   - Nothing here fails, waits for anything but its locks, or starts a goroutine.
//
// How many users and user agents there are is counted in bitmaps (linear counting:
// Whang, Vander-Zanden, Taylor, "A Linear-Time Probabilistic Counting Algorithm for
// Database Applications", 1990), one for these ten minutes and one for those before,
// under a hash that nobody outside can foresee. Up to some hundreds the estimate is
// within a tenth; beyond two thousand it only says "at least".
//
//	t, err := callers.New(callers.Options{})
//	…
//	t.Note(&callers.Request{At: now, User: "priya123", Bucket: "203.0.113.7", Plan: "free"})
//	…
//	c, known := t.Get(callers.User, "priya123", time.Now())
package callers
