"""Position deletes: the rows of files of an Iceberg table that are marked deleted.

The format is that of Iceberg's specification, "Position Delete Files". A file of deletes of this package has all marked
rows of one data file, and is removed with it. Files of other programs may have rows of several data files, and a data
file may have several of them. Deletion vectors, which version 3 of the format has instead, are read, and not written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.columns import FIELD_ID
from pgoutput_fast.tables.damaged import first_line
from pgoutput_fast.tables.data_files import NewFiles
from pgoutput_fast.tables.files import CURRENT_FILE_BYTES

__all__ = ["PositionDeletes", "delete_entries", "equality_deletes", "write_deletes"]

# The ids of the columns, from the specification.
_PATH, _POSITION = 2147483546, 2147483545
_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {FIELD_ID: str(_PATH)}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(_POSITION)}),
    ]
)


@dataclass(frozen=True)
class PositionDeletes:
    """The rows of a data file that are marked deleted.

    Attributes:
        path: the data file, as the table names it.
        files: the files that have the positions: names in the table's directory, and formats.
        count: how many rows these files have. That may be more than are marked, in files of other programs.
    """

    path: str
    files: tuple[tuple[str, str], ...]
    count: int

    @property
    def file(self) -> None:
        return None  # there may be several, and `IcebergTable.needed` names them

    def positions(self, store: Store, directory: str, rows: int) -> npt.NDArray[np.int64]:
        parts = [np.empty(0, np.int64)]
        for name, format in self.files:
            place = os.fspath(store.at(f"{directory}/{name}"))
            opened = open_file(place)
            with open(opened, "rb") if isinstance(opened, str) else opened as content:
                data = content.read()
            part = _positions(data, format, self.path, place)
            if len(part) and not 0 <= part.min() <= part.max() < rows:
                raise _damaged(place, f"they mark row {part.max()} of a file with {rows} rows")
            parts.append(part)
        return np.unique(np.concatenate(parts))


def _positions(data: bytes, format: str, path: str, place: str) -> npt.NDArray[np.int64]:
    """The positions of the rows of a data file in the content of a file of deletes.

    Raises:
        ValueError: if it is damaged, or has a format that this package does not read.
    """
    try:
        if format == "PARQUET":
            matches = pc.field("file_path") == path
            found = pq.read_table(pa.BufferReader(data), columns=["pos"], filters=matches)
            return np.asarray(found["pos"].to_numpy(), np.int64)
        if format == "PUFFIN":
            return _vector(data, path)
    except (MemoryError, ImportError):
        raise
    except Exception as problem:  # pyiceberg and Arrow have many for damaged content
        raise _damaged(place, first_line(problem)) from problem
    raise ValueError(
        f"the position deletes in {place} are in {format}: this package reads Parquet and Puffin"
    )


def _vector(data: bytes, path: str) -> npt.NDArray[np.int64]:
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    vectors = deletion_vectors_from_puffin_file(PuffinFile(data))
    parts = [each.to_vector().to_numpy() for each in vectors if each.referenced_data_file == path]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _damaged(place: str, why: str) -> ValueError:
    return ValueError(f"the position deletes in {place} are damaged: {why}")


def write_deletes(
    store: Store, directory: str, location: str, rows: Sequence[tuple[Any, npt.NDArray[np.int64]]]
) -> list[Any]:
    """Writes a file of deletes for each of some data files.

    Args:
        store: the store of the table.
        directory: the table's directory in it.
        location: the same in Iceberg's metadata.
        rows: (a data file of pyiceberg, the positions of all of its marked rows).

    Returns:
        The files in pyiceberg's form.
    """
    with NewFiles(store, directory, CURRENT_FILE_BYTES) as files:
        for file, positions in rows:
            path = pa.repeat(pa.scalar(file.file_path), len(positions))
            files.write([pa.table([path, positions], schema=_SCHEMA)])
    return [
        _delete_file(f"{location}/{each.name}", each.nbytes, file, positions)
        for each, (file, positions) in zip(files.written, rows, strict=True)
    ]


def _delete_file(path: str, nbytes: int, file: Any, positions: npt.NDArray[np.int64]) -> Any:
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.types import LongType

    # By equal bounds of the path, readers know that the deletes are those of one file.
    low, high = (
        {_PATH: file.file_path.encode(), _POSITION: to_bytes(LongType(), int(each))}
        for each in (positions[0], positions[-1])
    )
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=len(positions),
        file_size_in_bytes=nbytes,
        lower_bounds=low,
        upper_bounds=high,
    )
    deletes.spec_id = file.spec_id
    return deletes


def delete_entries(io: Any, snapshot: Any) -> list[Any]:
    """The entries of all files of deletes of a snapshot, even of those whose data files are gone.

    Args:
        io: of a table of pyiceberg.
        snapshot: one of its snapshots.
    """
    from pyiceberg.manifest import ManifestContent

    return [
        entry
        for manifest in snapshot.manifests(io)
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(io)
    ]


def equality_deletes(io: Any, snapshot: Any) -> list[str]:
    """The paths of files with equality deletes of a snapshot.

    Args:
        io, snapshot: as for `delete_entries`.
    """
    from pyiceberg.manifest import DataFileContent

    files = (entry.data_file for entry in delete_entries(io, snapshot))
    return [each.file_path for each in files if each.content == DataFileContent.EQUALITY_DELETES]
