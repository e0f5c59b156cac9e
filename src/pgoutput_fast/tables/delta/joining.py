"""Joins short files of a Delta table.

`optimize.compact` of delta-rs is no help: it rounds the bounds of decimals, and a second commit would have to correct
them. Between the two, or for ever after a kill, readers would skip rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.data_files import row_groups
from pgoutput_fast.tables.files import TableFiles, WrittenFile
from pgoutput_fast.tables.table import DataFile, ListedFiles, Version

__all__ = ["joined", "short_files"]

# Takes the place of a run in the names of joined files.
_RUN = "joined"
# Size of joined files, and bytes of rows in a row group. Files of at most half this size are short.
_JOINED_BYTES, _GROUP_BYTES = 64 << 20, 32 << 20
# These are the same in the log and in the store. A file of another name may be elsewhere, and would stay in the log.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.=-]+")


def short_files(version: Version) -> list[DataFile]:
    """The files that are worth joining, in the order in which they were written. Joined ones keep this order."""
    if version.partition_by:
        return []
    assert isinstance(version.files, ListedFiles)
    written = version.files.listing.column("modification_time")
    files = [version.files[k] for k in pc.sort_indices(written).to_pylist()]
    short = [each for each in files if each.nbytes <= _JOINED_BYTES // 2 and _PLAIN_NAME.fullmatch(each.name)]
    return short if len(short) > 1 else []


def joined(store: Store, directory: str, files: Sequence[DataFile], schema: pa.Schema) -> list[WrittenFile]:
    """Writes new files with the rows of these, in columns of this schema."""
    with TableFiles(
        store, _RUN, False, file_bytes=_JOINED_BYTES, waiting_bytes=_GROUP_BYTES, prefix=None
    ) as new:
        for each in files:
            for _, rows in row_groups(store, directory, each, schema, schema.names):
                for batch in rows.combine_chunks().to_batches():
                    new.add(directory, batch)
    return new.written
