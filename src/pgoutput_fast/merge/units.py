"""Units of work of a merge: files to change, and new rows to write. They run in this process or on other machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.key_files import KeyFiles
from pgoutput_fast.merge.search import Numbers, Removed, Search
from pgoutput_fast.merge.stored_effect import StoredEffect, in_key_order, rows_at, rows_between
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.data_files import (
    NewFiles,
    candidates,
    least_and_largest,
    row_groups,
    rows_that_stay,
    stays_without,
)
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.table import DataFile, Version

__all__ = ["JoinUnit", "MergedTable", "NewRowsUnit", "RewriteUnit", "Unit", "UnitResult"]


@dataclass(frozen=True)
class MergedTable:
    """What a unit knows of its table.

    Attributes:
        name: names the table, for errors.
        directory: the directory of its files in its store.
        key: the columns of its key.
        identity: the columns that identify a row.
        schema: its columns after the effects.
    """

    name: str
    directory: str
    key: tuple[str, ...]
    identity: tuple[str, ...]
    schema: pa.Schema


@dataclass(frozen=True)
class UnitResult:
    """What a unit did.

    Attributes:
        added: the new files.
        removed: the names of the files that they replace.
        placed: for each effect the numbers of the rows that are in the new files; None for all rows of all effects.
        deleted: {name of another file: the positions of the rows to mark}.
        counts: of a `JoinUnit`: how many rows of each of its files are in the new ones.
    """

    added: Sequence[WrittenFile]
    removed: Sequence[str] = ()
    placed: Sequence[Numbers] | None = None
    deleted: Mapping[str, Numbers] = field(default_factory=dict)
    counts: Sequence[int] = ()


@dataclass(frozen=True)
class RewriteUnit:
    """Some files of a table -> the same files without the removed rows, and with the rows that replace some.

    Or, in files of `marked`, the positions of the removed rows. Then the files stay, and the rows are marked, unless
    these are all rows of a file.

    Attributes:
        table: the table.
        version: the files, and their bounds.
        joined: the names of the files to join, even if none of their rows is removed.
        effects: the effects on all keys.
        adds: whether the new rows that replace none are written with the joined files.
        marked: the names of the files in which rows may be marked.
    """

    table: MergedTable
    version: Version
    joined: frozenset[str]
    effects: tuple[StoredEffect, ...]
    adds: bool
    marked: frozenset[str] = frozenset()

    def run(self, store: Store, files: NewFiles, keys: KeyFiles | None = None) -> UnitResult:
        """Writes new files.

        Args:
            store: the store with the table.
            files: writes them.
            keys: the sorted keys of the table's files, if this machine has them.

        Raises:
            ValueError: if a row without a key to remove does not exist.
            FileNotFoundError: if a file of the table is gone.
        """
        earlier = len(files.written)
        removed = self._search(store, keys)
        deleted = {
            file.name: removed[file.name].rows for file in self.version.files if self._marks(file, removed)
        }
        for name in deleted:
            del removed[name]
        placed = _by_effect(self.effects, [each.replacements for each in removed.values()])
        take = _replacements(self.effects, placed, self.table.schema)

        def rewritten(file: DataFile) -> Iterator[pa.Table]:
            return _rewritten(store, self.table, file, removed.get(file.name), take)

        joined = [file for file in self.version.files if file.name in self.joined]
        changed = [
            file for file in self.version.files if file.name in removed and file.name not in self.joined
        ]
        for file in changed:
            files.write(rewritten(file))
        new = _new_rows(self.table, self.effects, placed) if self.adds else ()
        files.write(chain(chain.from_iterable(map(rewritten, joined)), new))
        names = [file.name for file in (*changed, *joined)]
        return UnitResult(files.written[earlier:], names, None if self.adds else placed, deleted)

    def _marks(self, file: DataFile, removed: Mapping[str, Removed]) -> bool:
        """Whether the removed rows of a file are marked. Files of other programs may lack a count of rows."""
        if file.name not in self.marked or file.name in self.joined or file.name not in removed:
            return False
        count = len(removed[file.name].rows) + (0 if file.deleted is None else file.deleted.count)
        return count < (file.rows or 0)

    def _search(self, store: Store, keys: KeyFiles | None) -> dict[str, Removed]:
        """{file: its removed rows}."""
        rows, replacements = self._rows_to_remove()
        if not rows.num_rows:
            return {}
        search = Search(rows, keys=bool(self.table.key), replacements=replacements)
        of_file = (
            keys.rows
            if keys is not None and self.table.key
            else partial(row_groups, store, self.table.directory)
        )
        removed = {}
        for k in candidates(self.version, rows):
            file = self.version.files[k]
            found = [Removed(np.empty(0, np.int64), np.empty(0, np.int64))]
            for positions, group in of_file(file, self.table.schema, self.table.identity, rows):
                part = search.removed(group)
                found.append(Removed(positions[part.rows], part.replacements))
            ordinals = np.concatenate([part.rows for part in found])
            if len(ordinals):
                removed[file.name] = Removed(ordinals, np.concatenate([part.replacements for part in found]))
        search.check_complete(self.table.name)
        return removed

    def _rows_to_remove(self) -> tuple[pa.Table, Numbers]:
        """The rows that may be removed from these files, and the numbers of the rows that replace them; -1 for none.

        The rows of all effects are numbered consecutively.
        """
        schema = pa.schema([self.table.schema.field(name) for name in self.table.identity])
        column = self.table.identity[0]
        # Without a key, rows that no file can have are needed, too: they are an error.
        low, high = least_and_largest(self.version, column) if self.table.key else (None, None)
        parts, replacements, begin = [schema.empty_table()], [np.empty(0, np.int64)], 0
        for effect in self.effects:
            for batches in (effect.gone, effect.rows) if self.table.key else (effect.gone,):
                for numbers, rows in rows_between(batches, schema, column, low, high):
                    parts.append(rows)
                    replacements.append(
                        begin + numbers if batches is effect.rows else np.full(len(numbers), -1)
                    )
            begin += effect.count
        return pa.concat_tables(parts), np.concatenate(replacements)


@dataclass(frozen=True)
class NewRowsUnit:
    """Rows of effects that no rewritten file has -> new files of a table.

    Attributes:
        table: the table.
        effects: the effects.
        placed: for each effect the numbers of the rows that are in files.
        low, high: only rows whose first column of the identity is between these values, `high` excluded; None for no
            limit. Each is an array of one value: a scalar is pickled as a Python value, and Python lacks some dates.
    """

    table: MergedTable
    effects: tuple[StoredEffect, ...]
    placed: tuple[Numbers, ...] = field(repr=False)
    low: pa.Array | None = None
    high: pa.Array | None = None

    def run(self, store: Store, files: NewFiles) -> UnitResult:
        """Writes new files, as `RewriteUnit.run`."""
        earlier = len(files.written)
        low, high = (None if each is None else each[0] for each in (self.low, self.high))
        files.write(_new_rows(self.table, self.effects, self.placed, low, high))
        return UnitResult(files.written[earlier:])


@dataclass(frozen=True)
class JoinUnit:
    """Some files of a table -> new files with the same rows, without those that are marked deleted.

    Attributes:
        table: the table.
        files: the files.
    """

    table: MergedTable
    files: tuple[DataFile, ...]

    def run(self, store: Store, files: NewFiles, check: Callable[[], None] = lambda: None) -> UnitResult:
        """Writes new files, as `RewriteUnit.run`. `check` is that of `BackgroundWork`."""
        earlier, schema, counts = len(files.written), self.table.schema, [0] * len(self.files)

        def staying() -> Iterator[pa.Table]:
            for k, file in enumerate(self.files):
                for _, rows in row_groups(store, self.table.directory, file, schema, schema.names):
                    check()
                    counts[k] += rows.num_rows
                    yield rows

        files.write(staying())
        names = [file.name for file in self.files]
        return UnitResult(files.written[earlier:], names, counts=counts)


Unit: TypeAlias = RewriteUnit | NewRowsUnit | JoinUnit


def _by_effect(effects: Sequence[StoredEffect], numbers: Sequence[Numbers]) -> list[Numbers]:
    """Numbers of rows of all effects -> for each effect the numbers of its rows, ascending."""
    ordered = np.sort(np.concatenate([np.empty(0, np.int64), *numbers]))
    ends = np.cumsum([0, *(effect.count for effect in effects)])
    cuts = np.searchsorted(ordered, ends)
    return [ordered[cuts[k] : cuts[k + 1]] - ends[k] for k in range(len(effects))]


def _replacements(
    effects: Sequence[StoredEffect], placed: Sequence[Numbers], schema: pa.Schema
) -> Callable[[Numbers], pa.Table]:
    """Returns a function that takes rows of `placed` by their numbers among the rows of all effects."""
    parts, ordered, begin = [schema.empty_table()], [np.empty(0, np.int64)], 0
    for effect, numbers in zip(effects, placed, strict=True):
        parts += rows_at(effect.rows, numbers, schema)
        ordered.append(numbers + begin)
        begin += effect.count
    rows, known = pa.concat_tables(parts), np.concatenate(ordered)
    return lambda numbers: rows.take(pa.array(np.searchsorted(known, numbers)))


def _rewritten(
    store: Store,
    table: MergedTable,
    file: DataFile,
    removed: Removed | None,
    take: Callable[[Numbers], pa.Table],
) -> Iterator[pa.Table]:
    """The rows of a file, without the removed ones and with their replacements.

    Args:
        store: the store of the table.
        table: the table.
        file: the file.
        removed: the removed rows; None for none.
        take: returns replacements by their numbers.
    """
    for positions, rows in row_groups(store, table.directory, file, table.schema, table.schema.names):
        if removed is None or not len(positions):
            yield rows
            continue
        first, last = np.searchsorted(removed.rows, [positions[0], positions[-1] + 1])
        stays = stays_without(positions, removed.rows[first:last])
        replacements = removed.replacements[first:last]
        yield pa.concat_tables([rows_that_stay(rows, stays), take(replacements[replacements >= 0])])


def _new_rows(
    table: MergedTable,
    effects: Sequence[StoredEffect],
    placed: Sequence[Numbers],
    low: pa.Scalar | None = None,
    high: pa.Scalar | None = None,
) -> Iterator[pa.Table]:
    """The rows that are not placed in files, in the order of the key.

    Args:
        table: the table.
        effects, placed: as in `NewRowsUnit`.
        low, high: the same as there, as scalars.
    """
    parts, column = [], table.identity[0]
    for effect, old in zip(effects, placed, strict=True):
        for numbers, rows in rows_between(effect.rows, table.schema, column, low, high):
            new = ~np.isin(numbers, old, assume_unique=True)
            if high is not None:
                new &= pc.less(rows.column(column), high).to_numpy()
            parts.append(rows if new.all() else rows.filter(pa.array(new)))
    # The rows of one part are in order.
    yield from parts if len(parts) < 2 else [in_key_order([pa.concat_tables(parts)], table.key)]
