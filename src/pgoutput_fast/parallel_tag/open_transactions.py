"""The transactions of a summary: open or prepared at the beginning or the end of a range of messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt

from pgoutput_fast.encode.messages import encode_stream_stop
from pgoutput_fast.parallel_tag.descriptions import Descriptions
from pgoutput_fast.parallel_tag.summary import StateMessage, void, void_stream
from pgoutput_fast.parallel_tag.xid_ranges import XidSet

__all__ = ["OpenTransaction", "OpenTransactions", "StreamBlock"]


class StreamBlock:
    """All stream blocks of a streamed transaction, merged into one.

    Attributes:
        start: the first Stream Start; None if only subtransactions were rolled back so far.
        origin: the last Origin message.
        descriptions: the Relation and Type messages.
        aborts: the first Stream Aborts of subtransactions that may have begun before the range, by subxid.
    """

    def __init__(self, start: StateMessage | None) -> None:
        self.start = start
        self.origin: StateMessage | None = None
        self.descriptions = Descriptions()
        self.aborts: dict[int, StateMessage] = {}

    def messages(self) -> list[StateMessage]:
        aborts = list(self.aborts.values())
        if self.start is None:
            return aborts
        origin = [] if self.origin is None else [self.origin]
        stop = StateMessage(self.start.seq, 0, encode_stream_stop())
        return [*aborts, self.start, *origin, *self.descriptions.messages(), stop]


_Unit = StreamBlock | list[StateMessage]


class OpenTransaction:
    """The messages to keep for an open transaction, or for an xid that may have been in use before the range.

    Attributes:
        units: the messages to keep, in order, as blocks and lists of messages.
        block: the block that later stream blocks are merged into.
        prepared: (gid, end LSN) once the transaction is prepared, if it began in the range.
        stream_ended: whether the streamed transaction of this xid has ended, if it did not begin in the range.
    """

    def __init__(self) -> None:
        self.units: list[_Unit] = []
        self.block: StreamBlock | None = None
        self.prepared: tuple[bytes, int] | None = None
        self.stream_ended = False

    def open_block(self, start: StateMessage | None) -> StreamBlock:
        """The block that later stream blocks are merged into, or a new one that begins with `start`."""
        if self.block is None:
            self.block = StreamBlock(start)
            self.units.append(self.block)
        return self.block

    def add(self, messages: list[StateMessage]) -> None:
        """Appends messages. A later stream block begins a new block."""
        self.units.append(messages)
        self.block = None

    def prepare(self, messages: list[StateMessage], gid: bytes, end_lsn: int) -> None:
        self.add(messages)
        self.prepared = gid, end_lsn

    def end_stream(self, messages: list[StateMessage]) -> None:
        """Adds the messages that end a streamed transaction from before the range."""
        self.add(messages)
        self.stream_ended = True

    def descriptions(self) -> list[Descriptions]:
        return [unit.descriptions for unit in self.units if isinstance(unit, StreamBlock)]


class OpenTransactions:
    """The effects of a range of messages on open and prepared transactions, by xid."""

    def __init__(self) -> None:
        self._session_started = False
        # The start of the first session of the range, if it is not in part 1.
        self._session_marks: list[StateMessage] = []
        # Open streams that began in the range, and transactions that were prepared in the range.
        self._streams: dict[int, OpenTransaction] = {}
        self._prepared: dict[int, OpenTransaction] = {}
        # All messages of xids that may have been open or prepared before the range, except streams that began in the
        # range.
        self._earlier: dict[int, OpenTransaction] = {}
        # Messages of xids that were open before the range and began again in it, and of xids in `_earlier` when the
        # first session of the range started.
        self._replaced: dict[int, list[_Unit]] = {}
        self._before_session: dict[int, list[_Unit]] = {}
        self._begun_xids = XidSet()
        self._streamed_xids: set[int] = set()  # see `Summary.streamed_xids`

    # ---- xids that begin ---------------------------------------------------------------------------------------------

    def begin(self, xid: int) -> None:
        """Records that an xid begins again, which voids its open or prepared transaction."""
        self._streams.pop(xid, None)
        if not self._void_prepared(xid) and xid not in self._replaced:
            self._begun_xids.add([xid])

    def begin_others(self, xids: npt.NDArray[np.uint32]) -> None:
        """Records xids that begin again, none of which is in `xids()`."""
        self._begun_xids.add(xids)

    def begin_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Records ranges of xids that begin again. Those in `xids()` were passed to `begin` before."""
        self._begun_xids.update(XidSet(_without(ranges, self._replaced)))

    def begin_stream(self, xid: int) -> OpenTransaction:
        """Records that a stream begins under an xid: this voids its earlier stream, not its prepared transaction."""
        earlier = self._earlier.get(xid)
        if earlier is not None and not earlier.stream_ended:
            earlier.end_stream(void_stream(xid, _first_seq(earlier.units[-1])))
        elif earlier is None and not self._has_begun(xid) and xid not in self._before_session:
            self._streamed_xids.add(xid)
        stream = self._streams[xid] = OpenTransaction()
        return stream

    def xids(self) -> set[int]:
        """The xids whose new beginning may have an effect."""
        return {
            *self._streams, *self._prepared, *self._earlier, *self._streamed_xids, *self._before_session
        }  # fmt: skip

    def replaced_xids(self) -> Iterable[int]:
        """The xids that were open before the range and began again in it."""
        return self._replaced.keys()

    def start_session(self, mark: StateMessage | None) -> None:
        """Records the start of a session, which voids open streams, but not prepared transactions.

        Args:
            mark: the message for the start of the session; None if part 1 of the summary has it.
        """
        self._streams.clear()
        if not self._session_started:
            self._before_session.update((xid, earlier.units) for xid, earlier in self._earlier.items())
            self._earlier.clear()
            self._session_marks = [] if mark is None else [mark]
        self._session_started = True

    def _has_begun(self, xid: int) -> bool:
        """Whether an xid without kept messages certainly has no open stream from before the range."""
        return xid in self._begun_xids or xid in self._replaced or xid in self._streamed_xids

    def _void_prepared(self, xid: int) -> bool:
        """Voids the prepared transaction and earlier messages of an xid. Returns whether this was recorded."""
        self._prepared.pop(xid, None)
        earlier = self._earlier.pop(xid, None)
        units = earlier.units if earlier is not None else []
        if units or (xid in self._before_session and xid not in self._replaced):
            # Its end follows the kept messages and needs no ordinal of its own.
            last = units[-1] if units else self._before_session[xid][-1]
            self._replaced[xid] = [*units, void(xid, _first_seq(last))]
            return True
        if xid in self._streamed_xids and xid not in self._replaced:
            self._streamed_xids.remove(xid)
            self._begun_xids.add([xid])
            return True
        return False

    # ---- transactions that began in the range ------------------------------------------------------------------------

    def stream(self, xid: int) -> OpenTransaction | None:
        """The open streamed transaction of an xid, if it began in the range."""
        return self._streams.get(xid)

    def drop_stream(self, xid: int) -> None:
        """Removes an open stream, if any: it was rolled back or is void."""
        self._streams.pop(xid, None)

    def commit_stream(self, xid: int) -> list[Descriptions]:
        """Ends an open stream and returns its descriptions, which now apply to all transactions."""
        stream = self._streams.pop(xid)
        self._void_prepared(xid)
        return stream.descriptions()

    def prepare_stream(self, xid: int, message: StateMessage, gid: bytes, end_lsn: int) -> list[Descriptions]:
        """Prepares an open stream and returns its descriptions, as `commit_stream`."""
        stream = self._streams.pop(xid)
        self._void_prepared(xid)
        descriptions = stream.descriptions()
        stream.prepare([message], gid, end_lsn)
        self._prepared[xid] = stream
        return descriptions

    def prepare(self, xid: int, messages: list[StateMessage], gid: bytes, end_lsn: int) -> None:
        """Records a prepared transaction that was not streamed, with its messages to keep."""
        transaction = self._prepared[xid] = OpenTransaction()
        transaction.prepare(messages, gid, end_lsn)

    def commit_prepared(self, xid: int, message: StateMessage, gid: bytes) -> list[Descriptions]:
        """Ends a prepared transaction and returns its descriptions, which now apply to all transactions."""
        ended = self._end_prepared(xid, message, gid)
        return [] if ended is None else ended.descriptions()

    def roll_back_prepared(self, xid: int, message: StateMessage, gid: bytes, lsn: int) -> None:
        self._end_prepared(xid, message, gid, lsn)

    def _end_prepared(
        self, xid: int, message: StateMessage, gid: bytes, end_lsn: int | None = None
    ) -> OpenTransaction | None:
        """Ends a prepared transaction, and its second stream if it was streamed again.

        Returns the transaction if it was prepared in the range, with this gid and, if not None, this end LSN.
        """
        self._streams.pop(xid, None)
        known = self._prepared.get(xid)
        if known is not None and known.prepared is not None:
            if known.prepared[0] == gid and (end_lsn is None or end_lsn == known.prepared[1]):
                return self._prepared.pop(xid)
        elif xid not in self._begun_xids and xid not in self._replaced:
            self._earlier.setdefault(xid, OpenTransaction()).end_stream([message])
        return None

    # ---- transactions that may have begun before the range -----------------------------------------------------------

    def may_be_earlier(self, xid: int) -> bool:
        """Whether a streamed transaction that did not begin in the range may be open under an xid."""
        return xid in self._earlier or not (self._has_begun(xid) or self._session_started)

    def earlier(self, xid: int) -> OpenTransaction:
        """The messages to keep for an xid that may have been in use before the range."""
        return self._earlier.setdefault(xid, OpenTransaction())

    # ---- output ------------------------------------------------------------------------------------------------------

    def messages(self) -> list[StateMessage]:
        """All messages to keep, in order."""
        units: list[_Unit] = [self._session_marks] if self._session_marks else []
        for kept in (self._before_session, self._replaced):
            units += chain.from_iterable(kept.values())
        for transactions in (self._earlier, self._prepared, self._streams):
            units += chain.from_iterable(transaction.units for transaction in transactions.values())
        units.sort(key=_first_seq)
        return list(
            chain.from_iterable(unit.messages() if isinstance(unit, StreamBlock) else unit for unit in units)
        )

    def begun_ranges(self) -> list[tuple[int, int]]:
        """The xids that began in the range, as half-open ranges (from, until)."""
        return self._begun_xids.ranges()

    def streamed_xids(self) -> list[int]:
        """The xids of `Summary.streamed_xids`."""
        return sorted(self._streamed_xids)


def _first_seq(unit: _Unit) -> int:
    """The ordinal by which to sort a unit among those of all xids."""
    if isinstance(unit, StreamBlock):
        return unit.messages()[0].seq if unit.start is None else unit.start.seq
    return unit[0].seq


def _without(ranges: Iterable[tuple[int, int]], xids: Iterable[int]) -> list[tuple[int, int]]:
    """The ranges without these xids. The ranges are sorted and not adjacent."""
    rest = list(ranges)
    for xid in xids:
        at = bisect_right(rest, (xid, 1 << 33)) - 1
        if at >= 0 and rest[at][0] <= xid < rest[at][1]:
            begin, end = rest[at]
            rest[at : at + 1] = [each for each in [(begin, xid), (xid + 1, end)] if each[0] < each[1]]
    return rest
