"""Detects in the server's catalogs that a table was altered so that the mirror's rows may differ."""

from __future__ import annotations

import logging
from dataclasses import replace

from pgoutput_fast.capture.retries import is_outage
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.schema_changes.fingerprint import (
    LACKING,
    Fingerprint,
    columns_lost,
    difference,
    is_only_repacked,
    lacking,
    row_questions,
)
from pgoutput_fast.mirror.schema_changes.widening import with_wider_columns
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.postgres.publications import OPERATIONS
from pgoutput_fast.postgres.row_age import RowAgeError

__all__ = ["ask_for_alterations", "note_alterations"]

_log = logging.getLogger("pgoutput_fast.mirror")


def ask_for_alterations(table: MirroredTable, server: ServerView) -> None:
    """Asks the server whether a table that cannot take its changes was altered. If so, it must be loaded.

    Raises:
        psycopg2.Error: if the server cannot be reached.
    """
    try:
        now = server.fingerprints().get(table.record.on_server)
    except Exception as problem:
        if is_outage(problem, local=True):
            raise
        # The table then stops for its own reason; the other tables go on.
        return _log.warning("%s: the catalogs cannot be read: %s", table.record.table, str(problem).strip())
    if now is None:
        return table.want_load("it is not published now")  # the load leaves the table if that is still so
    try:
        note_alterations(table, now, server)
    except RowAgeError as problem:  # undecidable, and a load is always correct
        table.want_load(f"its partitions cannot be read now: {str(problem).strip()}")


def note_alterations(
    table: MirroredTable, now: Fingerprint, server: ServerView, through: int | None = None
) -> None:
    """Compares the catalogs with their previous state. If rows may differ, the table stops following.

    Args:
        table: the table. If it was stopped because its publications lacked an operation, it may be loaded now.
        now: the current state of the catalogs.
        server: answers doubts.
        through: the commits up to this LSN were taken. None: decide now.

    Raises:
        RowAgeError: if a partition cannot be read now, such as a locked one.
    """
    before = table.record.fingerprint
    if now.filters is None:  # a changed filter also changes `members`
        now = replace(now, filters=() if before is None else before.filters)
    if not table.follows:
        if (table.record.error or "").startswith(LACKING) and lacking(OPERATIONS, now) is None:
            table.want_load("its publications publish every operation again")
        return
    if before is None:
        # The mirror is older than fingerprints: this is its first.
        if now.oid != table.record.oid:
            return table.want_load("the server has another table of this name now")
        return table.remember(fingerprint=now)
    if (why := lacking(before.operations, now)) is not None:
        return table.stop(why)
    lost = columns_lost(before.columns, now.columns, table.record.columns)
    if table.trusts_widening:
        before = with_wider_columns(before, now)
    why = lost or difference(before, now) or _partition_gone(table, now)
    for question in () if why is not None else row_questions(before, now):
        why = why or question.why(server.answer(question))
    # SET LOGGED writes a new file, too: the changes of an unlogged table are not sent.
    is_another = now.filenode != before.filenode and not is_only_repacked(before, now)
    if why is None and is_another and not before.stays_logged:
        if not _is_decidable(table, now, server, through):
            return  # the next check asks again
        why = _why_rewritten(table, server)
    if why is not None:
        table.want_load(why)
    elif (found := now.with_dropped_columns(before)) != table.record.fingerprint or table.record.partitions:
        table.remember(fingerprint=found, truncated=False, new_file=None, partitions={})
    table.horizon = now.horizon


def _partition_gone(table: MirroredTable, now: Fingerprint) -> str | None:
    """Why a table must be loaded after changes of partitions that came and went between two checks; None if not."""
    gone = table.record.partitions.keys() - now.leaves.keys()
    if str(now.oid) in gone:
        return "it was a partition of another table when rows changed"
    if gone:
        return f"a partition of it (oid {min(gone)}) was attached, changed, and detached or dropped"
    return None


def _is_decidable(table: MirroredTable, now: Fingerprint, server: ServerView, through: int | None) -> bool:
    """Whether the stream is far enough to tell if TRUNCATE gave a table its new file."""
    known = table.record.new_file
    if known is None or known[0] != now.filenode:
        horizon = now.horizon if table.horizon is None else table.horizon
        table.remember(new_file=(now.filenode, server.now()[1], horizon))
        return through is None
    return through is None or through >= known[1]


def _why_rewritten(table: MirroredTable, server: ServerView) -> str | None:
    """Why a table with a new file must be loaded; None if it need not.

    VACUUM FULL and CLUSTER keep the xmin of the rows. ALTER TABLE, such as SET LOGGED, does not.
    """
    assert table.record.new_file is not None
    if (
        table.record.truncated
        or server.has_row(table.record.on_server, table.record.new_file[2]) is not False
    ):
        return None
    return "its rows were rewritten by ALTER TABLE, or it was emptied in a way that the stream does not show"
