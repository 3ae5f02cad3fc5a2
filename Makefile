# Everything a developer or a newcomer types. `make help` lists it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8080
MODEL ?= examples/demo_model/model
# A machine without an NVIDIA GPU saves gigabytes with TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
SOURCES := engine router operator examples tests benchmarks

# One torch thread per process in tests: two cores serve several processes at once.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

.DEFAULT_GOAL := help
.PHONY: help install run test soak lint format generate demo-model bench bench-router clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## make a virtual environment with everything in it

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3.12"; exit 1; }
	@echo "Installing into $(VENV) (a minute or two the first time) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[dev]'
	@touch $@

run: install ## serve an LLMService on this machine: MODEL=<folder or hub id>, PORT=8080
	@$(BIN)/blade_operator local up --port $(PORT) --model $(MODEL) --replicas 2 --ask "What does len do?"

test: install ## all fast tests
	$(TEST_ENV) $(BIN)/pytest -q -n 2 --dist loadfile -m "not soak and not gpu"

soak: install ## long and fuzzing tests, by hand
	$(TEST_ENV) $(BIN)/pytest -q -m soak --timeout 3600

lint: install ## ruff, mypy, import contracts, generated files
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m blade_operator.spec.generate --check

format: install ## let ruff write the code's form
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

generate: install ## the CRD and the field reference, from the pydantic models
	$(BIN)/python -m blade_operator.spec.generate

demo-model: install ## train the demo model anew (under 3 minutes on 2 cores)
	GOMP_SPINCOUNT=5000 $(BIN)/python -m examples.demo_model.train
	$(BIN)/python -m examples.demo_model.measure

bench: install ## CPU benchmarks of the engine (QUICK=1 for the short form)
	$(BIN)/python -m benchmarks.scheduler_overhead
	$(BIN)/python -m benchmarks.engine_replicas

bench-router: install ## what the router adds, side by side with a direct connection
	$(BIN)/python -m benchmarks.router_overhead

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
