"""The names of the files and directories of a mirror in its target."""

from __future__ import annotations

import os

from pgoutput_fast.catalog.identifiers import parse_qualified_name, qualified_like
from pgoutput_fast.lake.delta import delta_directory
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.storage.table_directories import MIRROR, table_directory

__all__ = [
    "CONSUMER",
    "CURRENT",
    "HISTORY",
    "OWN",
    "REJECTS",
    "SEGMENTS",
    "SPILL",
    "directory_of",
    "stream_directory",
]

CURRENT, HISTORY, REJECTS, SEGMENTS = "current", "history", "_rejects", "_segments"
# The name of the mirror among the consumers of the segments.
CONSUMER = "mirror"
# The state of the mirror.
OWN = MIRROR
# Rows of open transactions are spilled here.
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
        raise ValueError(f"{table!r} is not a qualified name such as {qualified_like(table)}")
    return delta_directory(table_directory(*parts))


def stream_directory(segments: str, stream: int) -> str:
    """The directory of the segments of one slot.

    Args:
        segments: the directory of all segments.
        stream: how many slots were lost before.

    >>> stream_directory("s3://lake/_segments", 0), stream_directory("s3://lake/_segments", 1)
    ('s3://lake/_segments', 's3://lake/_segments/stream-1')
    """
    return os.fspath(open_store(segments).at(f"stream-{stream}")) if stream else segments
