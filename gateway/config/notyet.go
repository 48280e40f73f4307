package config

import "slices"

// notYet names what is read and checked here while the gateway cannot do it
// yet. Each is refused where it stands. An entry goes when the gateway does
// what it names, and this file with the last of them.
var notYet []string

// refuse reports at v that what is as yet unknown to the gateway, if it is.
func (v value) refuse(what string) {
	if slices.Contains(notYet, what) {
		v.errorf("%s is not supported yet; remove it", what)
	}
}
