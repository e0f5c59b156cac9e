"""The third task: files of a table -> the same files without the removed rows, and with the rows that replace some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.rewriting import Found, Numbers, Search, rewritten
from pgoutput_fast.spark.tasks.current.reduce import NetEffect
from pgoutput_fast.spark.tasks.current.scratch import Piece, read_piece
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.columns import in_schema
from pgoutput_fast.tables.data_files import DataFile, NewFiles, Version, candidates
from pgoutput_fast.tables.files import WrittenFile

__all__ = ["RewriteFiles", "Rewritten", "batches_between"]


@dataclass(frozen=True)
class Rewritten:
    """The result of a task.

    Attributes:
        table: the table's qualified name.
        added: the new files.
        removed: the names of the replaced files.
        placed: for each effect, the rows in the new files: their numbers among the rows of the effect.
    """

    table: str
    added: list[WrittenFile]
    removed: list[str]
    placed: list[Numbers]


@dataclass(frozen=True)
class RewriteFiles:
    """Some files of a table -> new files.

    Attributes:
        table: the table's qualified name.
        target: the store with all tables.
        directory: the directory of the table's files in it.
        file_bytes: approximate maximum size of a file.
        key: the columns of the table's key.
        identity: the columns that identify a row.
        schema: its columns after the effect.
        files: the files.
        bounds: the column, the minimum and the maximum values; None if unknown.
        joined: the names of the files to join, even if none of their rows is removed.
        effects: the effects on all keys.
    """

    table: str
    target: str
    directory: str
    file_bytes: int
    key: tuple[str, ...]
    identity: tuple[str, ...]
    schema: pa.Schema
    files: tuple[DataFile, ...]
    bounds: tuple[str, pa.Array, pa.Array] | None
    joined: frozenset[str]
    effects: tuple[NetEffect, ...]

    def __call__(self) -> Rewritten:
        """Returns the new files.

        Raises:
            ValueError: if a row without a key to remove does not exist.
        """
        wanted, places = self._wanted()
        found = self._look(wanted, places)
        rows = _Coming(self.effects, self.schema, [each.comes for each in found.values()])
        done = Rewritten(self.table, [], [], rows.numbers)
        store = open_store(self.target)

        def written(file: DataFile) -> Iterator[pa.Table]:
            return rewritten(store, self._place(file), self.schema, found.get(file.name), rows.take)

        with NewFiles(store, self.directory, self.file_bytes) as files:
            for file in self.files:
                if file.name in found and file.name not in self.joined:
                    files.write(written(file))
                    done.removed.append(file.name)
            short = [file for file in self.files if file.name in self.joined]
            files.write(part for file in short for part in written(file))
            done.removed.extend(file.name for file in short)
            done.added.extend(files.written)
        return done

    def _place(self, file: DataFile) -> str:
        """The name of a file in the store."""
        return f"{self.directory}/{file.name}"

    def _wanted(self) -> tuple[pa.Table, Numbers]:
        """The rows that may be removed from these files, and the numbers of the rows that replace them; -1 for none.

        The rows of all effects are numbered consecutively.
        """
        names = list(self.identity)
        types = pa.schema([self.schema.field(name) for name in names])
        parts, places, begin = [types.empty_table()], [np.empty(0, np.int64)], 0
        low, high = self._range(names[0])
        for effect in self.effects:
            for piece, comes in ((effect.gone, False), (effect.rows, True)):
                if comes and not self.key:
                    continue
                for first, rows in batches_between(piece, names, names[0], low, high):
                    parts.append(rows.select(names).cast(types))
                    numbers = rows.column("").to_numpy()
                    places.append(begin + first + numbers if comes else np.full(len(numbers), -1))
            begin += sum(effect.rows.rows)
        return pa.concat_tables(parts).combine_chunks(), np.concatenate(places)

    def _range(self, name: str) -> tuple[pa.Scalar | None, pa.Scalar | None]:
        """The range of a column's values in these files."""
        if self.bounds is None or self.bounds[0] != name:
            return None, None
        _, lows, highs = self.bounds
        if lows.null_count or highs.null_count or pa.types.is_timestamp(lows.type):
            return None, None
        return pc.min(lows), pc.max(highs)

    def _look(self, wanted: pa.Table, comes: Numbers) -> dict[str, Found]:
        """{file: its rows to remove}."""
        if not wanted.num_rows:
            return {}
        search = Search(wanted, comes, keys=bool(self.key))
        store, looked = open_store(self.target), {}
        for file in self._candidates(wanted):
            found = search.look_into(store, self._place(file), self.schema)
            if found is not None:
                looked[file.name] = found
        search.check_all_gone(f"the table in {store}/{self.directory}")
        return looked

    def _candidates(self, wanted: pa.Table) -> list[DataFile]:
        none = pa.nulls(len(self.files))

        def bounds(column: str) -> tuple[pa.Array, pa.Array]:
            if self.bounds is None or self.bounds[0] != column:
                return none, none
            return self.bounds[1], self.bounds[2]

        version = Version(0, 0, self.schema, self.files, bounds)
        return [self.files[k] for k in candidates(version, wanted)]


class _Coming:
    """The rows of effects that are placed in files.

    Args:
        effects: the effects.
        schema: the columns of the table.
        comes: for each file, the numbers of the rows that replace others; -1 for none.

    Attributes:
        numbers: for each effect the numbers of the rows.
    """

    def __init__(
        self,
        effects: Sequence[NetEffect],
        schema: pa.Schema,
        comes: Iterable[Numbers],
    ) -> None:
        wanted = np.sort(np.concatenate([np.empty(0, np.int64), *comes]))
        self._wanted = wanted[wanted >= 0]
        self.numbers: list[Numbers] = []
        parts, begin = [schema.empty_table()], 0
        for effect in effects:
            end = begin + sum(effect.rows.rows)
            first, last = np.searchsorted(self._wanted, [begin, end])
            self.numbers.append(self._wanted[first:last] - begin)
            parts += list(_rows_by_number(effect.rows, self.numbers[-1], schema))
            begin = end
        self._rows = pa.concat_tables(parts).combine_chunks()

    def take(self, numbers: Numbers) -> pa.Table:
        """The rows with these numbers."""
        return self._rows.take(pa.array(np.searchsorted(self._wanted, numbers)))


def _rows_by_number(piece: Piece, numbers: Numbers, schema: pa.Schema) -> Iterator[pa.Table]:
    begin = 0
    for k, count in enumerate(piece.rows):
        first, last = np.searchsorted(numbers, [begin, begin + count])
        if last > first:
            (batch,) = read_piece(piece, batches=[k])
            rows = pa.Table.from_batches([batch]).take(pa.array(numbers[first:last] - begin))
            yield in_schema(rows, schema)
        begin += count


def batches_between(
    piece: Piece, names: Sequence[str], column: str, low: pa.Scalar | None, high: pa.Scalar | None
) -> Iterator[tuple[int, pa.Table]]:
    """Yields (number of the batch's first row, rows within the bounds) of each batch with such rows.

    Args:
        piece: the file.
        names: the columns to read, among them `column`.
        column: the first column of the file's bounds.
        low, high: the minimum and the maximum value; None for no limit.

    The column with the empty name contains the number of each row in its batch.
    """
    begin = 0
    for k, count in enumerate(piece.rows):
        least, most = piece.bounds[0][k], piece.bounds[1][k]
        behind = high is not None and least.is_valid and pc.greater(least, high).as_py()
        before = low is not None and most.is_valid and pc.less(most, low).as_py()
        if not behind and not before:
            (batch,) = read_piece(piece, names, [k])
            rows = pa.Table.from_batches([batch]).append_column("", pa.array(np.arange(count)))
            if least.is_valid and low is not None:
                rows = rows.filter(pc.greater_equal(rows[column], low))
            if least.is_valid and high is not None:
                rows = rows.filter(pc.less_equal(rows[column], high))
            if rows.num_rows:
                yield begin, rows
        begin += count
