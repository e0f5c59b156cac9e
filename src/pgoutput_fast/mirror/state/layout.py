"""The names of the files and directories of a mirror in its target."""

from __future__ import annotations

import os

from pgoutput_fast.storage.lease import Role
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.storage.table_directories import MIRROR
from pgoutput_fast.tables.errors import MirrorBusyError

__all__ = [
    "CONSUMER",
    "HISTORY",
    "LOADS",
    "OWN",
    "REJECTS",
    "SEGMENTS",
    "SPILL",
    "WRITER",
    "stream_directory",
]

HISTORY, REJECTS, SEGMENTS = "history", "_rejects", "_segments"
# The name of the mirror among the consumers of the segments.
CONSUMER = "mirror"
# The state of the mirror.
OWN = MIRROR
# The ranges of tables whose load is not complete.
LOADS = f"{OWN}/loads"
# Rows of open transactions are spilled here.
SPILL = f"{OWN}/spill"
# The right to change the tables.
WRITER = Role(
    "mirrors into",
    "stop it first, or use another target",
    "run the mirror again",
    MirrorBusyError,
    lock=f"{OWN}/lock",
    mark=f"{OWN}/writer.json",
    heartbeats=f"{OWN}/alive",
)


def stream_directory(segments: str, stream: int) -> str:
    """The directory of the segments of one slot.

    Args:
        segments: the directory of all segments.
        stream: how many slots were lost before.

    >>> stream_directory("s3://lake/_segments", 0), stream_directory("s3://lake/_segments", 1)
    ('s3://lake/_segments', 's3://lake/_segments/stream-1')
    """
    return os.fspath(open_store(segments).at(f"stream-{stream}")) if stream else segments
