# `make` alone says what there is. Nothing here needs more than Go and a POSIX
# shell, except the tests, which want a C compiler (race detector), a
# redis-server, Prometheus' promtool and Chromium, and get them from Debian when they may.

.DEFAULT_GOAL := help
.PHONY: help build run test deploy hotkey clocks vet staticcheck lint fuzz bench bench-memory bench-decisions bench-keys bench-simulate bench-overhead soak faults faults-selftest durability fmt clean needs

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOBUILD  = CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

# How long each fuzz target runs under `make fuzz`.
FUZZTIME ?= 10s
# Flags for the benchmark program, as in: make bench BENCHFLAGS='-rounds 9 -json'
BENCHFLAGS ?=
# Flags for make soak, as in: make soak SOAKFLAGS='-scale 0.01 -run ^sockets'
SOAKFLAGS ?=
# Flags for make faults, as in: make faults FAULTFLAGS='-quick -run ^frozen'
FAULTFLAGS ?=
# For make durability: how often Redis dies in each row, and the seed of when.
ROUNDS ?= 20
SEED ?= 0

help:
	@echo 'Bouncer: a reverse proxy that counts. First look:'
	@echo
	@echo '  make run           gateway and a sample API on this machine, and three lines to paste'
	@echo '                     REDIS_URL=redis://127.0.0.1:6379/0 make run     counts in that Redis'
	@echo '                     HTTP_ADDR=:8081 ADMIN_ADDR=127.0.0.1:9091 WEATHER_ADDR=127.0.0.1:9002 make run'
	@echo '                                                                     when a port is taken'
	@echo
	@echo 'Build and prove:'
	@echo
	@echo '  make build         bin/gateway, static'
	@echo '  make test          vet, staticcheck and all tests, under the race detector, against real Redis servers'
	@echo '  make deploy        the files of deploy/ held against those who read them: Kubernetes, Compose, systemd, and'
	@echo '                     the steps of the Dockerfile taken by hand (the first time: minutes)'
	@echo '  make hotkey        twenty gateways, one key, overload: every decision held against the rule'
	@echo '  make clocks        two gateways whose clocks are five seconds apart (builds one anew: minutes)'
	@echo '  make lint          golangci-lint with the list in .golangci.yml (the first time builds it: minutes)'
	@echo '  make fuzz          every fuzz target for $(FUZZTIME) (FUZZTIME=1m make fuzz)'
	@echo '  make vet           go vet alone'
	@echo '  make staticcheck   staticcheck alone'
	@echo '  make fmt           gofmt, in place'
	@echo
	@echo 'Measure:'
	@echo
	@echo '  make bench         what the gateway costs beside a bare reverse proxy; writes docs/BENCHMARKS.md'
	@echo "                     make bench BENCHFLAGS='-rounds 9 -time 5s -json' for other numbers"
	@echo '  make bench-memory  what a million addresses cost in memory; writes docs/BENCHMARKS.md'
	@echo '  make bench-decisions   what a decision costs Redis, by each algorithm; writes docs/BENCHMARKS.md'
	@echo '  make bench-keys    what a caller costs Redis in memory; writes docs/BENCHMARKS.md'
	@echo '  make bench-simulate    what it costs to replay a log of a million lines; writes docs/BENCHMARKS.md'
	@echo '  make bench-overhead    the share of the CPU that goes into metrics, the dashboard and logs; writes docs/BENCHMARKS.md'
	@echo '  make soak          10 GiB each way, ten thousand WebSockets, slow clients, a reload every 100 ms, and twenty'
	@echo "                     minutes of everything at once with faults (some half an hour); writes docs/BENCHMARKS.md;"
	@echo "                     SOAKFLAGS='-scale 0.01' for a hundredth of it, '-run ^mixed' for the twenty minutes alone"
	@echo '  make faults        every failure of Redis under load, held against what is promised (some ten minutes);'
	@echo "                     writes docs/FAILURES.md; FAULTFLAGS='-quick -run ^frozen' for one row, -list for all names"
	@echo '  make faults-selftest   the same with a gateway that is broken on purpose: it must be noticed'
	@echo '  make durability    what a limit is overrun by when Redis dies, by how it keeps its data; writes docs/FAILURES.md'
	@echo '                     ROUNDS=50 SEED=7 make durability'
	@echo
	@echo '  make clean         removes bin/'

build:
	@$(GOBUILD) -o bin/gateway ./cmd/gateway

# The demo program starts both, waits until they are ready, prints the lines
# and ends both. exec, so that Ctrl-C reaches it and nothing in between.
run: build
	@$(GOBUILD) -o bin/weather-api ./examples/weather-api
	@$(GOBUILD) -o bin/demo ./examples/demo
	@exec bin/demo

# The random histories of the limit stores are long and single-threaded, so the
# race detector sees a tenth of them, and the full length runs without it, with
# the proof that it finds faults. Most system tests wait for time to pass, so
# more of them run at once than there are processors.
test: needs vet staticcheck
	LIMITTEST_STEPS=1000 go test -race -timeout 15m -parallel 4 -skip 'FindsFaults|TestSuite' ./...
	go test -run 'FindsFaults|TestSuite|TestCore|TestStore|Reference' ./gateway/ratelimit/...

# A module of its own: the types of Kubernetes and Compose are no part of the product.
deploy:
	@command -v systemd-analyze >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends systemd >/dev/null; } || true
	cd deploy/validate && go vet ./... && go test -count=1 ./...

# HOTKEY_GATEWAYS=5 make hotkey takes five.
hotkey: needs
	HOTKEY_GATEWAYS=$${HOTKEY_GATEWAYS:-20} go test -race -count=1 -v -run '^TestAHotKey' ./test

# A program in Go asks the kernel for the time, past every library that could
# tell it another, so the second gateway is built with a standard library whose
# clock is wrong.
clocks: needs
	CLOCKS_APART=1 go test -count=1 -v -run '^TestClocksApart' ./test

vet:
	go vet ./...
	cd tools/promql && go vet ./...

staticcheck:
	go tool -modfile=tools/go.mod staticcheck ./...

lint:
	go tool -modfile=tools/lint/go.mod golangci-lint run

fmt:
	gofmt -w $$(git ls-files '*.go')

# go test takes one fuzz target at a time.
fuzz:
	@set -e; for file in $$(grep -rl --include='*_test.go' '^func Fuzz' . | sort); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
			echo "$$(dirname $$file) $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$(dirname $$file); \
		done; \
	done

bench: build
	@$(GOBUILD) -o bin/ ./bench/...
	@bin/bench -gateway bin/gateway -floor bin/floor -upstream bin/upstream -write docs/BENCHMARKS.md $(BENCHFLAGS)

bench-memory: build
	@$(GOBUILD) -o bin/ ./bench/...
	@bin/memory -gateway bin/gateway -upstream bin/upstream -write docs/BENCHMARKS.md $(BENCHFLAGS)

# These two need nothing but a redis-server.
bench-decisions:
	@$(GOBUILD) -o bin/decisions ./bench/decisions
	@bin/decisions -write docs/BENCHMARKS.md $(BENCHFLAGS)

bench-keys:
	@$(GOBUILD) -o bin/keys ./bench/keys
	@bin/keys -write docs/BENCHMARKS.md $(BENCHFLAGS)

# Fails above the bars that docs/BENCHMARKS.md names.
bench-simulate: build
	@$(GOBUILD) -o bin/simulate ./bench/simulate
	@bin/simulate -gateway bin/gateway -write docs/BENCHMARKS.md $(BENCHFLAGS)

# Fails above the bars that docs/BENCHMARKS.md names.
bench-overhead: build
	@$(GOBUILD) -o bin/ ./bench/...
	@bin/overhead -gateway bin/gateway -upstream bin/upstream -write docs/BENCHMARKS.md $(BENCHFLAGS)

# Fails when a bar is missed. Ten thousand WebSockets take 20200 open files of
# the gateway, and as many of the program: it raises the limit where it may, and
# takes as many as there is room for, and says so, where it may not.
soak: build
	@$(GOBUILD) -o bin/soak ./bench/soak
	@bin/soak -gateway bin/gateway -write docs/BENCHMARKS.md $(SOAKFLAGS)

# Each needs a redis-server, and builds the gateway by itself.
faults: needs
	@$(GOBUILD) -o bin/faults ./bench/faults
	@bin/faults $(FAULTFLAGS)

faults-selftest: needs
	@$(GOBUILD) -o bin/faults ./bench/faults
	@bin/faults -selftest

durability: needs
	@$(GOBUILD) -o bin/faults ./bench/faults
	@bin/faults -durability -rounds $(ROUNDS) -seed $(SEED)

clean:
	rm -rf bin

# What the tests need besides Go. As root on Debian it is installed, without the
# service that comes with it: the tests start servers of their own. Anywhere
# else the one command to type is printed.
needs:
	@missing=; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	command -v "$$(go env CC)" >/dev/null || missing="$$missing gcc libc6-dev"; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null || exit 1; \
		for service in redis-server prometheus; do \
			case "$$missing" in *$$service*) systemctl disable -q --now $$service 2>/dev/null || true;; esac; \
		done; \
	else \
		echo "the tests need$$missing; type:" >&2; \
		if command -v brew >/dev/null; then echo "  brew install redis prometheus; brew install --cask chromium" >&2; \
		else echo "  sudo apt-get install -y --no-install-recommends$$missing" >&2; fi; \
		exit 1; \
	fi
