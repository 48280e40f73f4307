package door

import (
	"net"
	"sync"
	"testing"
)

// A connection that is closed while it is asked for a place gives it back all the
// same, and only once.
func TestAPlaceIsGivenBackOnce(t *testing.T) {
	for name, order := range map[string]func(p *placed, ask func()){
		"closed later":     func(p *placed, ask func()) { ask(); _ = p.Close() },
		"closed before":    func(p *placed, ask func()) { _ = p.Close(); ask() },
		"closed twice":     func(p *placed, ask func()) { ask(); _ = p.Close(); _ = p.Close() },
		"closed meanwhile": func(p *placed, ask func()) { var wg sync.WaitGroup; wg.Go(ask); _ = p.Close(); wg.Wait() },
	} {
		left := 0
		here, there := net.Pipe()
		p := &placed{Conn: here}
		order(p, func() {
			if !p.admit(&Options{Enter: func(net.Addr) (func(), bool) { return func() { left++ }, true }}, here.RemoteAddr()) {
				t.Errorf("%s: refused", name)
			}
		})
		if left != 1 {
			t.Errorf("%s: given back %d times", name, left)
		}
		_ = there.Close()
	}
}
