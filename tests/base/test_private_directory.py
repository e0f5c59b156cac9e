"""A temporary directory of this user alone, which goes."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pgoutput_fast.base.private_directory import PrivateDirectory

_INTERRUPTED = """
import os, signal
from pgoutput_fast.base.private_directory import PrivateDirectory

make = os.mkdir
def mkdir(path, mode):
    make(path, mode)
    assert os.listdir(os.environ["TMPDIR"])
    os.kill(os.getpid(), signal.SIGINT)
os.mkdir = mkdir
PrivateDirectory()
"""


def test_it_goes(tmp_path: Path) -> None:
    with PrivateDirectory(tmp_path) as path:
        (made,) = tmp_path.iterdir()
        assert str(made) == path
        assert made.name.startswith(".pgoutput-fast-")
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        (made / "file").write_bytes(b"x")
    assert not list(tmp_path.iterdir())
    directory = PrivateDirectory(tmp_path)
    (Path(directory.path) / "file").write_bytes(b"x")
    del directory
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_child_process_leaves_it(tmp_path: Path) -> None:
    directory = PrivateDirectory(tmp_path)
    if (pid := os.fork()) == 0:
        del directory
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.path.isdir(directory.path)


def test_an_interrupt_once_it_exists(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "KeyboardInterrupt" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_directory_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    other = PrivateDirectory(tmp_path)
    with pytest.raises(FileExistsError):
        PrivateDirectory(tmp_path)
    gc.collect()
    assert os.path.isdir(other.path)


_HOLDS = """
import os, sys, time
from pgoutput_fast.base.private_directory import PrivateDirectory
held = PrivateDirectory()
open(held.path + "/file", "wb").close()
print(held.path, flush=True)
"""


def _process(program: str, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        text=True,
    )


def _path(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    # As if it had been made long ago.
    os.utime(path, (0, 0))
    return path


def test_the_directory_of_a_killed_process_goes(tmp_path: Path) -> None:
    """That of a process that lives stays, and so does what only looks like one."""
    others = [tmp_path / "pgoutput-fast-demo-x", tmp_path / f"pgoutput-fast-{'0' * 16}"]
    others[0].mkdir()
    others[1].symlink_to(others[0])
    with (
        _process(_HOLDS + "time.sleep(600)", tmp_path) as killed,
        _process(_HOLDS + "time.sleep(600)", tmp_path) as lives,
        _process(_HOLDS + "os.fork() or time.sleep(600)\nos._exit(0)", tmp_path) as parent,
    ):
        left, used = _path(killed), [_path(lives), _path(parent)]
        killed.kill()
        killed.wait()
        with _process(_HOLDS, tmp_path) as another:
            assert another.wait() == 0
        assert sorted(tmp_path.iterdir()) == sorted([*others, *used])
        assert all((each / "file").exists() for each in used)
        assert not left.exists()
        lives.kill()
        parent.kill()


def test_an_exit_that_runs_no_finalizers(tmp_path: Path) -> None:
    program = f"{_HOLDS}from pgoutput_fast.base.stopping import leave\nleave(3)"
    with _process(program, tmp_path) as process:
        assert process.wait() == 3
    assert not list(tmp_path.iterdir())
