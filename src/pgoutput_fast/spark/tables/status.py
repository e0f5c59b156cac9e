"""How far the tables of a target are, and which are stopped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pgoutput_fast.base.display import error_text
from pgoutput_fast.spark.current.notes import Notes, read_notes
from pgoutput_fast.spark.sessions import session_of
from pgoutput_fast.storage.paths import absolute
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.data_files import rows_in
from pgoutput_fast.tables.formats import FORMATS, open_target
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.progress import Progress
from pgoutput_fast.tables.target import FileTarget

__all__ = ["table_status"]

_SCHEMA = (
    "table string, state string, reason string, since timestamp, position bigint, rows bigint, lag bigint"
)


def table_status(
    target: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """How far the tables of `write_tables`, `write_raw` and the sinks are, and which of them are stopped.

    The driver reads the tables, without a job and without the right to write, so this works while a query runs.

    Args:
        target, storage_options, iceberg_catalog: as in `write_tables`.
        spark: the session; default: the active one.

    Returns:
        A row per table, by name:
        - `table`: its directory in the target; for a current table of `current_sink`, its name on the server
        - `state`: `follow`, `stopped`, `excluded` if the newest run left it out, or `missing` if the table was removed
        - `reason`, `since`: why it is stopped, and since when it is stopped or excluded; otherwise null
        - `position`: ordinal of the last message whose effect it has; null before its first commit
        - `rows`: how many rows it has; null for a current table
        - `lag`: how many messages after its position runs have seen.

    Raises:
        FileNotFoundError: if the target has no record of tables.
        OSError: if it is unavailable.

    Example:
        pgspark.table_status("lake/").where("state = 'stopped'").show(truncate=False)
    """
    store = open_store(absolute(target))
    progress = Progress.read(store)
    notes = read_notes(store)
    if not progress.tables and notes.directory is None:
        raise FileNotFoundError(
            f"{store} has no record of tables: the next call of write_tables, write_raw or a sink makes it"
        )
    options = TableOptions(storage_options, iceberg_catalog)
    targets = {
        format: open_target(format, store, options)
        for format in {each.format for each in progress.tables.values()}
        if format in FORMATS and "changes" in FORMATS[format].roles
    }
    rows = [_row(targets, progress, directory) for directory in sorted(progress.tables)]
    rows += _current_rows(notes)
    return session_of(spark).createDataFrame(rows, _SCHEMA)


def _current_rows(notes: Notes) -> list[tuple[Any, ...]]:
    names = {*notes.oids, *notes.stopped}
    return [
        _current_row(notes, name)
        for name in sorted(names if notes.tables is None else names & {*notes.tables})
    ]


def _current_row(notes: Notes, name: str) -> tuple[Any, ...]:
    end, stop = -1 if notes.seq is None else notes.seq, notes.stopped.get(name)
    if stop is None:
        return name, "follow", None, None, notes.seq, None, 0
    position = stop.seq if stop.seq >= 0 else None
    return name, "stopped", stop.reason, datetime.fromisoformat(stop.since), position, None, end - stop.seq


def _row(targets: Mapping[str, FileTarget], progress: Progress, directory: str) -> tuple[Any, ...]:
    record = progress.tables[directory]
    stop = record.stop
    state, reason, since = "follow", None, None
    if stop is not None:
        state, reason, since = "excluded" if stop.reason is None else "stopped", stop.reason, stop.at
    try:
        if record.format not in targets:
            raise ValueError(f"this version has no tables of changes of the format {record.format!r}")
        table = targets[record.format].table(directory, "changes")
        known = table.known
        own = None if known is None else known.ordinal
        rows = None if known is None else sum(rows_in(table.store, directory, file) for file in known.files)
    except ValueError as problem:
        return directory, "stopped", reason or error_text(problem), since, None, None, None
    if own is None and stop is None:
        state = "missing"
    found = progress.ordinal(directory, own)
    position = None if found is None else found.seq
    lag = progress.end_of(record.reached.stream) - (-1 if position is None else position)
    return directory, state, reason, since, position, rows, max(lag, 0)
