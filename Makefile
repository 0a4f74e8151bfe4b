# Every way in. `make` alone lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORES ?= 2
WAITING ?= 3

.PHONY: help setup lock check test format lint types layers tidy fast cover

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/ready ## make .venv from the hashed lock file; leaves the program at .venv/bin/tidegate

$(VENV)/ready: requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Tidegate needs Python 3.11 or newer; name one with: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' \
	  || { echo "Python lacks its venv module; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(MAKE) --no-print-directory model-tools
	@touch $@

lock: setup ## resolve the dependencies again, pinned and hashed, naming no registry
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-header \
	  --python-version 3.11 --all-extras --group dev pyproject.toml --output-file requirements/dev.lock

check: format lint types layers fast ## format, lint, types, layers, tidy and fast tests: under 90 s

format: setup ## fail where the formatter would change something
	@$(BIN)/ruff format --check --quiet . || { echo "run: .venv/bin/ruff format ."; exit 1; }

lint: setup ## ruff
	@$(BIN)/ruff check --quiet .

types: setup ## mypy strict, the tests too
	@$(BIN)/mypy

layers: setup ## imports point downwards only
	@$(BIN)/lint-imports

fast: setup ## the tests that take no more than a moment each
	@$(BIN)/pytest -q -n $(CORES) -m "not slow"

test: setup model-tools format lint types layers cover ## everything

cover: setup ## all tests; core/ and flows/ must be covered branch by branch
	@rm -f .coverage .coverage.*
	@$(BIN)/coverage run --parallel-mode -m pytest -q tests/core tests/flows tests/trading_core/test_wire.py
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage report
	@$(MAKE) --no-print-directory --jobs 2 timed simulated

.PHONY: timed simulated

# Of the time that tests with real clocks take, a third is waited: for leases, restarts, patience.
# The simulation has a clock of its own. It runs in that time and in no other, and is told at its end.
timed:
	@$(BIN)/pytest -q -n $(WAITING) --dist loadgroup \
	  --ignore tests/core --ignore tests/flows --ignore tests/simulation

simulated:
	@said=$$(nice -n 19 $(BIN)/pytest -q -n $(CORES) --dist worksteal tests/simulation 2>&1); \
	  code=$$?; echo "$$said"; exit $$code

.PHONY: up demo soak

MINUTES ?= 60

up: setup ## run everything on this machine, in ./data: prints «ready http://127.0.0.1:8080»
	@$(BIN)/tidegate up --data data

demo: setup ## transfers both ways, a refusal, a rollback, a crash with recovery, and the books
	@$(BIN)/tidegate demo

soak: setup ## MINUTES=60 of load, audited without a pause: no false halt, and the books agree
	@$(BIN)/python -m tests.acceptance.soak --minutes $(MINUTES)

.PHONY: sim

SEEDS ?= 5000
sim: setup ## everything fails in virtual time, for SEEDS seeds: no money is lost or made
	@$(BIN)/tidegate simulate --seeds $(SEEDS) --jobs $(CORES)

.PHONY: sim-deep

DEPTH ?= 3
EVERY ?= 1
sim-deep: setup ## every call of every path fails in every way, DEPTH=3 times in a run; hours, or EVERY=50
	@$(BIN)/python -m tests.simulation.plans --thorough --depth $(DEPTH) --every $(EVERY) \
	  --jobs $(CORES)

.PHONY: model model-tools

model: setup model-tools ## check every state of the model of a transfer, and that planted bugs are caught
	@$(BIN)/python -m tests.model.checker

# Spin writes a verifier in C. Where it cannot be installed the tests of the model fail and say so.
model-tools:
	@if ! { command -v spin && command -v gcc && [ -e /usr/include/stdio.h ]; } > /dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    install="apt-get install -qq -y --no-install-recommends spin gcc libc6-dev"; \
	    { $$install || { apt-get update -qq && $$install; }; } > /dev/null 2>&1 \
	      || echo "Spin and gcc could not be installed: the model cannot be checked"; \
	  else \
	    echo "for the model: apt-get install spin gcc libc6-dev"; \
	  fi; \
	fi

.PHONY: crash

KILLS ?= 50
TRANSFERS ?= 2000
SEED ?= 1

crash: setup ## KILLS=50 faults of every kind on everything that `up` runs, under load; then the books
	@$(BIN)/python -m tests.crash.run --kills $(KILLS) --transfers $(TRANSFERS) --seed $(SEED)

.PHONY: differential

OPERATIONS ?= 10000
differential: setup ## PostgreSQL and its twin, OPERATIONS in the same order, with the same results
	@$(BIN)/python -m tests.differential --operations $(OPERATIONS)

.PHONY: proof

proof: setup model-tools ## try everything in one run, and keep the figures in docs/proof.md and docs/proof.json
	@$(BIN)/python -m tests.proof

.PHONY: bench bench-scale

# The soak of the scale is shorter than that of `make soak`, unless it is told.
bench: setup ## every case against its peers: 15 minutes, into bench/results/latest.json
	@$(BIN)/python -m bench $(BENCH)

bench-scale: SOAK = $(if $(filter command line,$(origin MINUTES)),$(MINUTES),10)
bench-scale: setup ## large tables, a backlog, replay, memory over MINUTES=10: about 40 minutes
	@$(BIN)/python -m bench.scale --minutes $(SOAK) $(BENCH)
