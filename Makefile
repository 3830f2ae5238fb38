# Thin: every target is what a reader could type. Needs Python >= 3.11 and make, nothing else.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PYTEST := $(BIN)/pytest -q -rs
NBVAL := $(PYTEST) -n 2 --dist loadscope --nbval-current-env --nbval-sanitize-with tests/notebooks/sanitize.cfg

# Charts that time themselves or widgets: their cells must run, their outputs may differ.
LAX := $(wildcard notebooks/01_*.ipynb notebooks/04_*.ipynb notebooks/05_*.ipynb notebooks/07_*.ipynb)
STRICT := $(filter-out $(LAX),$(wildcard notebooks/*.ipynb))

.PHONY: demo test lint unit notebooks docs lab bench test-deep

demo: .venv/installed
	$(BIN)/qwisp plan --model qwen3.6-35b-a3b --machine m1-max-64gb --memory 12GiB --trace data/traces/agents.jsonl --report demo/report.html

test: lint notebooks docs unit

lint: .venv/installed-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

unit: .venv/installed-dev
	$(PYTEST) -n 2 --doctest-modules qwisp tests

notebooks: .venv/installed-dev
	CI=1 $(NBVAL) --nbval $(STRICT)
	$(if $(LAX),CI=1 $(NBVAL) --nbval-lax $(LAX))

docs: .venv/installed-dev
	CI=1 $(BIN)/python -m nbconvert --log-level=WARN --to notebook --execute --ExecutePreprocessor.store_widget_state=False --output-dir docs/_notebooks notebooks/*.ipynb
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

test-deep: .venv/installed-dev
	$(PYTEST) -n 2 -m 'slow or not slow' tests
	$(BIN)/python -m tests.mutations.run

lab: .venv/installed
	$(BIN)/qwisp lab

bench: .venv/installed
	$(BIN)/python tests/bench.py

.venv/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "qwisp needs Python 3.11 or newer with venv; set PYTHON=/path/to/python3"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e .
	@touch $@

.venv/installed-dev: .venv/installed pyproject.toml
	$(BIN)/python -m pip install -q -e '.[dev,docs,lm]'
	@touch $@
