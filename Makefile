# Everything installs itself on first use, into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-audit test-flower bench bench-peers bench-flower map docs lint clean
.DEFAULT_GOAL := demo

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: .venv/.ready      ## the main job, on data that ships with the package; ends with demo/report.html
	$(BIN)/consilience demo --out demo

test: .venv/.ready      ## the fast suite
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not flower"

test-slow: .venv/.ready ## reproductions that take minutes
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal -m slow

test-audit: .venv/.ready ## attack every promise of privacy; ends with a table of docs/private.md
	OMP_NUM_THREADS=1 CONSILIENCE_AUDIT_PAGE=1 $(BIN)/python -m pytest tests/audits

test-flower: .venv/.ready ## Flower for real: Ray, TLS, processes that die; needs leave to make a network namespace
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[flower]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m flower

bench: .venv/.ready     ## ratios in one run; ends with build/bench.json and the tables of docs/speed.md
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks --resume --page

bench-peers: .venv/.ready ## FedJAX and pfl beside us, quiet and under load; each in an environment of its own, build/peers
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks floor loaded --peers --resume --page --out build/bench-peers.json

bench-flower: .venv/.ready ## FedAvg here, on Flower's simulation and in a plain Flower app; ends with a table of docs/speed.md
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[flower]"
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks flower --resume --page --out build/bench-flower.json

map: .venv/.ready      ## rooms, imports, the width of the contract and four walks, for a person to read
	$(BIN)/python -m benchmarks.map

docs: .venv/.ready      ## build/docs/index.html; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv demo runs build docs/api docs/methods docs/parts docs/experiments docs/changes.md docs/contributing.md
