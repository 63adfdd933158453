SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# make test ends inside 50 minutes, whatever hangs: 3 for set-up and lint, then these. A package that hangs is told to
# show its goroutines before all of it is killed.
UNIT_LIMIT ?= 6m
KAFKA_LIMIT ?= 41m
KAFKA_TIMEOUT ?= 40m
FUZZTIME ?= 10s

.PHONY: build demo modules test unit kafka faults processes long compat suite load lint bench fuzz setup clean

build:
	CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/kmirror ./cmd/kmirror

# Installs a JDK, Maven and kcat where they are missing.
setup:
	@scripts/setup.sh

demo: setup build
	bin/kmirror demo $(DEMO_FLAGS)

test: setup modules lint unit kafka

# Downloads what is compiled and checked with, in three tries: a proxy of modules may be away for a moment.
modules:
	@for try in 1 2 3; do \
		{ go list -deps -test ./... && go run $(STATICCHECK) -version; } >/dev/null && break; \
		((try < 3)) || exit 1; \
		sleep 5; \
	done

# Without brokers: -short skips the tests that need them.
unit:
	timeout --kill-after=30s $(UNIT_LIMIT) go test -race -short -timeout 3m ./...

# On real brokers, one package at a time: two cores carry two clusters, not four.
kafka: setup
	timeout --kill-after=30s $(KAFKA_LIMIT) go test -race -count=1 -p 1 -timeout $(KAFKA_TIMEOUT) ./...

# Kills kmirror at every fault point, also with other things dead at the same time: ten minutes. make long kills it at those
# where most is at stake.
faults: setup
	KMIRROR_LONG=1 KMIRROR_ALL_FAULTS=1 timeout --kill-after=30s $(KAFKA_LIMIT) go test -race -count=1 -v -timeout $(KAFKA_TIMEOUT) -run TestFaultPoints ./internal/e2e

# Several processes, and networks that stall: also what make test leaves out because it takes twenty minutes more.
processes: setup
	KMIRROR_LONG=1 KMIRROR_ALL_PROCESSES=1 timeout --kill-after=30s $(KAFKA_LIMIT) go test -race -count=1 -v -timeout $(KAFKA_TIMEOUT) \
		-run 'TestProcesses|TestThreeProcesses|TestStalls|TestUnlockTorn' ./internal/e2e

# What make test has no time for: elections without end, two Kafka versions through every dangerous order,
# kmirror killed at its fault points, two processes operated.
long: setup
	KMIRROR_LONG=1 timeout --kill-after=30s $(KAFKA_LIMIT) go test -race -count=1 -v -timeout $(KAFKA_TIMEOUT) \
		-run 'TestElections|TestHostUnharmed|TestFaultPoints|TestProcessesOperated|TestStoppedCoordinator|TestGateway|TestPeers|TestClientsWithCertificates|TestFences|TestOldBrokers|TestRotation' ./internal/e2e

# Every client of docs/compatibility.md, which it makes anew, through the gateway: ten minutes. With iproute2, and as root or where the
# kernel lets anybody make user namespaces, clients have a network of their own.
compat: setup
	@scripts/setup.sh venv $$([[ $$EUID == 0 ]] && echo ip)
	KMIRROR_COMPAT=1 timeout --kill-after=30s 15m go test -count=1 -v -timeout 14m -run '^TestCompatibility' ./internal/e2e

# franz-go's own tests of its client, at brokers and through a gateway, compared test by test: about ten minutes.
# KMIRROR_SUITE_RECORDS=500000 moves as many records as franz-go does, KMIRROR_SUITE_RUN picks tests.
suite: setup
	KMIRROR_SUITE=1 timeout --kill-after=30s $(KAFKA_LIMIT) go test -count=1 -v -timeout $(KAFKA_TIMEOUT) -run TestFranzSuite ./internal/e2e

# 1,000 idle and 200 busy clients, connections that come and go, slow and hostile ones, garbage for five minutes, with and without TLS, in
# front of a broker and a mirror: about nine minutes. Without the race detector, whose memory would be measured too; make test does less of the same with it.
load: setup
	KMIRROR_LOAD=1 timeout --kill-after=30s $(KAFKA_LIMIT) go test -count=1 -v -timeout $(KAFKA_TIMEOUT) -run TestLoad ./internal/e2e

lint:
	@unformatted="$$(gofmt -l .)"; \
	if [[ -n "$$unformatted" ]]; then echo "gofmt needed:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...
	go test -count=1 ./internal/layering

bench: setup build
	go run ./bench $(BENCH_FLAGS)

fuzz: # PACKAGES="./records ./protocol" for some only
	FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

clean:
	rm -rf bin
