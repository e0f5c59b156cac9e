"""What has been written stays: the one call that files and directories need for it."""

from __future__ import annotations

import os

__all__ = ["fsync"]


def fsync(path: str | os.PathLike[str]) -> None:
    """Has a file, or a directory's entries, survive a crash of the machine.

    Raises:
        OSError: if it cannot be opened, or the disk refuses.

    >>> fsync(".")
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
