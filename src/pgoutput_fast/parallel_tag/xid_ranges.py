"""Sets of transaction ids, stored as ranges, because most are consecutive."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["XidSet"]

_Array = npt.NDArray[np.int64]


class XidSet:
    """A growing set of 32-bit ids. Added ids are merged lazily.

    >>> xids = XidSet()
    >>> xids.add([7, 8, 9, 20])
    >>> 9 in xids, 10 in xids, xids.ranges()
    (True, False, [(7, 10), (20, 21)])
    """

    __slots__ = ("_begins", "_ends", "_pending")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges` are half-open (from, until), in any order. They may overlap."""
        edges = np.array(list(ranges), np.int64).reshape(-1, 2)
        self._begins: _Array = np.empty(0, np.int64)
        self._ends: _Array = np.empty(0, np.int64)
        self._pending: list[tuple[_Array, _Array]] = [(edges[:, 0], edges[:, 1])]

    def add(self, xids: Iterable[int] | npt.NDArray[np.uint32]) -> None:
        begins = np.asarray(xids if isinstance(xids, np.ndarray) else list(xids), np.int64)
        if len(begins):
            self._pending.append((begins, begins + 1))

    def update(self, other: XidSet) -> None:
        other._merge_pending()
        self._pending.append((other._begins, other._ends))

    def _merge_pending(self) -> None:
        if not self._pending:
            return
        begins = np.concatenate([self._begins, *(begin for begin, _ in self._pending)])
        ends = np.concatenate([self._ends, *(end for _, end in self._pending)])
        self._pending.clear()
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], np.maximum.accumulate(ends[order]) if len(order) else ends
        apart = begins[1:] > ends[:-1]
        self._begins = begins[np.concatenate([np.ones(min(1, len(begins)), bool), apart])]
        self._ends = ends[np.concatenate([apart, np.ones(min(1, len(ends)), bool)])]

    def __contains__(self, xid: int) -> bool:
        self._merge_pending()
        at = int(np.searchsorted(self._begins, xid, "right")) - 1
        return at >= 0 and xid < int(self._ends[at])

    def ranges(self) -> list[tuple[int, int]]:
        """The half-open ranges (from, until) of the set, in order."""
        self._merge_pending()
        return list(zip(self._begins.tolist(), self._ends.tolist(), strict=True))
