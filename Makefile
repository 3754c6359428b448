# `make demo` and `make test` are all a fresh checkout needs: both create .venv and install the pinned dependencies first.
PYTHON ?= python3
TEST_WORKERS ?= 2
FUZZ_INPUTS ?= 300

VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core-installed
DEV := $(VENV)/.dev-installed
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e

# The networks are small: one thread each is fastest and leaves a core for the second test worker.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast fuzz postgresql test-browser check lint format docs wheel smoke clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(CORE) ## a log, a policy learned from it, a verdict, the truth, and one page with everything
	$(BIN)/rl-training demo

test: check ## static checks, then all tests
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal

test-fast: $(DEV) ## all but the slow tests, in about a minute: while you work
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal -m "not slow"

fuzz: $(DEV) ## damaged and hostile files of every kind; FUZZ_INPUTS=3000 for a long run
	$(BIN)/python tools/fuzz $(FUZZ_INPUTS)

postgresql: $(DEV) ## the server that tests of databases start (installed on Debian if missing; else they are skipped)
	$(BIN)/python tests/support/postgres.py

test-browser: $(DEV) ## open reports, and the whole way through the studio, in headless Chromium (installed on Debian if missing)
	PYTHONPATH=src:tests/support $(BIN)/python tests/browser/check_report.py
	PYTHONPATH=src:tests/support $(BIN)/python tests/browser/check_studio.py

check: lint ## ruff, formatting and strict types, without the tests
	$(BIN)/mypy

lint: $(DEV) ## ruff's rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(DEV) ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DEV) ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: ## build sdist and wheel into dist/
	$(PYTHON) tools/smoke_test.py --build-only --dist dist

smoke: ## build the wheel, install it into an empty environment, train and predict with it
	$(PYTHON) tools/smoke_test.py --dist dist

clean: ## remove the environment and everything generated
	rm -rf $(VENV) build dist site src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What the demo and the README's commands on own data need; a development install satisfies both stamps.
$(CORE): pyproject.toml constraints.txt
	$(PYTHON) tools/create_venv.py $(VENV)
	@echo "Installing the pinned dependencies into $(VENV) (once)"
	$(INSTALL) ".[parquet,export]"
	@touch $@

$(DEV): pyproject.toml constraints.txt
	$(PYTHON) tools/create_venv.py $(VENV)
	@echo "Installing the pinned development dependencies into $(VENV) (once)"
	$(INSTALL) ".[dev,docs,mujoco,minari,parquet,sql,excel,export,video]"
	@touch $(CORE) $@
