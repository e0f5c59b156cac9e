"""A process that runs nothing but this package does without pandas, and with the allocator that needs less memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest

from pgoutput_fast.capture.own_process import own_allocator

SCRIPT = """
import json, sys
import pgoutput_fast.capture.__main__, pgoutput_fast.mirror.__main__
from pgoutput_fast.capture.own_process import leave_out_pandas
before = "pandas" in sys.modules
if sys.argv[1] == "without":
    leave_out_pandas()
    leave_out_pandas()
import pyarrow as pa
pa.array([1])
print(json.dumps([before, "pandas" in sys.modules, len(sys.meta_path)]))
"""


def _run(how: str) -> list[bool | int]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    found: list[bool | int] = json.loads(done.stdout)
    return found


def test_a_process_without_pandas() -> None:
    if os.environ.get("CI") != "true":
        pytest.importorskip("pandas")
    # Nothing of this package makes an array while it is imported. So there is time to decide.
    before, after, finders = _run("with")
    assert (before, after) == (False, True)
    assert _run("without") == [False, False, finders + 1]


def test_a_process_with_its_own_allocator() -> None:
    asked = [sys.executable, "-c", "import pyarrow as pa; print(pa.default_memory_pool().backend_name)"]
    before = {name: text for name, text in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    said = subprocess.run(
        asked, env={**before, **own_allocator()}, capture_output=True, text=True, check=True
    )
    # Not every build of Arrow has it.
    best = (
        "jemalloc" if "jemalloc" in pa.supported_memory_backends() else pa.default_memory_pool().backend_name
    )
    assert (said.stdout.strip(), said.stderr) == (best, "")
