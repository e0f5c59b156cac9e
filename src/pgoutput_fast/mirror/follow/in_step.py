"""Tables in step: current tables get changes only if all of them can reach the same position."""

from __future__ import annotations

from collections.abc import Iterable

from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.tables.errors import MirrorError

__all__ = ["expect_in_step", "prepare"]


def expect_in_step(tables: Iterable[MirroredTable]) -> None:
    """Checks that no table is stopped: the others would get ahead of it.

    Raises:
        MirrorError: if one is.
    """
    stopped = [each for each in tables if each.record.stage == "stopped" and not each.record.is_unpublished]
    if stopped:
        errors = "; ".join(f"{each.record.table}: {each.record.error}" for each in stopped)
        names = " ".join(f"--reload {each.record.table}" for each in stopped)
        raise MirrorError(
            f"the tables are in step, so none is changed while one is stopped: {errors}. Load it again with "
            f"Mirror.reload (pgoutput-fast mirror ... {names}), or run the mirror without in_step"
        )


def prepare(tables: Iterable[MirroredTable]) -> None:
    """Computes the effect of waiting changes on all tables, before the first table gets them.

    A table that cannot take its changes, and was altered on the server, must then be loaded.

    Raises:
        MirrorError: if a table is stopped because it cannot take its changes. No table has got any then.
    """
    tables = list(tables)
    for each in tables:
        each.prepare()
    expect_in_step(tables)
