"""Mirrors the tables of a database in a lake: their current rows, and every change.

`Mirror`, `status_of` and `verify` need psycopg2 and deltalake: `pgoutput_fast[mirror]`. The rest needs neither.
"""

import typing

from pgoutput_fast.base.extras import explained as _explained
from pgoutput_fast.merge.effect.net_effect import net_effect
from pgoutput_fast.mirror.errors import SlotLostError
from pgoutput_fast.mirror.service.metrics import MirrorMetrics
from pgoutput_fast.mirror.service.status import TableStatus
from pgoutput_fast.mirror.state.points import Point, at, points
from pgoutput_fast.mirror.view.read import fresh, fresh_batches
from pgoutput_fast.tables.errors import MirrorBusyError, MirrorError

if typing.TYPE_CHECKING:
    from pgoutput_fast.mirror.repair.repair_table import TableRepair
    from pgoutput_fast.mirror.repair.verify import TableVerification, verify
    from pgoutput_fast.mirror.service.service import Mirror
    from pgoutput_fast.mirror.service.stored import status_of

__all__ = [
    "Mirror",
    "MirrorBusyError",
    "MirrorError",
    "MirrorMetrics",
    "Point",
    "SlotLostError",
    "TableRepair",
    "TableStatus",
    "TableVerification",
    "at",
    "fresh",
    "fresh_batches",
    "net_effect",
    "points",
    "status_of",
    "verify",
]


def __getattr__(name: str) -> typing.Any:
    # Spark executors import modules of this package and have no psycopg2.
    try:
        if name == "Mirror":
            from pgoutput_fast.mirror.service.service import Mirror

            return Mirror
        if name == "TableRepair":
            from pgoutput_fast.mirror.repair.repair_table import TableRepair

            return TableRepair
        if name == "status_of":
            from pgoutput_fast.mirror.service.stored import status_of

            return status_of
        if name in ("TableVerification", "verify"):
            from pgoutput_fast.mirror.repair import verify

            return getattr(verify, name)
    except ModuleNotFoundError as problem:
        raise _explained(problem) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
