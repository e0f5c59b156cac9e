"""Temporary directories that only this user may read."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref

__all__ = ["PrivateDirectory"]


class PrivateDirectory:
    """A temporary directory, removed after the last reference to this object, or when the process ends.

    Attributes:
        path: its path.

    >>> import os
    >>> os.listdir(PrivateDirectory().path)
    []
    """

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="pgoutput-fast-")
        weakref.finalize(self, _remove_tree, self.path, os.getpid())


def _remove_tree(path: str, process: int) -> None:
    if process == os.getpid():
        shutil.rmtree(path, ignore_errors=True)
