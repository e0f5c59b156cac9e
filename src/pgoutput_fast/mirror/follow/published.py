"""Checks which tables the publications publish, and whether the rows of the mirror may differ from theirs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from pgoutput_fast.mirror.follow.alterations import note_alterations
from pgoutput_fast.mirror.follow.quiet_tables import QuietTables
from pgoutput_fast.mirror.follow.registry import Tables
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.postgres.row_age import RowAgeError

__all__ = ["check_publications"]

_log = logging.getLogger("pgoutput_fast.mirror")


def check_publications(
    tables: Tables,
    server: ServerView,
    missing: Collection[str],
    through: int,
    quiet: QuietTables,
    keep_going: Callable[[], bool],
) -> set[str]:
    """Notes published tables that are not mirrored, and those whose rows may differ: they are loaded soon.

    A table that is no longer published stays as it is.

    Args:
        tables: of the mirror.
        server: tells what is published.
        missing: the tables that were not published at the last check.
        through: the mirror has taken the commits up to this LSN. Some may still wait for their tables.
        quiet: gives tables without changes their new columns.
        keep_going: whether to go on. A table with locked partitions takes seconds.

    Returns:
        The tables that are not published now.

    Raises:
        psycopg2.Error: if the server cannot be asked.
    """
    published = server.fingerprints()
    tables.note_names({name: now.oid for name, now in published.items()})
    for name, now in published.items():
        if not keep_going():
            return set(missing)
        if name not in tables:
            tables.named(name)
        elif (table := tables.named(name)).record.is_unpublished:
            table.want_load("it is published again")
        elif table.record.table in missing and table.follows:
            table.want_load("it was not published for a while")
        else:
            try:
                note_alterations(table, now, server, through)
                quiet.check(table, now, through)
            except RowAgeError as problem:  # such as locked ones: the next check asks again
                _log.warning("%s: its partitions cannot be read now: %s", name, str(problem).strip())
    unpublished = {
        each.record.table
        for each in tables
        if not each.record.is_unpublished and each.record.on_server not in published
    }
    # Earlier changes are applied first. So the mirror leaves a table only when it is missing for the second time.
    for name in sorted(unpublished.intersection(missing)):
        tables.named(name).leave()
    return unpublished
