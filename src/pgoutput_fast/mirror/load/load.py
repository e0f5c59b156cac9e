"""Loads tables: their rows in a snapshot of the server, into current tables and histories."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from pgoutput_fast.merge.effect.effect import COMMIT_LSN, UNREPRESENTABLE, current_schema
from pgoutput_fast.merge.keys import check_key, key_of
from pgoutput_fast.mirror.errors import LoadStoppedError
from pgoutput_fast.mirror.follow.history import HistoryFiles
from pgoutput_fast.mirror.follow.rejects import LoadRejects
from pgoutput_fast.mirror.follow.tables import MirroredTable, relation_columns
from pgoutput_fast.mirror.schema_changes.fingerprint import lacking
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.mirror.state.mirror_state import Gap, KnownColumn
from pgoutput_fast.postgres.publications import OPERATIONS
from pgoutput_fast.postgres.row_age import of_one_table
from pgoutput_fast.schema.metadata_columns import metadata_fields, metadata_names
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.progress import LoadProgress
from pgoutput_fast.snapshot.snapshot import Snapshot, SnapshotBatches
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.errors import LOAD_AGAIN

__all__ = ["columns_of", "load_schema", "load_table", "logged", "rows_of"]

_log = logging.getLogger("pgoutput_fast.mirror")

# Seconds between log lines about a load.
_SECONDS = 10.0


def load_table(
    table: MirroredTable,
    snapshot: Snapshot,
    server: ServerView,
    store: Store,
    run: str,
    settings: MirrorSettings,
    *,
    fresh: bool,
    keep_going: Callable[[], bool],
    progress: Callable[[LoadProgress], object] | None = None,
) -> None:
    """Replaces a current table by the rows of a snapshot. The history gets a truncate and the rows, too.

    So a history applied to an empty table gives the current table at every position.

    Args:
        table: the table.
        snapshot: has the table. It lacks changes that commit at `consistent_lsn` or later.
        server: gives the numbers of the columns.
        store: the target.
        run: names the process.
        settings: of the mirror.
        fresh: whether the history begins again, without the changes that it has.
        keep_going: called from time to time: whether to go on.
        progress: called after each range of pages; None for that of the settings.

    Raises:
        LoadStoppedError: if `keep_going` became false.
        SnapshotError: if the snapshot cannot read the table, or cannot any more.
        ValueError: if the current table or the history cannot take the rows, the server refuses to read them, the
            publications do not publish every operation, or the key does not tell rows apart.
    """
    name, position = table.record.table, snapshot.consistent_lsn - 1
    # A new history has nothing before the load.
    gap = Gap(-1 if fresh or table.position is None else table.position, position, server.now()[0])
    found, fingerprint = columns_of(snapshot, name, server), server.fingerprint_in(snapshot, name)
    relation = snapshot.tables[name].relation
    check_key(relation, snapshot.catalog.types)
    if fingerprint is not None and (why := lacking(OPERATIONS, fingerprint)) is not None:
        raise ValueError(why)
    table.history.expect_own(known=table.record.knows_history)
    table.remember(stage="load", owns_history=True)
    schema = load_schema(snapshot, name)
    progress = progress or settings.progress or logged([name])
    batches = snapshot.read([name], threads=settings.threads, progress=progress)
    known = None if fresh else table.history.position()
    if fresh:
        table.remember(history_error=None)
    with of_one_table(name), HistoryFiles(store, run, replace=fresh) as files:
        history_lsn = position if known is None else known
        rejects = LoadRejects(table, relation, files, position, history_lsn)
        rows = rejects.of(rows_of(batches, schema, position, keep_going), batches, keep=True)
        taken = _taken(
            table, files, rows, rejects, replaced=known is not None, schema=schema, position=position
        )
        columns = relation_columns(schema)
        table.current.replace(taken, current_schema(columns), position)
        table.commit_history(files, history_lsn, schema, replace=fresh)
    table.read_position()
    table.note_key(key_of(relation), position)
    table.loaded(snapshot.tables[name].relation.oid, found, gap, fingerprint)


def columns_of(snapshot: Snapshot, name: str, server: ServerView) -> dict[str, KnownColumn]:
    """{name: column} of a table, as the mirror keeps it after a load.

    Args:
        snapshot: has the table.
        name: its qualified name.
        server: gives the numbers of the columns, in the snapshot.

    Raises:
        ValueError: if a column has the name of a metadata column.
    """
    taken = [each.name for each in snapshot.tables[name].relation.columns if each.name in metadata_names("_")]
    if taken:
        raise ValueError(
            f"column {taken[0]!r} of {name} has the name of a metadata column: rename the column, or leave it out with "
            f"a column list of the publication, and {LOAD_AGAIN}"
        )
    fingerprint = server.fingerprint_in(snapshot, name)
    numbers = {} if fingerprint is None else fingerprint.columns
    return {
        each.name: KnownColumn(numbers[each.name].number if each.name in numbers else None, str(each.type))
        for each in relation_columns(load_schema(snapshot, name))
    }


def rows_of(
    batches: SnapshotBatches, schema: pa.Schema, position: int, keep_going: Callable[[], bool]
) -> Iterator[pa.Table]:
    """The rows of a table in plain types, with the position in place of their commits, which are unknown.

    Raises:
        SnapshotError: if the rows are not complete.
    """
    at = schema.get_field_index(COMMIT_LSN)
    for _, batch in batches:
        if not keep_going():
            raise LoadStoppedError
        rows = to_types(pa.Table.from_batches([batch]), schema)
        yield rows.set_column(at, schema.field(at), pa.repeat(pa.scalar(position, pa.int64()), rows.num_rows))
    for why in batches.lost.values():
        raise SnapshotError(why)


def _taken(
    table: MirroredTable,
    files: HistoryFiles,
    rows: Iterator[pa.Table],
    rejects: LoadRejects,
    *,
    replaced: bool,
    schema: pa.Schema,
    position: int,
) -> Iterator[pa.RecordBatch]:
    """Writes the rows to the history's files, too, and yields them for the current table."""
    names = [*relation_columns(schema).names, COMMIT_LSN, UNREPRESENTABLE]
    if replaced:
        table.add_history(_truncate(schema, position), files)
    for each in rows:
        table.add_history(each, files)
        yield from each.select(names).to_batches()
    rejects.commit()  # first: a reader of a value without an Arrow form also finds it in the rejects


def _truncate(schema: pa.Schema, position: int) -> pa.Table:
    """The change that ends all earlier rows. It precedes the rows of a load, whose ordinal is -1."""
    values = {"_change_type": "truncate", "_seq": -2, COMMIT_LSN: position, "_key_only": False}
    return pa.Table.from_pylist([{field.name: values.get(field.name) for field in schema}], schema)


def load_schema(snapshot: Snapshot, name: str) -> pa.Schema:
    """The columns of a table's rows in a load: metadata columns, then those of the relation, in plain types."""
    plain = stored_schema(snapshot.schema(name), "parquet")
    assert plain.names[: len(metadata_fields("_"))] == [field.name for field in metadata_fields("_")]
    return pa.schema([pa.field(field.name, field.type) for field in plain])


def logged(tables: Sequence[str]) -> Callable[[LoadProgress], None]:
    """Logs the progress of a load from time to time.

    Args:
        tables: all tables of the load.
    """
    last = [time.monotonic()]

    def show(now: LoadProgress) -> None:
        if time.monotonic() - last[0] < _SECONDS:
            return
        last[0] = time.monotonic()
        part = now.table_bytes / now.all_table_bytes if now.all_table_bytes else now.ranges / now.all_ranges
        left = "" if now.eta_seconds is None else f", about {now.eta_seconds:,.0f} s left"
        number = tables.index(now.table) + 1 if now.table in tables else 0
        _log.info(
            "loading %s (table %d of %d): %s rows, %.0f%%%s",
            now.table,
            number,
            len(tables),
            f"{now.rows:,}",
            100 * part,
            left,
        )

    return show
