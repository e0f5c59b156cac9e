"""Chooses files of a table to write anew: short ones are joined, and those with many marked rows lose them.

Tables that are merged on read get such files in a commit of its own after that of a merge, which readers of changes
ignore. If the process is killed between the two, a later merge does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pgoutput_fast.merge.commit import commit, expect_conflict
from pgoutput_fast.merge.key_files import KeyFiles
from pgoutput_fast.merge.search import Numbers
from pgoutput_fast.merge.units import JoinUnit, MergedTable, UnitResult
from pgoutput_fast.tables.background import BackgroundWork
from pgoutput_fast.tables.damaged import first_line
from pgoutput_fast.tables.data_files import NewFiles, by_bounds, stays_without
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.joining import to_join
from pgoutput_fast.tables.table import ConflictError, DataFile, MarkedRows, Version

__all__ = ["Compaction", "compact", "to_compact"]

_log = logging.getLogger("pgoutput_fast.mirror")

# A file is rewritten at once if its share of marked rows is this multiple of the one from which on that is worth while.
_AT_ONCE = 2


def to_compact(table: CurrentFileTable, version: Version, most: int | None = None) -> list[JoinUnit]:
    """The units that write files of a table anew, which is merged on read. First files that are joined, and then those
    with the largest shares of marked rows.

    Args:
        table: the table.
        version: its current version.
        most: how many files are rewritten only because that is worth while; None for all. A rewrite reads and writes
            the other rows, and saves all readers the marked ones.
    """
    joined = to_join(version, table.file_bytes, partial(by_bounds, version))
    shares = {
        k: file.deleted.count / file.rows
        for k, file in enumerate(version.files)
        if file.deleted is not None and file.rows and k not in joined
    }
    worth = sorted((k for k in shares if shares[k] > table.most_marked), key=lambda k: -shares[k])
    at_once = sum(shares[k] > _AT_ONCE * table.most_marked for k in worth)
    rewritten = worth if most is None else worth[: max(most, at_once)]
    schema = version.schema
    of_table = MergedTable(str(table), table.files, (), tuple(schema.names), schema)
    parts = [*([joined] if joined else []), *([k] for k in rewritten)]
    return [JoinUnit(of_table, tuple(version.files[k] for k in part)) for part in parts]


def compact(
    table: CurrentFileTable,
    before: Version,
    units: Sequence[JoinUnit],
    write: Callable[[NewFiles], Sequence[UnitResult]],
    gone: Collection[str] = (),
) -> None:
    """Commits files that are written anew. Rows that merges have marked in the old files meanwhile are marked in them.

    What another program has changed meanwhile stays, and a later merge does the rest.

    Args:
        table: the table.
        before: the version that the units read.
        units: the units.
        write: returns what they did.
        gone: the names of files that merges have removed meanwhile. Their rows are gone, or in other files.

    Raises:
        DamagedError: if a file is missing.
    """
    try:
        with NewFiles(table.store, table.files, table.file_bytes) as files:
            results = write(files)
            now = before = table.now() or before
            known = {file.name: file for file in now.files}
            removed, deleted = list[str](), dict[str, Numbers]()
            for unit, result in zip(units, results, strict=True):
                rows = _marked_meanwhile(table, now, unit, result, known, gone)
                if rows is None:
                    files.remove(result.added)
                    continue
                removed += known.keys() & set(result.removed)
                for file, marked in _by_file(result.added, rows):
                    if len(marked) == file.rows:
                        files.remove([file])
                    elif len(marked):
                        deleted[file.name] = marked
            if removed:
                commit(table, files, now, now.schema, now.lsn, removed, deleted, data_change=False)
    except (ConflictError, FileNotFoundError) as problem:
        expect_conflict(table, before, problem)


def _marked_meanwhile(
    table: CurrentFileTable,
    now: Version,
    unit: JoinUnit,
    result: UnitResult,
    known: Mapping[str, DataFile],
    gone: Collection[str],
) -> Numbers | None:
    """The rows of new files whose rows in the old files were marked after these were read, ascending.

    The rows of all new files are numbered consecutively. None if another program has changed the old files, or if the
    table has wider columns since, or columns with another name.
    """
    there = now.schema.names
    if any(
        each.name not in there or not now.schema.field(each.name).equals(each, check_metadata=True)
        for each in unit.table.schema
    ):
        return None
    parts, begin = [np.empty(0, np.int64)], 0
    for file, count in zip(unit.files, result.counts, strict=True):
        if file.name in known:
            rows = _newly_marked(table, file, known[file.name])
        else:
            rows = np.arange(count) if file.name in gone else None
        if rows is None:
            return None
        parts.append(begin + rows)
        begin += count
    return np.concatenate(parts)


def _newly_marked(table: CurrentFileTable, file: DataFile, now: DataFile) -> Numbers | None:
    """The rows of a file that were marked since it was read, by their numbers among those that were not marked then.

    None if a row that was marked is not marked any more.
    """
    if now.deleted == file.deleted:
        return np.empty(0, np.int64)
    before, after = (
        np.empty(0, np.int64)
        if each.deleted is None
        else each.deleted.positions(table.store, table.files, file.rows)
        for each in (file, now)
    )
    rows = after[stays_without(after, before)]
    return rows - np.searchsorted(before, rows) if len(before) + len(rows) == len(after) else None


def _by_file(files: Sequence[WrittenFile], rows: Numbers) -> Iterator[tuple[WrittenFile, Numbers]]:
    """Yields (file, the positions in it) of rows that are numbered consecutively in all files."""
    begin = 0
    for file in files:
        first, last = np.searchsorted(rows, [begin, begin + file.rows])
        yield file, rows[first:last] - begin
        begin += file.rows


class Compaction:
    """Files of a table that another thread writes anew, while merges go on.

    Args:
        table: the table.
        before: its current version.
        units: what is to be done.
        keys: the sorted keys of its files. Those of files that are written anew one by one get keys before they are
            committed, so that no merge sorts them again.

    Attributes:
        gone: the names of files that merges have removed since.
        work: the work of the other thread.

    Raises:
        FileNotFoundError: if another program has removed a file with marks.
    """

    def __init__(
        self, table: CurrentFileTable, before: Version, units: Sequence[JoinUnit], keys: KeyFiles
    ) -> None:
        self.gone: set[str] = set()
        self._table, self._before, self._keys = table, before, keys
        self._units = [replace(unit, files=tuple(map(self._in_memory, unit.files))) for unit in units]
        of_keys = [keys.rewriting(*unit.files) if len(unit.files) == 1 else None for unit in self._units]
        self.work = BackgroundWork(lambda check: self._write(of_keys, check))

    def _in_memory(self, file: DataFile) -> DataFile:
        """The file with the positions of its marked rows: later versions need no file of them."""
        if file.deleted is None:
            return file
        positions = file.deleted.positions(self._table.store, self._table.files, file.rows)
        return replace(file, deleted=MarkedRows(None, positions))

    def _new_files(self) -> NewFiles:
        return NewFiles(self._table.store, self._table.files, self._table.file_bytes)

    def _write(
        self, of_keys: Sequence[Callable[[str], None] | None], check: Callable[[], None]
    ) -> list[UnitResult]:
        results = []
        with self._new_files() as files:
            for unit, write_keys in zip(self._units, of_keys, strict=True):
                results.append(unit.run(self._table.store, files, check))
                added = results[-1].added
                if write_keys is not None and len(added) == 1:
                    check()
                    write_keys(added[0].name)
        return results

    def commit(self, within: float | None = None) -> bool:
        """Waits for the files, and commits them. Returns False if they could not be written.

        Args:
            within: gives the work up if it takes so many more seconds. None: never.

        Raises:
            As `compact`.
        """
        try:
            results = self.work.result(within)
        except Exception as problem:
            _log.warning(
                "%s: files cannot be rewritten now, which is tried again later: %s",
                self._table,
                first_line(problem),
            )
            return False
        else:
            if results is not None:
                compact(self._table, self._before, self._units, partial(_taken, results), self.gone)
            return True
        finally:
            self._forget_keys()

    def give_up(self) -> None:
        """Ends the work, and removes its files."""
        results = self.work.give_up()
        if results is not None:
            with self._new_files() as files:
                _taken(results, files)
                files.remove()
        self._forget_keys()

    def _forget_keys(self) -> None:
        """Removes the keys of files that the table does not have."""
        now = self._table.now()
        self._keys.coming.clear()
        self._keys.remove_others(() if now is None else now.names)


def _taken(results: Sequence[UnitResult], files: NewFiles) -> Sequence[UnitResult]:
    files.written = [file for result in results for file in result.added]
    return results
