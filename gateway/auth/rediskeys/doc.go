// Package rediskeys finds API keys in a Redis hash, so that a portal can add and
// revoke them without touching a file. The fields of the hash are the hex SHA-256
// digests of keys, in lower case; a value says whose the key is.
//
// It is not for writing keys, and not for deciding about them: it hands package auth
// an [auth.Entry] by digest, as the key file does.
//
// # What it promises
//
//   - A key that was confirmed within a second costs a look-up in memory: no round
//     trip and no allocation. One that is used later is asked for again, in the
//     background while it is younger than two seconds, and by the request itself when
//     it is older. So a revoked key ends within [Fresh] everywhere.
//   - An unknown digest costs one HGET at most, however many ask for it at the same
//     time, and none for a second ([Unknown]) after.
//   - While Redis does not answer, keys hold until [Hold] after they were last
//     confirmed; of all others [Table.Lookup] says that they cannot be looked up. After
//     a failure nobody waits for Redis for a second.
//   - No wait is longer than Options.Timeout. Both memories are bounded, and what was
//     used longest ago goes first.
//   - A value that cannot be read is no key. It is told once, by the first eight digits
//     of its digest, and never with what it holds.
package rediskeys
