"""The reorder buffer: tagged rows that wait for their commit, by transaction, in memory and spill files.

It also has the ended transactions whose rows are not yet all in the output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pgoutput_fast._core.tagging.waiting import WaitingRows
from pgoutput_fast.transactions.spill import Spiller, SpillFile

__all__ = [
    "Due",
    "InMemory",
    "OnDisk",
    "ReorderBuffer",
    "Rows",
    "Waiting",
    "as_batch",
    "as_table",
    "read_tables",
]

# Rows of a transaction: native tagged rows, or a table with TAGGED_SCHEMA.
Rows: TypeAlias = WaitingRows | pa.Table

# Smaller pieces of a transaction are merged up to this many rows: thousands of pieces cost more than their rows.
_SMALL_ROWS = 8192
# Size of a row without its payload: nine int64 values, a kind, an offset and some bits.
_ROW_BYTES = 80
# Limits of a batch in a spill file, the unit of reads.
_BATCH_ROWS = 1 << 15
_BATCH_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class InMemory:
    """Rows of a transaction in memory, and their size in bytes."""

    source: Rows
    nbytes: int

    @property
    def rows(self) -> int:
        return self.source.rows if isinstance(self.source, WaitingRows) else int(self.source.num_rows)

    @property
    def table(self) -> pa.Table:
        return as_table(self.source)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """The batches of a spill file from `batch` on. In a state from JSON, `file` is only a description."""

    file: SpillFile | dict[str, Any]
    batch: int

    @property
    def opened(self) -> SpillFile:
        assert isinstance(self.file, SpillFile)
        return self.file

    @property
    def rows(self) -> int:
        return self.opened.rows

    @property
    def nbytes(self) -> int:
        return self.opened.nbytes


@dataclass(frozen=True, slots=True)
class Waiting:
    """One transaction: its rows in stream order, and (subxid, at_seq) of its rolled-back subtransactions."""

    pieces: tuple[InMemory | OnDisk, ...] = ()
    rolled_back: tuple[tuple[int, int], ...] = ()

    @property
    def memory(self) -> int:
        return sum(piece.nbytes for piece in self.pieces if isinstance(piece, InMemory))


@dataclass(frozen=True, slots=True)
class Due:
    """An ended transaction whose rows are next in the output: as changes, or as rejects if it was lost.

    `given` is the number of its changes already in the output. `message_lsn` is the LSN of the logical message after
    the last of them; 0 for none.
    """

    txn: int
    at_seq: int
    commit_lsn: int
    commit_timestamp: int
    lost: bool = False
    given: int = 0
    message_lsn: int = 0


class ReorderBuffer:
    """The reorder buffer. A call works on a copy; copies share objects, which are immutable.

    Attributes:
        waiting: waiting rows by transaction key.
        due: ended transactions whose rows are next in the output, in order of their ends.
        memory: size of the rows in memory, in bytes.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, Waiting] = {}
        self.due: tuple[Due, ...] = ()
        self.memory = 0
        # Transactions with rows that share the memory of the current call.
        self._shared: set[int] = set()
        self._on_save: Callable[[Iterable[SpillFile]], None] | None = None

    def __bool__(self) -> bool:
        return bool(self.waiting or self.due)

    def copy(self) -> ReorderBuffer:
        other = ReorderBuffer()
        other.waiting, other.due, other.memory = dict(self.waiting), self.due, self.memory
        other._shared = set(self._shared)
        return other

    # ---- in -------------------------------------------------------------------------------------------------------

    def keep(self, txn: int, rows: Rows) -> None:
        """Appends rows of a transaction.

        A table must own its memory. WaitingRows may share the memory of the call until `end_call`.
        """
        before = self.waiting.get(txn, Waiting())
        if isinstance(rows, WaitingRows):
            self._shared.add(txn)
        pieces: list[InMemory | OnDisk] = [*before.pieces, _in_memory(rows)]
        if not isinstance(rows, WaitingRows):
            _join_last(pieces)
        self._put(txn, replace(before, pieces=tuple(pieces)))

    def end_call(self) -> None:
        """Copies rows that share the call's memory, which the caller may change and which may be much larger."""
        for txn in self._shared & self.waiting.keys():
            waiting = self.waiting[txn]
            pieces: list[InMemory | OnDisk] = []
            for piece in waiting.pieces:
                source = piece.source if isinstance(piece, InMemory) else None
                if isinstance(source, WaitingRows) and source.is_shared:
                    pieces.append(_in_memory(source.copied()))
                    _join_last(pieces)
                else:
                    pieces.append(piece)
            self._put(txn, replace(waiting, pieces=tuple(pieces)))
        self._shared = set()

    def roll_back(self, txn: int, aborts: Iterable[tuple[int, int]]) -> None:
        """Records (subxid, at_seq) of rolled-back subtransactions.

        Their rows before at_seq are dropped when the transaction ends.
        """
        if txn in self.waiting:
            before = self.waiting[txn]
            last = dict(before.rolled_back)
            for subxid, at_seq in aborts:
                last[subxid] = max(at_seq, last.get(subxid, at_seq))
            self.waiting[txn] = replace(before, rolled_back=tuple(sorted(last.items())))

    def drop(self, txn: int) -> None:
        self._put(txn, None)

    def _put(self, txn: int, waiting: Waiting | None) -> None:
        before = self.waiting.get(txn)
        self.memory += (waiting.memory if waiting else 0) - (before.memory if before else 0)
        if waiting is not None:
            self.waiting[txn] = waiting
        elif before is not None:
            del self.waiting[txn]

    # ---- out ------------------------------------------------------------------------------------------------------

    def size(self, txns: Iterable[int]) -> tuple[int, int]:
        """Upper bound of the size of these transactions, as (rows, bytes)."""
        pieces = [piece for txn in txns if txn in self.waiting for piece in self.waiting[txn].pieces]
        return sum(piece.rows for piece in pieces), sum(piece.nbytes for piece in pieces)

    def aborts(self, txns: Iterable[int]) -> list[tuple[int, int, int]]:
        """(txn, subxid, at_seq) of the rolled-back subtransactions of these transactions."""
        return [(txn, *each) for txn in txns if txn in self.waiting for each in self.waiting[txn].rolled_back]

    def are_tagged(self, txns: Iterable[int]) -> bool:
        """Whether all rows of these transactions are native tagged rows, and none was rolled back."""
        found = [self.waiting[txn] for txn in txns if txn in self.waiting]
        return not any(each.rolled_back for each in found) and all(
            isinstance(piece, InMemory) and isinstance(piece.source, WaitingRows)
            for each in found
            for piece in each.pieces
        )

    def take(self, txns: Iterable[int]) -> list[pa.Table]:
        """Removes these transactions from the buffer and returns all of their rows."""
        return [as_table(rows) for rows in self.take_rows(txns)]

    def take_rows(self, txns: Iterable[int]) -> list[Rows]:
        """As `take`, without a conversion of native tagged rows to tables."""
        found: list[Rows] = []
        for txn in txns:
            found += self.rows_of(txn)
            self.drop(txn)
        return found

    def rows_of(self, txn: int) -> list[Rows]:
        """All rows of a transaction."""
        found: list[Rows] = []
        if txn in self.waiting:
            for piece in self.waiting[txn].pieces:
                found += [piece.source] if isinstance(piece, InMemory) else read_tables(piece)
        return found

    def take_due(
        self, most_rows: int, most_bytes: int
    ) -> tuple[list[tuple[Rows, Due]], list[Due], list[tuple[int, int, int]]]:
        """Takes the next rows of `due` until there are `most_rows` rows or `most_bytes` bytes.

        Returns:
            (rows with their transactions, these transactions, (txn, subxid, at_seq) of their rolled-back
            subtransactions).
        """
        found: list[tuple[Rows, Due]] = []
        transactions: list[Due] = []
        aborts: list[tuple[int, int, int]] = []
        done = rows = nbytes = 0
        for due in self.due:
            if rows >= most_rows or nbytes >= most_bytes:
                break
            transactions.append(due)
            aborts += self.aborts([due.txn])
            pieces = list(self.waiting[due.txn].pieces) if due.txn in self.waiting else []
            while pieces and rows < most_rows and nbytes < most_bytes:
                taken, rest = _first(pieces[0])
                pieces[:1] = rest
                found.append((taken.source, due))
                rows, nbytes = rows + taken.rows, nbytes + taken.nbytes
            if pieces:
                self._put(due.txn, replace(self.waiting[due.txn], pieces=tuple(pieces)))
                break
            self.drop(due.txn)
            done += 1
        self.due = self.due[done:]
        return found, transactions, aborts

    # ---- files ----------------------------------------------------------------------------------------------------

    def spill(self, spiller: Spiller, most: int) -> None:
        """Spills rows to files, the largest transactions first, until at most `most` bytes are in memory."""
        by_size = sorted(((waiting.memory, txn) for txn, waiting in self.waiting.items()), reverse=True)
        for memory, txn in by_size:
            if self.memory <= most or memory == 0:
                break
            waiting = self.waiting[txn]
            files = [piece for piece in waiting.pieces if isinstance(piece, OnDisk)]
            rows = (piece.table for piece in waiting.pieces if isinstance(piece, InMemory))
            file = spiller.write(txn, _batches(rows))
            self._put(txn, replace(waiting, pieces=(*files, OnDisk(file, 0))))

    @property
    def files(self) -> list[SpillFile]:
        return [
            piece.opened
            for waiting in self.waiting.values()
            for piece in waiting.pieces
            if isinstance(piece, OnDisk)
        ]

    def names(self) -> list[str]:
        """Names of the spill files that a saved state would refer to."""
        names = [
            os.path.basename(file.path) if isinstance(file, SpillFile) else str(file["name"])
            for waiting in self.waiting.values()
            for file in (piece.file for piece in waiting.pieces if isinstance(piece, OnDisk))
            if isinstance(file, dict) or file.durable
        ]
        return sorted(names)

    def open_for(self, spiller: Spiller) -> ReorderBuffer:
        """A copy for another decoder, with its spill files opened.

        Raises:
            SpillError: for a file that is missing or damaged.
        """
        other = self.copy()
        for txn, waiting in self.waiting.items():
            other._put(
                txn, replace(waiting, pieces=tuple(_opened(piece, spiller) for piece in waiting.pieces))
            )
        spiller.resumed(other.files)
        return other

    # ---- saved states ---------------------------------------------------------------------------------------------

    def snapshot(self, spiller: Spiller) -> ReorderBuffer:
        """A copy for a state. When the state is saved, its spill files are kept."""
        other = self.copy()
        other._on_save = spiller.saved
        return other

    def note_saved(self) -> None:
        """Marks a state with this buffer as saved: a decoder may continue from it later."""
        if self._on_save is not None:
            self._on_save(self.files)


def as_batch(rows: WaitingRows | pa.RecordBatch) -> pa.RecordBatch:
    """The rows as a batch with TAGGED_SCHEMA."""
    return rows.batch() if isinstance(rows, WaitingRows) else rows


def as_table(rows: Rows) -> pa.Table:
    """The rows as a table with TAGGED_SCHEMA."""
    return pa.Table.from_batches([rows.batch()]) if isinstance(rows, WaitingRows) else rows


def _in_memory(rows: Rows) -> InMemory:
    if isinstance(rows, WaitingRows):
        return InMemory(rows, rows.nbytes + _ROW_BYTES * rows.rows)
    return InMemory(rows, rows.column("payload").nbytes + _ROW_BYTES * rows.num_rows)


def _opened(piece: InMemory | OnDisk, spiller: Spiller) -> InMemory | OnDisk:
    """The piece for another decoder, which cannot read native rows of this one."""
    if isinstance(piece, OnDisk):
        return OnDisk(spiller.find(piece.file), piece.batch) if isinstance(piece.file, dict) else piece
    return _in_memory(piece.table) if isinstance(piece.source, WaitingRows) else piece


def _join_last(pieces: list[InMemory | OnDisk]) -> None:
    """Merges the last pieces as long as they are small."""
    while len(pieces) > 1 and _to_be_joined(pieces[-2], pieces[-1]):
        first, second = (piece.source for piece in pieces[-2:] if isinstance(piece, InMemory))
        if isinstance(first, WaitingRows) and isinstance(second, WaitingRows):
            pieces[-2:] = [_in_memory(first.joined(second))]
        else:
            tables = [as_table(first), as_table(second)]
            pieces[-2:] = [_in_memory(pa.concat_tables(tables).combine_chunks())]


def _to_be_joined(a: InMemory | OnDisk, b: InMemory | OnDisk) -> bool:
    return (
        isinstance(a, InMemory)
        and isinstance(b, InMemory)
        and a.rows <= 2 * b.rows
        and a.rows + b.rows <= _SMALL_ROWS
        and a.nbytes + b.nbytes <= _BATCH_BYTES
    )


def _first(piece: InMemory | OnDisk) -> tuple[InMemory, list[InMemory | OnDisk]]:
    """(the rows of one read, the rest of the piece)."""
    if isinstance(piece, InMemory):
        return piece, []
    file = piece.opened
    table = pa.Table.from_batches([file.read(piece.batch)])
    rest: list[InMemory | OnDisk] = [OnDisk(file, piece.batch + 1)] if piece.batch + 1 < file.batches else []
    return InMemory(table, table.nbytes), rest


def read_tables(piece: InMemory | OnDisk) -> list[pa.Table]:
    """All rows of a piece."""
    if isinstance(piece, InMemory):
        return [piece.table]
    return [pa.Table.from_batches([batch]) for batch in piece.opened.read_from(piece.batch)]


def _batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """The rows of the tables in batches of moderate size."""
    group: list[pa.Table] = []
    rows = nbytes = 0
    for table in tables:
        # Merging large tables would copy them needlessly.
        large = max(rows, table.num_rows) >= _SMALL_ROWS
        if group and (large or rows + table.num_rows > _BATCH_ROWS or nbytes + table.nbytes > _BATCH_BYTES):
            yield from _split(pa.concat_tables(group))
            group, rows, nbytes = [], 0, 0
        group.append(table)
        rows, nbytes = rows + table.num_rows, nbytes + table.nbytes
    yield from _split(pa.concat_tables(group))


def _split(table: pa.Table) -> Iterator[pa.RecordBatch]:
    half = _middle(table) if table.num_rows > _BATCH_ROWS or table.nbytes > _BATCH_BYTES else 0
    if 0 < half < table.num_rows:
        yield from _split(table.slice(0, half))
        yield from _split(table.slice(half))
    else:
        yield from table.combine_chunks().to_batches()


def _middle(table: pa.Table) -> int:
    """Index of a row near the middle at which to split. The rows of one Truncate stay together."""
    seqs = table.column("seq").to_numpy()
    half = len(seqs) // 2
    return int(np.searchsorted(seqs, seqs[half])) or int(np.searchsorted(seqs, seqs[half], "right"))
