"""A process that runs nothing but this package does without pandas, needs less memory, and interrupts nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from pgoutput_fast.capture.own_process import own_allocator

pytestmark = pytest.mark.unsanitized

SCRIPT = """
import json, sys
import pgoutput_fast.capture, pgoutput_fast.mirror
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


_USUAL = pytest.mark.skipif(
    sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER,
    reason="only Linux has this policy, and a process that has another one keeps it",
)


@_USUAL
def test_a_capture_interrupts_nobody() -> None:
    command = [sys.executable, "-m", "pgoutput_fast.capture.child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 60
            while os.sched_getscheduler(process.pid) != os.SCHED_BATCH:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.kill()


_COMMAND = """
import os
from pgoutput_fast.capture import service
from pgoutput_fast.cli.app import app
service.run_in_turn = lambda *_, **__: print(os.sched_getscheduler(0))
for alone in (False, True):
    words = ["capture", "--slot", "s", "--publication", "p", "--path", "out"]
    app(args=words, standalone_mode=False, obj=alone)
"""


@_USUAL
def test_a_capture_of_the_command() -> None:
    """Only if the process has nothing else to do."""
    said = subprocess.run([sys.executable, "-c", _COMMAND], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(os.SCHED_OTHER), str(os.SCHED_BATCH)]


_POLICIES = """
import os, threading
from pgoutput_fast.capture.own_process import interrupt_nobody
os.sched_setscheduler(0, getattr(os, POLICY), os.sched_param(0))
interrupt_nobody()
found = []
thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
thread.start()
thread.join()
print(*found, os.sched_getscheduler(0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these policies")
@pytest.mark.parametrize("policy", ["SCHED_OTHER", "SCHED_IDLE"])
def test_a_policy_of_its_own_stays(policy: str) -> None:
    script = _POLICIES.replace("POLICY", repr(policy))
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    expected = os.SCHED_BATCH if policy == "SCHED_OTHER" else os.SCHED_IDLE
    assert said.split() == [str(expected)] * 2
