"""Typed files beside segments: what committed, as plain Parquet, that needs nothing of this package to be read.

A segment's typed files have the transactions whose commit lies in it, wherever their rows lie. They follow from the
segments alone: what a killed process left half done is made again, under the same names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pgoutput_fast.capture.typed_output import TypedOutput
from pgoutput_fast.capture.typed_progress import Progress, read_progress, write_progress
from pgoutput_fast.catalog import Catalog, Relation
from pgoutput_fast.decoder import decode_tagged
from pgoutput_fast.fates import Fates, by_transaction, committed_rows, values_of, without_rolled_back
from pgoutput_fast.held import Due, Held
from pgoutput_fast.limits import PIECE_BYTES
from pgoutput_fast.options import Options
from pgoutput_fast.segment_names import Named, named_segments
from pgoutput_fast.segment_stores import Store
from pgoutput_fast.segments import open_segment, read_segment
from pgoutput_fast.spill import Spiller
from pgoutput_fast.state import StreamState

__all__ = ["TypedFiles"]

_ENDS = list(b"CcKAr")
_CHANGES = list(b"IUDT")
# About so many rows are decoded at a time.
_PIECE_ROWS = 1 << 16
_BEHIND = 1 << 62  # every message


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
        self._held = Held()
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
        self._held = Held()
        self._versions = {}
        self._last_seq = done[-1].last_seq if done else None
        running = open_segment(self._store.at(done[-1].name)).open_txns if done else []
        if running:
            for each in done:
                if each.last_seq >= running[0]:
                    rows = read_segment(self._store.at(each.name))
                    self._learn(rows, self._state(each))
                    self._keep(_changes(rows), _fates(rows), running)

    def _learn(self, rows: pa.Table, state: StreamState) -> None:
        """What the rows of a segment are."""
        found = state.in_order(rows.column("version").unique().drop_null().to_pylist())
        self._versions |= {relation.version: relation for relation in found}

    def _keep(self, changes: pa.Table, fates: Fates, wanted: list[int]) -> None:
        """Changes of some transactions, and what was rolled back of them."""
        txns = values_of(changes, "txn", -1)
        for txn, part in by_transaction(changes, txns, np.isin(txns, wanted)):
            self._held.keep(txn, part)
        for txn in wanted:
            if txn in fates.aborts:
                self._held.roll_back(txn, fates.aborts[txn])
        if self._held.memory > self._options.memory_limit:
            self._held.spill(self._spiller, self._options.memory_limit // 2)

    # ---- a segment -----------------------------------------------------------------------------------------------

    def _make(self, name: str, rows: pa.Table, state: StreamState) -> None:
        self._last_seq = None  # until it is done: what waits may be half gone
        changes, fates, running = _changes(rows), _fates(rows), state.open_txns
        self._learn(rows, state)
        catalog = Catalog(self._versions.values(), state.catalog.types)
        with TypedOutput(self._store, name) as output:
            for piece in self._committed(changes, fates):
                for batch in piece.combine_chunks().to_batches():
                    output.add(decode_tagged(batch, catalog, self._options))
        self._keep(changes, fates, running)
        for txn in self._held.waiting.keys() - set(running):
            self._held.drop(txn)  # aborted, or void
        if not self._held.waiting:
            self._versions = {}
        last_seq = int(values_of(rows, "seq").max())
        write_progress(self._store, Progress(last_seq, state.next_seq))
        self._last_seq = last_seq

    def _committed(self, changes: pa.Table, fates: Fates) -> Iterator[pa.Table]:
        """The changes of transactions that commit in the segment, in the order of the commits, in pieces."""
        chosen = fates.committed & np.isin(fates.txns, list(self._held.waiting))
        columns = (fates.at_seq, fates.txns, fates.commit_lsn, fates.commit_timestamp)
        begin, waiting = 0, np.zeros(2, np.int64)
        for due in sorted(zip(*(each[chosen].tolist() for each in columns), strict=True)):
            at_seq, txn, lsn, timestamp = due
            waiting += self._held.size([txn])
            if waiting[0] <= _PIECE_ROWS and waiting[1] <= PIECE_BYTES:
                continue
            yield from self._several(changes, fates, begin, at_seq)
            self._keep(changes, fates, [txn])
            yield from self._one(Due(txn, at_seq, lsn, timestamp))
            begin, waiting = at_seq + 1, np.zeros(2, np.int64)
        yield from self._several(changes, fates, begin, _BEHIND)

    def _several(self, changes: pa.Table, fates: Fates, begin: int, end: int) -> Iterator[pa.Table]:
        """Transactions whose ends lie between two messages, and of which little waits."""
        txns = fates.txns[fates.committed & (fates.at_seq >= begin) & (fates.at_seq < end)]
        here = changes.filter(pa.array(np.isin(values_of(changes, "txn", -1), txns)))
        waiting = sorted(self._held.waiting.keys() & set(txns.tolist()))
        aborts = self._held.aborts(waiting)
        aborts += [(txn, *abort) for txn, found in fates.aborts.items() for abort in found]
        whole = pa.concat_tables([*self._held.take(waiting), here])
        whole = committed_rows(without_rolled_back(whole, aborts), fates)
        for begin in range(0, whole.num_rows, _PIECE_ROWS):
            yield whole.slice(begin, _PIECE_ROWS)

    def _one(self, due: Due) -> Iterator[pa.Table]:
        """A transaction that waits, bit by bit."""
        self._held.due = (due,)
        while self._held.due:
            tables, whose, aborts = self._held.take_due(_PIECE_ROWS, PIECE_BYTES)
            if tables:
                piece = without_rolled_back(pa.concat_tables(tables), aborts)
                piece = committed_rows(piece, Fates.of_due(whose))
                if piece.num_rows:
                    yield piece


def _changes(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(np.isin(values_of(rows, "kind"), _CHANGES)))


def _fates(rows: pa.Table) -> Fates:
    """What became of transactions in these rows."""
    ends = rows.filter(pa.array(np.isin(values_of(rows, "kind"), _ENDS)))
    return Fates.of_outcomes(decode_tagged(ends, Catalog()).outcomes)
