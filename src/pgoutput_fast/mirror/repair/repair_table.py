"""Repairs one table: compares it with a snapshot, and writes the differences to its history and current table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from pgoutput_fast.merge.effect.effect import COMMIT_LSN, UNREPRESENTABLE, Effect
from pgoutput_fast.merge.effect.fill import parts_of
from pgoutput_fast.merge.keys import check_key, key_of
from pgoutput_fast.mirror.follow.history import HistoryFiles
from pgoutput_fast.mirror.follow.rejects import LoadRejects
from pgoutput_fast.mirror.follow.tables import MirroredTable, relation_columns
from pgoutput_fast.mirror.load.load import columns_of, load_schema
from pgoutput_fast.mirror.load.source import rows_of
from pgoutput_fast.mirror.repair.compare.compare import Comparison, Differences, UncomparableError
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.postgres.row_age import of_one_table
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.snapshot.progress import LoadProgress
from pgoutput_fast.snapshot.snapshot import Snapshot
from pgoutput_fast.storage.stores import Store

__all__ = ["TableRepair", "catch_up", "repair_table", "why_loaded", "why_uncomparable"]


@dataclass(frozen=True)
class TableRepair:
    """The result of the repair of a table.

    Attributes:
        table: qualified name, quoted as in SQL.
        loaded: why it was loaded again instead; None if it was compared.
        rows: how many rows were compared.
        ranges: how many ranges of keys were compared.
        different: how many of them differ.
        inserted, updated, deleted: how many rows differ.
    """

    table: str
    loaded: str | None = None
    rows: int = 0
    ranges: int = 0
    different: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def __str__(self) -> str:
        if self.loaded is not None:
            return f"{self.table}: not compared: {self.loaded}"
        return (
            f"{self.table}: {self.rows:,} rows compared, {self.different:,} of {self.ranges:,} ranges differ: "
            f"{self.inserted:,} inserted, {self.updated:,} updated, {self.deleted:,} deleted"
        )


def why_loaded(table: MirroredTable, snapshot: Snapshot, server: ServerView) -> str | None:
    """Why a table must be loaded rather than compared and repaired; None if it can be compared.

    Raises:
        ValueError: if a column has a name that no history can have.
    """
    why = why_uncomparable(table, snapshot, server)
    if why is None and not key_of(snapshot.tables[table.record.on_server].relation):
        return "it has no key"
    return why


def why_uncomparable(table: MirroredTable, snapshot: Snapshot, server: ServerView) -> str | None:
    """Why a table and the server's cannot have the same rows now; None if they should.

    Raises:
        ValueError: if a column has a name that no history can have.
    """
    record, relation = table.record, snapshot.tables[table.record.on_server].relation
    if not table.follows:
        return record.error or "it is not loaded"
    if record.history_error is not None:
        return f"its history does not go on: {record.history_error}"
    if table.position is None or table.history.position() is None:
        return "a part of it is gone"
    if relation.oid != record.oid:
        return "the server has another table of this name now"
    if columns_of(snapshot, record.on_server, server) != record.columns:
        return "its columns have changed"
    return None


def catch_up(table: MirroredTable, snapshot: Snapshot) -> None:
    """Applies changes to the current table that only the history has, after a kill between the two commits.

    Args:
        table: the table. `why_loaded` is None.
        snapshot: has the table.

    Raises:
        ValueError: if the changes cannot be applied.
    """
    position = table.history.position()
    assert position is not None
    assert table.position is not None
    if position > table.position:
        key = key_of(snapshot.tables[table.record.on_server].relation)
        renames = table.record.renames_between(table.position, position)
        table.current.apply_parts(parts_of(table.history.after(table.position), key, renames), position)
        table.read_position()


def repair_table(
    table: MirroredTable,
    snapshot: Snapshot,
    store: Store,
    run: str,
    keep_going: Callable[[], bool],
    threads: int = 1,
    progress: Callable[[LoadProgress], object] | None = None,
) -> TableRepair:
    """Gives a table the rows of a snapshot. Only differences are written.

    Args:
        table: the table, whose history and current table have the same changes.
        snapshot: has the table, with the same columns.
        store: the target.
        run: names the process.
        keep_going: called from time to time: whether to go on.
        threads: number of sessions that read.
        progress: called after each range of pages.

    Returns:
        The result. If the table cannot be compared, nothing was done: load it.

    Raises:
        LoadStoppedError, SnapshotError: as `load_table`.
        ValueError: if the current table cannot take the rows, or the server refuses to read them.
    """
    name, position = table.record.on_server, snapshot.consistent_lsn - 1
    relation = snapshot.tables[name].relation
    schema, key = load_schema(snapshot, name), key_of(relation)
    check_key(relation, snapshot.catalog.types)

    try:
        with of_one_table(name), HistoryFiles(store, run) as files:
            rejects = LoadRejects(table, relation, files, position, position)

            def read(where: str | None) -> Iterator[pa.Table]:
                batches = snapshot.read([name], where=where, threads=threads, progress=progress)
                # Rejects of rows compared one by one. Those of other rows came with a load or a change.
                return rejects.of(
                    rows_of(batches, schema, position, keep_going), batches.rejects, keep=where is not None
                )

            found = Comparison(table.current, key, read, schema, relation_columns(schema).names).run()
            rejects.commit()
    except UncomparableError as problem:
        return TableRepair(name, str(problem))
    except FileNotFoundError:
        return TableRepair(name, "a file of its current table is gone")
    if found.removed.num_rows or found.new.num_rows or found.changed.num_rows:
        table.note_key(key, position)
        _add_history(table, found, schema, position, store, run)
        table.current.apply(_effect(found, key, schema), position)
        table.read_position()
    return TableRepair(
        name,
        None,
        found.rows,
        found.sets,
        found.different,
        found.new.num_rows,
        found.changed.num_rows,
        found.removed.num_rows,
    )


def _add_history(
    table: MirroredTable, found: Differences, schema: pa.Schema, position: int, store: Store, run: str
) -> None:
    """Commits the differences to the history as changes with ordinal -1. Keys are unique: their order is free."""
    with HistoryFiles(store, run) as files:
        for rows in (_deletes(found.removed, schema, position), _updates(found.changed), found.new):
            table.add_history(rows, files)
        table.commit_history(files, position)


def _deletes(keys: pa.Table, schema: pa.Schema, position: int) -> pa.Table:
    values = {"_change_type": "delete", "_seq": -1, COMMIT_LSN: position, "_key_only": True}
    columns = []
    for field in schema:
        if field.name in keys.schema.names:
            columns.append(to_types(keys.select([field.name]), pa.schema([field])).column(0))
        else:
            columns.append(pa.repeat(pa.scalar(values.get(field.name), field.type), keys.num_rows))
    return pa.Table.from_arrays(columns, schema=schema)


def _updates(rows: pa.Table) -> pa.Table:
    at = rows.schema.get_field_index("_change_type")
    kind = pa.repeat(pa.scalar("update_postimage", pa.string()), rows.num_rows)
    return rows.set_column(at, rows.schema.field(at), kind)


def _effect(found: Differences, key: tuple[str, ...], schema: pa.Schema) -> Effect:
    names = [*relation_columns(schema).names, COMMIT_LSN, UNREPRESENTABLE]
    return Effect(key, False, found.removed, pa.concat_tables([found.new, found.changed]).select(names))
