"""Current tables of Parquet files, merged in this process. An effect rewrites only files with changed rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from time import monotonic

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.commit import commit, expect_conflict, is_applied, with_version
from pgoutput_fast.merge.compaction import Compaction, to_compact
from pgoutput_fast.merge.current_table import CurrentTable, with_null_columns
from pgoutput_fast.merge.effect.column_names import naming_rows
from pgoutput_fast.merge.effect.effect import UNREPRESENTABLE, Effect
from pgoutput_fast.merge.effect.fill import Fill, Part
from pgoutput_fast.merge.key_files import KeyFiles
from pgoutput_fast.merge.match import Finder
from pgoutput_fast.merge.plan import MergePlan
from pgoutput_fast.merge.search import Numbers
from pgoutput_fast.merge.staged import Staged
from pgoutput_fast.merge.stored_effect import store_effect
from pgoutput_fast.tables.columns import in_schema
from pgoutput_fast.tables.data_files import NewFiles, candidates, has_ids, row_groups
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.table import DataFile, Version

__all__ = ["LocalMerge", "merge_effect"]

# Files that need not be written anew at once wait until this takes at most a quarter of the time, in all tables of a
# store: after some seconds of work, the store rests for this multiple of them.
_REST = 3
_RESTS_UNTIL: dict[str, float] = {}
# So many units at a time: short files to join, and the file with the most marked rows. The others come next.
_MOST_UNITS = 2
# Above this multiple of the share of marked rows from which on a rewrite is worth while, a merge waits for the other
# thread: readers would read too many rows for nothing.
_TOO_MANY = 3
# Seconds before files are written anew after an error.
_RETRY_SECONDS = 60.0


class LocalMerge(CurrentTable):
    """A current table of files.

    Args:
        table: the table of a format.

    Attributes:
        keys: the sorted keys of its files; None if merges rewrite files, which would soon be gone.
    """

    table: CurrentFileTable

    def __init__(self, table: CurrentFileTable) -> None:
        super().__init__(table)
        self.keys = KeyFiles(table.store, table.files) if table.marks else None
        self._compaction: Compaction | None = None
        self._next_try = 0.0

    def replace(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema, position: int) -> None:
        self.give_up_rewriting()
        stored = self.table.schema_with(None, schema)
        self.table.now()  # refuses a table that a mirror did not make, before the long work
        with self._new_files() as files:
            files.write(in_schema(pa.Table.from_batches([batch]), stored) for batch in rows)
            with_version(
                self.table, lambda before: commit(self.table, files, before, stored, position, None, {})
            )

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        return with_version(self.table, lambda version: _find(self.table, version, keys, columns, self.keys))

    def apply_parts(self, parts: Iterable[Part], position: int, after: int | None = None) -> None:
        def apply(before: Version | None) -> None:
            if is_applied(self, None if before is None else before.lsn, position, after):
                return
            if self.keys is not None:
                self.keys.known = () if before is None else before.names
            with self._new_files() as files:
                staged, left = Staged(before), iter(parts)
                # Nothing else refers to an effect, so that its memory is freed as soon as its rows are in order.
                while part := list(islice(left, 1)):
                    staged = self._next(staged, part, files)
                if staged.schema is not None:
                    commit(self.table, files, before, staged.schema, position, staged.removed, staged.deleted)
            if self._compaction is not None and before is not None:
                self._compaction.gone |= before.names if staged.removed is None else staged.removed

        with_version(self.table, apply)
        if self.keys is not None:
            if self._compaction is not None and self._has_too_many_marks:
                self._compaction.work.wait()
            if not self.commit_rewritten():
                self._begin_rewriting()

    # ---- files that another thread writes anew -------------------------------------------------------------------

    def commit_rewritten(self, within: float | None = None) -> bool:
        running = self._compaction
        if running is None or (within is None and not running.work.is_done):
            return False
        self._compaction = None
        if not running.commit(within):
            self._next_try = monotonic() + _RETRY_SECONDS
        _RESTS_UNTIL[str(self.table.store)] = monotonic() + _REST * running.work.seconds
        if within is None:
            self._begin_rewriting()
        return True

    def give_up_rewriting(self) -> None:
        given_up, self._compaction = self._compaction, None
        if given_up is not None:
            given_up.give_up()

    @property
    def _has_too_many_marks(self) -> bool:
        now, most = self.table.now(), _TOO_MANY * self.table.most_marked
        return now is not None and any(
            file.deleted.count > most * file.rows
            for file in now.files
            if file.deleted is not None and file.rows
        )

    def _begin_rewriting(self) -> None:
        """Lets another thread write files anew that merges no longer do."""
        before, now = self.table.now(), monotonic()
        if self.keys is None or self._compaction is not None or before is None or now < self._next_try:
            return
        may_rewrite = not self.more_waits and now >= _RESTS_UNTIL.get(str(self.table.store), 0.0)
        units = to_compact(self.table, before, int(may_rewrite))[:_MOST_UNITS]
        try:
            if units:
                self._compaction = Compaction(self.table, before, units, self.keys)
        except FileNotFoundError as problem:
            expect_conflict(self.table, before, problem)

    def vacuum(self, keep: int = 1) -> int:
        # It removes files that no version has.
        self.give_up_rewriting()
        removed = super().vacuum(keep)
        keys, now = self.keys, self.table.now()
        if keys is None and self.table.store.local:
            removed += KeyFiles(self.table.store, self.table.files).remove_others()
        elif keys is not None and now is not None:
            removed += keys.remove_others(now.names)
            self._begin_rewriting()
        return removed

    def _new_files(self) -> NewFiles:
        return NewFiles(self.table.store, self.table.files, self.table.file_bytes)

    def _next(self, staged: Staged, held: list[Part], files: NewFiles) -> Staged:
        """The next version of the table after one more part, whose files it writes.

        Args:
            staged: the version before it.
            held: the part, which this removes from the list.
            files: writes the files.
        """
        part = held.pop()
        if isinstance(part, Fill):
            return self._filled(staged, part, files)
        version, earlier = staged.version, len(files.written)
        effect = [part.filled_by(lambda keys, columns: _find(self.table, version, keys, columns, self.keys))]
        del part
        schema, removed, deleted = merge_effect(
            self.table, version, effect, files, staged.new_names, self.keys
        )
        staged, unused = staged.after(schema, files.written[earlier:], removed, deleted)
        files.remove(unused)
        return staged

    def _filled(self, staged: Staged, fill: Fill, files: NewFiles) -> Staged:
        """The next version of the table with values in new columns of all rows, whose files it writes."""
        if fill.renamed:
            staged = self._renamed(staged, fill, files)
        if not len(fill.schema):
            return staged
        version, earlier = staged.version, len(files.written)
        schema = self.table.schema_with(version, fill.schema)
        fill = fill.in_types(schema)
        files.write(
            fill.apply(rows)
            for file in (() if version is None else version.files)
            for _, rows in row_groups(self.table.store, self.table.files, file, schema, schema.names)
        )
        staged, unused = staged.after(schema, files.written[earlier:], None, {})
        files.remove(unused)
        return staged

    def _renamed(self, staged: Staged, fill: Fill, files: NewFiles) -> Staged:
        """The next version of the table with other names of columns.

        Files stay, unless this commit adds them, an earlier version of this package wrote them without ids, or a row
        names one of the columns, because its value has no Arrow form.
        """
        version, earlier = staged.version, len(files.written)
        if version is None:
            return staged
        schema = self.table.renamed(version, fill.names(version.schema.names))
        again = [
            file
            for file in version.files
            if file.name in staged.new_names
            or not has_ids(self.table.store, self.table.files, file)
            or any(self._has_marks(version, file, former) for former in fill.renamed.values())
        ]
        files.write(
            in_schema(fill.rename(rows, schema.names), schema)
            for file in again
            for _, rows in row_groups(
                self.table.store, self.table.files, file, version.schema, version.schema.names
            )
        )
        staged, unused = staged.after(schema, files.written[earlier:], {file.name for file in again}, {})
        files.remove(unused)
        return staged

    def _has_marks(self, version: Version, file: DataFile, column: str) -> bool:
        """Whether a row of a file has a value without an Arrow form in a column."""
        found = row_groups(self.table.store, self.table.files, file, version.schema, [UNREPRESENTABLE])
        return any(column in naming_rows(rows[UNREPRESENTABLE]) for _, rows in found)


def merge_effect(
    table: CurrentFileTable,
    before: Version | None,
    held: list[Effect],
    files: NewFiles,
    uncommitted: Collection[str] = (),
    keys: KeyFiles | None = None,
) -> tuple[pa.Schema, Collection[str] | None, dict[str, Numbers]]:
    """Writes the files of an effect.

    Args:
        table: the table.
        before: its version; None if there is none.
        held: the effect, which this removes from the list.
        files: writes the files.
        uncommitted: as in `MergePlan`.
        keys: the sorted keys of its files, if this machine has them.

    Returns:
        (the columns after it, the removed files, the rows that are marked deleted), as for `CurrentFileTable.commit`.
    """
    schema = table.schema_with(before, held[0].rows.schema)
    key, identity = held[0].key, tuple(held[0].identity)
    stored = (store_effect(held.pop(), identity, schema),)
    plan = MergePlan(table, before, key, identity, schema, stored, uncommitted=frozenset(uncommitted))
    results = [unit.run(table.store, files, keys) for unit in plan.rewrites]
    for unit in plan.new_rows(results):
        unit.run(table.store, files)
    return schema, plan.removed(results), plan.deleted(results)


def _find(
    table: CurrentFileTable,
    version: Version | None,
    wanted: pa.Table,
    columns: Sequence[str],
    keys: KeyFiles | None,
) -> pa.Table:
    names = [*wanted.schema.names, *columns]
    if version is None:
        return with_null_columns(wanted.slice(0, 0), names)
    wanted = table.fit(version, wanted)
    existing = [name for name in names if name in version.schema.names]
    parts = [pa.schema([version.schema.field(name) for name in existing]).empty_table()]
    finder = Finder(wanted, keys=True)
    of_file = partial(row_groups, table.store, table.files) if keys is None else keys.rows
    for k in candidates(version, wanted):
        file = version.files[k]
        # First only the keys: most candidates have no match.
        of_keys = of_file(file, version.schema, wanted.schema.names, wanted)
        at = np.concatenate(
            [np.empty(0, np.int64), *(places[finder.find(rows) >= 0] for places, rows in of_keys)]
        )
        if len(at):
            for places, rows in row_groups(table.store, table.files, file, version.schema, existing, at=at):
                parts.append(rows.filter(pa.array(np.isin(places, at, assume_unique=True))))
    return with_null_columns(pa.concat_tables(parts), names)
