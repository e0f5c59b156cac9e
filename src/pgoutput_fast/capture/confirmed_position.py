"""Saves the position that the capture confirms for an idle slot, before the server hears of it.

Segments say up to which position they have what committed. For an idle slot, the capture confirms the server's
position, which lies after the segments. Without a file with this position, a slot that someone else read from, or
created again, would look like one that was idle.
"""

from __future__ import annotations

import json
import time

from pgoutput_fast.documents import parsed_json
from pgoutput_fast.storage.stores import Store

__all__ = ["ConfirmedPosition"]

FILE = "_acknowledged.json"
# The position is written at most this often while nothing else is.
_SECONDS = 10.0


class ConfirmedPosition:
    """The confirmed position of an idle slot, as its file in a directory of segments has it.

    Args:
        store: the directory.

    Attributes:
        lsn: the position, None if there is no file.

    Raises:
        ValueError: if the file has no position.

    >>> import tempfile
    >>> from pgoutput_fast.storage.stores import open_store
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     confirmed = ConfirmedPosition(open_store(directory))
    ...     before = confirmed.lsn
    ...     saved = confirmed.save(7), confirmed.save(9), confirmed.save(9, now=True)
    ...     before, saved, ConfirmedPosition(open_store(directory)).lsn
    (None, (7, 7, 9), 9)
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0.0
        self.lsn: int | None = None
        try:
            self.lsn = int(parsed_json(store.read(FILE))["lsn"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{store}/{FILE} is damaged: it has no position") from None

    def save(self, lsn: int, *, now: bool = False) -> int:
        """Saves a position if it is time. Returns the position that you may confirm: at most the one in the file.

        Args:
            lsn: the position before which the server has nothing more to send.
            now: write the file even if it is younger than ten seconds.

        Raises:
            OSError: if the file cannot be written.
        """
        if (self.lsn is None or lsn > self.lsn) and (now or time.monotonic() >= self._next):
            self._store.put(FILE, json.dumps({"lsn": lsn}).encode())
            self.lsn = lsn
            self._next = time.monotonic() + _SECONDS
        return lsn if self.lsn is None else min(lsn, self.lsn)
