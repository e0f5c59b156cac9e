"""The part of a joined segment's footer that lists the segments it was joined from."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgoutput_fast.storage.lease import lock_file
from pgoutput_fast.storage.stores import Store

__all__ = ["Joined", "removal_lock"]


@dataclass(frozen=True)
class Joined:
    """The segments from which `compact` joined a segment. They have all its messages, without a gap.

    Attributes:
        firsts: the ordinals of their first messages, ascending.
        written: when the newest of their rows became durable, in seconds since 1970. Retention counts from this time.
    """

    firsts: tuple[int, ...]
    written: float

    def has(self, first_seq: int, last_seq: int, end: int) -> bool:
        """Whether the segment from `first_seq` to `last_seq` is one of them.

        Args:
            first_seq, last_seq: ordinals of its first and last message.
            end: ordinal of the last message of the joined segment.

        >>> [Joined((0, 5), 0.0).has(*each, 9) for each in ((0, 4), (5, 9), (0, 9), (5, 8))]
        [True, True, False, False]
        """
        at = bisect_left(self.firsts, first_seq)
        ends = [*self.firsts[at + 1 : at + 2], end + 1]
        return at < len(self.firsts) and self.firsts[at] == first_seq and ends[0] == last_seq + 1

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {"firsts": list(self.firsts), "written": self.written}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Joined:
        """The inverse of `to_dict`.

        Raises:
            ValueError, KeyError, TypeError: if the values are not those of `to_dict`.
        """
        return cls(tuple(map(int, values["firsts"])), float(values["written"]))


def removal_lock(store: Store) -> AbstractContextManager[object]:
    """A context manager: while one process removes segments, no joined segment made from them appears.

    An object store has no locks; there this does nothing.
    """
    path = Path(store.at(".removal.lock"))
    if not store.local or not path.parent.is_dir():
        return nullcontext()
    file = lock_file(path, math.inf)
    assert file is not None
    return file
