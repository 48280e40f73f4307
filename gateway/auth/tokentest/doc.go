// Package tokentest is a table of tokens with the verdict on each: good ones of
// every algorithm, the examples of the RFCs, and every way we know in which a
// token can be forged, bent or misread.
//
// It is for tests: those of auth look at single tokens, in the header and in the
// cookie, and those of the whole gateway at what a client and an upstream see of
// them. A check that is taken out of auth turns at least one row red.
//
// The keys are those that the RFCs print, so everybody has their private halves:
// they are good for nothing else. Table makes every token anew, since most of
// them speak of now.
package tokentest
