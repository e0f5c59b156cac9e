"""The task that writes tagged payloads as segments. This module imports no PySpark; the driver pickles the instance."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.rejected_rows import tag_in_quarantine, whole_messages
from pgoutput_fast.decoding.state import StreamState, native_decoder, state_of
from pgoutput_fast.protocol.kinds import SESSION_MARK, UNKNOWN_OUTCOME
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments.catalog import CatalogLog
from pgoutput_fast.segments.segment import Source
from pgoutput_fast.segments.write import write_unpublished
from pgoutput_fast.spark.tasks.tag import Starts
from pgoutput_fast.storage.paths import redacted_uri
from pgoutput_fast.storage.stores import Store, open_store

__all__ = ["SOURCE", "WRITTEN_SCHEMA", "TaskStart", "WriteSegments", "others_write"]

# Tagged payloads do not identify their server and slot. A capture has another source, so it refuses to continue such a
# directory: up to where its slot may be confirmed is unknown.
SOURCE = Source("unknown", "unknown", "unknown")

WRITTEN_SCHEMA = pa.schema([("unpublished", pa.string())])

_MOST_ROWS = 1_000_000


def others_write(store: Store) -> FileExistsError:
    """The error if another process writes into a directory of segments."""
    return FileExistsError(
        f"another process wrote segments into {store} at the same time: make sure that only one process writes there"
    )


_TAGS = [name for name in TAGGED_SCHEMA.names if name != "payload"]


class _Writer:
    """Tags payloads again, to have the state after each segment, and writes segments.

    Args:
        directory: the directory of the segments.
        state: the state before the first payload.
        segment_bytes: minimum bytes of payloads at which a segment is written.
        last_seq: the last ordinal before the first segment here; None if there is none, or if rows may be missing
            after it.
        next_seq: as in WriteSegments.
        new_session: whether a session began after the state.
        quarantine: whether some messages were rejected.
    """

    def __init__(
        self,
        directory: str,
        state: StreamState,
        segment_bytes: int,
        last_seq: int | None,
        next_seq: int | None,
        *,
        quarantine: bool,
        new_session: bool = False,
    ) -> None:
        self._store = open_store(directory)
        self._written = last_seq  # no row is between it and the first one here
        self._next_seq = next_seq
        self._log = CatalogLog(self._store)
        self._native = native_decoder(Options(on_error="quarantine" if quarantine else "raise"), state)
        self._quarantine = quarantine
        # In quarantine: the rows of a message that may have more rows.
        self._held = TAGGED_SCHEMA.empty_table()
        if new_session:
            self._native.start_session()
        self._segment_bytes = segment_bytes
        self._seq = state.next_seq - 1  # of the last message
        self._tagged: list[pa.RecordBatch] = []
        self._rows = self._nbytes = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Adds the next rows. Yields the `unpublished_name` of each segment written.

        Raises:
            DecodeError: for a message that cannot be tagged.
            ValueError: if the tags are not those of the message at this position of the stream.
        """
        if self._quarantine:
            table = pa.concat_tables([self._held, pa.Table.from_batches([rows])])
            last = pc.equal(table.column("seq"), table.column("seq")[-1]) if table.num_rows else None
            if last is not None:
                table, self._held = table.filter(pc.invert(last)), table.filter(last)
            yield from self._add_whole(table)
        else:
            yield from self._add(rows)

    def finish(self) -> Iterator[str]:
        """Writes the last segment. Yields as `add`."""
        yield from self._add_whole(self._held)
        yield from self._write(self._next_seq)

    def _add_whole(self, rows: pa.Table) -> Iterator[str]:
        for batch in whole_messages(rows).combine_chunks().to_batches():
            yield from self._add(batch)

    def _add(self, rows: pa.RecordBatch) -> Iterator[str]:
        while rows.num_rows:
            lengths = pc.binary_length(rows.column("payload")).to_numpy()
            fits = int(np.searchsorted(np.cumsum(lengths), self._segment_bytes - self._nbytes, "right"))
            count = min(max(fits, 1), rows.num_rows, _MOST_ROWS - self._rows)
            self._tag(rows.slice(0, count))
            self._nbytes += int(lengths[:count].sum())
            rows = rows.slice(count)
            if self._nbytes >= self._segment_bytes or self._rows >= _MOST_ROWS or rows.num_rows:
                yield from self._write()

    def _write(self, next_seq: int | None = None) -> Iterator[str]:
        """Writes the waiting rows, if any, as a segment. Yields as `add`.

        Args:
            next_seq: the ordinal with which the stream continues, if messages without rows follow.
        """
        if not self._tagged:
            return
        state = state_of(self._native)
        if next_seq is not None and next_seq > state.next_seq:
            state = StreamState({**(state.values or {}), "next_seq": next_seq}, state.catalog)
        table = pa.Table.from_batches(self._tagged)
        first = None if self._written is None else self._written + 1
        try:
            name = write_unpublished(self._store, table, state, source=SOURCE, log=self._log, first_seq=first)
        except FileNotFoundError as problem:
            if not os.path.isdir(self._store.at("")):
                raise
            raise others_write(self._store) from problem  # it removed what this task was writing
        self._written = self._seq
        self._tagged, self._rows, self._nbytes = [], 0, 0
        yield name

    def _tag(self, rows: pa.RecordBatch) -> None:
        marks = np.flatnonzero(rows.column("kind").to_numpy() == SESSION_MARK)
        edges = [-1, *marks.tolist(), rows.num_rows]
        for mark, end in pairwise(edges):
            if mark >= 0:
                self._native.start_session()
            self._tag_messages(rows.slice(mark + 1, end - mark - 1))

    def _tag_messages(self, rows: pa.RecordBatch) -> None:
        """Tags rows without session marks. Of a Truncate only the first row is the original message."""
        rows = rows.filter(_first_of_each(rows, self._seq))
        if not rows.num_rows:
            return
        lsns = rows.column("lsn").fill_null(0)
        payloads, seqs = rows.column("payload"), rows.column("seq")
        if self._quarantine:
            tagged = tag_in_quarantine(self._native, payloads, lsns, seqs)
        else:
            tagged, _ = self._native.tag([payloads], lsns, seqs)
        again = tagged.filter(pc.invert(_is_mark(tagged)))
        again = again.filter(_first_of_each(again, self._seq))
        if again.select(_TAGS) != rows.select(_TAGS):
            raise ValueError(
                f"the rows from message {rows.column('seq')[0]} on are not what tag() gives after message "
                f"{self._seq}: rows are missing, or they belong to another stream. Pass all rows of a result of tag(), "
                "and with state= the state before the first of them"
            )
        self._seq = rows.column("seq")[-1].as_py()
        self._tagged.append(tagged)
        self._rows += tagged.num_rows


def _is_mark(rows: pa.RecordBatch) -> pa.Array:
    """Whether rows have no message."""
    return pa.array(np.isin(rows.column("kind").to_numpy(), (SESSION_MARK, UNKNOWN_OUTCOME)))


def _first_of_each(rows: pa.RecordBatch, before: int) -> pa.Array:
    """Indices of the first rows of messages. `before` is the ordinal of the previous message."""
    seqs = rows.column("seq").to_numpy()
    return pa.array(np.diff(seqs, prepend=before) != 0)


class TaskStart(NamedTuple):
    """Where a task begins.

    Attributes:
        next_seq: the ordinal of its first message.
        first: its first row, by which its start is found.
        segment_bytes: as in WriteSegments.
    """

    next_seq: int
    first: str
    segment_bytes: int


@dataclass(frozen=True)
class WriteSegments:
    """Tagged payloads, sorted -> segments that are not published yet. Yields their names.

    A Truncate's longest row must come first, a session's mark before its message. With `last_payload`, the task that
    finds that payload yields null.

    Attributes:
        directory: the directory of the segments.
        state: the state before the first row, as JSON.
        reached: the first row has the next ordinal of the state, or a later one up to this: no row is in between. None
            if it may have any later ordinal.
        last_seq: the last ordinal in the directory; -1 if it is empty.
        follows: whether no row is missing between that and the first row here.
        new_session: whether a session began there, which no row shows.
        last_payload: the payload in the directory, if the first rows may already be there.
        next_seq: the ordinal with which the stream continues; None for the one after the last row.
        segment_bytes: minimum bytes of payloads at which a segment is written.
        quarantine: whether some messages were rejected.
        later: where the tasks after the first one begin, in stream order.
        starts: the states there.
    """

    directory: str
    state: str
    reached: int | None
    last_seq: int
    follows: bool
    new_session: bool
    last_payload: bytes | None
    next_seq: int | None
    segment_bytes: int
    quarantine: bool = False
    later: tuple[TaskStart, ...] = ()
    starts: Starts | None = field(default=None, repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if open_store(self.directory).local and not os.path.isdir(self.directory):
            raise FileNotFoundError(
                f"this executor does not see the directory {redacted_uri(self.directory)}: use a directory or a store "
                "that the driver and all executors see at the same path"
            )
        writer, is_same = None, self.last_payload is None
        begin = 0 if is_same else StreamState.from_json(self.state).next_seq
        for batch in batches:
            rows = batch.cast(TAGGED_SCHEMA)
            if not is_same and self._is_same(rows):
                yield _written(None)
                is_same = True
            is_same = is_same or self._is_later(rows)
            if begin:
                rows = rows.filter(pc.greater_equal(rows.column("seq"), begin))
            if not rows.num_rows:
                continue
            if writer is None:
                if not is_same:
                    raise self.other_stream()
                writer = self._writer(rows.column("seq")[0].as_py())
            yield from map(_written, writer.add(rows))
        if not is_same and not self.later:
            raise self.other_stream()
        if writer is not None:
            yield from map(_written, writer.finish())

    def _writer(self, first: int) -> _Writer:
        """The writer of the task whose first row is this message."""
        number = bisect_right(self.later, first, key=lambda each: each.next_seq)
        next_seq = self.next_seq if number == len(self.later) else None
        if number:
            begin, row, segment_bytes = self.later[number - 1]
            assert self.starts is not None
            start = self.starts.at(row)
            assert start is not None
            state = start.state_of(Catalog.from_json(self.starts.catalog))
            assert state is not None
            # If the task before this one ends with messages without rows, the driver notices it.
            return _Writer(
                self.directory, state, segment_bytes, begin - 1, next_seq, quarantine=self.quarantine
            )
        state = StreamState.from_json(self.state)
        self._check_first(first, state)
        return _Writer(
            self.directory,
            state,
            self.segment_bytes,
            self.last_seq if self.follows and self.last_seq >= 0 else None,
            next_seq,
            quarantine=self.quarantine,
            new_session=self.new_session,
        )

    def _is_same(self, rows: pa.RecordBatch) -> bool:
        """Whether the rows have the directory's last message."""
        found = rows.filter(pc.equal(rows.column("seq"), self.last_seq)).column("payload")
        return self.last_payload in found.to_pylist()

    def _is_later(self, rows: pa.RecordBatch) -> bool:
        """Whether the rows are those of a task after the first one, which compares the last message."""
        return bool(self.later and rows.num_rows) and rows.column("seq")[0].as_py() >= self.later[0].next_seq

    def other_stream(self) -> ValueError:
        """The error if the rows do not have the directory's last message."""
        return ValueError(
            f"{redacted_uri(self.directory)} has another message {self.last_seq} than these rows: they belong to "
            "another stream, or rows are missing. Use another directory"
        )

    def _check_first(self, first: int, state: StreamState) -> None:
        reached = first if self.reached is None else self.reached
        if not state.next_seq <= first <= max(reached, state.next_seq):
            raise ValueError(
                f"the first row is message {first}, but {redacted_uri(self.directory)} continues with message "
                f"{state.next_seq}: write what follows there, or write into an empty directory and pass with state= "
                "the state before the first row"
            )


def _written(name: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"unpublished": [name]}, WRITTEN_SCHEMA)
