"""Which changes were yielded, and up to which position of the stream they are acknowledged."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pyarrow as pa

from pgoutput_fast.protocol.kinds import KIND_NAMES, MSG_PREPARE, MSG_STREAM_PREPARE, OPENINGS, SENT_IN_FULL

__all__ = ["Acknowledged", "HandedOut", "Pause", "StreamPosition"]

_OPENINGS = {KIND_NAMES[kind] for kind in OPENINGS}
_ENDS = {KIND_NAMES[kind] for kind in SENT_IN_FULL}
_PREPARES = {KIND_NAMES[kind] for kind in (MSG_PREPARE, MSG_STREAM_PREPARE)}


@dataclass(frozen=True)
class Pause:
    """The server has nothing more to send up to `lsn`. It waits for a confirmation if `is_urgent`."""

    lsn: int
    is_urgent: bool


class StreamPosition:
    """How far a stream is decoded.

    Args:
        keeps_prepared: whether a prepared transaction is yielded only when it commits, as in the committed view.

    Attributes:
        decoded: everything committed or prepared up to this LSN is decoded.
        is_inside: whether a transaction is partly received.

    >>> position = StreamPosition(keeps_prepared=True)
    >>> position.advance(108)
    >>> position.decoded, position.given
    (108, 108)
    """

    def __init__(self, *, keeps_prepared: bool) -> None:
        self.decoded = 0
        self.is_inside = False
        self._keeps_prepared = keeps_prepared
        self._prepared: dict[int, int] = {}  # xid -> LSN of its prepare

    @property
    def given(self) -> int:
        """A slot that continues from this LSN sends everything that is not yet yielded.

        A prepared transaction that waits for its commit is not yet yielded. The server sends its changes only if the
        slot begins before its prepare.
        """
        return min(self.decoded, *self._prepared.values()) if self._prepared else self.decoded

    def start_session(self) -> None:
        """Forgets the unfinished transaction of the last session: the server sends it again."""
        self.is_inside = False

    def follow(self, transactions: pa.RecordBatch) -> None:
        """Processes the boundary messages of a batch, as in `Decoded.transactions`."""
        columns = [transactions.column(name).to_pylist() for name in ("kind", "xid", "lsn", "end_lsn")]
        for kind, xid, lsn, end_lsn in zip(*columns, strict=True):
            self.is_inside = kind in _OPENINGS
            if kind not in _ENDS:
                continue
            self.decoded = max(self.decoded, end_lsn)
            if kind in _PREPARES and self._keeps_prepared:
                self._prepared[xid] = lsn
            else:
                self._prepared.pop(xid, None)

    def advance(self, lsn: int) -> None:
        """Notes that the server has nothing more to send up to this LSN."""
        self.decoded = max(self.decoded, lsn)


class Acknowledged:
    """The position that the reader of the changes has acknowledged. Thread-safe.

    A reader that stores positions continues from a stored one, so the slot may not be past it. Once the position of a
    result has been requested, the slot advances only by acknowledgements.

    Args:
        start_lsn: where the reader begins; 0 for the slot's position.
        stores_positions: whether the reader stores positions from the beginning.
    """

    def __init__(self, start_lsn: int = 0, *, stores_positions: bool = False) -> None:
        self._lock = threading.Lock()
        self._lsn = 0
        self._newest = HandedOut(self, start_lsn)
        self._newest.is_acknowledged = True
        self._stores_positions = stores_positions
        self._has_ended = False

    @property
    def lsn(self) -> int:
        """Everything that committed up to this LSN is acknowledged; 0 for nothing."""
        with self._lock:
            return self._lsn

    @property
    def stores_positions(self) -> bool:
        """Whether a position has been requested."""
        with self._lock:
            return self._stores_positions

    def hand_out(self, lsn: int) -> HandedOut:
        """Notes the next result.

        Args:
            lsn: the slot may continue from this LSN when the result is acknowledged.
        """
        with self._lock:
            self._newest = HandedOut(self, lsn)
            return self._newest

    def extend(self, lsn: int) -> None:
        """Notes that there was nothing to yield up to this LSN. It belongs to the newest result."""
        with self._lock:
            if not self._stores_positions:
                self._newest.lsn = max(self._newest.lsn, lsn)
                if self._newest.is_acknowledged:
                    self._lsn = max(self._lsn, lsn)

    def lags(self, lsn: int, least: int) -> bool:
        """Whether an LSN is at least this many bytes after the newest result."""
        return lsn - self._newest.lsn >= least

    def end(self) -> None:
        """From now on nothing can be acknowledged."""
        with self._lock:
            self._has_ended = True


class HandedOut:
    """The position of a result in its slot."""

    def __init__(self, acknowledged: Acknowledged, lsn: int) -> None:
        self._of = acknowledged
        self.lsn = lsn
        self.is_acknowledged = False

    def acknowledge(self) -> None:
        """Acknowledges the result, and all earlier ones.

        Raises:
            ValueError: if the connection to the slot has ended.
        """
        with self._of._lock:
            if self._of._has_ended:
                raise ValueError(
                    "this connection to the slot has ended, so nothing can be acknowledged: acknowledge changes "
                    "before you take the next ones or end the loop. The slot sends them again"
                )
            self._of._lsn = max(self._of._lsn, self.lsn)
            self.is_acknowledged = True

    def stored(self) -> int:
        """The LSN from which the slot may continue after the result. It does not change any more."""
        with self._of._lock:
            self._of._stores_positions = True
            return self.lsn
