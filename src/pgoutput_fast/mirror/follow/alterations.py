"""Detects in the server's catalogs that a table was altered so that the mirror's rows may differ."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pgoutput_fast.capture.retries import is_outage
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.schema_changes.fingerprint import (
    LACKING,
    Fingerprint,
    Leaf,
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
    why = lost or difference(before, now)
    questions = [] if why is not None else list(row_questions(before, now))
    for question in questions:
        why = why or question.why(server.answer(question))
    why = why or _partition_gone(table.record.partitions, before, now)
    attached = [each.leaf for each in questions if each.is_of_attached]
    if why is None and attached and not _has_changes_of(attached, table, server, through):
        return  # the next check asks again
    # SET LOGGED writes a new file, too: the changes of an unlogged table are not sent.
    is_another = now.filenode != before.filenode and not is_only_repacked(before, now)
    if why is None and is_another and not before.stays_logged:
        if not _is_decidable(table, now, server, through):
            return  # the next check asks again
        why = _why_rewritten(table, server)
    if why is not None:
        table.want_load(why)
    elif (found := now.with_dropped_columns(before)) != table.record.fingerprint or table.record.partitions:
        table.remember(fingerprint=found, truncated=False, new_file=None, partitions={}, attached=None)
    table.horizon = now.horizon


def _partition_gone(sent: Mapping[str, tuple[int, str]], before: Fingerprint, now: Fingerprint) -> str | None:
    """Why changes of partitions that no check has seen make a load necessary; None if they do not.

    Args:
        sent: the partitions, as in the record of the table.
        before, now: the catalogs at the last check, and now.
    """
    for oids, (_, name) in sent.items():
        root, oid = oids.split("/")
        leaf = now.leaves.get(oid)
        if root != str(now.oid):
            if leaf is not None or oid == str(now.oid):
                return f"changes of {name} were sent as those of another table"
        # One that has another file since its creation may have been emptied.
        elif leaf is None or (oid not in before.leaves and not leaf.is_born):
            return f"its partition {name} had changes, and was detached, dropped or emptied before a check"
    return None


def _has_changes_of(
    attached: Sequence[Leaf], table: MirroredTable, server: ServerView, through: int | None
) -> bool:
    """Whether the stream has the changes of attached partitions up to the check that first saw them empty."""
    marks = tuple(f"{each.name} {each.filenode} {[*each.links]}" for each in attached)
    known = table.record.attached
    if known is None or known[1] != marks:
        known = server.now()[1], marks
        table.remember(attached=known)
    return through is None or through >= known[0]


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
