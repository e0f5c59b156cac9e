"""Typed files beside segments: what committed, as plain Parquet, that needs nothing of this package to be read.

A segment's typed files have the transactions whose commit lies in it, wherever their rows lie. They follow from the
segments alone: what a killed process left half done is made again, under the same names.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.committed.outcomes import Outcomes, values_of
from pgoutput_fast.committed.release import Releaser
from pgoutput_fast.committed.reorder_buffer import ReorderBuffer
from pgoutput_fast.committed.spill import Spiller
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.mirror.parquet.output import TypedOutput
from pgoutput_fast.mirror.parquet.progress import Progress, read_progress, write_progress
from pgoutput_fast.protocol.kinds import CHANGES, OUTCOMES
from pgoutput_fast.protocol.limits import PIECE_BYTES
from pgoutput_fast.schema.options import Options
from pgoutput_fast.segments.names import Named, named_segments
from pgoutput_fast.segments.segment import open_segment, read_segment
from pgoutput_fast.storage.stores import Store

__all__ = ["TypedFiles"]

# About so many rows are decoded at a time.
_PIECE_ROWS = 1 << 16


class TypedFiles:
    """Makes typed files of segments, in their order.

    Args:
        store: of the segments.
        options: how to decode. Rows of open transactions wait in memory up to `memory_limit`, then in files in
            `spill_directory`.
    """

    def __init__(self, store: Store, options: Options) -> None:
        self._store = store
        self._options = dataclasses.replace(options, transactions="as_sent")
        self._spiller = Spiller(None if options.spill_directory is None else str(options.spill_directory))
        self._reorder_buffer = ReorderBuffer()
        # Of what waits and of the segment at hand: a stream may know many more.
        self._versions: dict[int, Relation] = {}
        self._last_seq: int | None = None

    def catch_up(self) -> None:
        """Makes the files of all segments that have none.

        Raises:
            ValueError: if segments are gone that there are no typed files of, or for one that is damaged.
            OSError: if a file cannot be written; nothing is lost, it is made the next time.
        """
        segments, progress = named_segments(self._store), read_progress(self._store)
        if progress is None:
            done: list[Named] = []
        else:
            done = [each for each in segments if each.last_seq <= progress.last_seq]
            if not segments or segments[-1].last_seq < progress.last_seq:
                raise ValueError(
                    f"there are typed files up to message {progress.last_seq}, but not so many segments: they are of "
                    "another capture"
                )
            if segments[0].first_seq > progress.next_seq:
                raise ValueError(
                    f"there are typed files up to message {progress.last_seq}, but the segments begin at message "
                    f"{segments[0].first_seq}: what committed between is lost to them"
                )
        self._resume(done)
        for each in segments[len(done) :]:
            self._make(each.name, read_segment(self._store.at(each.name)), self._state(each))

    def follow(self, name: str, rows: pa.Table, state: StreamState, before: int | None) -> None:
        """Makes the files of a segment that was just written.

        Args:
            name: the segment's.
            rows: its rows, in stream order.
            state: behind it.
            before: ordinal of the last message in the segment before it; None if it is the first.

        Raises:
            ValueError, OSError: as `catch_up`.
        """
        if self._last_seq != before:
            self.catch_up()  # somebody else wrote segments meanwhile
        else:
            self._make(name, rows, state)

    def _state(self, segment: Named) -> StreamState:
        return open_segment(self._store.at(segment.name)).state

    # ---- what waits ----------------------------------------------------------------------------------------------

    def _resume(self, done: list[Named]) -> None:
        """What the segments that have typed files already hold of transactions that are open behind them."""
        self._reorder_buffer = ReorderBuffer()
        self._versions = {}
        self._last_seq = done[-1].last_seq if done else None
        running = open_segment(self._store.at(done[-1].name)).open_txns if done else []
        if running:
            for each in done:
                if each.last_seq >= running[0]:
                    rows = read_segment(self._store.at(each.name))
                    self._learn(rows, self._state(each))
                    self._releaser().keep(_changes(rows), _fates(rows), running)

    def _learn(self, rows: pa.Table, state: StreamState) -> None:
        """What the rows of a segment are."""
        found = state.in_order(rows.column("version").unique().drop_null().to_pylist())
        self._versions |= {relation.version: relation for relation in found}

    def _releaser(self) -> Releaser:
        return Releaser(
            self._reorder_buffer, self._spiller, self._options.memory_limit, _PIECE_ROWS, PIECE_BYTES
        )

    # ---- a segment -----------------------------------------------------------------------------------------------

    def _make(self, name: str, rows: pa.Table, state: StreamState) -> None:
        self._last_seq = None  # until it is done: what waits may be half gone
        changes, fates, running = _changes(rows), _fates(rows), state.open_txns
        self._learn(rows, state)
        catalog = Catalog(self._versions.values(), state.catalog.types)
        releaser = self._releaser()
        with TypedOutput(self._store, name) as output:
            for piece in releaser.committed(changes, fates):
                for batch in piece.combine_chunks().to_batches():
                    output.add(decode_tagged(batch, catalog, self._options))
        releaser.keep_open(changes, fates, running)
        if not self._reorder_buffer.waiting:
            self._versions = {}
        last_seq = int(values_of(rows, "seq").max())
        write_progress(self._store, Progress(last_seq, state.next_seq))
        self._last_seq = last_seq


def _changes(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(np.isin(values_of(rows, "kind"), CHANGES)))


def _fates(rows: pa.Table) -> Outcomes:
    """What became of transactions in these rows."""
    ends = rows.filter(pa.array(np.isin(values_of(rows, "kind"), OUTCOMES)))
    return Outcomes.of_outcomes(decode_tagged(ends, Catalog()).outcomes)
