# Two commands do everything, their own set-up included: `make check` and `make test`.
# They need python3 >= 3.10 with venv, and make. What they install stays in .venv.

PYTHON ?= python3
# An unpinned torch is a download of several GB; constraints.txt holds the same version.
TORCH := torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
LOG := $(VENV)/setup.log
RESULTS := $(VENV)/tests.xml
NPU := $(VENV)/npu/ready
# Written last, so a set-up that was cut short is never taken for a finished one.
READY := $(VENV)/ready
# What a set-up depends on; it holds the folder's name because a moved .venv still points to the old place.
INPUTS := $(shell { pwd; cat pyproject.toml constraints.txt; } | cksum)
PIP := $(BIN)/python -m pip install --use-pep517 --no-build-isolation -c constraints.txt

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Modules from outside would stand in for the pinned ones.
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help setup check test lint matrix clean

help:
	@echo 'make check   check the rendezvous: model, TLA+, real etcd and processes   ARGS="..." for rallypoint check'
	@echo 'make test    run the tests            ARGS="..." for pytest, SLOW=1 with the slow ones'
	@echo 'make lint    ruff, and mypy --strict on the package as it is installed'
	@echo 'make matrix  the checks on several versions of torch and torch_npu   VERSIONS="2.7.1 2.13.0" TESTS=/path/to/pytorch'
	@echo 'make setup   only the set-up that the others do when it is due'
	@echo 'make clean   remove everything that the others made'

check: setup
	@$(BIN)/rallypoint check $(ARGS)

test: setup $(NPU)
	@$(BIN)/python -m pytest -n 2 --dist loadfile --junitxml=$(RESULTS) $(if $(SLOW),,-m "not slow" --session-timeout=690) $(ARGS)
	@$(if $(ARGS),,$(BIN)/rallypoint review --fail-on-gaps --tests $(RESULTS) >$(VENV)/review.txt; \
	    status=$$?; grep -v '[│┃━─]' $(VENV)/review.txt; exit $$status)

# Apart, on the path of NPU workers only: with torch_npu there, every import of torch loads it.
$(NPU): | setup
	@$(PIP) -q --no-deps --target $(VENV)/npu torch-npu PyYAML >>$(LOG) 2>&1 && touch $(NPU) || \
	    echo 'not checked: NPU workers (no torch-npu for this platform: see $(LOG))'

lint: setup
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	@rm -rf build
	@$(PIP) -q --no-deps --target build/typecheck .
	MYPYPATH=build/typecheck $(BIN)/python -m mypy --strict -p rallypoint
	@# One run for each folder of tests: pytest imports their modules by their bare names.
	@for folder in $$(find tests -path tests/live -prune -o -name '*.py' -exec dirname {} + | sort -u); do \
	    echo "mypy --strict $$folder"; \
	    MYPYPATH=build/typecheck:$$folder $(BIN)/python -m mypy --strict $$folder/*.py || exit; done

# Not in CI: an environment of its own for each version, in .matrix (see docs/matrix.md).
matrix: setup
	@$(BIN)/python -m rallypoint.cli.matrix $(if $(VERSIONS),--versions "$(VERSIONS)") $(if $(TESTS),--tests "$(TESTS)") $(ARGS)

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

setup:
	@[ "$$(cat $(READY) 2>/dev/null)" = '$(INPUTS)' ] && $(BIN)/python -c '' 2>/dev/null && exit 0; \
	fail() { echo "rallypoint: $$1" >&2; exit 2; }; \
	'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	    fail 'no Python >= 3.10 ($(PYTHON)): install python3, or name one: make PYTHON=/path/to/python3'; \
	'$(PYTHON)' -c 'import venv, ensurepip' 2>/dev/null || \
	    fail 'no venv in this Python ($(PYTHON)): install the package python3-venv'; \
	echo 'Setting up $(VENV): pinned dependencies, some minutes; 1.4 GB with a CPU build of torch, 5 GB with CUDA.'; \
	rm -f $(READY); \
	'$(PYTHON)' -m venv --clear $(VENV) || fail 'no venv made ($(VENV)): see the lines above'; \
	{ $(PIP) setuptools && $(PIP) $(TORCH) -e '.[check,dev,npu,torch]'; } >$(LOG) 2>&1 || \
	    { tail -n 20 $(LOG) >&2; fail 'set-up failed ($(LOG)): see the lines above, then run the command again'; }; \
	echo '$(INPUTS)' >$(READY)
