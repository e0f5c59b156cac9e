"""Temporary directories that only this user may read."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
import weakref
from functools import cache

__all__ = ["PrivateDirectory", "remove_private_directories"]

_NAME = re.compile(r"\.?pgoutput-fast-[0-9a-f]{16}")
# A directory that was changed within this time may be one whose process has not locked it yet.
_LOCKED_SECONDS = 60.0

# {path: what removes it} of this process.
_removals: dict[str, weakref.finalize[..., PrivateDirectory]] = {}


class PrivateDirectory:
    """A temporary directory. A context manager that removes it.

    Without the context, it is removed after the last reference to this object, or when the process ends. If the process
    is killed, another one removes it when it makes a directory in the same place.

    Args:
        parent: the directory in which it is made, under a hidden name; by default, that of temporary files.

    Attributes:
        path: its absolute path.

    >>> import os
    >>> with PrivateDirectory() as directory:
    ...     os.listdir(directory)
    []
    >>> os.path.exists(directory)
    False
    """

    def __init__(self, parent: str | os.PathLike[str] | None = None) -> None:
        place = os.path.abspath(tempfile.gettempdir() if parent is None else parent)
        _remove_abandoned(place)
        name = f"pgoutput-fast-{os.urandom(8).hex()}"
        self.path = os.path.join(place, name if parent is None else f".{name}")
        lock: list[int] = []
        # First: an interrupt may come as soon as the directory exists.
        self._removal = weakref.finalize(self, _remove, self.path, os.getpid(), lock)
        _removals[self.path] = self._removal
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            self._removal.detach()
            raise
        lock += _locked(self.path)

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *error: object) -> None:
        self._removal()


def remove_private_directories() -> None:
    """Removes those of this process, before an exit that would leave them."""
    for removal in list(_removals.values()):
        removal()


def _remove(path: str, process: int, lock: list[int]) -> None:
    _removals.pop(path, None)
    if process == os.getpid():
        shutil.rmtree(path, ignore_errors=True)
    for each in lock:
        os.close(each)


def _locked(path: str) -> list[int]:
    """The descriptor of a locked directory; none if a process uses the directory, or the file system has no locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return []
    return [descriptor]


@cache
def _remove_abandoned(place: str) -> None:
    """Removes the directories of processes that were killed. Once: those that will be killed leave them to others."""
    before = time.time() - _LOCKED_SECONDS
    try:
        with os.scandir(place) as entries:
            found = [each for each in entries if _NAME.fullmatch(each.name)]
    except OSError:
        return
    for each in found:
        try:
            status = each.stat(follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mtime > before:
                continue
            lock = _locked(each.path)
        except OSError:
            continue  # another process has removed it
        if lock:
            _remove(each.path, os.getpid(), lock)
