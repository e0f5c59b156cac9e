"""Problems with the slot of a mirror, and what to do about them."""

from __future__ import annotations

from contextlib import suppress

from pgoutput_fast.capture.errors import CANNOT_GO_ON, NEW_SLOT, START_OVER, AwayError, CaptureError
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.mirror.errors import SlotLostError
from pgoutput_fast.mirror.state.layout import stream_directory
from pgoutput_fast.mirror.state.mirror_state import Beginning, Progress
from pgoutput_fast.postgres.session import read_position, read_server, session
from pgoutput_fast.postgres.slots import Slot, read_slot
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.tables.errors import MirrorError

__all__ = ["REPAIR", "expect_slot", "in_mirror", "lost", "server_behind_error", "slot_problem"]

REPAIR = "Mirror.repair() (--repair) makes another slot, compares the tables with the server, and repairs what differs"


def lost(name: str, slot: Slot | None) -> str | None:
    """Why a slot is lost; None if it is usable."""
    if slot is None:
        return f"slot {name} is gone"
    return None if slot.invalidated is None else f"the server invalidated slot {name} ({slot.invalidated})"


def expect_slot(dsn: str, name: str, segments: str, ahead: int) -> None:
    """Checks that the slot is not lost, and that the server has all changes of the target.

    Args:
        dsn: of the database.
        name: of the slot.
        segments: the directory of the slot's segments.
        ahead: the tables have changes up to this LSN.

    Raises:
        SlotLostError: if the slot is lost; the message says what to do.
        MirrorError: if the server is behind the target.
        psycopg2.Error: if the server cannot be asked.
    """
    with session(dsn) as cursor:
        slot, server, end = read_slot(cursor, name), read_server(cursor), read_position(cursor)
    why = lost(name, slot)
    if why is not None:
        raise SlotLostError(f"{why}: the changes since then are lost. {REPAIR}")
    # Read after the slot: a capture makes changes durable before it confirms them.
    durable_lsn = SegmentDirectory(segments).durable_lsn()
    # A standby may only be behind in replay: the capture waits for that.
    if end < (most := max(ahead, durable_lsn)) and not server.in_recovery:
        raise server_behind_error(most, end)
    # Before PostgreSQL 11, reading from a slot confirms its position, which may go one record further than requested.
    if (
        slot is not None
        and durable_lsn
        and (slot.confirmed_flush_lsn or 0) > durable_lsn
        and server.major >= 11
    ):
        raise SlotLostError(
            f"somebody else has advanced slot {name}, or made another one with this name: the changes from "
            f"{format_lsn(durable_lsn)} on are lost. If nobody else reads the slot, drop it with "
            f"drop_slot. Then repair the mirror. {REPAIR}"
        )


def slot_problem(dsn: str, known: Beginning | None, progress: Progress | None, segments: str) -> str | None:
    """Why a mirror cannot go on with its slot; None if it can, or if unknown.

    Args:
        dsn: of the database.
        known: how the mirror began.
        progress: of all tables.
        segments: the directory of all its segments.
    """
    if known is None or progress is None or known.stage != "done":
        return None
    if known.lost is not None:
        return known.lost
    with suppress(Exception):  # the server does not answer, or the segments cannot be read
        try:
            expect_slot(dsn, known.slot, stream_directory(segments, progress.stream), progress.lsn)
        except MirrorError as problem:
            return str(problem)
    return None


def server_behind_error(ahead: int, end: int) -> MirrorError:
    """The error if the server's WAL ends before the last changes of the tables.

    Args:
        ahead: the tables, or the segments, have changes up to this LSN.
        end: the end of the server's WAL.
    """
    return MirrorError(
        f"the tables have changes up to {format_lsn(ahead)}, but the WAL of the server ends at {format_lsn(end)}: "
        "somebody restored the server from an older copy, or another server took its place that lacks the last "
        "changes. No repair is possible. Mirror into another target with another slot"
    )


def in_mirror(problem: CaptureError) -> Exception:
    """The error of a capture with advice for a mirror, which needs no other target.

    Returns:
        A SlotLostError if this slot can never go on.
    """
    message = str(problem)
    if isinstance(problem, AwayError) or START_OVER not in message:
        return problem
    if any(each in message for each in CANNOT_GO_ON):
        message = message.replace(
            NEW_SLOT, f"Create the publication if it does not exist, and repair the mirror. {REPAIR}"
        )
        return SlotLostError(message.replace(START_OVER, f"Repair the mirror. {REPAIR}"))
    drop = f"rop the slot with drop_slot. Then repair the mirror. {REPAIR}"
    message = message.replace(NEW_SLOT, f"Create the publication if it does not exist, and d{drop}")
    return CaptureError(message.replace(START_OVER, f"D{drop}"))
