"""Where a mirror keeps what: the names in its target."""

from __future__ import annotations

from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.lake.delta import delta_directory
from pgoutput_fast.storage.table_directories import table_directory

__all__ = ["CURRENT", "HISTORY", "OWN", "REJECTS", "SEGMENTS", "SPILL", "directory_of"]

CURRENT, HISTORY, REJECTS, SEGMENTS = "current", "history", "_rejects", "_segments"
# What the mirror remembers.
OWN = "_mirror"
# Rows of open transactions wait here.
SPILL = f"{OWN}/spill"


def directory_of(table: str) -> str:
    """The name of a table's directory in `current`, `history` and `_rejects`.

    Args:
        table: qualified name, quoted as in SQL.

    Raises:
        ValueError: if it is no qualified name.

    >>> directory_of("public.orders"), directory_of('public."a.b"')
    ('public.orders', 'public.a+2Eb')
    """
    parts = parse_qualified_name(table)
    if parts is None:
        raise ValueError(f"{table!r} is not a qualified name such as public.orders")
    return delta_directory(table_directory(*parts))
