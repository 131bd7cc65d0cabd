# Horus Lab: two commands do all the set-up on a fresh machine.
#   make lab    JupyterLab with Horus Lab on this machine's GPUs, or on its CPU
#   make test   everything: linters, types, unit, server, kernel, packaging and browser tests
# and
#   make demo   four notebooks train at once through one broker, without a browser

PYTHON ?= python3
VENV ?= .venv
# On a machine without a GPU, TORCH_INDEX=https://download.pytorch.org/whl/cpu saves some GB.
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
DEVICES ?= auto

BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UI_SOURCES := $(shell find jupyter_ext/ui jupyter_ext/config -type f 2>/dev/null) package.json yarn.lock

.PHONY: lab demo test lint unit browser packaging build screenshots clean

lab: $(VENV)/.built
	HORUS_DEVICES=$(DEVICES) $(BIN)/jupyter lab --ServerApp.root_dir=$(CURDIR)/examples \
	  $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_ARGS)

demo: $(VENV)/.built
	$(BIN)/horus demo --devices "$(DEVICES)" --examples examples $(DEMO_ARGS)

test: lint unit packaging browser

build: $(VENV)/.built

$(VENV)/.tools:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	@echo "Installing $(TORCH). On a machine without a GPU, TORCH_INDEX=... takes a CPU build."
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(PIP) jupyterlab hatchling hatch-jupyter-builder jupyter-builder editables
	touch $@

# The installation copies the built sidebar to where JupyterLab looks for it.
$(VENV)/.built: $(VENV)/.tools pyproject.toml $(UI_SOURCES)
	$(BIN)/jlpm install --immutable
	$(BIN)/jlpm build:prod
	$(PIP) --no-build-isolation --editable ".[dev]"
	touch $@

lint: $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/jlpm lint
	$(BIN)/jlpm test

unit: $(VENV)/.built
	$(BIN)/python -m pytest -m "not browser and not packaging and not gpu" $(PYTEST_ARGS)

packaging: $(VENV)/.built
	$(BIN)/python -m pytest -m packaging $(PYTEST_ARGS)

browser: $(VENV)/.built
	$(BIN)/python -m pytest -m browser $(PYTEST_ARGS)

screenshots: $(VENV)/.built
	$(BIN)/python -m tests.browser.screenshots docs/images

clean:
	rm -rf $(VENV) node_modules jupyter_ext/labextension lib dist .pytest_cache .mypy_cache .ruff_cache
