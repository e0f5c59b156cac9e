"""Temporary directories that only this user may read."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref

__all__ = ["PrivateDirectory"]


class PrivateDirectory:
    """A temporary directory. A context manager that removes it.

    Without the context, it is removed after the last reference to this object, or when the process ends.

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
        name = f"pgoutput-fast-{os.urandom(8).hex()}"
        path = (
            os.path.join(tempfile.gettempdir(), name) if parent is None else os.path.join(parent, f".{name}")
        )
        self.path = os.path.abspath(path)
        # First: an interrupt may come as soon as the directory exists.
        self._removal = weakref.finalize(self, _remove_tree, self.path, os.getpid())
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            self._removal.detach()
            raise

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *error: object) -> None:
        self._removal()


def _remove_tree(path: str, process: int) -> None:
    if process == os.getpid():
        shutil.rmtree(path, ignore_errors=True)
