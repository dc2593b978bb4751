# Needs make and a python3 >= 3.11 with its venv module; everything else is installed into $(VENV).
#   make demo     the story in the terminal         make test     all tests
#   make check    what every change is asked first, in two minutes: style, types, layers, units
#   make lint     style and layers                  make types    mypy --strict, pyright
#   make docs     the documentation, strictly       make bench    the budgets, measured
#   make soak     the long runs                     make man      the man pages, into man/
#   make faults   the fault table, into docs
#   make pyz      the command as one file           make picture  record the demo for the pages
#   make figures  measure anew for the pages
#   make clean    forget everything built

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
BUILD  ?= build
DIST   ?= dist
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo check test lint format types docs picture man bench figures soak faults coverage pyz clean

help:
	@sed -n 's/^#   //p' Makefile

# One stamp per extra, so that each target installs what it needs and does so once.
STAMP := $(VENV)/.lifehold

$(STAMP)-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "lifehold needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3"; exit 1; }
	@echo "installing into $(VENV)"
	@$(PYTHON) -m venv $(VENV) \
	    || { echo "python3 has no working venv module; on Debian: apt-get install python3-venv"; exit 1; }
	@touch $@

$(STAMP)-run: $(STAMP)-venv pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# All that a change is judged by, in one go. Most of it is never imported: what is, is compiled then.
$(STAMP)-dev: $(STAMP)-venv pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@touch $(STAMP)-run $(STAMP)-test $(STAMP)-lint $(STAMP)-docs $@

$(STAMP)-%: $(STAMP)-venv pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

demo: $(STAMP)-run
	@$(BIN)/lifehold demo

# Tests of locks mostly wait, so more processes run them than there are processors. Each has a folder
# of its own for what it makes; all of them stay when a test failed. ARGS="-n 0" runs one by one.
WORKERS ?= 5
BESIDE  := -n $(WORKERS) --dist worksteal
ALONE    = spot=$$(mktemp -d "$${TMPDIR:-/tmp}/tests-XXXXXX") && export PYTEST_DEBUG_TEMPROOT=$$spot && \
    { $(1) || { echo "the folders of the tests stay in $$spot"; exit 1; }; } && (rm -rf "$$spot" >&- 2>&- &)

test: $(STAMP)-test
	@$(call ALONE,$(BIN)/python -m pytest $(BESIDE) $(ARGS))

# Three streams: what needs no running, the units, the claims under one face and the explorer's
# quick half. `large` marks what is left to `make test`, and pyright, which keeps nothing from one run
# to the next, to `make types`. What a stream says comes when it has ended.
check: $(STAMP)-lint $(STAMP)-test
	@$(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=target \
	    check-static check-units check-claims

SMALL := -m 'not soak and not large' -q --no-header

.PHONY: check-static check-units check-claims
check-static: lint
	@$(BIN)/mypy

check-units:
	@$(call ALONE,$(BIN)/python -m pytest $(SMALL) $(BESIDE) tests/unit tests/typing $(ARGS))

check-claims:
	@$(call ALONE,$(BIN)/python -m pytest $(SMALL) -n 3 --dist worksteal -k 'explore or blocking' \
	    tests/conformance tests/explore $(ARGS))

lint: $(STAMP)-lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/python tools/prose.py

format: $(STAMP)-lint
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(STAMP)-lint
	@$(BIN)/mypy
	@$(BIN)/basedpyright --pythonpath $(BIN)/python --level error

docs: $(STAMP)-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the pages are in site/"

picture: $(STAMP)-run
	@$(BIN)/python tools/picture.py docs/assets/demo.svg
	@$(BIN)/python tools/picture.py docs/assets/demo-phone.svg 50

man: $(STAMP)-run
	@$(BIN)/python -m lifehold.cli.completion man
	@echo "the man pages are in man/"

bench: $(STAMP)-bench
	@$(BIN)/python -m benchmarks $(ARGS)

figures: $(STAMP)-bench
	@$(BIN)/python -m benchmarks --json docs/assets/cost.json $(ARGS)
	@$(BIN)/python -m benchmarks.pages

# The guest with NFSv4 takes part when it can be made: FAULTS=--guest=FOLDER (about 50 MB of packages).
faults: $(STAMP)-test
	@PYTHONPATH=tests $(BIN)/python -m faults.page docs/explanation/faults.md $(FAULTS)

soak: $(STAMP)-test
	@$(BIN)/python -m pytest -m soak $(ARGS)
	@LIFEHOLD_STEP=1 $(BIN)/python -m pytest tests/crash/test_bytecodes.py tests/crash/test_bytecodes_kinds.py
	@$(BIN)/python -m tests.soak.namespaces 1000
	@$(BIN)/python -m tests.soak.mixed --seconds 60 A B
	@$(BIN)/python -m tests.soak.handover 1000000
	@PYTHONPATH=tests $(BIN)/python -m soak.lying --count 10000
	@PYTHONPATH=tests $(BIN)/python -m soak.powercut --cuts 60
	@PYTHONPATH=tests $(BIN)/python -m soak.nfs --count 10000 generation-ttl soft-ttl link-ttl directory-ttl
	@PYTHONPATH=tests $(BIN)/python -m soak.nfs_between
	@$(BIN)/python -m tests.soak.once
	@PYTHONPATH=tests $(BIN)/python -m soak.mutants
	@PYTHONPATH=tests $(BIN)/python -m soak.same_dead --rounds 2000
	@PYTHONPATH=tests $(BIN)/python -m soak.simulate
	@PYTHONPATH=tests $(BIN)/python -m soak.sqlite --seconds 600
	@PYTHONPATH=tests $(BIN)/python -m soak.postgres --seconds 600
	@PYTHONPATH=tests $(BIN)/python -m soak.redis_groups single --seconds 600
	@PYTHONPATH=tests $(BIN)/python -m soak.redis_groups sentinel --seconds 600
	@PYTHONPATH=tests $(BIN)/python -m soak.redis_groups cluster --seconds 600 --every 5
	@PYTHONPATH=tests $(BIN)/python -m soak.redis_groups quorum --seconds 600 --every 8
	@PYTHONPATH=tests $(BIN)/python -m soak.waiters --waiters 500
	@PYTHONPATH=tests $(BIN)/python -m soak.pause_demo --count 100
	@PYTHONPATH=tests $(BIN)/python -m soak.clear_race 10000
	@PYTHONPATH=tests $(BIN)/python -m soak.fuzz --seconds 600
	@PYTHONPATH=tests $(BIN)/python -m soak.peers_mixed --seconds 60
	@PYTHONPATH=tests $(BIN)/python -m soak.peers_mixed --stale 2000
	@PYTHONPATH=tests $(BIN)/python -m soak.peer_suites

coverage: $(STAMP)-test
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

pyz:
	@$(PYTHON) tools/pyz.py $(DIST)/lifehold.pyz
	@echo "$(DIST)/lifehold.pyz: copy it anywhere; it needs python3 >= 3.11 and nothing else"

clean:
	rm -rf $(VENV) site man build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*
