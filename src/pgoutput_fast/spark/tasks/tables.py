"""The task that writes tables: tagged payloads -> Parquet files in the target. Only a row per file returns to Spark.

Imports no PySpark; the driver pickles the instances.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.schema.tables import REJECTS_SCHEMA, TAGGED_SCHEMA
from pgoutput_fast.spark.tasks.changes import DecodeChanges
from pgoutput_fast.spark.tasks.rows import chosen_rows, rows_of_relations, rows_of_segment, unpack_batch
from pgoutput_fast.storage.parquet import Compression
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.files import TableFiles, WrittenFile
from pgoutput_fast.tables.partitions import Partitioning

__all__ = [
    "FILES_SCHEMA",
    "SegmentPiece",
    "SegmentTask",
    "TablePart",
    "WriteSegments",
    "WriteTables",
    "rejects_of",
    "rows_behind",
    "rows_of_task",
]

FILES_SCHEMA = pa.schema(
    [
        ("directory", pa.string()),
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("nbytes", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("statistics", pa.string()),
        ("partition", pa.string()),
    ]
)


def rejects_of(directory: str) -> str:
    """The directory of a table's rejects, which have their own position."""
    return f"_rejects/{directory}"


@dataclass(frozen=True)
class TablePart:
    """The additions of a run to one table.

    Attributes:
        directory: the table's directory in the target.
        oids: oids of the relations that had its name.
        others: versions with these oids that had another name.
        decode: decodes its changes.
        after: the table's position. Only changes after it are written. None: everything.
        rejects_after: the position of its rejects, as `after`. They are ahead if the table was lost, or if a run was
            killed before it committed the table.
        partitioning: the partitioning of the table.
        rejects: the columns of its rejects.
    """

    directory: str
    oids: tuple[int, ...]
    others: tuple[int, ...]
    decode: DecodeChanges
    after: int | None
    rejects_after: int | None
    partitioning: Partitioning
    rejects: pa.Schema = REJECTS_SCHEMA


@dataclass(frozen=True)
class WriteTables:
    """Tagged payloads, in any order -> files of all tables, in one pass.

    Attributes:
        target: path or URI of the target.
        run: name of the run.
        tables: the tables to write.
        hidden: whether the files have hidden names until they are committed.
        file_bytes: approximate maximum size of a file.
        compression: compression of the files' pages.
        prefix: the prefix of the metadata columns.
        outcomes: packed outcomes of transactions, if only committed rows are requested, otherwise None.
        last: the ordinal of the last relevant message.
    """

    target: str
    run: str
    tables: tuple[TablePart, ...]
    hidden: bool
    file_bytes: int
    compression: Compression
    prefix: str
    outcomes: bytes | None
    last: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the payloads of a Spark partition."""
        outcomes = None if self.outcomes is None else unpack_batch(self.outcomes)
        yield self.write((pa.Table.from_batches([batch]).cast(TAGGED_SCHEMA), outcomes) for batch in batches)

    def write(self, pieces: Iterable[tuple[pa.Table, pa.RecordBatch | None]]) -> pa.RecordBatch:
        """Writes pieces of tagged payloads, each with its outcomes. Returns the files."""
        catalogs = {each.directory: Catalog.from_json(each.decode.catalog) for each in self.tables}
        with TableFiles(
            open_store(self.target),
            self.run,
            self.hidden,
            file_bytes=self.file_bytes,
            compression=self.compression,
            prefix=self.prefix,
            checked=True,
            partitioning={each.directory: each.partitioning for each in self.tables},
        ) as files:
            for rows, outcomes in pieces:
                behind: dict[int | None, pa.Table] = {}  # nearly always all tables have the same position
                for table in self.tables:
                    if table.after not in behind:
                        behind[table.after] = rows_behind(rows, outcomes, table.after, self.last)
                    rejected = _write_table(files, table, behind[table.after], catalogs[table.directory])
                    if rejected and _ahead(table.rejects_after, table.after):
                        known = rows_behind(rows, outcomes, table.rejects_after, self.last)["seq"]
                        rejected = [each.filter(pc.is_in(each["seq"], known)) for each in rejected]
                    for each in rejected:
                        rejects = pa.RecordBatch.from_arrays(each.columns, schema=table.rejects)
                        files.add(rejects_of(table.directory), rejects)
                pa.default_memory_pool().release_unused()
        return _as_batch(files.written)


def _ahead(position: int | None, other: int | None) -> bool:
    return position is not None and (other is None or position > other)


def rows_behind(rows: pa.Table, outcomes: pa.RecordBatch | None, after: int | None, last: int) -> pa.Table:
    """The changes after a position, up to `last`, by the commits of their transactions or by the changes themselves.

    No outcome is after `last`.
    """
    if outcomes is None:
        return chosen_rows(rows, {"seq": (0 if after is None else after + 1, last)}, None)
    if after is not None:
        # A rollback to a savepoint may be before the position, and its transaction's commit after it.
        behind = outcomes.column("at_seq").to_numpy() > after
        aborted = outcomes.column("subxid").is_valid().to_numpy(zero_copy_only=False)
        outcomes = outcomes.filter(pa.array(np.asarray(behind | aborted)))
    return chosen_rows(rows, {}, outcomes)


def _write_table(
    files: TableFiles, table: TablePart, rows: pa.Table, catalog: Catalog
) -> list[pa.RecordBatch]:
    """Writes the rows of a table. Returns their rejects."""
    rejected = []
    for batch in rows_of_relations(rows, table.oids, table.others).to_batches():
        if not batch.num_rows:
            continue
        decoded = table.decode.decoded(batch, catalog)
        for each in table.decode.rows_of(decoded):
            files.add(table.directory, each)
        if decoded.rejects.num_rows:
            rejected.append(decoded.rejects)
    return rejected


def _as_batch(files: Iterable[WrittenFile]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([vars(each) for each in files], FILES_SCHEMA)


@dataclass(frozen=True)
class SegmentPiece:
    """Row groups of one segment.

    Attributes:
        path: path or URI of the segment.
        row_groups: numbers of the row groups.
    """

    path: str
    row_groups: tuple[int, ...]


@dataclass(frozen=True)
class SegmentTask:
    """The input of one task.

    Attributes:
        pieces: the row groups.
        outcomes: packed outcomes of their transactions; None if rows are requested as sent.
    """

    pieces: tuple[SegmentPiece, ...]
    outcomes: bytes | None = field(repr=False)

    def pack(self) -> bytes:
        """Serializes the task compactly."""
        return zlib.compress(pickle.dumps(self), 1)

    @staticmethod
    def unpack(packed: bytes) -> SegmentTask:
        """The inverse of `pack`."""
        found = pickle.loads(zlib.decompress(packed))
        assert isinstance(found, SegmentTask)
        return found


@dataclass(frozen=True)
class WriteSegments:
    """Numbers of tasks -> files of all tables.

    Attributes:
        write: writes the files.
        work: the packed input of each task: all tasks get all of it, and unpack only their own.
    """

    write: WriteTables
    work: tuple[bytes, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield self.write.write(rows_of_task(SegmentTask.unpack(self.work[task])))


def rows_of_task(task: SegmentTask) -> Iterator[tuple[pa.Table, pa.RecordBatch | None]]:
    """Yields the rows of each row group with its outcomes, with one row group in memory at a time."""
    outcomes = None if task.outcomes is None else unpack_batch(task.outcomes)
    for piece in task.pieces:
        for rows in rows_of_segment(piece.path, piece.row_groups):
            yield rows, outcomes
