"""Starts a mirror: its slot, and the snapshot for the first load. An interrupted start begins again.

The load itself is that of `loads.py`, as for a table that is added later. So tables that are loaded stay loaded if the
mirror is killed, and the capture runs meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from pgoutput_fast.capture.confirmed_position import ConfirmedPosition
from pgoutput_fast.capture.prerequisites import explaining_refusals
from pgoutput_fast.mirror.errors import LoadStoppedError
from pgoutput_fast.mirror.follow.registry import Tables
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.mirror.state.identity import read_source
from pgoutput_fast.mirror.state.mirror_state import Beginning, MirrorState, Progress
from pgoutput_fast.mirror.state.points import Points
from pgoutput_fast.postgres.check import check
from pgoutput_fast.postgres.findings import Finding
from pgoutput_fast.postgres.slots import Slot, drop_slot, end_making, find_slot, is_physical, keep_decoding
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.segments.names import named_segments, newest_named
from pgoutput_fast.segments.read import newest_segment
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.snapshot import Snapshot
from pgoutput_fast.storage.paths import redacted_uri
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.errors import MirrorError

__all__ = ["begin", "check_server", "drop_own", "save_start"]

_log = logging.getLogger("pgoutput_fast.mirror")

# Time limit for the server to notice that the client of a slot is gone.
_DROP_SECONDS = 60.0
# Stands for the names of tables in advice, which are filled in later.
_TABLES = "{tables}"


def begin(
    settings: MirrorSettings,
    state: MirrorState,
    points: Points,
    server: ServerView,
    tables: Callable[[], Tables],
    keep_going: Callable[[], bool],
) -> tuple[Progress, Snapshot | None]:
    """Makes the slot, and registers the tables that must be loaded, unless that is done already.

    Args:
        settings: of the mirror.
        state, points, server: of the mirror.
        tables: opens the tables. Called after those of an interrupted start are forgotten.
        keep_going: called during the wait for the slot: whether to go on.

    Returns:
        The progress of all tables; and the snapshot at which the slot begins, None if the slot was made before.

    Raises:
        MirrorError: if the slot belongs to somebody else.
        LoadStoppedError: if `keep_going` became false. The next call begins again.
        SnapshotError, ValueError, psycopg2.Error: if the slot cannot be made. The next call begins again.
    """
    known = state.beginning()
    if known is None:
        beginning, snapshot = _begin(settings, state, server, keep_going)
    elif known.stage in ("slot", "load"):
        with keep_decoding(settings.dsn, known.slot):
            _undo(settings, known, state, points)
            beginning, snapshot = _begin(settings, state, server, keep_going)
    else:
        return state.progress() or Progress(-1, 0, known.lsn), None
    try:
        return _registered(settings, state, server, tables(), beginning, snapshot), snapshot
    except BaseException:
        snapshot.close()
        raise


def _registered(
    settings: MirrorSettings,
    state: MirrorState,
    server: ServerView,
    tables: Tables,
    beginning: Beginning,
    snapshot: Snapshot,
) -> Progress:
    """Registers the tables of a new slot. From then on the mirror has begun, and is continued after a kill."""
    for name in snapshot.tables:
        tables.named(name).remember(is_first=True)
    time_now, _ = server.now()
    segments = open_store(settings.segments)
    # An adopted slot may have segments, the oldest of which are already removed.
    first = next((each.first_seq for each in named_segments(segments)), None)
    if first is None and beginning.made:
        save_start(segments, snapshot.consistent_lsn)
    first, position = first or 0, snapshot.consistent_lsn - 1
    progress = Progress(first - 1, first, position, time_now)
    state.set_progress(progress)
    state.set_beginning(beginning.at("done", position))
    _log.info("slot %s begins at %s", beginning.slot, format_lsn(snapshot.consistent_lsn))
    return progress


def _begin(
    settings: MirrorSettings, state: MirrorState, server: ServerView, keep_going: Callable[[], bool]
) -> tuple[Beginning, Snapshot]:
    """Makes the slot, or adopts it. Returns how the mirror begins, and the snapshot for the first load."""
    check_server(settings, settings.slot)
    source = read_source(settings.dsn)
    made = _expect_free(settings, source)
    _, lsn = server.now()
    server.check()
    beginning = Beginning(
        settings.slot,
        settings.publications,
        settings.format,
        settings.given_segments and redacted_uri(settings.given_segments),
        "slot",
        made,
        lsn,
        settings.table_options.catalog_place,
        source,
        namespace=settings.namespace,
        types=settings.types,
    )
    state.set_beginning(beginning)
    try:
        with explaining_refusals(lambda: check(settings.dsn, settings.publications).findings):
            return beginning, settings.snapshot(settings.slot if made else None, keep_going)
    except Exception as problem:
        state.set_beginning(None)  # the slot was not made, or is dropped again
        if isinstance(problem, SnapshotError) and not keep_going():
            raise LoadStoppedError from problem
        raise


def save_start(segments: Store, lsn: int) -> None:
    """Saves the start of a new slot. Until the first segment exists, it tells whether the slot was replaced.

    Args:
        segments: the directory of the slot's segments.
        lsn: the consistent point of the slot.
    """
    segments.make()
    ConfirmedPosition(segments).save(lsn, now=True)


def _undo(settings: MirrorSettings, known: Beginning, state: MirrorState, points: Points) -> None:
    """Forgets an interrupted start, and drops the slot that the mirror made for it.

    Earlier versions of this package loaded the tables in this stage, too: theirs are loaded again.
    """
    _log.warning("the start was interrupted: it begins again")
    drop_own(settings.dsn, known)
    state.begin_again()
    points.forget()
    state.set_beginning(None)


def drop_own(dsn: str, known: Beginning) -> None:
    """Drops the slot of an interrupted start or repair, if the mirror made it for that."""
    slot = find_slot(dsn, known.slot)
    # A process killed while it made the slot does not know the outcome. A slot without a position is still being
    # created: while the server waits for open transactions, it does not notice that the client is gone.
    is_old = (
        known.stage in ("slot", "new slot")
        and slot is not None
        and slot.confirmed_flush_lsn is not None
        and slot.confirmed_flush_lsn < known.lsn
    )
    if slot is not None and known.made and not is_old:
        _drop(dsn, known.slot)


def _drop(dsn: str, name: str) -> None:
    deadline = time.monotonic() + _DROP_SECONDS
    while (slot := find_slot(dsn, name)) is not None:
        if slot.active_pid is None:
            drop_slot(dsn, name)
        elif slot.confirmed_flush_lsn is None:
            end_making(dsn, name, slot.active_pid)
            time.sleep(0.1)
        elif time.monotonic() > deadline:
            raise MirrorError(
                f"slot {name} of an interrupted load is in use by process {slot.active_pid} of the server: end "
                "that process, and run the mirror again"
            )
        else:
            time.sleep(0.1)


def check_server(settings: MirrorSettings, slot: str | None) -> None:
    """Checks the server, the publications and the tables.

    Args:
        settings: of the mirror.
        slot: the slot to check, too; None for none.

    Raises:
        MirrorError: if something prevents the load, or changes would be missed silently.
    """
    report = check(settings.dsn, settings.publications, slot)
    for each in _joined([each for each in report.findings if each.level == "note"]):
        _log.info("%s: %s. %s", each.subject, each.problem, each.advice)
    # If DELETE is not published, for example, the mirror would keep deleted rows for ever.
    stops = [
        each
        for each in report.findings
        if each.stops or "SELECT" in each.advice or "does not publish" in each.problem
    ]
    if stops:
        # Alone it is no reason to stop: some hosts let users without the attribute replicate.
        stops += [each for each in report.findings if "REPLICATION" in each.advice and each not in stops]
        problems = " ".join(f"{each.subject}: {each.problem}. {each.advice}." for each in _joined(stops))
        raise MirrorError(f"the mirror cannot begin: {problems}")


def _joined(findings: Sequence[Finding]) -> list[Finding]:
    """Merges the findings of all tables with the same problem and advice into one."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in findings:
        found.setdefault((each.problem, each.advice.replace(each.subject, _TABLES)), []).append(each.subject)
    return [
        Finding("error", ", ".join(subjects), problem, advice.replace(_TABLES, ", ".join(subjects)))
        for (problem, advice), subjects in found.items()
    ]


def _expect_free(settings: MirrorSettings, source: tuple[str, str]) -> bool:
    """Whether the mirror must make the slot.

    Args:
        settings: of the mirror.
        source: the server's identifier, and the name of the database.

    Raises:
        MirrorError: if slot or segments belong to somebody else and are not adopted, or cannot be.
    """
    slot = find_slot(settings.dsn, settings.slot)
    if slot is None and is_physical(settings.dsn, settings.slot):
        raise MirrorError(
            f"slot {settings.slot} is a physical slot, perhaps that of a standby. Choose another name for the slot of "
            "the mirror"
        )
    if slot is not None:
        _expect_suitable(slot, source)
    if settings.adopt:
        _expect_adoptable(settings, slot, source)
        return slot is None
    if slot is not None:
        raise MirrorError(
            f"slot {settings.slot} exists, and this mirror did not make it. Choose another name. If nobody else reads "
            "the slot, drop it with drop_slot, or let the mirror adopt it (adopt=True, or --adopt)"
        )
    if newest_named(open_store(settings.segments)) is not None:
        raise MirrorError(
            f"{redacted_uri(settings.segments)} has segments that this mirror did not write. Use another target or "
            "another directory for the segments. If a capture of this slot wrote them, adopt both (adopt=True, or "
            "--adopt)"
        )
    return True


def _expect_suitable(slot: Slot, source: tuple[str, str]) -> None:
    """Checks that a mirror of this database can read an existing slot."""
    if (slot.plugin, slot.database) != ("pgoutput", source[1]):
        raise MirrorError(
            f"slot {slot.name} exists. It has plugin {slot.plugin} and decodes database {slot.database}, but a mirror "
            f"of database {source[1]} needs a slot of this database with plugin pgoutput. Choose another name for the "
            "slot"
        )


def _expect_adoptable(settings: MirrorSettings, slot: Slot | None, source: tuple[str, str]) -> None:
    """Checks that a mirror of this database can go on with a slot and its segments."""
    if slot is not None and slot.active_pid is not None:
        raise MirrorError(
            f"slot {slot.name} cannot be adopted now: process {slot.active_pid} of the server sends its changes to "
            "another client. Stop that client first: a slot has one reader"
        )
    newest = newest_segment(settings.segments)
    if newest is None:
        return
    theirs = newest.source
    if (theirs.system_identifier, theirs.database, theirs.slot) != (*source, settings.slot):
        raise MirrorError(
            f"the segments in {redacted_uri(settings.segments)} cannot be adopted: they are of slot {theirs.slot} of "
            f"database {theirs.database} of the server {theirs.system_identifier}, not of slot {settings.slot} of "
            f"database {source[1]} of the server {source[0]}. Use another directory for the segments"
        )
