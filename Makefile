# Two commands do all the set-up: `make serve` and `make test`. Neither needs the other.
PYTHON ?= python3
# Not from the environment, where conda's compilers set HOST to the name of a platform.
HOST := 127.0.0.1
PORT ?= $(or $(HEED_PORT),8000)
VENV := .venv
BIN := $(VENV)/bin
ORT := $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
# Quick tests wait for servers a third of their time, the others for browsers, installations and each other's exports:
# so many processes more than there are CPUs keep these busy.
MORE := 1
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() + $(MORE), 8))')
PARALLEL = --numprocesses $(PROCESSES) --dist worksteal
# Bytecode is written when a module is first imported: most of what is installed never is. The variable would forbid it.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile
INSTALL := $(PIP) --constraint constraints.txt

.PHONY: help serve wheel exports model_repository test test-all test-families test-ray test-perf-analyzer fresh mutants container soak bench bench-gpu bench-viewer docs lint format clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

serve: model_repository  ## install, export what is missing or stale, serve at HOST:PORT (127.0.0.1:8000)
	@echo "serving at http://$(HOST):$(PORT)  (documentation: http://$(HOST):$(PORT)/docs)"
	@exec $(BIN)/heed serve --host $(HOST) --port $(PORT)

wheel: $(VENV)/.installed  ## build dist/*.whl with the built-in blocks, which serves where there is no torch
	@$(BIN)/python -m scripts.wheel

test: $(VENV)/.dev $(if $(HEED_TEST_REPOSITORY),,exports)  ## install, export what is missing or stale, run the quick tests: some five minutes
	$(BIN)/pytest $(PARALLEL)

test-all: $(VENV)/.all node_modules/.package-lock.json exports  ## run the tests that `make test` leaves out: some twenty minutes
	$(BIN)/pytest -m "extended and not family" --ignore tests/deploy/ray $(PARALLEL)

test-all: MORE := 3

test-families: $(VENV)/.dev  ## export every family of transformers and compare its answers; FAMILIES="bert or t5" chooses some
	$(BIN)/pytest -m "" $(PARALLEL) $(addprefix tests/export/hf/test_,families.py files.py sounds.py towers.py detection.py) -k "$(or $(FAMILIES),test)"

test-ray: $(VENV)/.ray  ## run the service on a Ray cluster of several nodes on this machine, and lose one
	$(BIN)/pytest -m extended tests/deploy/ray

test-perf-analyzer: $(VENV)/.dev  ## drive the service with NVIDIA's perf_analyzer, which is fetched first
	PERF_ANALYZER=$$($(BIN)/python scripts/fetch_perf_analyzer.py $(VENV)/perf_analyzer) \
		$(BIN)/pytest -m "" tests/service/v2/test_perf_analyzer.py

fresh:  ## run `make serve` and `make test` on a clone of the last commit with an empty environment; FRESH=--help says how
	@$(PYTHON) -m scripts.fresh $(FRESH)

mutants: $(VENV)/.all node_modules/.package-lock.json exports  ## count the mutants of the code that the tests kill, for hours; MUTANTS=--help says how
	$(BIN)/python -m scripts.mutants $(MUTANTS)

container: docs  ## build the image with docker; try it, and docker-compose.yml
	docker compose build
	HEED_IMAGE=heed $(BIN)/pytest -rP -m "" tests/deploy/test_container.py

soak: $(VENV)/.bench model_repository  ## try to bring a server down, for some 15 minutes; SOAK=--help says how
	$(BIN)/python -m benchmarks.soak $(SOAK)

bench: $(VENV)/.bench  ## compare Heed with baselines and other servers; BENCH=--help lists the flags
	$(BIN)/python -m benchmarks.serving $(BENCH)

bench-gpu: $(VENV)/.dev  ## measure numbers and times on a GPU, which CI lacks; BENCH=--help says how
	$(BIN)/python -m benchmarks.gpu $(BENCH)

bench-viewer: $(VENV)/.dev  ## measure the viewer in Chromium: time until all heads are drawn, frames, memory
	$(BIN)/python -m benchmarks.viewer

docs: $(VENV)/.dev node_modules/.package-lock.json  ## build the documentation into build/guide; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lint: $(VENV)/.dev node_modules/.package-lock.json  ## check style, types, and which package imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	npm run --silent lint

format: $(VENV)/.dev node_modules/.package-lock.json  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	npm run --silent format

clean:  ## remove the environments and the exported blocks
	rm -rf $(VENV) node_modules .exports model_repository

exports: $(VENV)/.installed
	@$(BIN)/python -m scripts.exported

model_repository: $(VENV)/.installed
	@$(BIN)/python -m scripts.exported $(if $(filter gpu,$(ORT)),--cuda) $@

$(VENV)/.installed: pyproject.toml constraints.txt scripts/install_torch.py
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "Heed needs Python 3.11, 3.12 or 3.13; say which, for example: make serve PYTHON=python3.12"; exit 1; }
	@echo "installing into $(VENV): torch for export, ONNX Runtime ($(ORT)), the service, the load test"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(PIP) 'pip>=25.1'
	@$(BIN)/python scripts/install_torch.py
	@$(INSTALL) --editable '.[$(ORT),text,media,export,hf,client,loadtest]'
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "installing into $(VENV): what the tests need"
	@$(INSTALL) --group dev
	@touch $@

node_modules/.package-lock.json: package-lock.json
	@command -v npm >/dev/null || { echo "the viewer's types are checked by TypeScript, which needs npm (Node.js 20 or newer)"; exit 1; }
	@npm ci --silent
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	@echo "installing into $(VENV): what the benchmarks need"
	@$(INSTALL) --group bench
	@touch $@

$(VENV)/.all: $(VENV)/.dev
	@echo "installing into $(VENV): a library of mutants"
	@$(INSTALL) --group mutants
	@touch $@

$(VENV)/.ray: $(VENV)/.dev
	@echo "installing into $(VENV): Ray"
	@$(INSTALL) --group ray
	@touch $@
