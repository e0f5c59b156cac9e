"""Files that a mirror makes in its target before it begins. If it cannot begin, exactly these are removed."""

from __future__ import annotations

from pgoutput_fast.mirror.state.layout import OWN
from pgoutput_fast.storage.stores import Store, missing_directories, remove_directories

__all__ = ["StartUndo"]


class StartUndo:
    """The target as it is before a mirror makes anything in it.

    Args:
        store: the target, which need not exist.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._existing = set(store.names(OWN))
        self._missing = missing_directories(store, OWN)

    def run(self) -> None:
        """Removes the files and the directories that did not exist before. A directory with other files stays."""
        for name in self._store.names(OWN):
            if name not in self._existing:
                self._store.remove(name)
        remove_directories(self._missing)
