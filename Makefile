# All commands of the project. `make` alone lists the targets.
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

setup: $(VENV)/ready ## create .venv from the hashed lock file; leaves the program at .venv/bin/tidegate

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

format: setup ## fail if the formatter would change a file
	@$(BIN)/ruff format --check --quiet . || { echo "run: .venv/bin/ruff format ."; exit 1; }

lint: setup ## ruff
	@$(BIN)/ruff check --quiet .

types: setup ## mypy strict, the tests too
	@$(BIN)/mypy

layers: setup ## imports point downwards only
	@$(BIN)/lint-imports

fast: setup ## the fast tests
	@$(BIN)/pytest -q -n $(CORES) -m "not slow"

test: setup model-tools format lint types layers cover ## everything

cover: setup ## all tests; core/ and flows/ must be covered branch by branch
	@rm -f .coverage .coverage.*
	@$(BIN)/coverage run --parallel-mode -m pytest -q tests/core tests/flows tests/trading_core/test_wire.py
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage report
	@$(MAKE) --no-print-directory --jobs 2 timed simulated

.PHONY: timed simulated

# Tests with real clocks spend a third of their time waiting: for leases, restarts and timeouts. The
# simulation uses virtual time, so it runs in parallel at low priority. Its output is shown at its end.
timed:
	@$(BIN)/pytest -q -n $(WAITING) --dist loadgroup \
	  --ignore tests/core --ignore tests/flows --ignore tests/simulation

simulated:
	@output=$$(nice -n 19 $(BIN)/pytest -q -n $(CORES) --dist worksteal tests/simulation 2>&1); \
	  code=$$?; echo "$$output"; exit $$code

.PHONY: up demo soak

MINUTES ?= 60

up: setup ## run everything on this machine, in ./data: prints "ready http://127.0.0.1:8080"
	@$(BIN)/tidegate up --data data

demo: setup ## transfers both ways, a refusal, a rollback, a crash with recovery, and the books
	@$(BIN)/tidegate demo

soak: setup ## MINUTES=60 of load with continuous audits: no false halt, and the books agree
	@$(BIN)/python -m tests.acceptance.soak --minutes $(MINUTES)

.PHONY: sim

SEEDS ?= 5000
sim: setup ## simulate SEEDS seeds with faults, in virtual time: no money is lost or created
	@$(BIN)/tidegate simulate --seeds $(SEEDS) --jobs $(CORES)

.PHONY: sim-deep

DEPTH ?= 3
EVERY ?= 1
sim-deep: setup ## all fault plans with DEPTH=3 faults: takes hours, or less with EVERY=50
	@$(BIN)/python -m tests.simulation.plans --thorough --depth $(DEPTH) --every $(EVERY) \
	  --jobs $(CORES)

.PHONY: model model-tools

model: setup model-tools ## check every state of the model of a transfer, and that it finds planted bugs
	@$(BIN)/python -m tests.model.checker

# Spin generates a verifier in C. Without Spin and gcc the tests of the model fail with a message.
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

crash: setup ## KILLS=50 faults on all processes of `up` under load, then check the books
	@$(BIN)/python -m tests.crash.run --kills $(KILLS) --transfers $(TRANSFERS) --seed $(SEED)

.PHONY: differential

OPERATIONS ?= 10000
differential: setup ## compare PostgreSQL and its twin: OPERATIONS in the same order must give the same results
	@$(BIN)/python -m tests.differential --operations $(OPERATIONS)

.PHONY: proof

proof: setup model-tools ## run all large tests, and write the figures to docs/proof.md and docs/proof.json
	@$(BIN)/python -m tests.proof

.PHONY: bench bench-scale

# The soak of `bench-scale` takes 10 minutes unless MINUTES is given.
bench: setup ## every case against its peers: 15 minutes, into bench/results/latest.json
	@$(BIN)/python -m bench $(BENCH)

bench-scale: SOAK = $(if $(filter command line,$(origin MINUTES)),$(MINUTES),10)
bench-scale: setup ## large tables, a backlog, replay, memory over MINUTES=10: about 40 minutes
	@$(BIN)/python -m bench.scale --minutes $(SOAK) $(BENCH)
