# What a developer does here. `make` alone prints the targets; what they need is in CONTRIBUTING.md.

GO          ?= go
# All modules of the repository at their sources, whatever the caller's environment says.
export GOWORK := $(CURDIR)/go.work
# Bounds one package, not the whole run; a test that hangs says where.
TESTTIMEOUT ?= 30m
TESTFLAGS   ?=
# Tests of stores mostly wait, less so with the race detector.
WAITING     := -parallel 8
RACING      := -race -parallel 4
BENCH       ?= .
BENCHTIME   ?= 1s
BENCHFLAGS  ?=
SUFFIX      ?=
FUZZTIME    ?= 30s
# The folder of `make run`: what the server keeps survives its restart.
DATA        ?= $(CURDIR)/.data
ADDRESS     ?= 127.0.0.1:7420
# The folder of the pictures that a test takes of the page at /, for people to look at.
HOLDFAST_SCREENSHOTS ?= $(CURDIR)/.screenshots

# Built on first use, and in the version that tools/go.mod pins.
LINTER       = linter=$$(scripts/tool golangci-lint) && "$$linter"

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## start a server on 127.0.0.1:7420 that keeps its leases in .data (ADDRESS= DATA=)
	@echo
	@echo 'Holdfast starts on http://$(ADDRESS), with what it keeps in $(DATA). Ctrl-C ends it.'
	@echo 'The dashboard is http://$(ADDRESS)/. In another terminal:'
	@echo
	@echo '  bin/holdfast run --backend holdfast://$(ADDRESS) nightly-report -- sleep 20'
	@echo '  bin/holdfast ls  --backend holdfast://$(ADDRESS)'
	@echo "  curl -X POST http://$(ADDRESS)/v1/locks/order:123 -d '{\"ttl\":\"30s\"}'"
	@echo
	@exec bin/holdfast serve --listen '$(ADDRESS)' --data-dir '$(DATA)'

.PHONY: build
# grpcnotrace leaves out the pages of traces of gRPC, and with them html/template, for which the linker keeps every method.
build: ## build bin/holdfast
	$(GO) build -buildvcs=$$(git rev-parse -q --verify HEAD >/dev/null 2>&1 && echo true || echo auto) -trimpath -tags grpcnotrace -ldflags '-s -w' -o bin/holdfast ./cmd/holdfast

.PHONY: test
test: ## while you write, and on a new machine: what is missing (apt), and tests on the stores of Debian, without the race detector
	@scripts/install-test-deps test
	$(GO) test -short $(WAITING) -timeout $(TESTTIMEOUT) $(TESTFLAGS) $$($(GO) list work | grep -vE '$(SLOW)')
	@echo 'Left out: Consul, Kubernetes, the race detector, tests with -short that say "make check runs it". make check was last green:'
	@cat verify/results/check.txt
SLOW = /(consullock|k8slock|bench|otel|nightly)$$$$

.PHONY: check
# k8slock by itself: an API server that shares two cores with other tests does not answer in time.
check: test ## before a commit: format, lint, other systems, and all tests, those of packages with the race detector
	@scripts/install-test-deps check
	$(MAKE) fmt-check lint cross
	CGO_ENABLED=1 $(GO) test $(RACING) -timeout $(TESTTIMEOUT) $(TESTFLAGS) $$($(GO) list work | grep -vE '/(e2e|nightly|k8slock)$$')
	CGO_ENABLED=1 $(GO) test $(RACING) -timeout $(TESTTIMEOUT) $(TESTFLAGS) ./backend/k8slock
	HOLDFAST_SCREENSHOTS='$(HOLDFAST_SCREENSHOTS)' $(GO) test -parallel 4 -timeout $(TESTTIMEOUT) $(TESTFLAGS) ./internal/testkit/e2e
	@echo "$$(date -u +%F), commit $$(git describe --always --dirty --exclude='*')" >verify/results/check.txt

.PHONY: nightly
nightly: ## by hand: charts, packages, images, chaos, crashes, a soak, simulation, fuzzing, mutants; into verify/results (FOR=60s FUZZTIME=30s)
	@scripts/nightly

.PHONY: cross
cross: ## compile the command for macOS and the BSDs, and vet on Linux what supervises there (its tests need Linux)
	for os in darwin freebsd openbsd netbsd; do \
		GOOS=$$os $(GO) build -o /dev/null ./cmd/holdfast && GOOS=$$os $(GO) vet ./cmd/holdfast || exit; \
	done
	$(GO) vet -tags holdfast_posix ./cmd/holdfast/internal/cli

.PHONY: deps
deps: ## install what the tests need, if it is missing (apt, as root or with sudo; some is built once, outside of this folder)
	@scripts/install-test-deps check
	@scripts/tool etcd >/dev/null
	@scripts/tool consul >/dev/null
	@scripts/tool kube-apiserver >/dev/null

.PHONY: image-test
image-test: ## build the image of deploy/docker with docker, podman or buildah, and run its command (fetches images)
	HOLDFAST_IMAGE=1 $(GO) test -count=1 -v -run '^TestImage$$' -timeout $(TESTTIMEOUT) ./internal/testkit/e2e/nightly

.PHONY: docs
docs: ## compile and run the Go blocks of README.md and docs, and check the links, the tests and the holdfast commands on all pages
	$(GO) test -count=1 -run '^Test(PolicyLinks|PolicyNamedTests|Docs|ReadmeProgram)' ./internal/testkit/policy ./internal/testkit/e2e ./cmd/holdfast/internal/cli

.PHONY: bench-build
bench-build: ## build bin/holdfast-bench, which measures other locks too
	$(GO) build -buildvcs=auto -o bin/holdfast-bench ./bench

.PHONY: bench
bench: deps bench-build ## measure Holdfast, the bare commands and other locks on real servers (BENCHFLAGS='-engine redis -only own/64')
	bin/holdfast-bench $(BENCHFLAGS)

.PHONY: bench-results
bench-results: deps bench-build ## what the documents have of that, kept under bench/results with today's date (SUFFIX=); then make generate
	bin/holdfast-bench -benchfmt -only own/1,own/8,own/64,one/50,renew/10000,idle/1000 $(BENCHFLAGS) >bench/results/$(shell date -u +%Y-%m-%d)$(SUFFIX).txt

.PHONY: bench-compare
bench-compare: deps bench-build ## an older build and this one, in turns: BEFORE=/tmp/old/holdfast-bench BENCHFLAGS="-engine redis -only 'own/*'"
	@dir=$$(mktemp -d) && for turn in before after after before before after after before before after after before; do \
		program=bin/holdfast-bench; [ $$turn = after ] || program='$(BEFORE)'; \
		$$program -rounds 1 -contender holdfast -benchfmt $(BENCHFLAGS) >>$$dir/$$turn.txt || exit; \
	done && $(GO) run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da \
		-filter '.unit:(pairs-per-second OR requests-per-second OR bytes-each OR goroutines)' $$dir/before.txt $$dir/after.txt

.PHONY: bench-go
bench-go: deps ## Go benchmarks of the packages (BENCH= a pattern, BENCHTIME=)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem -timeout 60m work

.PHONY: conformance
conformance: deps ## every case of the suite on one backend: BACKEND=redis or redislock
	@test -n '$(BACKEND)' || { echo 'make conformance needs BACKEND=, one of:' $$(cd backend && ls -d *lock) >&2; exit 2; }
	@test -d 'backend/$(CONFORMANCE)' || { echo 'there is no backend/$(CONFORMANCE); there are:' $$(cd backend && ls -d *lock) >&2; exit 2; }
	CGO_ENABLED=1 $(GO) test -race -count=1 -v -timeout $(TESTTIMEOUT) $(TESTFLAGS) $(if $(filter remotelock,$(CONFORMANCE)),-run ^TestConformance ./internal/testkit/e2e,./backend/$(CONFORMANCE)/...)
CONFORMANCE = $(patsubst %lock,%,$(BACKEND))lock

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME each
	scripts/fuzz $(FUZZTIME)

.PHONY: mutants
mutants: ## change one operator at a time in packages that need no server, and list what their own tests miss (PACKAGES=)
	@gremlins=$$(scripts/tool gremlins) && for package in $(PACKAGES); do \
		echo "$$package:" && GOWORK=off "$$gremlins" unleash --output-statuses lt ./$$package || exit; \
	done
PACKAGES = internal/liveness internal/lockstate internal/waiters internal/retry fence

.PHONY: chaos
chaos: deps ## the faults of docs/faults.md on every store, one after the other, planned by SEED, in about ten minutes (BACKEND=redis: only that; FOR=20s for each, PROFILE=torture, RATE=8000 acquires per second)
	CHAOS='$(CHAOSFOR)' SEED='$(SEED)' PROFILE='$(PROFILE)' BACKEND='$(BACKEND)' RATE='$(RATE)' $(GO) test -count=1 -v -run '^TestTorture$$' -timeout 0 ./verify/runner
CHAOSFOR = $(if $(filter file,$(origin FOR)),20s,$(FOR))
FOR     ?= 60s
SEED    ?= 1
PROFILE ?= torture

.PHONY: soak
soak: deps ## rounds of a minute on the same servers, which are also stopped and crashed, each with another seed; reports what grows: BACKEND=redis FOR=24h SEED=1 PROFILE=torture TTL=2s RATE=8000; it ends at the first violation
	SOAK='$(if $(filter file,$(origin FOR)),24h,$(FOR))' SEED='$(SEED)' PROFILE='$(PROFILE)' BACKEND='$(or $(BACKEND),sqlite)' TTL='$(TTL)' RATE='$(RATE)' $(GO) test -count=1 -v -run '^TestSoak$$' -timeout 0 ./verify/runner

.PHONY: crash
crash: deps ## a store is killed KILLS times under load, on a slow disk: BACKEND=mysql, mysql+getlock, postgres, postgres+advisory, sqlite, redis, etcd, zookeeper, consul, kubernetes
	HOLDFAST_KILLS='$(KILLS)' $(GO) test -count=1 -v -run '$(or $(crash-run-$(BACKEND)),$(or $(crash-test-$(BACKEND)),^TestConformance$$)/^restart$$/^C2$$/^killed-under-load$$)' -timeout 0 ./backend/$(or $(crash-folder-$(BACKEND)),$(BACKEND)lock)
KILLS   ?= 200
crash-folder-mysql+getlock     = mysqllock
crash-test-mysql+getlock       = ^TestUserLocksConformance$$
crash-folder-postgres          = pglock
crash-folder-postgres+advisory = pglock
crash-test-postgres+advisory   = ^TestAdvisoryConformance$$
crash-run-sqlite               = ^TestKilledUnderLoad$$
crash-folder-zookeeper         = zklock
crash-folder-kubernetes        = k8slock

.PHONY: simulate
simulate: ## the client against a backend with seeded faults, in simulated time, for FOR on all processors (SEED=)
	HOLDFAST_SIMULATE='$(FOR)' SEED='$(SEED)' $(GO) test -count=1 -v -run '^TestSimulation$$/^long$$' -timeout 0 . | grep -v '^ *\(===\|---\|sim_test.go.*simulated, \)'

.PHONY: generate
generate: ## write the generated parts of the documents: the contract, the tables of capabilities and of measurements
	$(GO) test -count=1 -run '^Test(CapabilityTable|MeasuredTable|ContractComment)$$' ./internal/testkit/e2e -update

.PHONY: lint
lint: ## golangci-lint, in the version that tools/go.mod pins
	@$(LINTER) run $$($(GO) list -m -f '{{.Dir}}/...')

.PHONY: fmt
fmt: ## format all sources
	@$(LINTER) fmt ./...

.PHONY: fmt-check
fmt-check: ## report what fmt would change
	@$(LINTER) fmt --diff ./...

.PHONY: tidy
tidy: ## go mod tidy in every module
	@for dir in $$($(GO) list -m -f '{{.Dir}}'); do echo "tidy $$dir" && (cd "$$dir" && $(GO) mod tidy) || exit 1; done

.PHONY: clean
clean: ## remove what was built here; tools and data stay
	rm -rf bin .screenshots
	$(GO) clean -testcache
