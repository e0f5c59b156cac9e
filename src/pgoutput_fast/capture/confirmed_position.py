"""Saves the position that the capture confirms for an idle slot, before it is confirmed to the server.

Segments contain the position up to which they are complete. For an idle slot, the capture confirms the server's
position, which lies after the segments. Without a file of this position, a slot that another client has read, or that
was created again, would look like an idle one.
"""

from __future__ import annotations

import json
import time

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.storage.stores import Store

__all__ = ["ConfirmedPosition"]

FILE = "_acknowledged.json"
# While nothing else is written, the position is written at most this often.
_SECONDS = 10.0


class ConfirmedPosition:
    """The confirmed position of an idle slot, stored in a file in the directory of segments.

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
        """Saves a position if it is due. Returns the position to confirm: at most the one in the file.

        Args:
            lsn: the server has nothing more to send before this position.
            now: write the file even if it is younger than ten seconds.

        Raises:
            OSError: if the file cannot be written.
        """
        if (self.lsn is None or lsn > self.lsn) and (now or time.monotonic() >= self._next):
            self._store.put(FILE, json.dumps({"lsn": lsn}).encode())
            self.lsn = lsn
            self._next = time.monotonic() + _SECONDS
        return lsn if self.lsn is None else min(lsn, self.lsn)
