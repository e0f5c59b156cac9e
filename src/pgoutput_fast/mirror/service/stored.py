"""The status of a mirror from its target. The mirror may run in another process, or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from pgoutput_fast.mirror.follow.registry import Tables
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.service.status import TableStatus, table_status, without_slot
from pgoutput_fast.mirror.slot import slot_problem
from pgoutput_fast.mirror.state.layout import SEGMENTS
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.options import TableOptions

__all__ = ["slot_of", "status_of", "stored_status"]


def status_of(
    target: str | os.PathLike[str],
    dsn: str | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> list[TableStatus]:
    """The state of all tables of a mirror, sorted by name. The mirror may run in another process, or not at all.

    Lags are upper bounds, because the target has only durable state. Counts of another process are unknown:
    `waiting_rows` is None unless nothing waits, and `applied_rows` and `merges` are 0. Its metrics have them.

    Args:
        target: of the mirror: a path or a URI.
        dsn: of the server, which is asked for the end of its WAL. Without a dsn or an answer, lags are None.
        storage_options: options of delta-rs for the store, besides the URI.
        iceberg_catalog: for Iceberg: the properties of the catalog, as the mirror has them.

    Raises:
        LookupError: if the target has no mirror.
        ValueError: if a file of the mirror is damaged, or if its tables are in a catalog that was not given.
        OSError: if the target cannot be read.
    """
    store = open_store(target)
    state = MirrorState(store)
    options = TableOptions(storage_options, iceberg_catalog)
    known = state.begun(options)
    view = ServerView("" if dsn is None else dsn, known.publications)
    server = None
    if dsn is not None:
        with suppress(Exception):
            server = view.now()
    found = stored_status(store, known.format, known.table_options(options), state, view, server)
    if dsn is None or server is None:
        return found
    segments = known.segments or os.fspath(store.at(SEGMENTS))
    return without_slot(found, slot_problem(dsn, known, state.progress(), segments))


def slot_of(target: str | os.PathLike[str]) -> str:
    """The name of the slot that a mirror reads.

    Raises:
        LookupError: if the target has no mirror.
    """
    known = MirrorState(open_store(target)).beginning()
    if known is None:
        raise LookupError(f"{target} is not the target of a mirror")
    return known.slot


def stored_status(
    store: Store,
    format: str,
    options: TableOptions,
    state: MirrorState,
    view: ServerView,
    server: tuple[int, int] | None,
) -> list[TableStatus]:
    """The same, for `Mirror`, which knows the arguments.

    Args:
        store: the target.
        format: of the current tables.
        options: how to reach them.
        state: of the mirror.
        view: of its server.
        server: its time, and the end of its WAL; None without an answer.
    """
    # Read before the tables: the histories, opened later, have all commits up to this LSN.
    history_lsn = state.history_lsn() or 0
    tables = Tables(store, format, options, state, view)
    progress = state.progress()
    found = []
    for each in tables:
        has_all = _has_all_of_history(each, 0 if progress is None else progress.lsn)
        common = history_lsn + 1 if has_all and history_lsn else 0, None
        status = table_status(each, progress, common, server)
        found.append(replace(status, waiting_rows=0 if has_all else None))
    return found


def _has_all_of_history(table: MirroredTable, applied: int) -> bool:
    """Whether the current table has all changes of its history. Tables that follow have all up to `applied`."""
    if table.record.is_unpublished:
        return True
    history = table.history.position()
    if (
        not table.follows
        or table.record.history_error is not None
        or history is None
        or table.position is None
    ):
        return False
    return history <= max(table.position, applied)
