"""`spark.read.format("pgoutput").option("mode", "snapshot")`: executors read a table as of one snapshot.

Options:

- `dsn`, `table`.
- `publication`: names separated by commas; the read has the columns and rows that they publish.
- `slot`: created if it does not exist. The slot then sends the changes after the snapshot.
- `snapshot_seconds`: how long the snapshot stays open; default 3600.
- `snapshot` and `consistent_lsn` instead of these two: a snapshot held by another session (see
  `Snapshot.spark_options()`).
- `columns`, `time`, `partition_bytes`.
- `unrepresentable`, `numeric`, `uuid`, `metadata_prefix`: as in `Options`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from pgoutput_fast._core.copy.table_rows import CopyRows
from pgoutput_fast.catalog.identifiers import parse_qualified_name, qualified_like
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.postgres.money import expect_cents
from pgoutput_fast.postgres.session import read_server, session
from pgoutput_fast.postgres.tables import SnapshotTable, describe_tables
from pgoutput_fast.protocol.limits import SPARK_BATCH_BYTES, SPARK_BATCH_ROWS, SPARK_PARTITION_BYTES
from pgoutput_fast.protocol.lsn import parse_lsn
from pgoutput_fast.schema.metadata_columns import metadata_fields
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.holder import OpenSnapshot, hold_snapshot, java_above
from pgoutput_fast.snapshot.load import run_readers, streamed
from pgoutput_fast.snapshot.ranges import ReadRange, ranges_of
from pgoutput_fast.snapshot.read import SnapshotReader, TableLostError, in_snapshot
from pgoutput_fast.spark.shipping import Shipped
from pgoutput_fast.spark.source.options import byte_count, positive
from pgoutput_fast.spark.source.plan import arrow_schema, listed
from pgoutput_fast.spark.types import check_time, spark_arrow_schema, spark_schema

__all__ = ["SnapshotPlan", "SnapshotSourceReader", "make_snapshot_reader", "plan_snapshot"]

# No on_error: this format cannot return rejects.
_DECODING = ("unrepresentable", "numeric", "uuid", "metadata_prefix")
_OPTIONS = (
    "mode", "dsn", "table", "publication", "slot", "snapshot", "consistent_lsn", "snapshot_seconds", "columns", "time",
    "partition_bytes", *_DECODING,
)  # fmt: skip
_HELD_SECONDS = 3600
# Number of batches queued in a task.
_WAITING = 4


@dataclass(frozen=True)
class SnapshotPlan:
    """The plan of a query on a snapshot."""

    dsn: str = field(repr=False)  # may contain a password
    snapshot: str
    table: SnapshotTable
    catalog: Catalog
    options: Options
    ranges: tuple[ReadRange, ...]
    columns: tuple[str, ...]
    target: pa.Schema
    spark_schema: StructType
    hint: str


@dataclass
class RangeOfTable(InputPartition):
    """A range of the table's pages."""

    range: ReadRange


def plan_snapshot(options: Mapping[str, str]) -> SnapshotPlan:
    """Exports a snapshot, unless the options name one, and plans schema and ranges as of the snapshot.

    Raises:
        KeyError: if there is no such table or column.
        ValueError: for options that are missing, unknown or wrong.
        SnapshotError: if the snapshot has ended, or if a snapshot of a new slot is requested and the slot exists.
        psycopg2.Error: if the server refuses.
    """
    given = {key.lower(): value for key, value in options.items()}
    _check(given)
    request = _parse_options(given)
    opened: OpenSnapshot | None = None
    if "snapshot" in given:
        name, lsn = given["snapshot"], _lsn(given["consistent_lsn"])
        hint = "the process that exported it must keep it open (capture.Snapshot) until the query has ended"
    else:
        if "slot" in given:
            with session(request.dsn) as cursor:
                _described(cursor, request, 0)  # an error comes before the slot is made, which stays
        opened = hold_snapshot(request.dsn, given.get("slot"), request.seconds, java_above())
        name, lsn = opened.name, opened.consistent_lsn
        hint = (
            f"it stays open for {request.seconds} seconds after the DataFrame is loaded, or until the application "
            "ends: load it again, with a larger snapshot_seconds if that was not enough"
        )
        if "slot" in given:
            hint += f", and after dropping slot {opened.slot}"
    try:
        return _planned(request, name, lsn, hint)
    except BaseException as problem:
        if opened is not None and "slot" not in given:
            opened.release()
        if isinstance(problem, SnapshotError):  # its time may be over before the table is planned
            raise SnapshotError(f"{problem}. {hint}") from None
        raise


@dataclass(frozen=True)
class _Request:
    """The parsed options."""

    dsn: str = field(repr=False)  # may contain a password
    table: str
    named: tuple[str, str]
    publications: tuple[str, ...]
    columns: tuple[str, ...] | None
    options: Options
    time: Any
    seconds: int
    nbytes: int


def _parse_options(given: Mapping[str, str]) -> _Request:
    (table,) = listed("table", given["table"])
    named = parse_qualified_name(table)
    if named is None:
        raise ValueError(
            f"option table must be a qualified name, such as {qualified_like(table)}; not {table!r}"
        )
    columns = tuple(listed("columns", given["columns"])) if "columns" in given else None
    decoding: dict[str, Any] = {key: given[key] for key in _DECODING if key in given}
    options = Options(batch_rows=SPARK_BATCH_ROWS, batch_bytes=SPARK_BATCH_BYTES, **decoding)
    if columns is not None:
        metadata = {field.name for field in metadata_fields(options.metadata_prefix)}
        options = replace(options, columns={table: [name for name in columns if name not in metadata]})
    return _Request(
        given["dsn"],
        table,
        named,
        tuple(_unquoted(name) for name in listed("publication", given.get("publication", ""))),
        columns,
        options,
        given.get("time", "string"),
        positive("snapshot_seconds", given.get("snapshot_seconds", str(_HELD_SECONDS))),
        byte_count("partition_bytes", given.get("partition_bytes", str(SPARK_PARTITION_BYTES))),
    )


def _described(
    cursor: Any, request: _Request, consistent_lsn: int
) -> tuple[SnapshotTable, Catalog, pa.Schema, tuple[str, ...]]:
    """(the table, the catalog, its columns, the names of the wanted ones).

    Raises:
        KeyError: if there is no such table or column.
    """
    found, catalog = describe_tables(
        cursor,
        request.publications,
        read_server(cursor).major,
        consistent_lsn,
        user_types=True,
        named=() if request.publications else [request.named],
    )
    table = next((t for t in found if (t.relation.namespace, t.relation.name) == request.named), None)
    if table is None:
        where = f"published by {', '.join(request.publications)}" if request.publications else "here"
        raise KeyError(f"there is no table {request.table} {where}")
    schema = CopyRows(table.relation, request.options, catalog.types, 0).schema
    columns = request.columns if request.columns is not None else tuple(schema.names)
    if not columns or not set(columns) <= set(schema.names) or len(set(columns)) < len(columns):
        metadata = [field.name for field in metadata_fields(request.options.metadata_prefix)]
        there = [*metadata, *(column.name for column in table.relation.columns)]
        raise KeyError(
            f"option columns must name columns that exist, and none of them twice; there is {', '.join(there)}"
        )
    return table, catalog, schema, columns


def _planned(request: _Request, snapshot: str, consistent_lsn: int, hint: str) -> SnapshotPlan:
    with session(request.dsn) as cursor, in_snapshot(cursor, snapshot):
        major = read_server(cursor).major
        table, catalog, schema, columns = _described(cursor, request, consistent_lsn)
        cursor.execute("SHOW block_size")
        block_size = int(cursor.fetchone()[0])
    read = tuple(column for column in table.relation.columns if column.name in columns)
    expect_cents(request.dsn, [replace(table.relation, columns=read)], catalog.types, request.options)
    # Without field metadata, which Spark does not compare.
    bare = pa.schema([pa.field(name, schema.field(name).type) for name in columns])
    fields = spark_schema(bare, request.time)
    return SnapshotPlan(
        request.dsn,
        snapshot,
        table,
        Catalog([table.relation], catalog.types),
        request.options,
        tuple(ranges_of(table, major, block_size, request.nbytes)),
        columns,
        spark_arrow_schema(bare, request.time),
        StructType([StructField(field.name, field.dataType) for field in fields]),
        hint,
    )


def _check(given: Mapping[str, str]) -> None:
    if given.get("mode") != "snapshot":
        raise ValueError(f"option mode must be 'snapshot', not {given.get('mode')!r}")
    unknown = sorted(key for key in given if key not in _OPTIONS and not key.startswith("__"))
    if unknown:
        raise ValueError(
            f"mode snapshot has no option {', '.join(map(repr, unknown))}; there is {', '.join(_OPTIONS)}"
        )
    for name in ("dsn", "table"):
        if not given.get(name):
            raise ValueError(f"mode snapshot needs the option {name}")
    if len(listed("table", given["table"])) != 1:
        raise ValueError("mode snapshot reads one table: load each table separately, with the same slot")
    if ("snapshot" in given) != ("consistent_lsn" in given):
        raise ValueError("options snapshot and consistent_lsn need each other: see Snapshot.spark_options()")
    if "consistent_lsn" in given:
        _lsn(given["consistent_lsn"])
    if "snapshot" in given and ("slot" in given or "snapshot_seconds" in given):
        raise ValueError(
            "with option snapshot, another process keeps the snapshot open: leave out the options slot and "
            "snapshot_seconds"
        )
    check_time(given.get("time", "string"))


def _lsn(text: str) -> int:
    """Parses an LSN, or a number in digits. Spark passes all options as text."""
    try:
        return parse_lsn(int(text) if text.isdecimal() else text)
    except ValueError as problem:
        raise ValueError(f"option consistent_lsn: {problem}") from None


def _unquoted(name: str) -> str:
    parts = parse_qualified_name(f"x.{name}")
    return parts[1] if parts is not None else name


class SnapshotSourceReader(Shipped, DataSourceReader):
    """Reads the planned table, one range of pages at a time.

    Args:
        plan: the plan.
        schema: the schema that Spark expects.
    """

    def __init__(self, plan: SnapshotPlan, schema: StructType) -> None:
        self._plan = plan
        self._target = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Returns one partition per range."""
        return [RangeOfTable(each) for each in self._plan.ranges] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of a range as they arrive, with only a few of them in memory."""
        if not isinstance(partition, RangeOfTable):
            return
        plan = self._plan

        def run(put: Callable[[str, pa.RecordBatch], None], stop: threading.Event) -> None:
            def connect() -> SnapshotReader:
                return SnapshotReader(plan.dsn, plan.snapshot, plan.catalog, plan.options)

            def work(reader: SnapshotReader, each: ReadRange) -> None:
                reader.read(plan.table, each, lambda batch: put(plan.table.name, batch))

            lost: dict[str, TableLostError] = {}
            # `stop` cancels the query on the server when no more rows are requested, even while no row arrives.
            run_readers(connect, [partition.range], 1, work, lost, stop)
            for problem in lost.values():
                raise problem

        try:
            for _, batch in streamed(run, _WAITING):
                rows = to_types(pa.Table.from_batches([batch]).select(plan.columns), plan.target)
                yield from rows.cast(self._target).to_batches()
        except SnapshotError as problem:
            raise SnapshotError(f"{problem}. {plan.hint}") from None


def make_snapshot_reader(plan: SnapshotPlan | None, schema: StructType) -> SnapshotSourceReader:
    """Returns the reader of a plan.

    Raises:
        ValueError: if there is no plan, because the user gave a schema.
    """
    if plan is None:
        raise ValueError(
            "a snapshot has the schema of its table: leave out the schema, and choose columns with the option columns"
        )
    return SnapshotSourceReader(plan, schema)
