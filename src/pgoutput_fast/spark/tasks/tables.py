"""The task that writes tables: tagged payloads -> Parquet files in the target. Only a row per file returns to Spark.

Imports no PySpark; the driver pickles the instances.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.schema.tables import REJECTS_SCHEMA, TAGGED_SCHEMA
from pgoutput_fast.segments.planner import ReadSpec
from pgoutput_fast.spark.tasks.changes import DecodeChanges
from pgoutput_fast.spark.tasks.rows import changes_between, changes_of, rows_of_relations
from pgoutput_fast.storage.parquet import Compression
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.files import TableFiles, WrittenFile
from pgoutput_fast.tables.partitions import Partitioning
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = [
    "FILES_SCHEMA",
    "TablePart",
    "WriteSegmentTables",
    "WriteTables",
    "rejects_of",
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
        ("problem", pa.string()),
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
        outcomes: the outcomes of transactions, if only committed rows are requested, otherwise None.
        last: the ordinal of the last relevant message.
        skip: whether the other tables go on if the rows of one cannot be written.
    """

    target: str
    run: str
    tables: tuple[TablePart, ...]
    hidden: bool
    file_bytes: int
    compression: Compression
    prefix: str
    outcomes: TransactionOutcomes | None = field(repr=False)
    last: int
    skip: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the payloads of a Spark partition."""
        payloads = (pa.Table.from_batches([batch]).cast(TAGGED_SCHEMA) for batch in batches)
        yield self.write(payloads, self.outcomes)

    def write(self, payloads: Iterable[pa.Table], outcomes: TransactionOutcomes | None) -> pa.RecordBatch:
        """Writes tagged payloads. Returns the files."""
        catalogs: dict[str, Catalog] = {}
        failed: dict[str, str] = {}
        with TableFiles(
            open_store(self.target),
            self.run,
            self.hidden,
            file_bytes=self.file_bytes,
            compression=self.compression,
            prefix=self.prefix,
            checked=True,
            partitioning={each.directory: each.partitioning for each in self.tables},
            failed=failed if self.skip else None,
        ) as files:
            for rows in payloads:
                after: dict[int | None, pa.Table] = {}  # nearly always all tables have the same position
                there = set(rows.column("relation").unique().to_pylist())
                for table in self.tables:
                    if there.isdisjoint(table.oids) or table.directory in failed:
                        continue
                    if table.after not in after:
                        after[table.after] = self._changes_after(rows, outcomes, table.after)
                    if table.directory not in catalogs:
                        catalogs[table.directory] = Catalog.from_json(table.decode.catalog)
                    with files.of_table(table.directory):
                        rejected = _write_table(files, table, after[table.after], catalogs[table.directory])
                        if rejected and _ahead(table.rejects_after, table.after):
                            new = self._changes_after(rows, outcomes, table.rejects_after)["seq"]
                            rejected = [each.filter(pc.is_in(each["seq"], new)) for each in rejected]
                        for each in rejected:
                            rejects = pa.RecordBatch.from_arrays(each.columns, schema=table.rejects)
                            files.add(rejects_of(table.directory), rejects)
                pa.default_memory_pool().release_unused()
        return _as_batch(files.written, failed)

    def _changes_after(
        self, rows: pa.Table, outcomes: TransactionOutcomes | None, position: int | None
    ) -> pa.Table:
        first = 0 if position is None else position + 1
        return changes_between(rows, outcomes, first, self.last)


def _ahead(position: int | None, other: int | None) -> bool:
    return position is not None and (other is None or position > other)


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


def _as_batch(files: Iterable[WrittenFile], failed: Mapping[str, str]) -> pa.RecordBatch:
    rows = [vars(each) for each in files]
    rows += [{"directory": directory, "problem": problem} for directory, problem in failed.items()]
    return pa.RecordBatch.from_pylist(rows, FILES_SCHEMA)


@dataclass(frozen=True)
class WriteSegmentTables:
    """Numbers of tasks -> files of all tables.

    Attributes:
        write: writes the files.
        specs: what each task reads, packed: all tasks get all of it, and unpack only their own.
    """

    write: WriteTables
    specs: tuple[bytes, ...]

    @classmethod
    def of(cls, write: WriteTables, specs: Sequence[ReadSpec]) -> WriteSegmentTables:
        """Packs what the tasks read."""
        return cls(write, tuple(zlib.compress(pickle.dumps(each), 1) for each in specs))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                spec: ReadSpec = pickle.loads(zlib.decompress(self.specs[task]))
                yield self.write.write(changes_of(spec), spec.outcomes)
