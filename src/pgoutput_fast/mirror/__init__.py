"""Mirrors the tables of a database in a lake: their current rows, and every change.

`Mirror` and `status_of` need psycopg2 and deltalake: `pgoutput_fast[mirror]`. The rest needs neither.
"""

import typing

from pgoutput_fast.extras import explained as _explained
from pgoutput_fast.mirror.effect.net_effect import net_effect
from pgoutput_fast.mirror.errors import MirrorBusyError, MirrorError, SlotLostError
from pgoutput_fast.mirror.metrics import MirrorMetrics
from pgoutput_fast.mirror.points import Point, at, points
from pgoutput_fast.mirror.status import TableStatus
from pgoutput_fast.mirror.view.read import fresh, fresh_batches

if typing.TYPE_CHECKING:
    from pgoutput_fast.mirror.repair_table import TableRepair
    from pgoutput_fast.mirror.service import Mirror
    from pgoutput_fast.mirror.stored import status_of

__all__ = [
    "Mirror",
    "MirrorBusyError",
    "MirrorError",
    "MirrorMetrics",
    "Point",
    "SlotLostError",
    "TableRepair",
    "TableStatus",
    "at",
    "fresh",
    "fresh_batches",
    "net_effect",
    "points",
    "status_of",
]


def __getattr__(name: str) -> typing.Any:
    # Spark executors import modules of this package and have no psycopg2.
    try:
        if name == "Mirror":
            from pgoutput_fast.mirror.service import Mirror

            return Mirror
        if name == "TableRepair":
            from pgoutput_fast.mirror.repair_table import TableRepair

            return TableRepair
        if name == "status_of":
            from pgoutput_fast.mirror.stored import status_of

            return status_of
    except ModuleNotFoundError as problem:
        raise _explained(problem) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
