"""The status of a mirror from its target. The mirror may run in another process, or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from pgoutput_fast.base.display import some_of
from pgoutput_fast.mirror.follow.registry import Tables
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.load.ranges import LoadedRanges
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.service.status import TableStatus, table_status, without_slot
from pgoutput_fast.mirror.slot import slot_problem
from pgoutput_fast.mirror.state.layout import SEGMENTS
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.postgres.errors import NO_ANSWER
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.formats import open_current
from pgoutput_fast.tables.options import TableOptions

__all__ = ["sizes_of", "slot_of", "status_of", "stored_status", "unfinished"]


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
        with suppress(*NO_ANSWER):
            server = view.now()
    found = stored_status(store, known.format, known.table_options(options), state, view, server)
    if dsn is None or server is None:
        return found
    segments = known.segments or os.fspath(store.at(SEGMENTS))
    return without_slot(found, slot_problem(dsn, known, state.progress(), segments))


def sizes_of(
    target: str | os.PathLike[str],
    versions: Mapping[str, int | None],
    *,
    storage_options: Mapping[str, str] | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> dict[str, tuple[int, int | None]]:
    """{qualified name: (rows, bytes)} of current tables; None for bytes that all tables share, as in DuckDB.

    Args:
        target: of the mirror: a path or a URI.
        versions: {qualified name: version}; None for the version of now. Tables that do not exist yet are left out.
        storage_options, iceberg_catalog: as for `status_of`.

    Raises:
        LookupError: if the target has no mirror.
        FileNotFoundError: if a table no longer has its version.
        ValueError, OSError: as `status_of`.
    """
    store = open_store(target)
    given = TableOptions(storage_options, iceberg_catalog)
    known = MirrorState(store).begun(given)
    options = known.table_options(given)
    found = {}
    for name, version in versions.items():
        table = open_current(known.format, store, name, options)
        if version is not None or table.version() is not None:
            found[name] = table.size(version)
    return found


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
        load = LoadedRanges(store, each.directory).progress if each.wants_load else None
        found.append(replace(status, waiting_rows=0 if has_all else None, load=load))
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


def unfinished(state: MirrorState) -> str | None:
    """The work that was stopped before its end, and its slot on the server; None without such work."""
    if (known := state.beginning()) is None:
        return None
    slot = (
        f"Slot {known.slot} may stay on the server and keep WAL meanwhile: if you give the mirror up, drop it with "
        "drop_slot"
    )
    if known.stage != "done":
        what = "start" if known.stage in ("slot", "load") else "repair"
        return f"the {what} is not complete: run the mirror again, and it begins again. {slot}"
    left = [each.table for each in state.tables().values() if each.stage == "load" and not each.oid]
    if not left:
        return None
    return f"tables are still to be loaded ({some_of(left)}): run the mirror again, and it goes on. {slot}"
