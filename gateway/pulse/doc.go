// Package pulse keeps what a gateway did lately, for the people who watch it: the
// last five minutes by the second, the last hour by ten seconds, the last day by five
// minutes, the rates of the last ten seconds, and in words what is wrong.
//
// It is not a metrics store and not a judge of requests: Prometheus keeps months,
// and nothing that is decided about a request looks here. It counts nothing by
// itself; it is given a [Sample] of what was counted, about once a second.
//
// What it promises:
//   - Bounded memory, whatever is configured and whoever calls: [MaxSeries] series of
//     948 values of 4 bytes, and the bins of 63 latencies, which is below 1 MiB
//     together; and of the last ten seconds what moved in them.
//   - No figure that is not known: where the process was stopped or the machine slept,
//     steps are empty. A clock that is set makes no spikes. Where samples come late,
//     a step's value is the mean over the time from one to the next.
//   - A restart and a reload make no step in a rate, since differences are taken of
//     each counter by itself, as long as it lives.
//
// Use:
//
//	p := pulse.New()
//	for range time.Tick(time.Second) {
//		p.Add(sampler.Read())
//	}
//	…
//	hour, _ := p.History("1h")
package pulse
