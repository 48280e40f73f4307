// Package denials keeps the last requests that a limit denied, each with the whole
// decision: what every limit that was asked said. It is what people look at who want
// to know why somebody was denied, and what gateway simulate can play again.
//
// It is not the access log, which has every request, and not a count: metrics are.
//
// # What it promises
//
//   - At most [Options].Max are kept; the oldest makes room.
//   - One who is denied all the time does not push out everybody else: of one
//     caller at most PerSecond are kept in a second, and at most PerCaller in all, of
//     which its own oldest makes room. How many were left out is counted.
//   - Of each text that a client decides at most [MaxText] bytes are kept, so that one
//     takes at most about 6 KiB and 400 bytes for each limit, and 1 KiB as a rule.
//   - Whether there is room for one is one short lock; only what is kept is made.
//   - Nothing here fails, waits, or starts a goroutine.
//
// One that is kept:
//
//	log, err := denials.New(denials.Options{})
//	…
//	if log.Room(caller, now) {
//		log.Add(caller, bucket, &denials.Denial{Time: denials.Time{Time: now}, User: "priya123", …})
//	}
//	…
//	list := log.List(denials.Filter{User: "priya123"}, 50)
package denials
