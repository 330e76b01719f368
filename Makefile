# Two commands matter: `make demo` and `make test`.
# PYTHON=... chooses the interpreter; without, the first supported one of python3, python3.13, python3.12, python3.11.
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
RUN_PYTHON := $(or $(PYTHON),python3)

# Prints the version and fails where it is not supported or cannot make environments.
SUPPORTED := import sys; print("%d.%d.%d" % sys.version_info[:3]); import venv, ensurepip; \
  sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

.PHONY: demo test lint docs hil bench gpu-check gpu-bench lock clean distclean

# An environment that is broken (its Python is gone, too old, or lost its pip) is made anew, and everything in it.
ifneq ($(shell $(BIN)/python -c 'import pip; $(SUPPORTED)' >/dev/null 2>&1 && echo sound),sound)
.PHONY: $(VENV)/bin/python $(VENV)/.demo $(VENV)/.test $(VENV)/.bench
endif

demo: $(VENV)/.demo ## fetch, build, and play recorded commands through the whole chain
	@$(BIN)/cockpit demo --out out/demo --trace out/demo/trace.json

test: $(VENV)/.test ## every test; fetches and builds the models it needs on first use
	$(BIN)/python -m pytest

hil: $(VENV)/.test ## the rig's smoke set on this machine: commands, refusals, noise, a faulty car
	$(BIN)/cockpit hil run window-halfway reverse-is-refused temperature-zh window-from-the-rear noise-invents-nothing \
	  fault-vehicle-gone fault-window-sticks fault-window-slow --out out/hil/smoke

bench: $(VENV)/.bench ## the benchmarks that need no GPU, beside their peers (about 20 minutes, a compiler for llama-cpp-python)
	@for name in turn asr decode tts commands serialise idle arbiter warmup; do \
	  echo "== $$name"; $(BIN)/python -m benchmarks $$name || exit 1; done

gpu-check: ## on a machine with an NVIDIA GPU: lanes, gate and kernels; says pass or fail
	$(RUN_PYTHON) -m benchmarks gpu_check

gpu-bench: ## on a machine with an NVIDIA GPU and built models: engines, whole turns, isolation, the ONNX Runtime peer
	@mkdir -p out/gpu
	$(RUN_PYTHON) -m cockpit kernels build
	$(RUN_PYTHON) -m benchmarks gpu_rows --out out/gpu/rows.json
	$(RUN_PYTHON) -m benchmarks gpu_engine --out out/gpu/engine.json
	$(RUN_PYTHON) -m benchmarks gpu_turn --compare-cpu --out out/gpu/turn.json
	$(RUN_PYTHON) -m benchmarks isolation_engine --device cuda --out out/gpu/isolation-engine.json
	$(RUN_PYTHON) -m benchmarks gpu_ort --out out/gpu/ort.json

lint: $(VENV)/.test ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.test ## pictures and tables of the docs, man pages and shell completion, made from the code again
	$(BIN)/python -m docs.generate

lock: $(VENV)/bin/python ## requirements.lock: every package of a head unit with its hashes (docs: README, "On a head unit")
	@$(PIP) install 'uv>=0.9'
	@index=$$($(BIN)/pip config get global.index-url 2>/dev/null); \
	  $${index:+env UV_DEFAULT_INDEX="$$index"} $(BIN)/uv pip compile pyproject.toml --quiet --upgrade \
	  --extra cpu --extra audio --extra vss --extra wake --extra api --universal --python-version 3.11 --generate-hashes \
	  --custom-compile-command 'make lock' --output-file requirements.lock
	@echo "== wrote requirements.lock: $$(grep -c '^[a-z].*==' requirements.lock) packages"

$(VENV)/bin/python:
	@if [ -e $(VENV) ] && [ ! -e $(VENV)/pyvenv.cfg ] && [ -n "$$(ls -A $(VENV) 2>/dev/null)" ]; then \
	  echo "$(VENV) is no virtual environment and is not touched; name another one: make VENV=DIR" >&2; exit 1; fi; \
	seen=; for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if version=$$($$python -c '$(SUPPORTED)' 2>/dev/null); then \
	    echo "== making $(VENV) with $$python ($$version)"; rm -rf $(VENV); exec $$python -m venv $(VENV); fi; \
	  seen="$$seen, $$python is $${version:-not here}"; done; \
	echo "Cockpit needs Python 3.11, 3.12 or 3.13 with venv; found:$${seen#,}." >&2; \
	echo "Install one (such as: apt-get install python3.11 python3.11-venv), or say where it is: make PYTHON=/path/to/python3.12" >&2; \
	exit 1

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

clean: ## what was made here, but for the environment and the models
	rm -rf out build dist .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## the environment too; models stay in the cache (~/.cache/cockpit)
	rm -rf $(VENV)
