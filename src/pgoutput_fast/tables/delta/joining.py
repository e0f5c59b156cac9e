"""Joins short files of a Delta table.

`optimize.compact` of delta-rs is no help: it rounds the bounds of decimals, and a second commit would have to correct
them. Between the two, or for ever after a kill, readers would skip rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.background import BackgroundWork
from pgoutput_fast.tables.data_files import row_groups
from pgoutput_fast.tables.files import TableFiles, WrittenFile
from pgoutput_fast.tables.joining import to_join
from pgoutput_fast.tables.table import DataFile, Joining, ListedFiles, Version

__all__ = ["begun", "joined"]

# Takes the place of a run in the names of joined files.
_RUN = "joined"
# Size of joined files, and bytes of rows in a row group.
_JOINED_BYTES, _GROUP_BYTES = 64 << 20, 32 << 20
# These are the same in the log and in the store. A file of another name may be elsewhere, and would stay in the log.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.=-]+")


def begun(store: Store, directory: str, version: Version) -> Joining | None:
    """Lets another thread join short files of a version. None if that is not worth while."""
    short = _short_files(version)
    if not short:
        return None
    return Joining(
        short, BackgroundWork(lambda check: joined(store, directory, short, version.schema, check))
    )


def _short_files(version: Version) -> list[DataFile]:
    """The files that are worth joining, in the order in which they were written. Joined ones keep this order."""
    if version.partition_by:
        return []
    assert isinstance(version.files, ListedFiles)
    files, written = version.files, version.files.listing.column("modification_time")

    def ordered(short: list[int]) -> list[int]:
        by_time = pc.sort_indices(written.take(pa.array(short))).to_pylist()
        return [short[k] for k in by_time if _PLAIN_NAME.fullmatch(files[short[k]].name)]

    short = to_join(version, _JOINED_BYTES, ordered)
    return [files[k] for k in short] if len(short) > 1 else []


def joined(
    store: Store,
    directory: str,
    files: Sequence[DataFile],
    schema: pa.Schema,
    check: Callable[[], None],
) -> list[WrittenFile]:
    """Writes new files with the rows of these, in columns of this schema. `check` is that of `BackgroundWork`."""
    with TableFiles(
        store, _RUN, False, file_bytes=_JOINED_BYTES, waiting_bytes=_GROUP_BYTES, prefix=None
    ) as new:
        for each in files:
            check()
            for _, rows in row_groups(store, directory, each, schema, schema.names):
                for batch in rows.combine_chunks().to_batches():
                    new.add(directory, batch)
    return new.written
