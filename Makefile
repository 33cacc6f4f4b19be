# Two commands do all the set-up: `make serve` and `make test`. Neither needs the other.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
ORT := $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
SOURCES := $(shell find models export -name '*.py')
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: help serve test test-perf-analyzer test-examples test-half test-ray container soak bench bench-gpu bench-loadtest lint format clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

serve: model_repository/.exported  ## install, export what is missing or stale, serve at HOST:PORT (127.0.0.1:8000)
	@echo "serving at http://$(HOST):$(PORT)  (documentation: http://$(HOST):$(PORT)/docs)"
	@exec $(BIN)/heed serve --host $(HOST) --port $(PORT)

test: $(VENV)/.dev  ## install and run the tests
	$(BIN)/pytest --numprocesses logical --maxprocesses 4 --dist worksteal

test-perf-analyzer: $(VENV)/.dev  ## drive the service with NVIDIA's perf_analyzer, which is fetched first
	PERF_ANALYZER=$$($(BIN)/python scripts/fetch_perf_analyzer.py $(VENV)/perf_analyzer) \
		$(BIN)/pytest tests/service/v2/test_perf_analyzer.py

container: $(VENV)/.dev  ## build the image with docker; try it, and docker-compose.yml
	docker compose build
	HEED_IMAGE=heed $(BIN)/pytest -rP tests/deploy/test_container.py

test-ray: $(VENV)/.ray  ## run the service on a Ray cluster of several nodes on this machine, and lose one
	TEST_RAY=1 $(BIN)/pytest tests/deploy/ray

test-half: $(VENV)/.dev  ## export and prove every block in float16 and bfloat16, for some 20 minutes
	HEED_TEST_HALF=1 $(BIN)/pytest tests/export/test_rounding.py

soak: $(VENV)/.bench model_repository/.exported  ## try to bring a server down, for some 15 minutes; SOAK=--help says how
	$(BIN)/python -m benchmarks.soak $(SOAK)

test-examples: $(VENV)/.dev  ## run every example, the one that exports a checkpoint too
	HEED_TEST_EXPORT=1 $(BIN)/pytest tests/examples

bench: $(VENV)/.bench  ## measure Heed beside yardsticks and other servers; BENCH=--help says how
	$(BIN)/python -m benchmarks.serving $(BENCH)

bench-gpu: $(VENV)/.dev  ## measure everything that needs a GPU, on a machine that has one; BENCH=--help says how
	$(BIN)/python -m benchmarks.gpu $(BENCH)

bench-loadtest: $(VENV)/.bench  ## compare heed loadtest with wrk, on the server at HOST:PORT
	$(BIN)/python -m benchmarks.loadtest http://$(HOST):$(PORT)

lint: $(VENV)/.dev  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## put the code into its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and the exported blocks
	rm -rf $(VENV) model_repository

model_repository/.exported: $(VENV)/.installed $(SOURCES)
	@echo "exporting the built-in blocks into model_repository/"
	@$(BIN)/heed export --repository model_repository $(if $(filter gpu,$(ORT)),--cuda)
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt scripts/install_torch.py
	@echo "installing into $(VENV): torch for export, ONNX Runtime ($(ORT)), the service, the load test"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet 'pip>=25.1'
	@$(BIN)/python scripts/install_torch.py
	@$(INSTALL) --editable '.[$(ORT),export,client,loadtest]'
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "installing into $(VENV): what the tests need"
	@$(INSTALL) --group dev
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	@echo "installing into $(VENV): what the benchmarks need"
	@$(INSTALL) --group bench
	@touch $@

$(VENV)/.ray: $(VENV)/.dev
	@echo "installing into $(VENV): Ray"
	@$(INSTALL) --group ray
	@touch $@
