"""Tables in step: current tables get changes only if all of them can get them up to the same position."""

from __future__ import annotations

from collections.abc import Iterable

from pgoutput_fast.mirror.errors import MirrorError
from pgoutput_fast.mirror.tables import MirroredTable

__all__ = ["expect_in_step", "prepare"]


def expect_in_step(tables: Iterable[MirroredTable]) -> None:
    """Checks that no table is stopped: the others would leave it behind.

    Raises:
        MirrorError: if one is.
    """
    stopped = [each for each in tables if each.facts.stage == "stopped" and not each.facts.is_unpublished]
    if stopped:
        said = "; ".join(f"{each.facts.table}: {each.facts.error}" for each in stopped)
        names = " ".join(f"--reload {each.facts.table}" for each in stopped)
        raise MirrorError(
            f"the tables are in step, so none goes on while one is stopped: {said}. Load it again with Mirror.reload "
            f"(pgoutput-fast mirror ... {names}), or run the mirror without in_step"
        )


def prepare(tables: Iterable[MirroredTable]) -> None:
    """Computes what waiting changes do to each table, before the first table gets them.

    If something was done on the server to a table that cannot take its changes, it must be loaded then.

    Raises:
        MirrorError: if a table is stopped, because it cannot take its changes. Then none has got any.
    """
    tables = list(tables)
    for each in tables:
        each.prepare()
    expect_in_step(tables)
