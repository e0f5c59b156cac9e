"""A temporary directory of this user alone, which goes."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pgoutput_fast.storage.private_directory import PrivateDirectory

_INTERRUPTED = """
import os, signal
from pgoutput_fast.storage.private_directory import PrivateDirectory

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
