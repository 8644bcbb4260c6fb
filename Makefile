# Each line is something a person could type. VENV and PYTHON can be set: make test VENV=/tmp/venv PYTHON=python3.11
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: run plan test lint format bench clean federation-up federation-status federation-run federation-down

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
	$(BIN)/python -m benchmarks.faults

# A federation of three silos on this machine, see docs/deployment.md.
#   make federation-run CONFIG='stages="train" train.rounds=5 name="first"'    make federation-run RESUME=first
#   no container engine: make federation-up COMPOSE="$(BIN)/python deploy/loopback.py"
COMPOSE ?= docker compose
APP ?= .
FEDERATION = $(BIN)/python deploy/federation.py --compose '$(COMPOSE)' --app '$(APP)'

federation-up: $(VENV)/installed
	$(FEDERATION) up

federation-status: $(VENV)/installed
	$(FEDERATION) status

federation-run: $(VENV)/installed
	$(FEDERATION) run --config '$(CONFIG)' --resume '$(RESUME)'

federation-down: $(VENV)/installed
	$(FEDERATION) down

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
