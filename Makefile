# make run, make test: the README's two commands. The venv is made on demand; a second call starts at once.
#
#   make run VENV=/elsewhere/venv PYTHON=python3.13     both are yours to choose

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
SEEDS ?= 0..299
LOG_SEEDS ?= 0..1999
COMPILED ?= $(wildcard build/compiled)

.DEFAULT_GOAL := help
.PHONY: help run dev test sim jepsen mutants fuzz bench docs lint clean compile compiled

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 8

run: $(VENV)/.installed compile  ## three nodes on 7711-7713 that know each other; Ctrl-C ends all
	@exec $(BIN)/python -m disque.server.local

test: $(VENV)/.installed-dev compile  ## all tests, WORKERS=2 at a time; ARGS="-k name" narrows them
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

sim: $(VENV)/.installed-dev compile  ## the simulator; SEEDS=0..9999 for more, LOG_SEEDS likewise with logs; CI takes 200 of these
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) --jobs $$(getconf _NPROCESSORS_ONLN)
	@$(BIN)/python -m tests.sim --seeds $(LOG_SEEDS) --events 5000 --log --jobs $$(getconf _NPROCESSORS_ONLN)

jepsen: $(VENV)/.installed-dev compile  ## real clusters under real faults, the whole matrix; ARGS="--quick" for less
	@$(BIN)/python -m jepsen test-all $(ARGS)

mutants: $(VENV)/.installed-dev compile  ## bugs put in on purpose, and who catches them
	@$(BIN)/python -m tests.mutants $(ARGS)

fuzz: $(VENV)/.installed-dev compile  ## new inputs for every parser; ARGS="--seconds 3600" for longer than a minute
	@$(BIN)/python -m tests.fuzz $(ARGS)

docs: $(VENV)/.installed-dev  ## the parts of docs/ that are made from the code's tables
	@$(BIN)/python -m tests.docs.reference

bench: $(VENV)/.installed-dev compile  ## measure, print, write bench.json and its tables; C_DISQUE=.../disque-server to compare; COMPILED=dir: our other build
	@C_DISQUE="$(C_DISQUE)" $(BIN)/python -m tests.bench --compiled "$(COMPILED)" $(ARGS)

lint: $(VENV)/.installed-dev  ## ruff, mypy, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

compiled: $(VENV)/.installed-dev  ## the hottest modules as C, into build/compiled; PYTHONSAFEPATH=1 PYTHONPATH=build/compiled runs it
	@$(BIN)/python -m deploy.compiled.build

dev: $(VENV)/.installed-dev compile  ## the venv with everything to work on it

compile: ; @$(BIN)/python -m compileall -q cluster disque jepsen

clean:  ## the default venv, builds, caches and byte code; histories in store/ stay
	rm -rf .venv .venv-ci build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache .coverage
	find cluster disque jepsen tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "Python's venv module is needed (Debian: apt-get install python3-venv)" >&2; rm -rf $(VENV); exit 1; }

# pip's own byte code is no dependency of ours: stamps, so that nothing is asked of a registry when nothing changed.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "pip installs disque-broker into $(VENV): only now, and it may take a minute ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[cli,web]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "pip installs disque-broker and its tools into $(VENV): only now, and it may take some minutes ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.installed
