# Every target installs what it needs by itself (tests/setup.sh), once.

PYTHON ?= python3
ARGS ?=
SEED ?= 1
SCHEDULES ?= 1
SEEDS ?= 300
MINUTES ?= 6
VENV ?= .venv
PYTHONS ?= 3.12 3.13
export PYTHON VENV

setup = tests/setup.sh
bin = $(VENV)/bin
# Files as a whole, in the order of tests/conftest.py, which also says how many workers and when none.
workers = -n auto --dist loadfile --no-loadscope-reorder
c_flags = -std=gnu11 -O2 -Wall -Wextra -Werror -fsyntax-only -DCOPPERFS_ISAL

.PHONY: help demo docs test test-long test-kernels test-pythons check chaos sanitize sim sim-night bench clean setup

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: ## four nodes import a package at once, cold and warm: who had what from whom
	@$(setup) demo
	@$(bin)/python examples/demo.py

test: ## the test suite, but for what takes long (ARGS='-k ...' is passed to pytest)
	@$(setup) test
	$(bin)/pytest $(workers) -m 'not long' $(ARGS)

test-long: ## the whole test suite: sanitizers, fuzzing, other people's test suites
	@$(setup) test-long
	$(bin)/pytest $(workers) $(ARGS)

test-kernels: ## a part of the mount tests under Debian's kernels, by QEMU (ARGS='--only 6.1')
	@$(setup) test-kernels
	$(bin)/python -m tests.kernels $(ARGS)

test-pythons: ## the test suite under other Pythons (PYTHONS='3.12 3.13'), each with its .venv-
	@tests/pythons.sh $(PYTHONS)

check: ## format, lint, types, layers, C warnings; needs no /dev/fuse
	@$(setup) check
	$(bin)/ruff format --check
	$(bin)/ruff check
	$(bin)/mypy
	$(bin)/pytest -q tests/unit/test_layers.py tests/unit/test_names.py
	@# One compiler for each file: gcc then also reports on the others.
	find copperfs -name '*.c' -print0 | xargs -0 -n 1 gcc $(c_flags) \
	    -I "$$($(bin)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')"

sanitize: ## sanitizers, fuzzers, kill -9: 6 minutes on two cores; MINUTES=60: longer
	@$(setup) sanitize
	$(bin)/python -m tests.sanitize --minutes $(MINUTES) $(ARGS)

chaos: ## hurt a cluster at random, and judge it: make chaos SEED=1 SCHEDULES=200
	@$(setup) test
	$(bin)/python -m tests.chaos --report --seed $(SEED) --schedules $(SCHEDULES) $(ARGS)

docs: ## the documents as a site, in build/site; a link that leads nowhere fails it
	@$(setup) test
	$(bin)/python -m mkdocs build --strict

sim: ## 300 random jobs with all faults, simulated (SEED=1000 SEEDS=50: others)
	@$(setup) check
	$(bin)/copperfs sim sweep seeds --first $(SEED) --count $(SEEDS) \
	    --failed tests/sim/failed-seeds.txt $(ARGS)

sim-night: ## 20,000 of them; what fails is written into tests/sim/failed-seeds.txt
	@$(MAKE) --no-print-directory sim SEED=100000 SEEDS=20000

bench: ## measure against a bind mount and others; a table, and JSON
	@$(setup) bench
	$(bin)/python -m tests.bench $(ARGS)

setup: ## only make this machine ready for the tests
	@$(setup) test

clean: ## remove what the other targets made
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find copperfs tests -name __pycache__ -prune -exec rm -rf {} +
	find copperfs -name '*.so' -delete
