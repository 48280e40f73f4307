package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"bouncer/gateway/config"
)

// All mistakes of both files are reported at once, each with its place.
func ExampleLoad() {
	dir, err := os.MkdirTemp("", "gateway")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	routes, plans := filepath.Join(dir, "routes.yaml"), filepath.Join(dir, "plans.yaml")
	for path, text := range map[string]string{
		routes: `listen: {http: ":8080"}
shutdown_timeout: 30
upstreams:
  weather: {targets: [http://127.0.0.1:9001]}
routes:
  - {name: weather, path: /api/weather, upstream: weathr, auth: none}
`,
		plans: `anonymous_plan: anonymous
plans:
  anonymous:
    limits:
      - {name: per-minute, per: ip, algorithm: token_bucket, limit: 30/minute, bursts: 10}
`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			fmt.Println(err)
			return
		}
	}
	_, report := config.Load(config.Options{Routes: routes, Plans: plans})
	for _, p := range report.Problems {
		fmt.Println(strings.TrimPrefix(p.String(), dir+string(filepath.Separator)))
	}
	// Output:
	// plans.yaml:5:80: plans.anonymous.limits[0].bursts: unknown field (did you mean "burst"?)
	// routes.yaml:2:19: shutdown_timeout: "30": a number without a unit (did you mean "30s"?); want a duration with a unit such as 500ms, 30s, 5m, 1h or 1d
	// routes.yaml:6:51: routes[0].upstream: no upstream "weathr" under upstreams (did you mean "weather"?)
}
