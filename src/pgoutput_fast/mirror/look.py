"""A look at the publications: which tables they publish, and whether the rows of the mirror may differ from theirs."""

from __future__ import annotations

import logging
from collections.abc import Collection

from pgoutput_fast.mirror.fingerprint import LACKING, Fingerprint, difference, doubts, lacking
from pgoutput_fast.mirror.registry import Tables
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.tables import MirroredTable
from pgoutput_fast.postgres.publications import OPERATIONS
from pgoutput_fast.postgres.row_age import RowAgeError

__all__ = ["look_at_publications"]

_log = logging.getLogger("pgoutput_fast.mirror")


def look_at_publications(tables: Tables, server: ServerView, missing: Collection[str]) -> set[str]:
    """Notes published tables that are not mirrored, and those whose rows may differ: they are loaded soon.

    The mirror leaves a table that is not published any more as it is.

    Args:
        tables: of the mirror.
        server: tells what is published.
        missing: the tables that were not published at the last look.

    Returns:
        The tables that are not published now.

    Raises:
        psycopg2.Error: if the server cannot be asked.
    """
    published = server.fingerprints()
    for name, now in published.items():
        if name not in tables:
            tables.named(name)
        elif (table := tables.named(name)).facts.is_unpublished:
            table.want_load("it is published again")
        elif name in missing and table.follows:
            table.want_load("it was not published for a while")
        else:
            _compare(table, now, server)
    gone = {each.facts.table for each in tables if not each.facts.is_unpublished} - set(published)
    # What changed before is taken first. So the mirror leaves a table when it is missing for the second time.
    for name in sorted(gone.intersection(missing)):
        tables.named(name).leave()
    return gone


def _compare(table: MirroredTable, now: Fingerprint, server: ServerView) -> None:
    before = table.facts.fingerprint
    if not table.follows:
        if (table.facts.error or "").startswith(LACKING) and lacking(OPERATIONS, now) is None:
            table.want_load("its publications publish every operation again")
        return
    if before is None:
        # A mirror that began before there were fingerprints: this one is the first.
        if now.oid != table.facts.oid:
            return table.want_load("the server has another table of this name now")
        return table.remember(fingerprint=now)
    if (why := lacking(before.operations, now)) is not None:
        return table.stop(why)
    why = difference(before, now)
    try:
        for doubt in () if why is not None else doubts(before, now):
            why = why or doubt.why(server.answer(doubt))
    except RowAgeError as problem:  # such as behind a lock: the next look asks again
        _log.warning("%s: its partitions cannot be read now: %s", table.facts.table, str(problem).strip())
        return
    if why is not None:
        table.want_load(why)
    elif (found := now.behind(before)) != before:
        table.remember(fingerprint=found)
