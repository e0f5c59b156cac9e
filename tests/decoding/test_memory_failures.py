"""Memory that runs out: each call ends as MemoryError or with the right result, and leaves all as it was before.

The failures come from out_of_memory.cpp, a library that is preloaded into a process of its own: it lets any one allocation of
the extension modules fail, or that one and all behind it. PGOUTPUT_FAST_EVERY_ALLOCATION=1 tries every allocation (50,000
failures, some minutes); without it some of each scenario are tried, spread evenly over the call: 300 and more.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import pgoutput_fast
from support import starving
from support.forms import and_slow
from support.paths import SUPPORT

COMPILER = os.environ.get("CXX", "c++").split()[-1]
EVERY = os.environ.get("PGOUTPUT_FAST_EVERY_ALLOCATION") == "1"
# The scenarios that `make test` tries: one of each kind of call.
SHORT = (
    "text",
    "streams",
    "threads 2",
    "committed",
    "tag",
    "copy binary",
)
TRIES = 5  # allocations of each scenario, each of which fails in two ways
# Bytes that a failure may leave behind on the average: what Python and Arrow keep for the next time is among them.
LEFT_BEHIND = 20_000

if sys.platform != "linux" or shutil.which(COMPILER) is None:
    pytest.skip("a library is preloaded, and compiled for it", allow_module_level=True)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("starving") / "out_of_memory.so"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fno-builtin"]
    source = SUPPORT / "out_of_memory.cpp"
    subprocess.run([COMPILER, *flags, "-o", str(path), str(source), "-ldl"], check=True)
    return path


def run(library: Path, scenario: str, tries: int) -> list[list[str]]:
    """Lines of starving.py; a crash or a hang fails the test."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "starving.py"), str(library), scenario, str(tries)],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=3600 if EVERY else 800,
    )
    assert done.returncode == 0, f"{done.stdout[-200:]} died: {done.stderr[-2000:]}"
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "scenario", and_slow(SHORT, [name for name in starving.scenarios() if name not in SHORT])
)
def test_a_failed_allocation_is_a_memory_error_or_nothing(library: Path, scenario: str) -> None:
    lines = run(library, scenario, 0 if EVERY else TRIES)
    came = Counter(line[1] for line in lines if line[0].isdigit())
    print(scenario, dict(lines[:1]), dict(came))
    assert set(came) <= set(starving.GOOD), lines
    assert came["MemoryError"] > 0
    there = int(lines[0][1])
    assert sum(came.values()) == 2 * (there if EVERY else min(TRIES, there))
    assert lines[-1][0] == "left"
    assert int(lines[-1][1]) < LEFT_BEHIND


# Of these, only our own code and Python's run while memory lacks. Others call functions of Arrow's, which crash then.
@pytest.mark.parametrize(
    "scenario",
    and_slow(
        ["threads 2"],
        ["text", "tag", "decode_tagged", "small batches", "streams", "stories", "stories go on", "threads 3"],
    ),
)
def test_python_s_own_allocations_fail(scenario: str) -> None:
    pytest.importorskip("_testcapi", reason="this Python was installed without its own tests")
    command = [sys.executable, str(SUPPORT / "starving.py"), "python", scenario, "1" if EVERY else "61"]
    environment = os.environ | {"PYTHONMALLOC": "malloc"}  # the C library notices what is released twice
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600, check=True)
    came = Counter(line.split("\t")[1] for line in done.stdout.splitlines())
    print(scenario, dict(came))
    assert set(came) <= set(starving.GOOD), done.stdout
    assert came["MemoryError"] > 3


def test_no_function_that_cannot_raise_takes_memory() -> None:
    """Cython prints and drops what is raised where nothing can be: the call then goes on with half of its work done."""
    found = set()
    sources = sorted((Path(pgoutput_fast.__file__).parent / "_core").rglob("*.cpp"))
    if not sources:
        pytest.skip("installed without what Cython made")
    for source in sources:
        found |= set(re.findall(r'__Pyx_WriteUnraisable\("([^"]+)"', source.read_text(encoding="utf-8")))
    # Of a capsule, and of a lock, which are not what they say: nobody can be told.
    assert found <= {
        "pgoutput_fast._core.columns.assemble._release_capsule",
        "pgoutput_fast._core.rows.threads.HeldLock.__dealloc__",
    }


def test_what_takes_memory_in_cpp_is_tried() -> None:
    """What C++ throws out of a call that Cython takes for one that cannot fail ends the process.

    Such calls are `assign(n, value)` of a vector, and copies of strings and vectors that Cython makes of Python objects.
    """
    takes = re.compile(r"\b(?:assign|resize|reserve|push_back|emplace_back|insert)\(")
    found = []
    sources = sorted((Path(pgoutput_fast.__file__).parent / "_core").rglob("*.cpp"))
    if not sources:
        pytest.skip("installed without what Cython made")
    for source in sources:
        before = ""
        for line in map(str.strip, source.read_text(encoding="utf-8").splitlines()):
            if not line or line.startswith(("*", "/*")):
                continue
            method = takes.search(line) and "__pyx_v_" in line and "__pyx_vtab" not in line
            # Of the module's own source, not of what Cython adds for pickling.
            made = re.search(r"= __pyx_convert_(?:string|vector)_from_py.*__PYX_ERR\(0,", line)
            if made or (method and before != "try {"):
                found.append(f"{source.name}: {line}")
            before = line
    assert found == []


def test_a_process_that_may_have_little_memory() -> None:
    """Under a limit of the address space, from hardly more than there is to enough."""
    command = [sys.executable, str(SUPPORT / "starving.py"), "limited", "24"]
    # In a fork malloc would take what it has reserved for threads that are no more.
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    came = Counter(line[1] for line in lines)
    assert len(lines) == 24
    assert set(came) <= set(starving.GOOD), (lines, done.stderr[-2000:])
    assert came["MemoryError"] > 0
