# make demo   set up and run the main job (about eight minutes on two cores)
# make test   set up and run every test that needs neither a GPU nor the whole probe file
VENV ?= .venv
DEMO ?= demo
EXECUTOR ?= serial
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FUZZ_SECONDS ?= 60

.PHONY: setup demo test test-gpu test-mutation test-slow test-soak test-zoo test-h200 test-hostile fuzz bench-tsel lint constraints clean

setup: $(STAMP)

# The first interpreter that is 3.11 or 3.12; PYTHON=... names another, and no other is taken then.
FITS := -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))'
ifdef PYTHON
FIND := if $(PYTHON) $(FITS) 2>/dev/null; then python="$(PYTHON)"; fi
else
FIND := for p in python3.12 python3.11 python3 python; do if $$p $(FITS) 2>/dev/null; then python=$$p; break; fi; done
endif

$(STAMP): pyproject.toml constraints.txt
	@python=; $(FIND); \
	if [ -z "$$python" ]; then echo "error: Python 3.11 or 3.12 is needed: install one, or name it with PYTHON=..." >&2; exit 2; fi; \
	$$python -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/dragon run --preset smoke --workdir $(DEMO) --executor $(EXECUTOR)

test: setup
	$(BIN)/python -m pytest -q -m 'not slow and not soak and not h200 and not gpu and not zoo'

# The numerical gate against every kind of wrong kernel, type and length; it prints the tables of docs/numerics.md.
test-mutation: setup
	$(BIN)/python -m pytest -q tests/validators/test_mutation.py

# The rest of what a CPU can test: minutes, not seconds.
test-slow: setup
	$(BIN)/python -m pytest -q -m 'slow and not soak and not hostile and not h200 and not gpu and not zoo'

# Kernels that do their worst on an NVIDIA GPU.
test-gpu: setup
	$(BIN)/python -m pytest -q -m gpu tests/chaos

# The engine for long: ten minutes of kill -9, and 2,000 rounds with an eye on memory and on what is left behind.
test-soak: setup
	$(BIN)/python -m pytest -q -m soak tests/chaos

# A random sample of the paper's zoo, 20 configurations a family: lowered, compiled, run, and a candidate found for each.
test-zoo: setup
	$(BIN)/python -m pytest -q -m zoo tests/compiler/test_zoo_sample.py

# All traces of the H200 probe, as trees and as replayed modules; LITTLEDRAGON_H200 names the file.
test-h200: setup
	$(BIN)/python -m pytest -q -m h200

# 200,000 mutants of texts and 2,000 replays: the better part of an hour on two cores.
test-hostile: setup
	$(BIN)/python -m pytest -q -m hostile

# A coverage-guided search for texts and traces that the language stumbles over; it says where it keeps what it finds.
fuzz: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,fuzz]'
	$(BIN)/python tests/fuzz/fuzz_tsel.py $(FUZZ_SECONDS)

# The codec on 20,000 traces made here, and on the H200 probe's where that file is; JOBS processes.
JOBS ?= 2
bench-tsel: setup
	mkdir -p build
	$(BIN)/dragon bench tsel --traces 20500 --jobs $(JOBS) --json build/bench-tsel.json

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Resolve the versions anew for every supported Python.
constraints:
	uv pip compile pyproject.toml --extra dev --extra fuzz --universal --python-version 3.11 \
	    --no-emit-index-url --no-annotate --no-header --quiet --upgrade --output-file constraints.txt

clean:
	rm -rf $(VENV) $(DEMO) build dist .mypy_cache .ruff_cache .pytest_cache
