"""The waiting changes of several tables, in one commit where the format has one for all tables of a target."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pgoutput_fast.mirror.follow.tables import CANNOT_APPLY, MirroredTable

__all__ = ["apply_changes"]

_log = logging.getLogger("pgoutput_fast.mirror")


def apply_changes(tables: Sequence[MirroredTable], position: int, *, more_waits: bool = False) -> None:
    """Applies the waiting changes of tables. A table that cannot take its changes does not stop the others.

    Args:
        tables: have waiting changes.
        position: the LSN that the tables have then.
        more_waits: as for `CurrentTable`.
    """
    if len(tables) > 1 and _applied_together(tables, position, more_waits):
        return
    for each in tables:
        each.apply(position, more_waits=more_waits)


def _applied_together(tables: Sequence[MirroredTable], position: int, more_waits: bool) -> bool:
    """Applies the changes in one commit. Returns whether it could; if not, no table is changed."""
    commit = tables[0].current.together()
    if commit is None:
        return False
    try:
        with commit:
            for each in tables:
                each.change(position, more_waits=more_waits)
    except CANNOT_APPLY as problem:
        # The changes still wait. So the tables can get them one after the other, but for the one that cannot.
        _log.info("each table gets a commit of its own: %s", problem)
        return False
    for each in tables:
        each.changed()
    return True
