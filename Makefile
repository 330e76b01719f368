# Two commands matter: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
DEMO := en01 en05 en12 en15 en18 en17 zh01 zh03 zh13 zh15 zh16

.PHONY: demo test lint docs bench gpu-check gpu-bench clean

demo: $(VENV)/.demo ## fetch, build, and play recorded commands through the whole chain
	@echo "== weights: fetched once (about 1 GB, sha256-checked), built once; both are kept in the model cache"
	@$(BIN)/cockpit models fetch
	@$(BIN)/cockpit models build
	@echo "== $(words $(DEMO)) recorded commands at the speed they were spoken; replies go to out/demo"
	@$(BIN)/cockpit say $(DEMO:%=hil/audio/%.wav) --out out/demo --trace out/demo/trace.json

test: $(VENV)/.test ## every test; fetches and builds the models it needs on first use
	$(BIN)/python -m pytest

bench: $(VENV)/.bench ## the benchmarks that need no GPU, beside their peers (about 20 minutes, a compiler for llama-cpp-python)
	@for name in turn asr decode tts commands serialise idle arbiter warmup; do \
	  echo "== $$name"; $(BIN)/python -m benchmarks $$name || exit 1; done

gpu-check: ## on a machine with an NVIDIA GPU: lanes, gate and kernels; says pass or fail
	$(PYTHON) -m benchmarks gpu_check

gpu-bench: ## on a machine with an NVIDIA GPU and built models: engines, whole turns, isolation, the ONNX Runtime peer
	@mkdir -p out/gpu
	$(PYTHON) -m benchmarks gpu_engine --out out/gpu/engine.json
	$(PYTHON) -m benchmarks gpu_turn --compare-cpu --out out/gpu/turn.json
	$(PYTHON) -m benchmarks isolation_engine --device cuda --out out/gpu/isolation-engine.json
	$(PYTHON) -m benchmarks gpu_ort --out out/gpu/ort.json

lint: $(VENV)/.test ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.test ## pictures and tables of the docs, man pages and shell completion, made from the code again
	$(BIN)/python -m docs.generate

$(VENV)/bin/python:
	@echo "== making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@echo "== installing Cockpit and its build tools into $(VENV)"
	@$(PIP) install -e '.[cpu,build]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	@echo "== installing Cockpit with its test tools into $(VENV)"
	@$(PIP) install -e '.[test]'
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	@echo "== installing the peers into $(VENV) (llama-cpp-python is compiled)"
	@$(PIP) install -e '.[cpu,build,bench]'
	@touch $@

clean:
	rm -rf out .mypy_cache .ruff_cache .pytest_cache
