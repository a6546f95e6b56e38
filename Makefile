# tpumagic. Needs git, make and Python 3.11 or newer with venv; everything else is made in .venv and build/.
#
#   make demo         run notebooks/01_first_profile.ipynb and show its reports
#   make test         the core tests
#   make lab          JupyterLab on the notebooks
#   make bench        what the profiler costs, as ratios to the bare cell; the reader of plans and the TPU compiler
#   make lint         ruff and pyright
#   make test-compat  the tests on other versions of JAX, IPython and Python
#   make clean        remove what the above made

PYTHON ?= python3
BIN := .venv/bin
comma := ,
# Nothing is cached outside the clone.
export PIP_CACHE_DIR := $(CURDIR)/build/cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export IPYTHONDIR := $(CURDIR)/build/cache/ipython
export JUPYTER_CONFIG_DIR := $(CURDIR)/build/cache/jupyter/config
export JUPYTER_DATA_DIR := $(CURDIR)/build/cache/jupyter/data
export JUPYTER_RUNTIME_DIR := $(CURDIR)/build/cache/jupyter/runtime
export PRE_COMMIT_HOME := $(CURDIR)/build/cache/pre-commit
export XDG_CACHE_HOME := $(CURDIR)/build/cache

# IPython warns where its folder has no parent yet.
$(shell mkdir -p $(IPYTHONDIR))

INSTALL = $(BIN)/python -m pip install --quiet -c constraints.txt -e

.PHONY: demo test lab bench lint test-compat clean
# The lessons and the tests are written for the CPU; `make demo JAX_PLATFORMS=tpu` shows the same on a TPU.
demo test bench test-compat: export JAX_PLATFORMS ?= cpu
test bench test-compat: export TPU_SKIP_MDS_QUERY ?= 1

demo: .venv/demo
	$(BIN)/python notebooks/demo.py notebooks/01_first_profile.ipynb build/first_profile.html

test: .venv/test
	$(BIN)/python -m pytest tests --ignore=tests/compat
	$(BIN)/python -m pytest --nbval --nbval-current-env --nbval-sanitize-with notebooks/sanitize.cfg notebooks

lab: .venv/lab
	$(BIN)/jupyter lab --notebook-dir notebooks

bench: .venv/test
	$(BIN)/python benchmarks/overhead.py $(if $(ROUNDS),--rounds $(ROUNDS))
	$(BIN)/python benchmarks/device_sampling.py $(ROUNDS)
	$(BIN)/python benchmarks/scanner.py $(if $(ROUNDS),--sizes 1$(comma)4)
	$(BIN)/python benchmarks/compiler.py $(if $(ROUNDS),1)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

test-compat: .venv/made
	$(BIN)/python tests/compat/run.py

clean:
	rm -rf .venv .venv-* build .pytest_cache .ruff_cache .hypothesis

# Each stamp in .venv says that a set of packages is installed; a newer pyproject.toml or constraints.txt makes it stale.
.venv/made:
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "tpumagic needs Python 3.11 or newer, and there is no \"$(PYTHON)\" on PATH: say which one to take, as in make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tpumagic needs Python 3.11 or newer, and \"$(PYTHON)\" is $$($(PYTHON) -c 'import platform; print(platform.python_version())'): say which one to take, as in make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	@touch $@

.venv/demo .venv/test .venv/lab .venv/dev: .venv/made pyproject.toml constraints.txt
	$(INSTALL) '.[$(@F)]'
	@touch $@

