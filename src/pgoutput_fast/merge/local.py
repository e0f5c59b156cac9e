"""Current tables of Parquet files, merged in this process. An effect rewrites only files with changed rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.commit import commit, is_applied, with_version
from pgoutput_fast.merge.current_table import CurrentTable, with_null_columns
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.key_files import KeyFiles
from pgoutput_fast.merge.match import Finder
from pgoutput_fast.merge.plan import MergePlan
from pgoutput_fast.merge.search import Numbers
from pgoutput_fast.merge.staged import Staged
from pgoutput_fast.merge.stored_effect import store_effect
from pgoutput_fast.tables.columns import in_schema
from pgoutput_fast.tables.data_files import NewFiles, candidates, row_groups
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.table import Version

__all__ = ["LocalMerge", "merge_effect"]


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

    def replace(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema, position: int) -> None:
        stored = self.table.schema_with(None, schema)
        self.table.now()  # refuses a table that a mirror did not make, before the long work
        with self._new_files() as files:
            files.write(in_schema(pa.Table.from_batches([batch]), stored) for batch in rows)
            with_version(
                self.table, lambda before: commit(self.table, files, before, stored, position, None, {})
            )

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        return with_version(self.table, lambda version: _find(self.table, version, keys, columns, self.keys))

    def apply_parts(self, parts: Iterable[Effect], position: int, after: int | None = None) -> None:
        def apply(before: Version | None) -> None:
            if is_applied(self, None if before is None else before.lsn, position, after):
                return
            if self.keys is not None:
                self.keys.known = () if before is None else before.names
            with self._new_files() as files:
                staged = Staged(before)
                for effect in parts:
                    staged = self._staged(staged, effect, files)
                if staged.schema is not None:
                    commit(self.table, files, before, staged.schema, position, staged.removed, staged.deleted)

        with_version(self.table, apply)

    def _new_files(self) -> NewFiles:
        return NewFiles(self.table.store, self.table.files, self.table.file_bytes)

    def _staged(self, staged: Staged, effect: Effect, files: NewFiles) -> Staged:
        """The next version of the table after one more effect, whose files it writes."""
        version, earlier = staged.version, len(files.written)
        effect = effect.filled_by(lambda keys, columns: _find(self.table, version, keys, columns, self.keys))
        schema, removed, deleted = merge_effect(
            self.table, version, effect, files, staged.new_names, self.keys
        )
        staged, unused = staged.after(schema, files.written[earlier:], removed, deleted)
        files.remove(unused)
        return staged


def merge_effect(
    table: CurrentFileTable,
    before: Version | None,
    effect: Effect,
    files: NewFiles,
    uncommitted: Collection[str] = (),
    keys: KeyFiles | None = None,
) -> tuple[pa.Schema, Collection[str] | None, dict[str, Numbers]]:
    """Writes the files of an effect.

    Args:
        table: the table.
        before: its version; None if there is none.
        effect: the effect.
        files: writes the files.
        uncommitted: as in `MergePlan`.
        keys: the sorted keys of its files, if this machine has them.

    Returns:
        (the columns after it, the removed files, the rows that are marked deleted), as for `CurrentFileTable.commit`.
    """
    schema = table.schema_with(before, effect.rows.schema)
    identity = tuple(effect.identity)
    stored = (store_effect(effect, identity, schema),)
    plan = MergePlan(table, before, effect.key, identity, schema, stored, uncommitted=frozenset(uncommitted))
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
