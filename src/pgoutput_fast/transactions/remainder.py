"""The changes after a position: counts a transaction's changes and skips those already delivered."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_fast._core.tagging.waiting import WaitingRows
from pgoutput_fast.base.errors import LOAD_TABLES
from pgoutput_fast.decoding.position import Position, PositionError
from pgoutput_fast.protocol.kinds import CHANGES, MSG_MESSAGE
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.transactions.outcomes import values_of

__all__ = ["Remainder", "count_changes", "last_message_lsn"]


@dataclass(frozen=True)
class Remainder:
    """Skips the committed rows before a position.

    Rows are counted before any option selects tables, and without those of rolled-back subtransactions. So the count
    does not depend on how the server sends the transaction.

    Args:
        position: where an earlier reader stopped.
        passed: number of changes of the position's transaction so far.
        is_over: whether a later transaction has arrived. From then on nothing is skipped.
    """

    position: Position
    passed: int = 0
    is_over: bool = False

    def of(self, rows: pa.Table) -> tuple[pa.Table, Remainder]:
        """(the rows after the position, the remainder for the next rows).

        Args:
            rows: committed rows with commit position, in commit order.

        Raises:
            PositionError: if the position's transaction has ended with fewer changes than were delivered.
        """
        if rows.num_rows == 0 or self.is_over:
            return rows, self
        commits = values_of(rows, "commit_lsn", -1)  # rows outside of transactions have none
        here = commits == self.position.commit_lsn
        chosen = (commits < 0) | (commits > self.position.commit_lsn)
        counted = np.cumsum(_begins_change(rows) & here)
        if self.position.slot_lsn is None:
            chosen |= here & self._is_after(rows, self.passed + counted)
        passed, is_over = self.passed + int(counted[-1]), bool((commits > self.position.commit_lsn).any())
        if is_over and self.position.slot_lsn is None and passed < self.position.changes:
            raise PositionError(
                f"the server sent {passed:,} changes of the transaction at {format_lsn(self.position.commit_lsn)}, but "
                f"{self.position.changes:,} are before position {self.position}: somebody has read from the slot, or "
                f"the position is of another slot, or of other publications. Changes are lost: {LOAD_TABLES}"
            )
        after = replace(self, passed=passed, is_over=is_over)
        return rows if chosen.all() else rows.filter(pa.array(chosen)), after

    def _is_after(self, rows: pa.Table, ordinals: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Mask of the transaction's rows after the position. A message has the ordinal of the preceding change."""
        after = ordinals > self.position.changes
        messages = (values_of(rows, "kind") == MSG_MESSAGE) & (ordinals == self.position.changes)
        for at in np.flatnonzero(messages).tolist():
            after[at] = _message_lsn(rows, at) > self.position.last_message_lsn
        return after


def count_changes(rows: WaitingRows | pa.Table) -> int:
    """Number of changes in these rows of one transaction. A Truncate of several relations counts once."""
    # Rows kept by the native core have neither truncates nor messages.
    return rows.rows if isinstance(rows, WaitingRows) else int(np.count_nonzero(_begins_change(rows)))


def last_message_lsn(rows: WaitingRows | pa.Table, before: int) -> int:
    """LSN of the last logical message after the last change in these rows; 0 for none.

    Args:
        rows: rows of one transaction.
        before: the result for the rows before them.
    """
    if isinstance(rows, WaitingRows):
        return 0 if rows.rows else before
    if rows.num_rows == 0:
        return before
    return _message_lsn(rows, rows.num_rows - 1) if rows.column("kind")[-1].as_py() == MSG_MESSAGE else 0


def _begins_change(rows: pa.Table) -> np.ndarray[Any, Any]:
    """Mask of the first row of every change message."""
    seqs = values_of(rows, "seq")
    begins: np.ndarray[Any, Any] = np.isin(values_of(rows, "kind"), CHANGES)
    begins[1:] &= seqs[1:] != seqs[:-1]
    return begins


def _message_lsn(rows: pa.Table, at: int) -> int:
    """The LSN in a Message's payload, after its tag, its flags and, in a stream block, its xid."""
    lsn: int = struct.unpack_from(
        ">q", rows.column("payload")[at].as_py(), 6 if rows.column("in_stream")[at].as_py() else 2
    )[0]
    return lsn
