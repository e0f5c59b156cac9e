"""How far a slot was let go of where there was nothing to write: noted before the server hears of it.

Segments say up to where they have what committed. An idle slot goes on from there with the server's position; without a
note of that, a slot which somebody else has read from, or made anew, would look like one that was idle.
"""

from __future__ import annotations

import json
import time

from pgoutput_fast.segment_stores import Store

__all__ = ["Acknowledged"]

FILE = "_acknowledged.json"
# So often at most a position is written while nothing else is.
_SECONDS = 10.0


class Acknowledged:
    """The note in a directory of segments.

    Args:
        store: the directory.

    Raises:
        ValueError: if there is one that says no position.

    >>> import tempfile
    >>> from pgoutput_fast.segment_stores import open_store
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     note = Acknowledged(open_store(directory))
    ...     note.lsn, note.let_go(7), note.let_go(9), note.let_go(9, now=True), Acknowledged(open_store(directory)).lsn
    (None, 7, 7, 9, 9)
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0.0
        self.lsn: int | None = None
        try:
            self.lsn = int(json.loads(store.read(FILE))["lsn"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{store}/{FILE} says no position: it was damaged") from None

    def let_go(self, lsn: int, *, now: bool = False) -> int:
        """The position up to which the server may be told that nothing is needed: as far as it is noted durably.

        Args:
            lsn: up to where nothing is.
            now: note it also if the last note is younger than ten seconds.

        Raises:
            OSError: if it cannot be written.
        """
        if (self.lsn is None or lsn > self.lsn) and (now or time.monotonic() >= self._next):
            self._store.put(FILE, json.dumps({"lsn": lsn}).encode())
            self.lsn = lsn
            self._next = time.monotonic() + _SECONDS
        return lsn if self.lsn is None else min(lsn, self.lsn)
