# Everything a developer or a newcomer types. `make help` lists it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8080
# What runs `make gpu`: a machine with a GPU may have torch in its own Python and no network to install into another
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
MODEL ?= examples/demo_model/model
# A manifest for `make run`, in which file:///opt/bladellm means this folder
MANIFEST ?=
# `make run` stops the engines when no request has come for so long (60s, 15m), and starts one for the next
IDLE_TO_ZERO ?=
# So many engines are kept warm beside those that serve
STANDBY ?=
# A machine without an NVIDIA GPU saves gigabytes with TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
SOURCES := engine router operator monitoring examples tests benchmarks e2e charts docs
UI := router/ui
UI_BUILD := router/blade_router/ui/static
UI_SOURCES = $(shell find $(UI) -type f -not -path "*/node_modules/*" 2>/dev/null)
# Programs of a Kubernetes for `make e2e` (docs/e2e.md)
KUBE_ASSETS ?=

E2E_PACKAGES := etcd-server runc containernetworking-plugins iptables conntrack socat iproute2 procps util-linux \
	openssl busybox-static buildah debootstrap ca-certificates
# A browser for the web UI, and letters for it
PAGE_PACKAGES := chromium fonts-dejavu-core

# One torch thread per process in tests: two cores serve several processes at once. Their bytecode is kept, also where
# the environment says otherwise: hundreds of servers and routers start.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=
# tests/conftest.py says which files come first.
IN_PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install compiled test-compiled clients run test test-clients test-page page-deps test-models images e2e e2e-deps monitoring-deps soak lint docs format generate demo-model lora-example families \
	ui ui-check bench bench-quant bench-engine bench-images bench-router bench-routing bench-adapters bench-scaling bench-canary bench-operator gpu gpu-wheels clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## make a virtual environment with everything in it

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3.12"; exit 1; }
	@echo "Installing into $(VENV) (a minute or two the first time) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[dev]'
	@touch $@

clients: install ## the client libraries of tests/clients and examples/clients, in the user's cache: five minutes the first time
	@PYTHONPATH=tests $(BIN)/python -m clients_support.environments

compiled: install ## the router's hot path by mypyc, into the user's cache: two minutes
	@$(BIN)/python -m blade_router.compiled

run: install ## serve an LLMService on this machine: MODEL=<folder or hub id> or MANIFEST=<file>, PORT=8080, IDLE_TO_ZERO=60s, STANDBY=1
	@nice -n 19 setsid $(BIN)/python -m blade_router.compiled > /dev/null 2>&1 & # the next run uses it
ifneq ($(MANIFEST),)
	@sed 's#file:///opt/bladellm/#file://$(CURDIR)/#' $(MANIFEST) | \
		$(BIN)/blade_operator local up --port $(PORT) -f - --ask "What does len do?"
else
	@$(BIN)/blade_operator local up --port $(PORT) --model $(MODEL) --replicas 2 \
		$(if $(IDLE_TO_ZERO),--idle_to_zero $(IDLE_TO_ZERO)) $(if $(STANDBY),--standby $(STANDBY)) --ask "What does len do?"
endif

ui: $(UI_BUILD)/index.html ## build the web UI into the router's package, where its sources changed (needs node and npm)

$(UI)/node_modules/.package-lock.json: $(UI)/package-lock.json
	cd $(UI) && npm ci --silent
	@touch $@

$(UI_BUILD)/index.html: $(UI)/node_modules/.package-lock.json $(UI_SOURCES)
	cd $(UI) && npm run --silent check && npm run --silent build
	@touch $@

ui-check: ## the web UI's types, its tests, and that the committed build is that of the sources; nothing where npm is missing
	@if ! command -v npm > /dev/null; then echo "npm is not installed: the web UI's build was not compared"; exit 0; fi; \
		set -e; $(MAKE) --no-print-directory $(UI)/node_modules/.package-lock.json; \
		build=$$(mktemp -d); trap 'rm -rf $$build' EXIT; cd $(UI); \
		npm run --silent check; npm test --silent; UI_OUTPUT=$$build npm run --silent build -- --logLevel warn; \
		diff -r $$build ../blade_router/ui/static > /dev/null || \
		{ echo "$(UI_BUILD) is not what $(UI) builds: run make ui and commit what it writes"; exit 1; }

test: install ## all fast tests; the router interpreted
	$(TEST_ENV) $(BIN)/pytest -q $(IN_PARALLEL) -m "not soak and not gpu and not clients and not page"

test-clients: install clients ## every client library against the product as `make run` starts it; docs/clients.md is its table
	$(TEST_ENV) $(BIN)/pytest -q -m clients

test-page: install ## the web UI in Chromium, on the product as `make run` starts it and on simulated services
	@PYTHONPATH=tests $(BIN)/python -m ui_support.accessibility
	$(TEST_ENV) $(BIN)/pytest -q -m page tests/ui

page-deps: ## Debian packages that `make test-page` needs; nothing is done where they are installed
	@dpkg --status $(PAGE_PACKAGES) > /dev/null 2>&1 || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PAGE_PACKAGES); }

test-compiled: compiled ## the router's fast tests on its compiled modules
	$(TEST_ENV) BLADE_ROUTER_COMPILED=1 $(BIN)/pytest -q $(IN_PARALLEL) \
		-m "not soak and not gpu and not clients and not page and not interpreted" tests/router tests/security

images: install ## both images, or ONLY=engine|operator, where their sources changed (docs/images.md)
	TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python -m e2e.images $(if $(ONLY),--only $(ONLY))

e2e: install ## everything on a real Kubernetes: KUBE_ASSETS=<folder>, E2E_KUBECONFIG=<file> or kind (docs/e2e.md)
	KUBE_ASSETS=$(KUBE_ASSETS) TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python -m e2e $(E2E_ARGS)

e2e-deps: ## Debian packages that `make e2e` needs for its own node
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(E2E_PACKAGES) $(PAGE_PACKAGES)

test-models: install ## each family of models against transformers; writes the table of docs/models.md
	$(TEST_ENV) PYTHONPATH=tests $(BIN)/python -m engine_support.family_table

soak: install ## long and fuzzing tests, by hand
	HYPOTHESIS_PROFILE=random $(TEST_ENV) $(BIN)/pytest -q -m "soak or hypothesis" --timeout 3600

monitoring-deps: ## Debian's Prometheus, with which the tests run every query and alert
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus

lint: install ## ruff, mypy, import contracts, generated files, links of the documentation
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m blade_operator.spec.crd.generate --check
	$(BIN)/python -m monitoring.generate --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@$(MAKE) --no-print-directory ui-check

docs: install ## the documentation as a site, in build/site; every link in it is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

format: install ## let ruff write the code's form
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

generate: install ## the CRD and the field reference, from the pydantic models; dashboards, alerts and pages written from the code
	$(BIN)/python -m blade_operator.spec.crd.generate
	$(BIN)/python -m monitoring.generate
	$(BIN)/python -m blade_llm.server.compatibility > docs/compatibility.md
	$(BIN)/python -m blade_llm.cli.vllm_flags > docs/vllm-flags.md

demo-model: install ## train the demo model anew (some minutes on one core)
	GOMP_SPINCOUNT=5000 $(BIN)/python -m examples.demo_model.train
	$(BIN)/python -m examples.demo_model.drafting
	$(BIN)/python -m examples.demo_model.measure

lora-example: install ## fine-tune the demo model with TRL (five minutes on a CPU), serve and compare with the merged model
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt -r examples/lora/requirements.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m examples.lora.train
	OMP_NUM_THREADS=1 $(BIN)/python -m examples.lora.compare

families: install ## small random models for the manifests in examples/families
	$(BIN)/python -m examples.families.make

bench: install ## the engine beside the best CPU engines; QUICK=1: OpenVINO and transformers only; BEFORE=DIR: beside an earlier checkout
	$(BIN)/python -m benchmarks.peers

bench-quant: install ## perplexity of each way to quantise, as served; trains a model first (a quarter of an hour); QUICK=1, ROWS=bf16,gptq-4
	$(BIN)/python -m benchmarks.quantization

bench-engine: install ## the engine's parts: host's time a step, scheduling, API server, linear layers, KV cache, experts, latent attention, CPU operators, attention of decodes, long contexts, guided decoding, start-up, presets, replicas
	$(BIN)/python -m benchmarks.engine.host_step
	$(BIN)/python -m benchmarks.engine.scheduling
	$(BIN)/python -m benchmarks.engine.api_server
	$(BIN)/python -m benchmarks.engine.linear
	$(BIN)/python -m benchmarks.engine.kv_cache
	$(BIN)/python -m benchmarks.engine.moe
	$(BIN)/python -m benchmarks.engine.lora
	$(BIN)/python -m benchmarks.engine.collectives
	$(BIN)/python -m benchmarks.engine.rank_host_time
	$(BIN)/python -m benchmarks.engine.tensor_parallel
	$(BIN)/python -m benchmarks.engine.pipeline_parallel
	$(BIN)/python -m benchmarks.engine.latent_attention
	$(BIN)/python -m benchmarks.engine.cpu_ops
	$(BIN)/python -m benchmarks.engine.decode_attention
	$(BIN)/python -m benchmarks.engine.step_profile
	$(BIN)/python -m benchmarks.engine.long_context
	$(BIN)/python -m benchmarks.engine.guided
	$(BIN)/python -m benchmarks.engine.startup
	$(BIN)/python -m benchmarks.engine.presets
	$(BIN)/python -m benchmarks.engine_replicas

bench-images: install ## pictures beside transformers, streams of text while they come, cached ones; QUICK=1, ROWS=streams,cached,peer
	$(BIN)/python -m benchmarks.engine.images

gpu: ## everything that needs a GPU: PART=kernels, quantization, ranks, engine, bench, lora or speculation (docs/gpu.md)
	PART=$(PART) $(GPU_PYTHON) -m benchmarks.gpu

gpu-wheels: install ## wheels for a GPU machine without a network
	$(BIN)/python -m benchmarks.gpu.wheels

bench-router: compiled ## the router beside sglang-router, smg and vllm-router; QUICK=1, ROWS=latency,prefix, PEERS=none
	$(BIN)/python -m benchmarks.router

bench-routing: install ## routing policies in simulated time, beside other routers' rules and an oracle; ARGS=--pairs, --write
	$(BIN)/python -m benchmarks.routing $(ARGS)

bench-adapters: install ## where LoRA adapters are put, beside other control planes' rules, in simulated time; QUICK=1
	$(BIN)/python -m benchmarks.adapters

bench-scaling: install ## autoscaling policies beside others' and an oracle, in simulated time; QUICK=1, ARGS=--pictures
	$(BIN)/python -m benchmarks.scaling $(ARGS)

bench-canary: install ## canaries in simulated time: good ones aborted, and what bad ones had met; QUICK=1
	$(BIN)/python -m benchmarks.rollout.canary

bench-operator: install ## the operator with 1,000 services on a real API server
	$(BIN)/python -m benchmarks.operator.decisions
	$(BIN)/python -m benchmarks.operator.wake
	KUBE_ASSETS=$(KUBE_ASSETS) $(BIN)/python -m benchmarks.operator

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
