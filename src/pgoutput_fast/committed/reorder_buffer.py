"""The reorder buffer: tagged rows that wait for their commit, by transaction, in memory and in spill files.

It also has the transactions that have ended and whose rows are not yet all in the output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_fast.committed.spill import Spiller, SpillFile

__all__ = ["Due", "InMemory", "OnDisk", "ReorderBuffer", "Waiting", "read_tables"]

# Smaller pieces of a transaction are joined up to this many rows: thousands of pieces cost more than their rows.
_SMALL_ROWS = 8192
# Bounds of a batch in a spill file, and so of one read.
_BATCH_ROWS = 1 << 15
_BATCH_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class InMemory:
    """Rows of a transaction in memory, and their size in bytes."""

    table: pa.Table
    nbytes: int

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """The batches of a spill file from `batch` on. In a state from JSON, `file` only describes the file."""

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
    """One transaction: its rows in stream order, and (subxid, at_seq) of each subtransaction that was rolled back."""

    pieces: tuple[InMemory | OnDisk, ...] = ()
    rolled_back: tuple[tuple[int, int], ...] = ()

    @property
    def memory(self) -> int:
        return sum(piece.nbytes for piece in self.pieces if isinstance(piece, InMemory))


@dataclass(frozen=True, slots=True)
class Due:
    """A transaction that has ended and whose rows are next in the output: as changes, or as rejects if it was lost."""

    txn: int
    at_seq: int
    commit_lsn: int
    commit_timestamp: int
    lost: bool = False


class ReorderBuffer:
    """The reorder buffer. A call works on a copy; copies share objects, and a shared object is never changed.

    Attributes:
        waiting: rows that wait, by transaction key.
        due: transactions that have ended and whose rows are next in the output, in the order of their ends.
        memory: size of the rows in memory, in bytes.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, Waiting] = {}
        self.due: tuple[Due, ...] = ()
        self.memory = 0
        self._on_save: Callable[[Iterable[SpillFile]], None] | None = None

    def __bool__(self) -> bool:
        return bool(self.waiting or self.due)

    def copy(self) -> ReorderBuffer:
        other = ReorderBuffer()
        other.waiting, other.due, other.memory = dict(self.waiting), self.due, self.memory
        return other

    # ---- in -------------------------------------------------------------------------------------------------------

    def keep(self, txn: int, rows: pa.Table) -> None:
        """Adds rows of a transaction behind its other rows. The rows must have memory of their own."""
        before = self.waiting.get(txn, Waiting())
        pieces: list[InMemory | OnDisk] = [*before.pieces, _in_memory(rows)]
        while len(pieces) > 1 and _to_be_joined(pieces[-2], pieces[-1]):
            both = [piece.table for piece in pieces[-2:] if isinstance(piece, InMemory)]
            pieces[-2:] = [_in_memory(pa.concat_tables(both).combine_chunks())]
        self._put(txn, replace(before, pieces=tuple(pieces)))

    def roll_back(self, txn: int, aborts: Iterable[tuple[int, int]]) -> None:
        """Notes (subxid, at_seq) of subtransactions that were rolled back.

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
        """Upper bounds of (rows, bytes) of these transactions."""
        pieces = [piece for txn in txns if txn in self.waiting for piece in self.waiting[txn].pieces]
        return sum(piece.rows for piece in pieces), sum(piece.nbytes for piece in pieces)

    def aborts(self, txns: Iterable[int]) -> list[tuple[int, int, int]]:
        """(txn, subxid, at_seq) of the subtransactions that were rolled back in these transactions."""
        return [(txn, *each) for txn in txns if txn in self.waiting for each in self.waiting[txn].rolled_back]

    def take(self, txns: Iterable[int]) -> list[pa.Table]:
        """Removes these transactions from the buffer and returns all of their rows."""
        tables = []
        for txn in txns:
            if txn in self.waiting:
                for piece in self.waiting[txn].pieces:
                    tables += read_tables(piece)
                self.drop(txn)
        return tables

    def take_due(
        self, most_rows: int, most_bytes: int
    ) -> tuple[list[pa.Table], list[Due], list[tuple[int, int, int]]]:
        """Takes the next rows of `due` until there are `most_rows` rows or `most_bytes` bytes.

        Returns:
            (tables of rows, the transactions that they belong to, (txn, subxid, at_seq) of what was rolled back in
            these).
        """
        tables: list[pa.Table] = []
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
                table, rest = _first(pieces[0])
                pieces[:1] = rest
                tables.append(table)
                rows, nbytes = rows + table.num_rows, nbytes + table.nbytes
            if pieces:
                self._put(due.txn, replace(self.waiting[due.txn], pieces=tuple(pieces)))
                break
            self.drop(due.txn)
            done += 1
        self.due = self.due[done:]
        return tables, transactions, aborts

    # ---- files ----------------------------------------------------------------------------------------------------

    def spill(self, spiller: Spiller, most: int) -> None:
        """Moves rows to files until at most `most` bytes are in memory. The largest transactions come first."""
        by_size = sorted(((waiting.memory, txn) for txn, waiting in self.waiting.items()), reverse=True)
        for memory, txn in by_size:
            if self.memory <= most or memory == 0:
                break
            waiting = self.waiting[txn]
            files = [piece for piece in waiting.pieces if isinstance(piece, OnDisk)]
            rows = [piece.table for piece in waiting.pieces if isinstance(piece, InMemory)]
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
        """Names of the spill files that a saved state would name."""
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
            pieces = tuple(
                OnDisk(spiller.find(piece.file), piece.batch)
                if isinstance(piece, OnDisk) and isinstance(piece.file, dict)
                else piece
                for piece in waiting.pieces
            )
            other.waiting[txn] = replace(waiting, pieces=pieces)
        spiller.resumed(other.files)
        return other

    # ---- a state's part -------------------------------------------------------------------------------------------

    def snapshot(self, spiller: Spiller) -> ReorderBuffer:
        """A copy for a state. When the state is saved, the spill files that it names stay."""
        other = self.copy()
        other._on_save = spiller.saved
        return other

    def note_saved(self) -> None:
        """Notes that a state with this buffer is saved: a decoder may continue from it later."""
        if self._on_save is not None:
            self._on_save(self.files)


def _in_memory(rows: pa.Table) -> InMemory:
    # Each row has, beside its payload, nine int64 values, a kind, an offset and some bits.
    return InMemory(rows, rows.column("payload").nbytes + 80 * rows.num_rows)


def _to_be_joined(a: InMemory | OnDisk, b: InMemory | OnDisk) -> bool:
    return (
        isinstance(a, InMemory)
        and isinstance(b, InMemory)
        and a.rows <= 2 * b.rows
        and a.rows + b.rows <= _SMALL_ROWS
        and a.nbytes + b.nbytes <= _BATCH_BYTES
    )


def _first(piece: InMemory | OnDisk) -> tuple[pa.Table, list[InMemory | OnDisk]]:
    """(the rows of one read of a piece, the rest of the piece)."""
    if isinstance(piece, InMemory):
        return piece.table, []
    file = piece.opened
    table = pa.Table.from_batches([file.read(piece.batch)])
    return table, [OnDisk(file, piece.batch + 1)] if piece.batch + 1 < file.batches else []


def read_tables(piece: InMemory | OnDisk) -> list[pa.Table]:
    """All rows of a piece."""
    if isinstance(piece, InMemory):
        return [piece.table]
    return [pa.Table.from_batches([batch]) for batch in piece.opened.read_from(piece.batch)]


def _batches(tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    """The rows of the tables in batches that are neither large nor needlessly small."""
    group: list[pa.Table] = []
    for table in tables:
        size = sum(each.num_rows for each in group), sum(each.nbytes for each in group)
        if group and (size[0] + table.num_rows > _BATCH_ROWS or size[1] + table.nbytes > _BATCH_BYTES):
            yield from _split(pa.concat_tables(group))
            group = []
        group.append(table)
    yield from _split(pa.concat_tables(group))


def _split(table: pa.Table) -> Iterator[pa.RecordBatch]:
    half = _middle(table) if table.num_rows > _BATCH_ROWS or table.nbytes > _BATCH_BYTES else 0
    if 0 < half < table.num_rows:
        yield from _split(table.slice(0, half))
        yield from _split(table.slice(half))
    else:
        yield from table.combine_chunks().to_batches()


def _middle(table: pa.Table) -> int:
    """The row near the middle where to cut rows in stream order. The rows of one Truncate stay together."""
    seqs = table.column("seq").to_numpy()
    half = len(seqs) // 2
    return int(np.searchsorted(seqs, seqs[half])) or int(np.searchsorted(seqs, seqs[half], "right"))
