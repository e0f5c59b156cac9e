"""The task that writes tables: tagged payloads -> Parquet files in the target. Only a row per file returns to Spark.

Imports no PySpark; the driver pickles the instances.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.rejected_rows import error_of
from pgoutput_fast.decoding.rejected_rows import rejects_of as rejects_of_rows
from pgoutput_fast.protocol.kinds import REJECTED
from pgoutput_fast.schema.tables import REJECTS_SCHEMA, TAGGED_SCHEMA
from pgoutput_fast.segments.planner import ReadSpec
from pgoutput_fast.spark.tasks.changes import DecodeChanges
from pgoutput_fast.spark.tasks.range_outcomes import RangeOutcomes, with_outcomes
from pgoutput_fast.spark.tasks.rows import ChangesBetween, changes_of, rows_of_kinds, rows_of_relations
from pgoutput_fast.storage.parquet import Compression
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.files import TableFiles, WrittenFile
from pgoutput_fast.tables.partitions import Partitioning
from pgoutput_fast.transactions.lost import rejected
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = [
    "FILES_SCHEMA",
    "OTHER_REJECTS",
    "RejectedPart",
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


# After so many bytes, unused memory is given back. The system zeroes each page that it hands out again: small batches
# share that cost.
_RELEASE_BYTES = 32 << 20

# The directory of the rejects that belong to no table of the run. Directories of tables have a dot.
OTHER_REJECTS = rejects_of("_other")


@dataclass(frozen=True)
class RejectedPart:
    """The additions of a run for messages that tagging rejected, and for transactions with an unknown outcome.

    Attributes:
        catalog: all relation versions of the source, as JSON.
        after: the position of OTHER_REJECTS, as in TablePart.
        raises: whether the first one is an error instead.
        left_out: qualified names of stopped tables, which get their rejects when they are taken up again.
    """

    catalog: str
    after: int | None
    raises: bool
    left_out: frozenset[str] = frozenset()


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


class _Catalogs(dict[str, Catalog]):
    """directory -> relation versions of the table, which are parsed when they are first used."""

    def __init__(self, tables: Iterable[TablePart]) -> None:
        self._texts = {each.directory: each.decode.catalog for each in tables}

    def __missing__(self, directory: str) -> Catalog:
        found = self[directory] = Catalog.from_json(self._texts[directory])
        return found


class _Between(dict[int | None, ChangesBetween]):
    """Position of a table -> the changes after it. Nearly always all tables have the same position."""

    def __init__(self, outcomes: TransactionOutcomes | None, last: int) -> None:
        self.outcomes, self._last = outcomes, last

    def __missing__(self, position: int | None) -> ChangesBetween:
        first = 0 if position is None else position + 1
        found = self[position] = ChangesBetween(self.outcomes, first, self._last)
        return found


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
        rejected: what to write of rejected messages; None if there is none.
    """

    target: str
    run: str
    tables: tuple[TablePart, ...]
    hidden: bool
    file_bytes: int
    compression: Compression
    prefix: str
    outcomes: RangeOutcomes | TransactionOutcomes | None = field(repr=False)
    last: int
    skip: bool = False
    rejected: RejectedPart | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the payloads of a Spark partition."""
        payloads = (pa.Table.from_batches([batch]).cast(TAGGED_SCHEMA) for batch in batches)
        yield self.write(with_outcomes(payloads, self.outcomes))

    def write(self, payloads: Iterable[tuple[pa.Table, TransactionOutcomes | None]]) -> pa.RecordBatch:
        """Writes tagged payloads, which come with the outcomes of their transactions. Returns the files."""
        catalogs, between = _Catalogs(self.tables), _Between(None, self.last)
        failed: dict[str, str] = {}
        nbytes = 0
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
            for rows, outcomes in payloads:
                if between.outcomes is not outcomes:
                    between = _Between(outcomes, self.last)
                if self.rejected is not None:
                    self._write_rejected(files, self.rejected, rows, outcomes, catalogs)
                after: dict[int | None, pa.Table] = {}
                there = set(rows.column("relation").unique().to_pylist())
                for table in self.tables:
                    if there.isdisjoint(table.oids) or table.directory in failed:
                        continue
                    if table.after not in after:
                        after[table.after] = between[table.after].of(rows)
                    with files.of_table(table.directory):
                        rejected = _write_table(files, table, after[table.after], catalogs[table.directory])
                        if rejected and _ahead(table.rejects_after, table.after):
                            new = between[table.rejects_after].of(rows)["seq"]
                            rejected = [each.filter(pc.is_in(each["seq"], new)) for each in rejected]
                        for each in rejected:
                            rejects = pa.RecordBatch.from_arrays(each.columns, schema=table.rejects)
                            files.add(rejects_of(table.directory), rejects)
                nbytes += rows.nbytes
                if nbytes >= _RELEASE_BYTES:
                    nbytes = 0
                    pa.default_memory_pool().release_unused()
        return _as_batch(files.written, failed)

    def _write_rejected(
        self,
        files: TableFiles,
        part: RejectedPart,
        rows: pa.Table,
        outcomes: TransactionOutcomes | None,
        catalogs: Mapping[str, Catalog],
    ) -> None:
        """Writes the rejected messages of all tables, and those of no table.

        Raises:
            DecodeError: for the first of them, if the options do not say quarantine.
        """
        schema = pa.schema([pa.field(field.name, field.type) for field in REJECTS_SCHEMA])
        after: dict[int | None, pa.Table] = {}

        def add(directory: str, position: int | None, names: Collection[str], *, others: bool) -> None:
            if position not in after:
                after[position] = self._rejected_after(part, rows, outcomes, position)
            chosen = pc.is_in(after[position]["relation"], pa.array(sorted(names), pa.string()))
            found = after[position].filter(pc.invert(chosen) if others else chosen)
            if found.num_rows and part.raises:
                raise error_of(found)
            for each in found.to_batches():
                if each.num_rows:
                    files.add(directory, pa.RecordBatch.from_arrays(each.columns, schema=schema))

        every = set(part.left_out)
        for table in self.tables:
            names = {each.qualified_name for each in catalogs[table.directory].relations}
            every |= names
            is_ahead = _ahead(table.rejects_after, table.after)
            position = table.rejects_after if is_ahead else table.after
            with files.of_table(table.directory):
                add(rejects_of(table.directory), position, names, others=False)
        add(OTHER_REJECTS, part.after, every, others=True)

    def _rejected_after(
        self, part: RejectedPart, rows: pa.Table, outcomes: TransactionOutcomes | None, position: int | None
    ) -> pa.Table:
        """The rejects of messages after a position, and of transactions whose outcome became unknown after it."""
        first = 0 if position is None else position + 1
        marked = rows_of_kinds(rows, (REJECTED,))
        seqs = marked.column("seq")
        kept = pc.and_(pc.greater_equal(seqs, first), pc.less_equal(seqs, self.last))
        found = rejects_of_rows(marked.filter(kept))
        if outcomes is None or not outcomes.lost.any():
            return found
        lost = outcomes.lost_between(first, self.last).lost_rows(rows)
        if not lost.num_rows:
            return found
        return pa.concat_tables([found, rejected(lost, Catalog.from_json(part.catalog))])


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
                yield self.write.write(with_outcomes(changes_of(spec), spec.outcomes))
