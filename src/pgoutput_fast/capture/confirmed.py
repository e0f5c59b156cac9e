"""Notes the position that an idle slot has confirmed, before the server hears of it.

Segments say up to which position they have what committed. For an idle slot, the capture confirms the server's
position, which lies after the segments. Without a note of this position, a slot that someone else read from, or created
anew, would look like one that was idle.
"""

from __future__ import annotations

import json
import time

from pgoutput_fast.storage.stores import Store

__all__ = ["ConfirmedPosition"]

FILE = "_acknowledged.json"
# The position is written at most this often while nothing else is.
_SECONDS = 10.0


class ConfirmedPosition:
    """The note of the confirmed position in a directory of segments.

    Args:
        store: the directory.

    Raises:
        ValueError: if the note contains no position.

    >>> import tempfile
    >>> from pgoutput_fast.storage.stores import open_store
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

    def confirm(self, lsn: int, *, now: bool = False) -> int:
        """Returns the position that may be confirmed to the server: at most the one that the note has durably.

        Args:
            lsn: the position before which the server has nothing more to send.
            now: write the note even if the last one is younger than ten seconds.

        Raises:
            OSError: if the note cannot be written.
        """
        if (self.lsn is None or lsn > self.lsn) and (now or time.monotonic() >= self._next):
            self._store.put(FILE, json.dumps({"lsn": lsn}).encode())
            self.lsn = lsn
            self._next = time.monotonic() + _SECONDS
        return lsn if self.lsn is None else min(lsn, self.lsn)
