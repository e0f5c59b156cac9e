"""Ctrl-C ends a command at any moment with one line, also while it loads its modules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support.paths import ROOT

pytestmark = pytest.mark.unsanitized

STOPPED = "pgoutput-fast: stopped\n"
# Files that a process maps while it loads modules, in this order.
MOMENTS = ("/libarrow.so", "/_core/")
SERVER = ["--dsn", "host=/nowhere", "--slot", "s", "--publication", "p"]
# A process that stands still at the first import after such a file: else it might have ended before the signal comes.
_HELD = """
import os, signal, sys

def look(event, arguments):
    if event == "import" and not held:
        with open("/proc/self/maps") as maps:
            if {moment!r} in maps.read():
                held.append(True)
                os.kill(os.getpid(), signal.SIGSTOP)

held = []
sys.addaudithook(look)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command `pgoutput-fast`, as pip writes it."""
    module, _, name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
        "pgoutput-fast"
    ].partition(":")
    path = tmp_path_factory.mktemp("bin") / "pgoutput-fast"
    path.write_text(f"import re\nimport sys\nfrom {module} import {name}\nsys.exit({name}())\n")
    return [sys.executable, str(path)]


@pytest.fixture
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for a module that Python imports at its start."""
    return tmp_path_factory.mktemp("hooks")


def _maps(process: subprocess.Popen[str], part: str) -> bool:
    try:
        return part in Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return False


def _interrupted(
    words: list[str],
    at: Callable[[subprocess.Popen[str]], bool],
    directory: Path,
    times: int = 1,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """(status, standard error) of a process that gets SIGINT when `at` says so."""
    with subprocess.Popen(
        words, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        deadline = time.monotonic() + 120
        while not at(process) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.005)
        said = process.communicate(timeout=120)[1]
    return process.returncode, said


def _interrupted_at(moment: str, words: list[str], directory: Path, hooks: Path) -> tuple[int, str]:
    """The same for a process that has mapped such a file and loads more modules."""
    (hooks / "sitecustomize.py").write_text(_HELD.format(moment=moment))
    path = os.pathsep.join(filter(None, [str(hooks), os.environ.get("PYTHONPATH")]))
    return _interrupted(words, _stands, directory, environment={**os.environ, "PYTHONPATH": path})


def _stands(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("words", [["bench", "--messages", "3000000"], ["decode", "x", "--out", "y"]])
def test_while_the_command_loads_modules(
    moment: str, words: list[str], script: list[str], hooks: Path, tmp_path: Path
) -> None:
    for command in (script, [sys.executable, "-m", "pgoutput_fast"]):
        assert _interrupted_at(moment, [*command, *words], tmp_path, hooks) == (130, STOPPED)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("program", [["capture", "--path"], ["mirror", "--target"]])
def test_while_a_program_loads_modules(
    moment: str, program: list[str], script: list[str], hooks: Path, tmp_path: Path
) -> None:
    name, option = program
    for command in (script, [sys.executable, "-m", "pgoutput_fast"]):
        words = [*command, name, option, "out", *SERVER]
        assert _interrupted_at(moment, words, tmp_path, hooks) == (130, STOPPED)
    assert os.listdir(tmp_path) == []


def test_pressed_again_and_again(script: list[str], tmp_path: Path) -> None:
    """Further signals arrive while the first one ends the command: `timeout -s INT` sends two."""
    for seconds in (0.3, 1.0, 2.0):
        begun = time.monotonic()

        def is_due(process: subprocess.Popen[str], at: float = begun + seconds) -> bool:
            return _maps(process, MOMENTS[-1]) and time.monotonic() > at

        ended = _interrupted([*script, "bench", "--messages", "3000000"], is_due, tmp_path, times=100)
        assert ended == (130, STOPPED)


# Modules that turn KeyboardInterrupt into another error, or swallow it.
_CLASS = """
class Meets:
    def __set_name__(self, owner, name):
        press()
class Owner:
    field = Meets()
"""
_SWALLOW = """
try:
    press()
except BaseException:
    pass
"""
_PROGRAM = """
import builtins, os, signal, sys, time
from pgoutput_fast.base.stopping import stop_at_once, stop_by_exception

def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)

builtins.press = press
stop_at_once()
stop_by_exception()
try:
    import module
    time.sleep(20)
except KeyboardInterrupt:
    sys.exit("module" not in sys.modules)
"""


@pytest.mark.parametrize("module", [_CLASS, _SWALLOW], ids=["class", "swallow"])
def test_an_import_ends_before_the_exception(module: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(module)
    done = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=tmp_path, capture_output=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, b"")


# Threads that use a library while the process ends. The interpreter takes its time to end, so that it meets them.
_BUSY = """
import builtins, runpy, sys, threading, time
import pyarrow as pa
import pgoutput_fast.capture, pgoutput_fast.cli.app, pgoutput_fast.mirror

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

def use():
    while True:
        pa.RecordBatchReader.from_batches(table.schema, table.to_batches()).read_all()

builtins.late, table = Late(), pa.table({"a": list(range(100))})
for _ in range(40):
    threading.Thread(target=use, daemon=True).start()
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["pgoutput_fast", "mirror", "--target", "lake"], ["pgoutput_fast", "capture"]],
    ids=" ".join,
)
def test_threads_of_a_library_at_the_end(words: list[str]) -> None:
    """The process ends with its own exit status, and not with `terminate called without an active exception`."""
    done = subprocess.run([sys.executable, "-c", _BUSY, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert "these arguments are missing" in done.stderr
    assert "terminate" not in done.stderr
