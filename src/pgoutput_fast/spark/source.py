"""The batch side of `format("pgoutput")`: executors read segments and decode in place.

Options: `path` (what `load` is given), `table` (one, or several with commas), `columns`, `transactions`,
`partition_bytes`; and `on_error`, `unrepresentable`, `numeric`, `uuid`, `metadata_prefix` as in
`pgoutput_fast.Options`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from pgoutput_fast.catalog import Catalog
from pgoutput_fast.options import Options
from pgoutput_fast.schema import TAGGED_SCHEMA, metadata_fields, relation_schema
from pgoutput_fast.segments import Segment, list_segments, segment_outcomes
from pgoutput_fast.spark.tasks import DecodeChanges
from pgoutput_fast.spark.types import spark_arrow_schema, spark_schema
from pgoutput_fast.types import column_type_of
from pgoutput_fast.unify import unify_schemas

__all__ = ["SegmentRows", "SourcePlan", "make_reader", "plan_source"]

_DECODING = ("on_error", "unrepresentable", "numeric", "uuid", "metadata_prefix")
_OPTIONS = ("path", "paths", "table", "columns", "transactions", "partition_bytes", *_DECODING)
_PARTITION_BYTES = 1 << 26
# The part of Spark that hands filters over.
_PUSHES = "pyspark.sql.worker.data_source_pushdown_filters"
# What Spark takes best.
_BATCH_ROWS, _BATCH_BYTES = 10_000, 1 << 26
# Tagged columns on which changes can be told apart before they are decoded.
_PUSHED = ("seq", "lsn", "txn", "xid")
_LISTED = re.compile(r'\s*((?:"(?:[^"]|"")*"|[^",])+?)\s*(?:,|$)')


@dataclass(frozen=True)
class _Table:
    """One relation: which tagged rows are its changes, and what decodes them."""

    name: str
    oids: tuple[int, ...]
    others: tuple[int, ...]  # versions of these oids that had another name
    decode: DecodeChanges


@dataclass(frozen=True)
class SourcePlan:
    """What is settled when a query is planned."""

    paths: tuple[str, ...]
    tables: tuple[_Table, ...]
    several: bool
    prefix: str
    committed: bool
    columns: tuple[str, ...]
    partition_bytes: int
    spark_schema: StructType

    @property
    def oids(self) -> list[int]:
        """Of all its tables' relations."""
        return sorted({oid for table in self.tables for oid in table.oids})


def plan_source(options: Mapping[str, str]) -> SourcePlan:
    """Settles paths, tables and schema from the footers of the segments.

    Raises:
        KeyError: if there is no such relation or column; the message names what there is.
        ValueError: for options that are missing, unknown or wrong, segments that do not go together, and versions of a
            relation that no one schema can hold.
    """
    given = {key.lower(): value for key, value in options.items()}
    unknown = sorted(key for key in given if key not in _OPTIONS and not key.startswith("__"))
    if unknown:
        raise ValueError(
            f"format pgoutput has no option {', '.join(map(repr, unknown))}; there is {', '.join(_OPTIONS)}"
        )
    paths = tuple(json.loads(given["paths"])) if "paths" in given else (given.get("path", ""),)
    if not all(paths):
        raise ValueError("format pgoutput needs the path of segments: load(path)")
    paths = tuple(path.removeprefix("file://") for path in paths)
    names = _listed("table", given.get("table", ""))
    if not names:
        raise ValueError("format pgoutput needs the option table, such as public.orders")
    transactions: Any = given.get("transactions", "as_sent")
    decoding: dict[str, Any] = {key: given[key] for key in _DECODING if key in given}
    # So that what is wrong is said as Options says it.
    committed = Options(transactions=transactions).transactions == "committed"
    chosen = Options(batch_rows=_BATCH_ROWS, batch_bytes=_BATCH_BYTES, **decoding)
    segments = list_segments(_files(paths))
    catalog = Catalog()
    for segment in segments:
        catalog = catalog.merged(segment.catalog)
    tables = tuple(_table(catalog, name, chosen) for name in names)
    if len({table.name for table in tables}) < len(tables):
        raise ValueError("a table is named twice in the option table")
    schema = _together(tables, chosen.metadata_prefix) if len(tables) > 1 else tables[0].decode.target
    columns = _listed("columns", given["columns"]) if "columns" in given else list(schema.names)
    missing = [name for name in columns if name not in schema.names]
    if missing or not columns:
        raise KeyError(f"no column {', '.join(map(repr, missing))} here; there is {', '.join(schema.names)}")
    # Without field metadata, which are not part of what Spark compares.
    bare = pa.schema([pa.field(name, schema.field(name).type) for name in columns])
    return SourcePlan(
        paths,
        tables,
        len(tables) > 1,
        chosen.metadata_prefix,
        committed,
        tuple(columns),
        _size(given.get("partition_bytes", str(_PARTITION_BYTES))),
        StructType([StructField(f.name, f.dataType) for f in spark_schema(bare)]),
    )


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"partition_bytes must be a number of bytes, not {text!r}")
    return int(text)


def _listed(option: str, text: str) -> list[str]:
    """What stands between commas that are not inside of quotes."""
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _LISTED.match(text, at)
        if match is None:
            raise ValueError(f"option {option}: names with commas between were expected, not {text!r}")
        found.append(match[1])
        at = match.end()
    return found


def _files(paths: Sequence[str]) -> Any:
    return paths[0] if len(paths) == 1 else paths


def _table(catalog: Catalog, name: str, options: Options) -> _Table:
    versions, types = catalog.named(int(name) if name.isdecimal() else name), catalog.types
    schema = unify_schemas(
        [
            (r, relation_schema(r, [column_type_of(c, options, types) for c in r.columns], options))
            for r in versions
        ]
    )
    oids = tuple(sorted({r.oid for r in versions}))
    chosen = {r.version for r in versions}
    others = tuple(r.version for r in catalog.relations if r.oid in oids and r.version not in chosen)
    decode = DecodeChanges(
        Catalog(versions, types).to_json(),
        options,
        schema,
        spark_arrow_schema(schema),
        versions[-1].qualified_name,
        catalog.fingerprint(),
    )
    return _Table(versions[-1].qualified_name, oids, others, decode)


def _together(tables: Sequence[_Table], prefix: str) -> pa.Schema:
    """Metadata, the relation's name, and a struct per table."""
    fields = list(spark_arrow_schema(pa.schema(metadata_fields(prefix))))
    count = len(fields)
    fields.append(pa.field(f"{prefix}relation", pa.string()))
    for table in tables:
        own = [pa.field(field.name, field.type) for field in list(table.decode.target)[count:]]
        fields.append(pa.field(table.name, pa.struct(own)))
    return pa.schema(fields)


# ---- reading -----------------------------------------------------------------------------------------------------


@dataclass
class SegmentRows(InputPartition):
    """Row groups of one segment.

    Attributes:
        path: the segment.
        row_groups: which.
        outcomes: what became of their transactions, if only committed ones are wanted.
    """

    path: str
    row_groups: tuple[int, ...]
    outcomes: pa.RecordBatch | None = None


class SegmentReader(DataSourceReader):
    """Reads what was planned.

    Args:
        plan: what was planned.
        schema: as Spark wants it.
    """

    def __init__(self, plan: SourcePlan, schema: StructType) -> None:
        self._plan = plan
        self._target = _arrow_schema(schema)
        self.bounds: dict[str, tuple[int, int]] = {}

    def partitions(self) -> Sequence[InputPartition]:
        """A partition per range of row groups that can hold rows of the tables."""
        plan = self._plan
        outcomes = segment_outcomes(_files(plan.paths)) if plan.committed else None
        found: list[InputPartition] = []
        for segment in list_segments(_files(plan.paths)):
            first, last = self.bounds.get("seq", (segment.first_seq, segment.last_seq))
            if last < segment.first_seq or first > segment.last_seq:
                continue
            for taken in _ranges(segment, plan.oids, plan.partition_bytes):
                fates = _fates_of(segment, taken, outcomes) if outcomes is not None else None
                found.append(SegmentRows(str(segment.path), taken, fates))
        return found or [SegmentRows("", ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of a partition; one row group is in memory at a time."""
        assert isinstance(partition, SegmentRows)
        if not partition.row_groups:
            return
        with pq.ParquetFile(partition.path) as file:
            for k in partition.row_groups:
                rows = file.read_row_group(k, columns=TAGGED_SCHEMA.names).cast(TAGGED_SCHEMA)
                rows = self._chosen(rows, partition.outcomes)
                for table in self._plan.tables:
                    for batch in self._of(table, rows).to_batches():
                        yield from map(self._finished(table), table.decode(iter([batch])))

    def _chosen(self, rows: pa.Table, outcomes: pa.RecordBatch | None) -> pa.Table:
        """The changes that the filters that were pushed leave, and that are committed."""
        kept = np.isin(rows.column("kind").to_numpy(), list(b"IUDT"))
        for name, (first, last) in self.bounds.items():
            values = rows.column(name)
            numbers = values.fill_null(0).to_numpy()
            kept &= (numbers >= first) & (numbers <= last) & values.is_valid().to_numpy()
        rows = _where(rows, kept)
        if outcomes is None:
            return rows
        from pgoutput_fast.transactions import CommittedView

        batches = [CommittedView.released(batch, outcomes) for batch in rows.to_batches()]
        return pa.Table.from_batches(batches, TAGGED_SCHEMA)

    def _of(self, table: _Table, rows: pa.Table) -> pa.Table:
        ours = np.isin(rows.column("relation").fill_null(-1).to_numpy(), table.oids)
        if table.others:
            ours &= ~np.isin(rows.column("version").fill_null(0).to_numpy(), table.others)
        return _where(rows, ours)

    def _finished(self, table: _Table) -> Any:
        """What makes a table's decoded rows those of the source."""
        count = len(metadata_fields(self._plan.prefix))

        def finished(batch: pa.RecordBatch) -> pa.RecordBatch:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            if self._plan.several:
                names = batch.schema.names
                columns = {name: columns[name] for name in names[:count]}
                columns[f"{self._plan.prefix}relation"] = pa.repeat(pa.scalar(table.name), batch.num_rows)
                columns[table.name] = pa.StructArray.from_arrays(batch.columns[count:], names=names[count:])
            return pa.RecordBatch.from_arrays(
                [
                    columns[field.name].cast(field.type)
                    if field.name in columns
                    else pa.nulls(batch.num_rows, field.type)
                    for field in self._target
                ],
                schema=self._target,
            )

        return finished


def _where(rows: pa.Table, kept: np.ndarray[Any, Any]) -> pa.Table:
    """Mostly all rows are wanted, for row groups are cut at relations: then nothing is copied."""
    return rows if bool(kept.all()) else rows.filter(pa.array(kept))


def _ranges(segment: Segment, oids: Sequence[int], most_bytes: int) -> list[tuple[int, ...]]:
    """The row groups that can have rows of these relations, cut where they become more than so many bytes."""
    found: list[list[int]] = []
    size = 0
    for k in segment.row_groups_of(oids):
        nbytes = segment.row_groups[k].nbytes
        if not found or size + nbytes > most_bytes:
            found.append([])
            size = 0
        found[-1].append(k)
        size += nbytes
    return [tuple(each) for each in found]


def _fates_of(segment: Segment, row_groups: Sequence[int], outcomes: pa.RecordBatch) -> pa.RecordBatch:
    """Those outcomes that can concern rows of the row groups: so many fates a task need not be sent."""
    with pq.ParquetFile(segment.path) as file:
        column = TAGGED_SCHEMA.get_field_index("txn")
        found = [file.metadata.row_group(k).column(column).statistics for k in row_groups]
    known = [each for each in found if each is not None and each.has_min_max]
    if len(known) < len(found) or not known:
        return outcomes
    txns = outcomes.column("txn").fill_null(-1).to_numpy()
    first, last = min(each.min for each in known), max(each.max for each in known)
    return outcomes.filter(pa.array((txns >= first) & (txns <= last)))


class PushingReader(SegmentReader):
    """The same, where Spark says which rows it wants. Spark looks at all rows again: here they are only left out."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802
        names = {self._plan.prefix + name: name for name in _PUSHED}
        for each in filters:
            name = names.get(each.attribute[0]) if len(getattr(each, "attribute", ())) == 1 else None
            found = _range(each)
            if name is not None and found is not None:
                first, last = self.bounds.get(name, found)
                self.bounds[name] = max(first, found[0]), min(last, found[1])
            yield each


def _range(condition: Any) -> tuple[int, int] | None:
    """The numbers that a filter allows, at most; None for one that says nothing of a range."""
    lowest, highest = -(1 << 63), (1 << 63) - 1
    value = getattr(condition, "value", None)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    kind = type(condition).__name__
    if kind in ("EqualTo", "EqualNullSafe"):
        return value, value
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return value, highest
    if kind in ("LessThan", "LessThanOrEqual"):
        return lowest, value
    return None


def make_reader(plan: SourcePlan, schema: StructType) -> SegmentReader:
    """The reader for what Spark is doing.

    A reader with pushFilters makes Spark fail while pushing is off. Where it is called by what pushes, it is on.
    """
    if schema != plan.spark_schema:
        raise ValueError(
            "format pgoutput has the schema that the segments say: leave out schema(...), or take option columns"
        )
    return (PushingReader if _is_pushing() else SegmentReader)(plan, schema)


def _is_pushing() -> bool:
    frame = inspect.currentframe()
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name == _PUSHES:
            return True
        frame = frame.f_back
    return False


def _arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark compares batches with."""
    convert: Any = to_arrow_schema
    try:
        return convert(schema, timezone="UTC")
    except TypeError:  # before 4.3
        return convert(schema)
