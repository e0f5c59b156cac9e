"""The beginning of a mirror: its slot, and the first load. If it is interrupted, it begins again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pgoutput_fast.mirror.errors import MirrorError
from pgoutput_fast.mirror.load import load_table, logged
from pgoutput_fast.mirror.memory import Beginning, Memory, Progress
from pgoutput_fast.mirror.points import Points
from pgoutput_fast.mirror.registry import Tables
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.postgres.check import check
from pgoutput_fast.postgres.slots import drop_slot, find_slot
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.segments.names import named_segments, newest_named
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.snapshot import Snapshot
from pgoutput_fast.storage.paths import shown
from pgoutput_fast.storage.stores import Store, open_store

__all__ = ["begin"]

_log = logging.getLogger("pgoutput_fast.mirror")

# How long a server may take to notice that the client of a slot is gone.
_DROP_SECONDS = 60.0


def begin(
    settings: MirrorSettings,
    store: Store,
    memory: Memory,
    points: Points,
    server: ServerView,
    tables: Callable[[], Tables],
    run: str,
    wanted: Callable[[], bool],
) -> Progress:
    """Makes the slot and loads all tables, unless that is done already.

    Args:
        settings: of the mirror.
        store: the target.
        memory, points, server: of the mirror.
        tables: opens the tables. Called when those of an interrupted load are forgotten.
        run: names the process.
        wanted: called while tables are loaded: whether to go on.

    Returns:
        How far all tables are.

    Raises:
        MirrorError: if the target has another mirror, or the slot belongs to somebody else.
        LoadStoppedError: if `wanted` became false. The next call begins again.
        SnapshotError, ValueError, psycopg2.Error: if the load fails. The next call begins again.
    """
    known = memory.beginning()
    if known is not None:
        _expect_same(settings, known, store)
        if known.stage == "done":
            return memory.progress() or Progress(-1, 0, known.lsn)
        _undo(settings, known, memory, points)
    _check(settings)
    made = _expect_free(settings)
    _, lsn = server.now()
    beginning = Beginning(
        settings.slot, settings.publications, settings.format, settings.given_segments, "slot", made, lsn
    )
    memory.set_beginning(beginning)
    try:
        snapshot = Snapshot(
            settings.dsn,
            settings.publications,
            settings.slot if made else None,
            options=settings.options,
        )
    except Exception:
        memory.set_beginning(None)  # the slot was not made, or is dropped again
        raise
    with snapshot:
        position = snapshot.consistent_lsn - 1
        memory.set_beginning(beginning := beginning.at("load", position))
        _load(settings, snapshot, tables(), server, store, run, wanted)
        time_now, _ = server.now()
    # An adopted slot may have segments, of which the oldest are removed already.
    first = next((each.first_seq for each in named_segments(open_store(settings.segments))), 0)
    progress = Progress(first - 1, first, position, time_now)
    memory.set_progress(progress)
    memory.set_beginning(beginning.at("done", position))
    _log.info("the first load is complete up to %s", format_lsn(position))
    return progress


def _load(
    settings: MirrorSettings,
    snapshot: Snapshot,
    tables: Tables,
    server: ServerView,
    store: Store,
    run: str,
    wanted: Callable[[], bool],
) -> None:
    names = list(snapshot.tables)
    progress = settings.progress or logged(names)
    _log.info("the first load begins: %d tables", len(names))
    for name in names:
        table = tables.named(name)
        try:
            load_table(
                table,
                snapshot,
                server,
                store,
                run,
                fresh=True,
                wanted=wanted,
                threads=settings.threads,
                progress=progress,
            )
            _log.info("%s is loaded", name)
        except SnapshotError as problem:
            if name not in str(problem):
                raise
            table.want_load(str(problem))  # altered or dropped meanwhile: it gets a load of its own
        except ValueError as problem:
            table.stop(str(problem))


def _expect_same(settings: MirrorSettings, known: Beginning, store: Store) -> None:
    """Checks that the target has this mirror."""
    for what, mine, theirs in (
        ("slot", settings.slot, known.slot),
        ("publications", ", ".join(settings.publications), ", ".join(known.publications)),
        ("format", settings.format, known.format),
        (
            "segments",
            settings.given_segments and shown(settings.given_segments),
            known.segments and shown(known.segments),
        ),
    ):
        if mine != theirs:
            raise MirrorError(
                f"{store} is the target of another mirror: its {what} is {theirs or 'the default'}, not "
                f"{mine or 'the default'}. Use another target, or the same {what}"
            )


def _undo(settings: MirrorSettings, known: Beginning, memory: Memory, points: Points) -> None:
    """Forgets a first load that was interrupted, and drops the slot that the mirror made for it."""
    _log.warning("the first load was interrupted: it begins again")
    slot = find_slot(settings.dsn, known.slot)
    # A process that was killed while it made the slot does not know how that went.
    if (
        slot is not None
        and known.made
        and (known.stage == "load" or (slot.confirmed_flush_lsn or 0) >= known.lsn)
    ):
        _drop(settings.dsn, known.slot)
    memory.forget_tables()
    points.forget()
    memory.set_beginning(None)


def _drop(dsn: str, name: str) -> None:
    deadline = time.monotonic() + _DROP_SECONDS
    while (slot := find_slot(dsn, name)) is not None:
        if slot.active_pid is None:
            drop_slot(dsn, name)
        elif time.monotonic() > deadline:
            raise MirrorError(
                f"slot {name} of an interrupted first load is in use by process {slot.active_pid} of the server: end "
                "that process, and run the mirror again"
            )
        else:
            time.sleep(0.1)


def _check(settings: MirrorSettings) -> None:
    """Checks the server, the publications and the tables.

    Raises:
        MirrorError: if something prevents the load, or changes would silently be missed.
    """
    report = check(settings.dsn, settings.publications, settings.slot)
    stops = [each for each in report.findings if each.stops or "SELECT" in each.advice]
    if stops:
        said = " ".join(f"{each.subject}: {each.problem}. {each.advice}." for each in stops)
        raise MirrorError(f"the mirror cannot begin: {said}")


def _expect_free(settings: MirrorSettings) -> bool:
    """Whether the mirror must make the slot.

    Raises:
        MirrorError: if slot or segments belong to somebody else, and are not adopted.
    """
    slot = find_slot(settings.dsn, settings.slot)
    if settings.adopt:
        return slot is None
    if slot is not None:
        raise MirrorError(
            f"slot {settings.slot} exists, and this mirror did not make it. Choose another name. If nobody else reads "
            "the slot, drop it with drop_slot, or let the mirror adopt it (adopt=True, or --adopt)"
        )
    if newest_named(open_store(settings.segments)) is not None:
        raise MirrorError(
            f"{shown(settings.segments)} has segments that this mirror did not write. Use another target or another "
            "directory for the segments. If a capture of this slot wrote them, adopt both (adopt=True, or --adopt)"
        )
    return True
