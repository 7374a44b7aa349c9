# Each target sets up all it needs, in .venv, the first time. It takes Python >= 3.11 and make, nothing else.
#   make lab     open lesson 00 in JupyterLab
#   make demo    run the ring on four ranks, here in the terminal, and write ring.html
# BEGIN TEACHER
#   make test    style, import rules, library, lessons, exercises
#   make bench   measure ourselves against our peers
# END TEACHER
# PIP_ARGS=... goes to pip (PIP_ARGS=-v shows what it does), ARGS=... to the command, PYTHON=... is what .venv is made from.

PYTHON ?= python3
PY := .venv/bin/python
LESSONS := $(wildcard lessons/*.ipynb)

# A .venv whose Python is gone, or whose folder was moved, does not work any more: then set up again.
$(shell $(PY) -c '' 2>/dev/null && [ "$$(cat .venv/folder 2>/dev/null)" = "$$(pwd -P)" ] || rm -f .venv/ready*)

.PHONY: lab demo test bench
.DELETE_ON_ERROR:

lab: .venv/ready
	@$(PY) -m dtcourse.cli lab $(ARGS)

demo: .venv/ready
	@$(PY) -m dtcourse.cli demo ring --ranks 4 --html ring.html $(ARGS)

# BEGIN TEACHER
test: .venv/ready-test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(if $(LESSONS),$(PY) -m nbstripout --verify --keep-id $(LESSONS))
	$(PY) -m pytest --numprocesses 2 --dist worksteal $(ARGS)

bench: .venv/ready-bench
	@$(PY) -m benchmarks $(ARGS)
# END TEACHER

# The stamps: .venv/ready has what a reader needs, .venv/ready-test and .venv/ready-bench the extra of that name too.
# A stamp is written last, so an installation that failed or was interrupted leaves none.
.venv/ready .venv/ready-test .venv/ready-bench: pyproject.toml constraints.txt
	@$(PY) -c 'import pip' 2>/dev/null || { \
	  $(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "dtcourse needs Python 3.11 or newer, with venv (on Debian and Ubuntu: apt install python3-venv)."; \
	    echo "$(PYTHON) is: $$($(PYTHON) --version 2>&1). If you have another one: make $(MAKECMDGOALS) PYTHON=python3.12"; \
	    exit 1; }; \
	  echo "Setting up .venv, once: a few minutes; longer if your PyTorch comes with CUDA (README: how to do without)."; \
	  $(PYTHON) -m venv --clear .venv; }
	@echo "Installing dtcourse$(EXTRA) and what it needs into .venv ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(PIP_ARGS) --editable '.$(EXTRA)'
	@pwd -P > .venv/folder
	@touch $@

.venv/ready-test: EXTRA := [test]
.venv/ready-bench: EXTRA := [bench]
