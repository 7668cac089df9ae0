# Everything a developer runs. `make` lists the targets.
#
# Needs only python3 (3.11 or later, with its venv module), make and a C++ compiler; the first use of a target
# makes a virtual environment in .venv and installs what the target needs.
#
#   make test PYTHON=python3.12     another Python
#   make test WORKERS=8             more test processes

PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= $(VENV)/bench
# Which torch `make test-torch` tests: the newest that the extra names, or the oldest.
TORCH ?= newest
TORCH_VENV ?= $(VENV)/torch-$(TORCH)
SITE_VENV ?= $(VENV)/site
WORKERS ?= 2

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install --quiet
BENCH := $(BENCH_VENV)/bin/python
WITH_TORCH := $(TORCH_VENV)/bin/python
SITE := $(SITE_VENV)/bin/python
PYTEST := $(RUN) -m pytest -n $(WORKERS) --dist worksteal
# A machine with a GPU has no $(VENV): there its own Python runs, with what the pack adds to it.
GPU_PYTHON ?= $(if $(wildcard $(VENV)/dev.stamp),$(RUN),$(PYTHON))
CHAPTERS := $(sort $(wildcard docs/course/*.py))
STYLED := $(wildcard polyfuse tests docs/*.py docs/_ext docs/course examples benchmarks grammars gpu)

# Modules are compiled once, not by each of the many processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-all tests all-tests test-torch machines browser lint types course pages docs docs-all bench counts gpu-pack gpu sanitize golden-update format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/runtime.stamp ## compile, check and time an example against NumPy
	$(RUN) examples/demo.py

test: lint types tests ## what every change must pass: lint, types, tests, the course among them

test-all: lint types all-tests ## the same with the slow tests

# ANSWERS=file: note there what tests are told of the machine; `make machines` then leaves out those that
# other machines tell the same.
NOTED = $(if $(ANSWERS),--answers $(abspath $(ANSWERS)))
tests: $(VENV)/dev.stamp
	$(PYTEST) $(NOTED)

all-tests: $(VENV)/dev.stamp
	$(PYTEST) -m ''

test-torch: $(TORCH_VENV)/torch.stamp ## tests with PyTorch and JAX (TORCH=oldest: the oldest PyTorch that is supported)
	$(WITH_TORCH) -m pytest -n $(WORKERS) tests/with_torch $(ARGS)

# Kinds of tests/helpers/machines.py.
MACHINES ?= haswell zen3 skylake icelake zen4 zen5
machines: $(VENV)/dev.stamp ## tests of decisions, as on machines of other kinds (MACHINES="zen3 zen4")
	@status=0; for kind in $(MACHINES); do \
	    echo "as on $$kind"; $(PYTEST) --decisions --machine $$kind $(NOTED) tests/unit tests/integration || status=1; \
	done; exit $$status

browser: $(VENV)/dev.stamp ## tests of pages in a browser, the explorer's too (Debian's chromium; BROWSER=... names another)
	$(PYTEST) -m browser

lint: $(VENV)/dev.stamp ## ruff: rules and format
	$(RUN) -m ruff check $(STYLED)
	$(RUN) -m ruff format --check $(STYLED)

format: $(VENV)/dev.stamp ## let ruff format and mend what it can
	$(RUN) -m ruff check --fix $(STYLED)
	$(RUN) -m ruff format $(STYLED)

types: $(VENV)/dev.stamp ## mypy, strict
	$(RUN) -m mypy

course: $(VENV)/dev.stamp ## run every chapter of the course
	@set -e; for file in $(CHAPTERS); do \
	    echo "$$file"; MPLBACKEND=agg $(RUN) "$$file" > $(VENV)/course.log 2>&1 || { cat $(VENV)/course.log; exit 1; }; \
	done

pages: $(VENV)/dev.stamp ## write the pages that are made from the sources
	$(RUN) docs/build_errors.py
	$(RUN) docs/build_environment.py
	$(RUN) docs/build_passes.py
	$(RUN) docs/build_identities.py
	$(RUN) docs/build_stdlib_reference.py
	$(RUN) docs/build_examples.py
	$(RUN) docs/build_editors.py
	$(RUN) docs/build_pictures.py

# Warnings are errors, links that lead nowhere among them; chapters are run, one after the other.
docs: $(SITE_VENV)/site.stamp ## the site, in build/site; chapters run where they or the package have changed
	mkdir -p build/site-source
	MPLBACKEND=agg nice -n 19 $(SITE) -m sphinx -b html -c docs -W --keep-going -q build/site-source build/site
	@echo "open build/site/index.html"

docs-all: ## the same with chapters that take long
	POLYFUSE_DOCS_SLOW=1 $(MAKE) docs

bench: $(BENCH_VENV)/bench.stamp ## time the workloads against PyTorch and JAX (ARGS=... are passed on)
	$(BENCH) -m benchmarks $(ARGS)

counts: $(BENCH_VENV)/bench.stamp ## count the kernels of the models, beside those of PyTorch and JAX
	$(BENCH) -m benchmarks.kernel_counts $(ARGS)

gpu-pack: | $(VENV)/bin/python ## gather what a GPU machine without a network needs into build/gpu-pack
	$(RUN) -m gpu.pack $(ARGS)

gpu: ## there: test, compare, benchmark on the GPU (ARGS="--part bench"); without one: rehearse in the emulator
	$(GPU_PYTHON) -m gpu $(ARGS)

SANITIZED := tests/property/test_random_kinds.py tests/property/test_random_programs.py \
    tests/property/test_random_row_recurrences.py tests/property/test_random_recurrences.py \
    tests/unit/codegen/test_vectorize_predicated_tails.py tests/unit/codegen/test_vector_masks.py tests/unit/codegen/test_outer_vectorize_recurrences.py \
    tests/unit/layers/test_convolutions.py tests/unit/layers/test_integer_products.py tests/unit/layers/test_scatters.py \
    tests/unit/codegen/test_turned_tiles.py tests/unit/codegen/test_cpu_memory_ops.py tests/unit/codegen/test_borders.py tests/unit/codegen/test_vectorize_half_precision.py \
    tests/unit/layers/test_few_rows.py tests/unit/codegen/test_unroll_and_jam_batched_rows.py tests/unit/layers/test_contraction_tiles.py \
    tests/unit/codegen/test_unroll_and_jam_overlapping_windows.py

sanitize: $(VENV)/dev.stamp ## kernels of many tests with sanitizers, which takes long (ARGS are for pytest)
	$(RUN) -m polyfuse.runtime.toolchain.run_sanitized -m pytest -n $(WORKERS) --dist worksteal --timeout=1200 $(SANITIZED) $(ARGS)

golden-update: $(VENV)/dev.stamp ## write the golden files anew; read the diff before you commit it
	$(PYTEST) --golden-update
	git status --short -- tests/golden

clean: ## remove all that was made here, the virtual environments too
	rm -rf $(VENV) build dist *.egg-info demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- virtual environments: a stamp is newer than pyproject.toml when its packages are installed ------------

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "polyfuse needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	    echo "Say which one to use: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "$(PYTHON) cannot make virtual environments (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }

$(VENV)/runtime.stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

# setuptools: the wheel test builds without a network.
$(VENV)/dev.stamp: $(VENV)/runtime.stamp
	$(PIP) 'setuptools>=77' --editable '.[dev,docs]'
	@touch $@

# PyTorch is large: one that $(PYTHON) already has is used, else it is installed.
$(BENCH_VENV)/bench.stamp: pyproject.toml | $(VENV)/bin/python
	@if $(PYTHON) -c 'import torch; print("using the installed torch", torch.__version__)' 2>/dev/null; then \
	    $(PYTHON) -m venv --system-site-packages $(BENCH_VENV) && \
	    $(BENCH) -m pip install --quiet --editable . 'matplotlib>=3.8' jax; \
	else \
	    $(PYTHON) -m venv $(BENCH_VENV) && $(BENCH) -m pip install --quiet --editable '.[bench]'; \
	fi
	@touch $@

$(SITE_VENV)/site.stamp: pyproject.toml | $(VENV)/bin/python
	$(PYTHON) -m venv $(SITE_VENV)
	$(SITE) -m pip --disable-pip-version-check install --quiet --editable '.[site]'
	@touch $@

TESTS_WITH := 'pytest>=8' 'pytest-xdist>=3.5' 'pytest-timeout>=2.3' 'hypothesis>=6.100' 'setuptools>=77' expecttest
$(TORCH_VENV)/torch.stamp: pyproject.toml | $(VENV)/bin/python
	$(PYTHON) -m venv $(TORCH_VENV)
	@# The oldest is the bound of the extra.
	@wanted=$$(sed -n 's/^torch = \["torch>=\([0-9.]*\),.*/torch==\1.*/p' pyproject.toml); \
	    $(WITH_TORCH) -m pip --disable-pip-version-check install --quiet --editable '.[torch,jax,learn]' $(TESTS_WITH) \
	    $$(test $(TORCH) = newest || echo "$$wanted")
	@touch $@
