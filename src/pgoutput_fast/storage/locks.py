"""Locks between the processes of one machine."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

__all__ = ["held_lock", "try_lock"]


def try_lock(file: IO[Any]) -> bool:
    """Tries to lock a file and returns whether this succeeded. The lock ends when the file is closed.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file, open(file.name) as other:
    ...     try_lock(file), try_lock(other)
    (True, False)
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def held_lock(path: Path) -> Iterator[None]:
    """Waits for the lock of a file and holds it during the block. The file is created if it does not exist.

    Raises:
        OSError: if the file cannot be opened.
    """
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
