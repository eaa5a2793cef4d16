# Everything sets itself up: `make demo` or `make test` on a machine with Python >= 3.11 and make is enough.
# No Docker and no root. PYTHON=… picks the interpreter of the virtual environment, ARGS=… goes to the tool.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Half as many again as cores: many tests wait for a process or a provider.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + $$(getconf _NPROCESSORS_ONLN) / 2)
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$python; break; fi; done)

.PHONY: help demo up test chaos-infra lint format cases guards wheel clean

help: ## Show the targets
	@awk -F ': .*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.installed-local ## An incident, told twice, for real: a naive harness, then ours
	@$(BIN)/counterfoil demo $(ARGS)

up: $(VENV)/.installed-local ## The whole stack on this machine; Ctrl-C stops it
	@$(BIN)/counterfoil up $(ARGS)

test: $(VENV)/.installed-dev ## All tests, over real Postgres, Valkey and worker processes
	@$(BIN)/python -m pytest -q -n $(JOBS) $(ARGS)

chaos-infra: $(VENV)/.installed-dev ## The fleet behind PgBouncer, TLS, Sentinel, RabbitMQ, failovers, silence: 20 min
	@.ci/servers
	@$(BIN)/python -m pytest -q --infra tests/infra $(ARGS)

lint: $(VENV)/.installed-dev ## Style, types, and which folder may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed-dev ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cases: $(VENV)/.installed-dev ## What went wrong for others, each case by its id
	@$(BIN)/python -m pytest -q -n $(JOBS) -p tests.cases -m case tests $(ARGS)

guards: $(VENV)/.installed-dev ## Switch the protocol's guards off one by one: each time a test must fail
	@$(BIN)/python tests/guards/run.py $(ARGS)

wheel: $(VENV)/.installed-dev ## Build the distributions into dist/
	@rm -rf dist && $(BIN)/python -m build --no-isolation --outdir dist . >/dev/null && ls dist

clean: ## Stop the local stack; remove its data, the environment and what was built
	@if [ -x $(BIN)/counterfoil ] && [ -e .counterfoil ]; then $(BIN)/counterfoil down || true; fi
	@if [ -L .counterfoil ]; then rm -rf "$$(readlink .counterfoil)"; fi
	@rm -rf .counterfoil $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each extra: the second run does nothing, a changed dependency installs again.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing counterfoil[$*] into $(VENV) (the first time takes a minute)"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[$*]' \
		2> $(VENV)/pip.log | awk '/^(Collecting|  Downloading|Installing)/ { printf "."; fflush() } END { print "" }' \
		|| { cat $(VENV)/pip.log >&2; exit 1; }
	@touch $@

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python." >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "$(PYTHON) is not Python 3.11 or newer; name one with PYTHON=/path/to/python." >&2; exit 2; }
	@"$(PYTHON)" -m venv --clear $(VENV) >/dev/null \
		|| { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment; Debian and Ubuntu have it in python3-venv." >&2; exit 2; }
