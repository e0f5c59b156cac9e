"""Loads tables: their rows in a snapshot of the server, into current tables and histories."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from pgoutput_fast.merge.effect.effect import COMMIT_LSN, UNREPRESENTABLE, current_schema
from pgoutput_fast.merge.keys import check_key, key_of
from pgoutput_fast.mirror.follow.history import HistoryFiles
from pgoutput_fast.mirror.follow.rejects import LoadRejects
from pgoutput_fast.mirror.follow.tables import MirroredTable, relation_columns
from pgoutput_fast.mirror.load.source import Followed, TableSource
from pgoutput_fast.mirror.schema_changes.fingerprint import lacking
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.mirror.state.table_record import Gap, KnownColumn
from pgoutput_fast.postgres.publications import OPERATIONS
from pgoutput_fast.postgres.row_age import of_one_table
from pgoutput_fast.schema.metadata_columns import metadata_fields, metadata_names
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.snapshot.progress import LoadProgress
from pgoutput_fast.snapshot.snapshot import Snapshot
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.errors import LOAD_AGAIN

__all__ = ["columns_of", "load_schema", "load_table", "logged", "source_of"]

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
    followed: Followed | None = None,
) -> None:
    """Replaces a current table by the rows of the server. The history gets a truncate and the rows, too.

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
        followed: how far the history is. If it is known, the table may be read in ranges that stay when the load is
            interrupted. None to read all rows in the snapshot.

    Raises:
        LoadStoppedError: if `keep_going` became false.
        SnapshotError: if the snapshot cannot read the table, or cannot any more.
        ValueError: if the current table or the history cannot take the rows, the server refuses to read them, the
            publications do not publish every operation, or the key does not tell rows apart.
    """
    name = table.record.on_server
    found, fingerprint = columns_of(snapshot, name, server), server.fingerprint_in(snapshot, name)
    relation = snapshot.tables[name].relation
    check_key(relation, snapshot.catalog.types)
    if fingerprint is not None and (why := lacking(OPERATIONS, fingerprint)) is not None:
        raise ValueError(why)
    table.history.expect_own(known=table.record.knows_history)
    table.remember(stage="load", owns_history=True)
    source = source_of(table, snapshot, server, store, settings, keep_going)
    with of_one_table(name):
        read = source.rows(None if fresh else followed)
    position, schema = read.position, read.schema
    # A new history has nothing before the load.
    gap = Gap(-1 if fresh or table.position is None else table.position, position, server.now()[0])
    replaces = fresh or table.record.is_first
    known = None if replaces else table.history.position()
    if fresh:
        table.remember(history_error=None)
    with of_one_table(name), HistoryFiles(store, run, replace=replaces) as files:
        history_lsn = position if known is None else known
        rejects = LoadRejects(table, relation, files, position, history_lsn)
        rows = rejects.of(read.rows, read.rejects, keep=True)
        taken = _taken(
            table, files, rows, rejects, replaced=known is not None, schema=schema, position=position
        )
        columns = relation_columns(schema)
        table.current.replace(taken, current_schema(columns), position)
        if replaces:
            source.ranges.remove()  # the history loses the changes with which they could be completed
        table.commit_history(files, history_lsn, schema, replace=replaces)
    table.read_position()
    table.note_key(key_of(relation), position)
    table.loaded(snapshot.tables[name].relation.oid, found, gap, read.begin, fingerprint)
    source.ranges.remove()


def source_of(
    table: MirroredTable,
    snapshot: Snapshot,
    server: ServerView,
    store: Store,
    settings: MirrorSettings,
    keep_going: Callable[[], bool],
) -> TableSource:
    """Reads the rows of a table for a load. Arguments as for `load_table`."""
    name = table.record.on_server
    report = settings.progress or logged(name)

    def progress(now: LoadProgress) -> None:
        table.loading = now
        report(now)

    schema = load_schema(snapshot, name)
    return TableSource(table, snapshot, server, store, settings, schema, keep_going, progress)


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


def logged(table: str) -> Callable[[LoadProgress], None]:
    """Logs the progress of a load from time to time.

    Args:
        table: its qualified name.
    """
    last = [time.monotonic()]

    def show(now: LoadProgress) -> None:
        if time.monotonic() - last[0] >= _SECONDS:
            last[0] = time.monotonic()
            _log.info("loading %s: %s", table, now)

    return show
