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

.PHONY: demo demo-ranks test test-frameworks quick lint types format bench chaos torture mutants clean

demo: $(READY)
	$(BIN)/python -m picklable_loader demo

# A training of 4 ranks is killed, and comes back on 2 and on 3.
demo-ranks: $(READY)
	$(BIN)/python docs/elastic/demo.py

# Most tests wait for processes most of the time: more of them at once than there are cores. Of a
# test with many parameters, those cells are run in which every two values meet (tests/conftest.py);
# every cell: `.venv/bin/python -m pytest -n 3 --whole-matrix tests/laws`
#
# Five minutes of torture run beside them, with a seed of the day; what it says comes at the end.
#
# Hundreds of tests start a fresh Python, which compiles 0.3 s of the package where Python is told to
# write no bytecode: it is compiled once.
test: lint types
	@$(BIN)/python -m compileall -q picklable_loader tests
	@log=$$(mktemp); \
	PYTHONPATH=tests $(BIN)/python -m torture --minutes 5 --seed today > $$log 2>&1 & torture=$$!; \
	$(BIN)/python -m pytest -q -n 4; tests=$$?; \
	wait $$torture; tortured=$$?; cat $$log; rm $$log; exit $$((tests + tortured))
	$(BIN)/python -m pytest -q -n 4 --portable $(ABOUT_WORKERS)

# Inside of Lightning, Accelerate and others, in an environment of its own; for example
# FRAMEWORK_TESTS=tests/frameworks/test_lightning.py, or "-m core tests/frameworks": few cases of each
FRAMEWORK_TESTS ?= tests/frameworks
test-frameworks: $(FRAMEWORKS)/ready
	$(FRAMEWORKS)/bin/python -m pytest -q -n 2 --dist loadfile $(FRAMEWORK_TESTS)

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
