# `make demo` and `make test` do everything on a fresh Debian or Ubuntu machine with Python 3.11 or newer.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-system fuzz check format bench dashboards docs site proto lock clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | column -t -s '|'

# All that is installed from a registry is pinned, with its hashes: deploy/lock.
INSTALL := -m pip install --quiet --disable-pip-version-check
LOCKED  := $(INSTALL) --require-hashes
PERFD   := $(INSTALL) --no-deps --no-build-isolation --editable .

# The environment is made again when the dependencies change.
PINS := pyproject.toml deploy/image/requirements.txt deploy/image/requirements-build.txt

# The pip that comes with Python or Debian is years old and takes twice as long, because it compares every available
# wheel with hundreds of tags.
$(VENV)/.pip: deploy/image/requirements-pip.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "perfd needs Python 3.11 or newer; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "Python's venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python $(LOCKED) -r deploy/image/requirements-pip.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.pip $(PINS)
	@$(BIN)/python $(LOCKED) -r deploy/image/requirements.txt -r deploy/image/requirements-build.txt
	@$(BIN)/python $(PERFD)
	@touch $@

# This includes everything in .installed, in versions that suit the tools.
$(VENV)/.installed-dev: $(VENV)/.pip $(PINS) deploy/lock/development.txt
	@$(BIN)/python $(LOCKED) -r deploy/lock/development.txt
	@$(BIN)/python $(PERFD)
	@touch $(VENV)/.installed $@

demo: $(VENV)/.installed ## Replay a recorded 4-GPU training job with a slow rank through the whole system
	@$(BIN)/perfd demo
	@echo "(First: 'source $(VENV)/bin/activate'. See docs/first-hour.md.)"

# Three processes per two cores, because tests often wait; at most 8, because each imports all tests.
PROCESSES := $(shell n=$$(($$(getconf _NPROCESSORS_ONLN) * 3 / 2)); echo $$((n < 8 ? n : 8)))
IN_PARALLEL := -n $(PROCESSES) --dist worksteal
# Tests against real services wait for half of their time.
IF_SYSTEM := $(filter system,$(ALL))
AT_ONCE := $(if $(IF_SYSTEM),$(shell n=$$(($$(getconf _NPROCESSORS_ONLN) * 5 / 2)); echo $$((n < 8 ? n : 8))),$(PROCESSES))

# ALL=system: those against real services too, as in CI; one session collects the tests once in each of its processes.
test: $(VENV)/.installed-dev ## Run the tests that need no services, without the slow ones (ALL=1: with them)
ifdef ALL
	@PERFD_ALL_EXAMPLES=1 $(BIN)/python -m pytest -q -n $(AT_ONCE) --dist loadfile $(if $(IF_SYSTEM),,-m "not system")
else
	@echo "About 12,000 tests, 5 minutes of processor time. Slow tests: make test-slow. Real services: make test-system."
	@$(BIN)/python -m pytest -q $(IN_PARALLEL) -m "not system and not slow"
endif

# Tests of a file share recordings and services, and run in one process (tests/conftest.py). Property tests run again,
# with all their cases: `make test` generates a quarter of them. `make test ALL=1` runs each test of both once.
test-slow: $(VENV)/.installed-dev ## Run the slow tests that need no services, and property tests with all cases
	@PERFD_ALL_EXAMPLES=1 $(BIN)/python -m pytest -q -n logical --maxprocesses 8 --dist loadfile \
	  -m "(slow or hypothesis) and not system"

# Three files at a time, because they mostly wait; those that share an image store or SLURM run in one process.
# SYSTEM= runs one test at a time.
SYSTEM := -n 3 --dist loadfile

test-system: $(VENV)/.installed-dev ## Run the tests against real services (.ci/run installs them)
	@$(BIN)/python -m pytest -q -m system $(SYSTEM)

FUZZ_SECONDS := 120

fuzz: $(VENV)/.installed-dev ## Feed mutated inputs to every reader (FUZZ_SECONDS=120)
	@$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ)

check: $(VENV)/.installed-dev ## Lint, types, imports, wording, drift of generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/shellcheck -x .ci/run deploy/slurm/* $$(git ls-files '*.sh')
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.style.lint_words
	@$(BIN)/python deploy/reference/make_wire_code.py --check
	@$(BIN)/python deploy/reference/make_metrics_reference.py --check
	@$(BIN)/python deploy/reference/make_thresholds_reference.py --check
	@$(BIN)/python deploy/kubernetes/make_schema.py --check
	@$(BIN)/python deploy/kubernetes/make_readme.py --check
	@$(BIN)/python deploy/lock/make_lock.py --check
	@$(BIN)/python deploy/reference/make_cli_reference.py --check
	@cd deploy/grafana && $(abspath $(BIN))/python -m perfd_dashboards --check

format: $(VENV)/.installed-dev ## Format the code
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed-dev ## Measure perfd against named references
	@$(BIN)/python -m benchmarks

proto: $(VENV)/.installed-dev ## Generate the wire code from its .proto
	@$(BIN)/python deploy/reference/make_wire_code.py

docs: $(VENV)/.installed-dev ## Generate docs/metrics.md, docs/cli.md, docs/analysis-thresholds.md, the shells' completions and the chart's schema
	@$(BIN)/python deploy/reference/make_metrics_reference.py
	@$(BIN)/python deploy/reference/make_thresholds_reference.py
	@$(BIN)/python deploy/kubernetes/make_schema.py
	@$(BIN)/python deploy/kubernetes/make_readme.py
	@$(BIN)/python deploy/reference/make_cli_reference.py

lock: $(VENV)/.installed-dev ## Pin what is installed, with hashes, after a change in pyproject.toml (LOCK=--upgrade)
	@$(BIN)/python deploy/lock/make_lock.py $(LOCK)

dashboards: $(VENV)/.installed-dev ## Generate deploy/grafana/dashboards/
	@cd deploy/grafana && $(abspath $(BIN))/python -m perfd_dashboards

site: $(VENV)/.installed-dev ## Build the documentation into site/
	@$(BIN)/python $(LOCKED) -r deploy/lock/documentation.txt
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
