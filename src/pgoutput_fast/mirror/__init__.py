"""Mirrors the tables of a database in a lake: as they are now, and every change of them.

Needs psycopg2 and deltalake: `pgoutput_fast[mirror]`.
"""

from pgoutput_fast.mirror.errors import MirrorBusyError, MirrorError
from pgoutput_fast.mirror.points import Point, at, points
from pgoutput_fast.mirror.service import Mirror
from pgoutput_fast.mirror.status import TableStatus

__all__ = ["Mirror", "MirrorBusyError", "MirrorError", "Point", "TableStatus", "at", "points"]
