"""What a mirror makes in its target before it begins. If it cannot begin, this goes again, and nothing else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pgoutput_fast.mirror.layout import OWN
from pgoutput_fast.storage.stores import Store

__all__ = ["Start"]


class Start:
    """The target as it is before a mirror makes anything in it.

    Args:
        store: the target, which need not exist.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._there = set(store.names(OWN))
        # Directories that do not exist, the deepest first.
        self._missing: list[Path] = []
        if store.local:
            own = Path(store.at(OWN))
            self._missing = [each for each in (own, *own.parents) if not each.exists()]

    def undo(self) -> None:
        """Removes the files and the directories that were not there before. A directory with other files stays."""
        for name in self._store.names(OWN):
            if name not in self._there:
                self._store.remove(name)
        with suppress(OSError):
            for directory in self._missing:
                directory.rmdir()
