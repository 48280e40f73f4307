package redisstore_test

import (
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/limittest"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

func kolkata(t testing.TB, quota int64) *ratelimit.Policy {
	t.Helper()
	zone, err := time.LoadLocation("Asia/Kolkata")
	if err != nil {
		t.Fatal(err)
	}
	return newPolicy(t, ratelimit.Policy{
		Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow, Quota: quota,
		Calendar: &ratelimit.Calendar{Unit: ratelimit.CalendarDay, Location: zone},
	})
}

// TestGatewaysWithOtherClocksDecideAlike: two gateways whose clocks are five
// seconds fast and five slow ask for a day that ends. The server's clock says
// which day it is, to the microsecond, and both share its count.
func TestGatewaysWithOtherClocksDecideAlike(t *testing.T) {
	srv := redistest.Start(t)
	clock := limittest.NewClock()
	fast, slow := virtual(t, srv, clock), virtual(t, srv, clock)
	const quota = 10
	p := kolkata(t, quota)
	end := p.Calendar.Windows(clock.Now())[2]
	ask := func(store *redisstore.Store, skew time.Duration) ratelimit.Decision {
		t.Helper()
		c := in("{user:priya123}", p, 1)
		c.Windows = p.Calendar.Windows(clock.Now() + skew.Microseconds())
		return mustTake(t, store, []ratelimit.Charge{c})[0]
	}
	both := func(what string, remaining int64, reset time.Duration) {
		t.Helper()
		for i, gateway := range []struct {
			store *redisstore.Store
			skew  time.Duration
		}{{fast, 5 * time.Second}, {slow, -5 * time.Second}} {
			d := ask(gateway.store, gateway.skew)
			if !d.Allowed || d.Remaining != remaining-int64(i) || d.Reset != reset {
				t.Errorf("%s, gateway %d: %+v; want remaining %d, reset %s", what, i, d, remaining-int64(i), reset)
			}
		}
	}
	clock.Advance(time.Duration(end-clock.Now())*time.Microsecond - 3*time.Second)
	both("3s before midnight", quota-1, 3*time.Second)
	clock.Advance(3*time.Second - time.Microsecond)
	both("1µs before midnight", quota-3, time.Microsecond)
	clock.Advance(time.Microsecond)
	both("midnight", quota-1, 24*time.Hour)
	clock.Advance(3 * time.Second)
	both("3s after midnight", quota-3, 24*time.Hour-3*time.Second)
}

// TestAClockThatIsFarOff: an instance whose clock is a year behind sends windows
// that the server is in none of. The server says its time, the windows are laid
// around it, and the charge happens once.
func TestAClockThatIsFarOff(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	p := kolkata(t, 10)
	for i, c := range []ratelimit.Charge{
		in("{user:priya123}", p, 1), // sends none: this instance's clock is taken
		{Policy: p, Partition: "{user:priya123}", Cost: 1, Windows: p.Calendar.Windows(time.Now().UnixMicro())},
		{Policy: p, Partition: "{user:priya123}", Cost: 1, Windows: p.Calendar.Windows(time.Now().AddDate(-1, 0, 0).UnixMicro())},
		{Policy: p, Partition: "{user:priya123}", Cost: 1, Windows: p.Calendar.Windows(time.Now().AddDate(1, 0, 0).UnixMicro())},
	} {
		resetStats(t, look)
		d := mustTake(t, store, []ratelimit.Charge{c})[0]
		if !d.Allowed || d.Remaining != int64(9-i) || d.Reset <= 0 || d.Reset > 25*time.Hour {
			t.Errorf("charge %d: %+v", i, d)
		}
		calls := commandCalls(t, look)
		if want := []int{1, 1, 2, 2}[i]; calls["evalsha"] != want || calls["set"] != 1 {
			t.Errorf("charge %d: %v; want %d calls and one set", i, calls, want)
		}
	}
	everyKeyExpires(t, look)
}
