# Everything runs in a virtual environment that is made here, with pinned versions.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
READY := $(VENV)/ready
# what is tested over pipes as well, as on a system that has no arenas
ABOUT_WORKERS := $(addprefix tests/,laws faults/test_deaths.py loader/test_iterator.py \
	$(addprefix parity/test_,failures.py inside_workers.py out_of_order.py streams.py))
# Options of the benchmarks, for example BENCH="--only tiny-2 large --rounds 7".
BENCH ?=
# Options of the torture, for example TORTURE="--minutes 5 --seed 7 --only shuffle weighted".
TORTURE ?=
# Options of the mutants, for example MUTANTS="--count 90 --seed 7".
MUTANTS ?=
# Options of the chaos run, for example CHAOS="--seed 7 --minutes 5 --only sampler generator".
CHAOS ?=
FRAMEWORKS := .venv-frameworks
SOURCES := picklable_loader tests docs setup.py

.PHONY: demo demo-ranks test test-frameworks test-gpu bench-gpu quick lint types format bench chaos torture mutants clean

demo: $(READY)
	$(BIN)/python -m picklable_loader demo

# A training of 4 ranks is killed, and comes back on 2 and on 3.
demo-ranks: $(READY)
	$(BIN)/python docs/elastic/demo.py

# The checks of the source, then five folders at a time, each in a pytest of its own, the longest
# first. Most tests wait for processes, so five fit two cores. One pytest of all tests would take
# 450 MB, whose page tables each fork copies: 170 MB of a folder's make a fork twice as fast. `make`
# prints a folder's output when the folder is done.
#
# Of a test with many parameters, those cells are run in which every two values meet
# (tests/conftest.py); every cell: `.venv/bin/python -m pytest -n 3 --whole-matrix tests/laws`
test: $(READY)
	@$(MAKE) --no-print-directory --keep-going --jobs 5 --output-sync=target lint types $(PARTS)

LONGEST := tests/epoch/ tests/saving/ tests/laws/ tests/cpp/
LONG := tests/fetching/ tests/faults/ tests/parity/ single-files
FOLDERS := $(filter-out tests/frameworks/,$(sort $(dir $(wildcard tests/*/test_*.py))))
PARTS := $(LONGEST) over-pipes $(LONG) $(filter-out $(LONGEST) $(LONG),$(FOLDERS))

# Hundreds of tests start a fresh Python: tests/startup makes that faster, and bytecode is written
# for them even where the environment says otherwise.
$(PARTS) torture-of-today: export PYTHONDONTWRITEBYTECODE :=
$(PARTS) torture-of-today: export PYTHONPATH := $(CURDIR)/tests/startup

.PHONY: $(PARTS) torture-of-today
$(FOLDERS):
	@echo $@; $(BIN)/python -m pytest -q $@

single-files:
	@echo $@; $(BIN)/python -m pytest -q $(wildcard tests/test_*.py)

over-pipes:
	@echo $@; $(BIN)/python -m pytest -q --portable $(ABOUT_WORKERS)

# Part of each submission, with a new seed each day.
torture-of-today: $(READY)
	@echo $@; PYTHONPATH=$$PYTHONPATH:tests $(BIN)/python -m torture --minutes 5 --seed today

# Inside of Lightning, Accelerate and others, in an environment of its own; for example
# FRAMEWORK_TESTS=tests/frameworks/test_lightning.py, or "-m core tests/frameworks": few cases of each
FRAMEWORK_TESTS ?= tests/frameworks
test-frameworks: $(FRAMEWORKS)/ready
	$(FRAMEWORKS)/bin/python -m pytest -q -n 2 --dist loadfile $(FRAMEWORK_TESTS)

# On a machine with a CUDA GPU, with the Python whose torch can use it; for example GPU_PYTHON=python3.
# GPU_OPTIONS="-n 14" spreads the tests over 14 processes. The loader's tests run with pin_memory=True.
GPU_PYTHON ?= $(BIN)/python
GPU_OPTIONS ?=
GPU_PATH := $(CURDIR):$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH}
PINNED := $(addprefix tests/,loader fetching epoch faults parity laws)
test-gpu:
	PYTHONPATH=$(GPU_PATH) $(GPU_PYTHON) -m pytest -q $(GPU_OPTIONS) tests/gpu
	PYTHONPATH=$(GPU_PATH) $(GPU_PYTHON) -m pytest -q $(GPU_OPTIONS) --pin-memory $(PINNED)

bench-gpu:
	PYTHONPATH=$(GPU_PATH) $(GPU_PYTHON) -m benchmarks.gpu

# For the loop at the desk: the pure core, the structure, golden states and options; half a minute.
quick: lint types
	$(BIN)/python -m pytest -q -n 2 tests/core tests/golden tests/rng tests/test_layers.py \
		tests/test_exports.py tests/epoch/test_options.py tests/epoch/test_fitting.py

lint: $(READY)
	$(BIN)/black --check --line-length 100 $(SOURCES)
	$(BIN)/isort --check $(SOURCES)
	$(BIN)/flake8 $(SOURCES)

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/black --quiet --line-length 100 $(SOURCES)
	$(BIN)/isort --quiet $(SOURCES)

# Every measurement has a process of its own; all of them take about half an hour of a quiet machine.
bench: $(READY)
	PYTHONPATH=tests $(BIN)/python -m benchmarks $(BENCH)

# Thousands of faults: a few minutes. Failures tell how to have them again.
chaos: $(READY)
	PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS)

# Random loaders, saved at random moments in random ways, until it is stopped. A script is printed for
# each failure, which fails by itself.
torture: $(READY)
	PYTHONPATH=tests $(BIN)/python -m torture $(TORTURE)

# Small faults planted in core/, one at a time: those that tests/core does not notice are listed.
mutants: $(READY)
	PYTHONPATH=tests $(BIN)/python -m mutants $(MUTANTS)

clean:
	rm -rf $(VENV) $(FRAMEWORKS) build *.egg-info .mypy_cache .pytest_cache .hypothesis demo_output bench_output

# torch comes first and alone: a requirement that merely allows a newer one would bring gigabytes.
$(READY): requirements.txt setup.cfg Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

# A library that asks for another torch is an error here: torch is named again.
$(FRAMEWORKS)/ready: requirements-frameworks.txt requirements-apart.txt setup.cfg Makefile
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" \
		-r requirements-frameworks.txt
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--target $(FRAMEWORKS)/apart -r requirements-apart.txt
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --editable .
	touch $(FRAMEWORKS)/ready
