"""What a decoding needs to know of a range of messages: descriptions, relations with changes, outcomes of transactions.

It is collected while the range is summarized, before the state at its start is known, and completed from that state.
Then no other pass over the messages is necessary to plan a decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgoutput_fast._core.tagging.control_messages import boundary_of
from pgoutput_fast.decoding.state import StreamState, native_decoder
from pgoutput_fast.encode.messages import encode_begin, encode_commit
from pgoutput_fast.parallel_tag.summary import StateMessage, replayed
from pgoutput_fast.protocol import kinds
from pgoutput_fast.schema.options import Options
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

if TYPE_CHECKING:
    from pgoutput_fast._core.tagging.control_messages import ControlMessages

__all__ = ["RangeSurvey"]

_COMMITS = ("begun", "ended", "xids", "commit_lsns", "commit_timestamps")
_SCHEMA = pa.schema(
    [
        ("seq", pa.list_(pa.int64())),
        ("lsn", pa.list_(pa.int64())),
        ("payload", pa.list_(pa.binary())),
        ("relations", pa.list_(pa.list_(pa.uint32()))),
        *((name, pa.list_(pa.int64())) for name in _COMMITS),
    ]
)
_EPOCH = 946_684_800_000_000  # PostgreSQL's, in microseconds since 1970
# These neither end a stream or a prepared transaction, nor describe anything.
_HARMLESS = (kinds.MSG_BEGIN, kinds.MSG_COMMIT, kinds.MSG_ORIGIN)


class RangeSurvey:
    """Collects what a decoding needs to know of a range.

    Args:
        commits: whether the commits of plain transactions are wanted: some bytes each.

    Attributes:
        messages: control messages, in order, without those of most plain transactions, and without most repeated
            descriptions. Ordinals count from the start of the range.
        relations: oids of relations that have changes, ascending: before the first boundary if the range begins outside
            of a stream block; the same if it begins inside of one; after it. Arrays, because a damaged stream may have
            as many oids as changes.
        committed: the plain transactions whose messages are left out: an array for each name of `_COMMITS`, or none.
    """

    def __init__(self, *, commits: bool) -> None:
        self.messages: list[StateMessage] = []
        self.relations: list[NDArray[np.uint32]] = [np.zeros(0, np.uint32)] * 3
        self.committed: list[dict[str, Any]] = []
        self._commits = commits
        self._described: dict[
            bytes, bytes
        ] = {}  # kind and oid -> the last description outside of stream blocks

    def add(self, base: int, selected: ControlMessages) -> None:
        """Adds the next messages, without control messages.

        Args:
            base: the number of messages before them.
            selected: the control messages among them.
        """
        oids = (*selected["relations_before"], selected["relations"])
        for k, more in enumerate(oids):
            if more:
                self.relations[k] = _union(self.relations[k], np.array(more, np.uint32))
        if self._commits and len(selected["begun"]):
            columns: Mapping[str, Any] = selected
            arrays = {name: columns[name].astype(np.int64) for name in _COMMITS}
            self.committed.append(arrays | {name: arrays[name] + base for name in ("begun", "ended")})

    def add_control_message(self, message: StateMessage, *, in_block: bool) -> None:
        """Adds the next control message.

        Args:
            message: the message.
            in_block: whether it may be inside of a stream block.
        """
        kind = message.payload[0] if message.payload else 0
        if kind in kinds.DESCRIPTIONS and not in_block:
            # A relation is often described again, unchanged. Another Type changes what a Relation means.
            key = message.payload[:5]
            if self._described.get(key) == message.payload:
                return
            if kind == kinds.MSG_TYPE:
                self._described.clear()
            self._described[key] = message.payload
        elif kind not in _HARMLESS:
            self._described.clear()
        self.messages.append(message)

    # ---- stored form -------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The survey as bytes."""
        columns = dict(zip(("seq", "lsn", "payload"), zip(*self.messages, strict=True), strict=False))
        row: dict[str, Any] = {name: columns.get(name, ()) for name in ("seq", "lsn", "payload")}
        row["relations"] = self.relations
        commits = self._all_commits()
        commits["ended"] = commits["ended"] - commits["begun"]
        for name, values in commits.items():
            # Differences compress well.
            row[name] = values if name == "ended" else np.diff(values, prepend=0)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(
                pa.RecordBatch.from_arrays([pa.array([row[f.name]], f.type) for f in _SCHEMA], schema=_SCHEMA)
            )
        return bytes(sink.getvalue())

    @classmethod
    def from_bytes(cls, data: bytes) -> RangeSurvey:
        """The inverse of `to_bytes`."""
        row = pa.ipc.open_stream(data).read_next_batch()
        lists = {name: row.column(name).flatten() for name in _SCHEMA.names}
        survey = cls(commits=True)
        survey.messages = [
            StateMessage(*each)
            for each in zip(*(lists[name].to_pylist() for name in ("seq", "lsn", "payload")), strict=True)
        ]
        survey.relations = [oids.values.to_numpy() for oids in lists["relations"]]
        commits = {
            name: lists[name].to_numpy() if name == "ended" else np.cumsum(lists[name].to_numpy())
            for name in _COMMITS
        }
        survey.committed = [commits | {"ended": commits["ended"] + commits["begun"]}]
        return survey

    def _all_commits(self) -> dict[str, Any]:
        nothing = np.zeros(0, np.int64)
        return {
            name: np.concatenate([nothing, *(each[name] for each in self.committed)]) for name in _COMMITS
        }

    # ---- with the state before the range -----------------------------------------------------------------------------

    def relations_after(self, state: StreamState) -> set[int]:
        """Oids of the relations that have changes in the range after a state. A damaged change may add another."""
        values = state.values or {}
        inside = values.get("context") == "streaming" and not values.get("session_starts")
        return set(_union(self.relations[inside], self.relations[2]).tolist())

    def tagged_after(self, state: StreamState) -> tuple[Iterator[pa.RecordBatch], TransactionOutcomes]:
        """Returns the messages of the range after a state, tagged; and the outcomes of the transactions left out.

        Raises:
            DecodeError: if the range has a message that is an error.
        """
        base = state.next_seq
        native = native_decoder(Options(), state)
        messages, commits = self.messages, self._all_commits()
        reused = np.isin(commits["xids"], sorted(_other_xids(state, messages)))
        if reused.any():
            # If an xid begins again, an open or prepared transaction with it is void.
            again = (
                message
                for k in np.flatnonzero(reused).tolist()
                for message in _plain_transaction(**{name: int(commits[name][k]) for name in _COMMITS})
            )
            messages = sorted([*messages, *again], key=lambda message: message.seq)
        begun, ended, lsns, times = (
            commits[name][~reused] for name in ("begun", "ended", "commit_lsns", "commit_timestamps")
        )
        committed = np.ones(len(begun), np.bool_)
        outcomes = TransactionOutcomes(begun + base, ended + base, lsns, times, committed, ~committed, {})
        return replayed(native, messages, base), outcomes


def _union(oids: NDArray[np.uint32], more: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The oids of two ascending arrays, ascending."""
    # This sort takes linear time for two runs. That of np.union1d does not.
    both = np.sort(np.concatenate([oids, more]), kind="stable")
    distinct: NDArray[np.uint32] = both[np.diff(both, prepend=both[:1] + 1) != 0]
    return distinct


def _other_xids(state: StreamState, messages: list[StateMessage]) -> set[int]:
    """Xids of the transactions that are open or prepared in the state, or end or begin with one of the messages."""
    values = state.values or {}
    found = {each["xid"] for each in (*values.get("streamed", ()), *values.get("prepared", ()))}
    for message in messages:
        if message.payload[:1] and message.payload[0] in kinds.BOUNDARIES:
            fields = boundary_of(message.payload)
            found.update(() if fields is None else (fields[0],))
    return found


def _plain_transaction(
    begun: int, ended: int, xids: int, commit_lsns: int, commit_timestamps: int
) -> Iterator[StateMessage]:
    timestamp = commit_timestamps - _EPOCH
    yield StateMessage(begun, 0, encode_begin(commit_lsns, timestamp, xids))
    yield StateMessage(ended, 0, encode_commit(commit_lsns, commit_lsns, timestamp))
