# Each line is something a person could type. VENV and PYTHON can be set: make test VENV=/tmp/venv PYTHON=python3.11
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: run plan test lint format bench clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(VENV)/installed

run: $(VENV)/installed
	$(BIN)/fedpriv run .

plan: $(VENV)/installed
	$(BIN)/fedpriv plan .

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.end_to_end
	$(BIN)/python -m benchmarks.dp_hype
	$(BIN)/python benchmarks/secure_sum/run.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
