# One door to everything; `make help` lists it. Needs Python 3.11+ and nothing else.

# The first of these that is new enough; override with `make PYTHON=/path/to/python3.12 install`.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3; do \
	command -v $$name >/dev/null 2>&1 && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$name && break; done)
# Always `python -m`: the scripts in .venv/bin break when the checkout is moved.
VENV_PYTHON := .venv/bin/python
INSTALLED := .venv/installed
WORKERS ?= 2
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install run test screenshots check format-check lint types imports migrations hosts texts audit format lock bench clean

help: ## what there is
	@grep -hE '^[a-z]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

install: $(INSTALLED) ## .venv with everything, from the locked requirements

$(INSTALLED): requirements/dev.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -x $(VENV_PYTHON) || { echo "== Creating .venv with $(PYTHON)"; $(PYTHON) -m venv .venv; } \
		|| { rm -rf .venv; echo "make: $(PYTHON) cannot make a virtual environment (Debian and Ubuntu: apt install python3-venv)" >&2; exit 2; }
	@echo "== Installing the locked dependencies (about 150 MB when nothing is cached)"
	@$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r requirements/dev.txt
	@touch $(INSTALLED)

run: install ## start everything with a demo month and print the address; Ctrl-C stops it
	@echo "== Starting the ledger"
	@exec $(VENV_PYTHON) manage.py quickstart

test: install ## the whole test suite, on embedded services unless DATABASE_URL and BROKER_URL are set
	@echo "== Running the test suite with $(WORKERS) processes"
	@$(VENV_PYTHON) -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

check: format-check lint types imports migrations hosts texts audit ## format, lint, types, import contracts, missing migrations, foreign hosts, translations, known holes

format-check: install
	@echo "== Format"; $(VENV_PYTHON) -m ruff format --check --quiet .

lint: install
	@echo "== Lint"; $(VENV_PYTHON) -m ruff check --quiet .

types: install
	@echo "== Types"; $(VENV_PYTHON) -m mypy

imports: install
	@echo "== Import contracts"; $(VENV_PYTHON) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

migrations: install
	@echo "== Missing migrations"; $(VENV_PYTHON) manage.py makemigrations --check --dry-run

hosts: install
	@echo "== Pages load nothing from other hosts"; $(VENV_PYTHON) tests/foreign_hosts.py

texts: install
	@echo "== Translations are complete"; $(VENV_PYTHON) manage.py update_catalogue --check

audit: install
	@echo "== Known holes in dependencies"; $(VENV_PYTHON) tests/dependency_audit.py

format: install ## rewrite the sources as `make check` wants them
	@$(VENV_PYTHON) -m ruff check --quiet --fix . ; $(VENV_PYTHON) -m ruff format .

bench: install ## measure against the baselines of the same run
	@failed=0; for file in tests/bench/bench_*.py; do \
		echo "== $$file"; $(VENV_PYTHON) $$file || failed=1; done; exit $$failed

screenshots: install ## take the pictures of docs/tour.md again, of a demo month (needs Chromium)
	@echo "== Taking pictures"; $(VENV_PYTHON) tests/screenshots.py

lock: install ## lock the requirements again after a change of requirements/*.in (needs uv)
	@uv pip compile --quiet --python-version 3.11 --generate-hashes --universal --no-header \
		-o requirements/dev.txt requirements/dev.in
	@uv pip compile --quiet --python-version 3.12 --generate-hashes --universal --no-header \
		-o requirements/focus-validator.txt requirements/focus-validator.in

clean: ## remove .venv and caches; the data in var/ stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
