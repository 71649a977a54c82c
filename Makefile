# Needs CPython 3.11 or later with pip and venv. Everything is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test slow lint format bench paper docs install clean

demo: install
	$(BIN)/s2vgd demo

# Most tests compile quickly and run slowly; the marked ones as users do. See tests/conftest.py.
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not optimised"
	XLA_FLAGS= $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and optimised"

slow: install
	XLA_FLAGS= $(BIN)/python -m pytest -m slow

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Speed and quality against peers, as ratios in one run, with the table in results/bench. Hours on two
# cores, which nothing else should use meanwhile; `make bench BENCH=--quick` takes minutes.
bench: $(VENV)/.installed-bench
	$(BIN)/s2vgd bench $(BENCH)

# Every experiment of the paper, and the page of what has been run: days on two cores. It may
# be stopped at any time and goes on from there.
paper: install
	$(BIN)/s2vgd reproduce all
	$(BIN)/s2vgd report results --out report

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

install: $(VENV)/.installed

# The stamps are older than pyproject.toml or constraints.txt when those have changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[dev]'
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(PIP_INSTALL) -e '.[bench]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP_INSTALL) -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) report site dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
