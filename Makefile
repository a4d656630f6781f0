# From a fresh clone: `make serve` starts a server, `make test` checks everything. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# Set TORCH_INDEX to an index that serves the CPU build of PyTorch; without it the default index's build is taken, which
# on Linux x86-64 may be the much larger CUDA build. Both work.
TORCH_ARGS := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX),)
# Processes that run tests.
JOBS ?= 2
EXACT := python_bench/results/exactness.json
SOURCES := setup.py pyproject.toml $(shell find csrc -type f)

# Spinning OpenMP threads cost up to 30x on few cores.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: serve test lint unit e2e exact sanitize setup format clean

serve: setup
	$(PY) -m sglang_dspark serve $(ARGS)

# What starts engines runs in one process, one after the other, and leaves part of the cores to the unit tests.
test: lint setup
	$(PY) -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/clang-format --dry-run -Werror $$(find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

unit: $(VENV)/.dev setup
	$(PY) -m pytest -n $(JOBS) --dist loadgroup -m "not e2e and not engine" $(ARGS)

e2e: $(VENV)/.dev setup
	$(PY) -m pytest -m "e2e or engine" $(ARGS)

exact: $(VENV)/.dev setup
	$(PY) -m pytest tests/exactness -n $(JOBS) -m "(exact or not exact) and not engine" --exactness-report $(EXACT)
	$(PY) -m pytest tests/exactness -m "exact and engine" --exactness-report $(EXACT)

sanitize: $(VENV)/.dev setup
	PYTHON=$(PY) csrc/sanitize.sh

format: $(VENV)/.dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $$(find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

setup: $(VENV)/.built

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "The venv module is missing: apt-get install python3-venv python3-dev"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.deps: $(VENV)/.created requirements/cpu.txt requirements/cpu-nodeps.txt
	$(PIP) install -q torch==2.13.0 $(TORCH_ARGS)
	$(PIP) install -q -r requirements/cpu.txt
	$(PIP) install -q --no-deps -r requirements/cpu-nodeps.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.deps requirements/dev.txt
	$(PIP) install -q --no-deps -r requirements/dev.txt
	@touch $@

$(VENV)/.built: $(VENV)/.deps $(SOURCES)
	$(PIP) install -q --no-build-isolation --no-deps -e .
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info sglang_dspark/*.so
