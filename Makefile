# Everything installs itself on first use, into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow bench lint clean
.DEFAULT_GOAL := demo

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: .venv/.ready      ## the main job, on data that ships with the package; ends with demo/report.html
	$(BIN)/consilience demo --out demo

test: .venv/.ready      ## the fast suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not slow"

test-slow: .venv/.ready ## reproductions that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

bench: .venv/.ready     ## ratios in one run; ends with build/bench.json and the tables of docs/speed.md
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks --page

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv demo runs
