"""Plans a query of `format("pgoutput")`: its options, the catalog of the segments, tables and schema.

Options: `path` (the argument of `load`), `table` (one name, or several separated by commas), `columns`, `metadata`,
`transactions`, `schema_mode`, `catalog`, `time`, `partition_bytes`, `where`, `emit`, `keys`; `starting` (or
`startingOffsets`) and `endingOffsets`; and `on_error`, `unrepresentable`, `numeric`, `uuid`, `extra_columns`,
`metadata_prefix` as in `pgoutput_fast.Options`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.merge.keys import key_of
from pgoutput_fast.protocol.limits import SPARK_BATCH_BYTES, SPARK_BATCH_ROWS, SPARK_PARTITION_BYTES
from pgoutput_fast.schema.metadata_columns import choose_metadata, metadata_fields
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.resolve import (
    Resolved,
    SchemaMode,
    decoded_schema,
    mode_of,
    resolve,
    resolves_alone,
    with_metadata,
)
from pgoutput_fast.segments.listing import SegmentList, catalog_of
from pgoutput_fast.spark.source.options import SPARK_NAMES, byte_count, emitted, offset, option_of
from pgoutput_fast.spark.source.where import EVERY_ROW, Where, parse_where
from pgoutput_fast.spark.tasks.changes import DecodeChanges
from pgoutput_fast.spark.tasks.upserts import Upserts
from pgoutput_fast.spark.types import Time, check_time, spark_arrow_schema, spark_arrow_type, spark_schema

__all__ = ["STREAM_OPTIONS", "SourcePlan", "TablePlan", "arrow_schema", "plan_source"]

_DECODING = ("on_error", "unrepresentable", "numeric", "uuid", "extra_columns", "metadata_prefix")
_OPTIONS = (
    "path", "paths", "table", "columns", "metadata", "transactions", "schema_mode", "catalog", "time",
    "partition_bytes", "where", "emit", "keys", "starting", SPARK_NAMES["starting"], "endingOffsets", *_DECODING,
)  # fmt: skip
# Only streams have these options; `stream_plan` explains them.
STREAM_OPTIONS = (
    "max_segments",
    SPARK_NAMES["max_segments"],
    "max_bytes",
    SPARK_NAMES["max_bytes"],
    "consumer",
    "dsn",
    "slot",
    "publication",
    "capture",
)
_KNOWN = (*_OPTIONS, *STREAM_OPTIONS)
_LOWER = frozenset(map(str.lower, _KNOWN))
_OF_UPSERTS = ("change_type", "seq", "key_only", "unchanged")
_LISTED = re.compile(r'\s*((?:"(?:[^"]|"")*"|[^",])+?)\s*(?:,|$)')


@dataclass(frozen=True)
class TablePlan:
    """The plan of one relation: the tagged rows with its changes, and the task that decodes them."""

    name: str
    oids: tuple[int, ...]
    others: tuple[int, ...]  # versions with these oids that had another name
    decode: DecodeChanges


@dataclass(frozen=True)
class SourcePlan:
    """The plan of a query on segments.

    Attributes:
        tables: the plans of the relations to read.
        where: the rows to read.
        upserts: how changes become rows to upsert and to delete; None for the changes themselves.
        starting, ending: the messages that a batch read reads: an ordinal, or `earliest` or `latest`; the one at
            `ending` is not read. A stream has positions of its own.
    """

    paths: tuple[str, ...]
    tables: tuple[TablePlan, ...]
    several: bool
    prefix: str
    committed: bool
    partition_bytes: int
    spark_schema: StructType
    where: Where = EVERY_ROW
    upserts: Upserts | None = None
    starting: str = "earliest"
    ending: str = "latest"

    @property
    def oids(self) -> list[int]:
        """The oids of all its relations, ascending."""
        return sorted({oid for table in self.tables for oid in table.oids})

    @property
    def on_error(self) -> Literal["raise", "quarantine"]:
        """What happens at a damaged message."""
        return self.tables[0].decode.options.on_error


def plan_source(
    options: Mapping[str, str],
    schema: StructType | None = None,
    known: Catalog | None = None,
    keep: Callable[[SegmentList], None] = lambda segments: None,
) -> SourcePlan:
    """Plans paths, tables and schema from the footers of the segments.

    Args:
        options: the user's options.
        schema: the schema to pin, with the requested metadata columns, if the user called `DataFrameReader.schema`.
        known: the catalog. By default, it is read from the segments or the server.
        keep: called with the segments whose footers were read.

    Raises:
        KeyError: if there is no such relation, column or metadata column; the message lists those that exist.
        ValueError: for options that are missing, unknown or wrong; for segments that do not belong together; and if the
            versions of a relation do not fit into a single schema, or into the pinned one.
    """
    given = {key.lower(): value for key, value in options.items()}
    unknown = sorted(key for key in given if key not in _LOWER and not key.startswith("__"))
    if unknown:
        raise ValueError(
            f"format pgoutput has no option {', '.join(map(repr, unknown))}; there is {', '.join(_KNOWN)}"
        )
    paths = tuple(parsed_json(given["paths"])) if "paths" in given else (given.get("path", ""),)
    if not all(paths):
        raise ValueError("format pgoutput needs the path of segments: load(path)")
    names = listed("table", given.get("table", ""))
    if not names:
        raise ValueError("format pgoutput needs the option table, such as public.orders")
    both = [option for option in ("columns", "metadata") if schema is not None and option in given]
    if both:
        raise ValueError(f"option {both[0]} and a schema both choose columns: leave one out")
    transactions: Any = given.get("transactions", "committed")
    decoding: dict[str, Any] = {key: given[key] for key in _DECODING if key in given}
    time: Any = given.get("time", "string")
    check_time(time)
    mode = mode_of(given.get("schema_mode"), schema is not None)
    starting = option_of(given, "starting", offset) or "earliest"
    ending = offset("endingOffsets", given.get("endingoffsets", "latest"), words=("latest",))
    if known is None:
        stored = _catalog_of_segments(given, paths, names, keep)
        known = _merge_given_catalog(stored, given.get("catalog"), mode)
    planner = _Planner(
        known,
        Options(batch_rows=SPARK_BATCH_ROWS, batch_bytes=SPARK_BATCH_BYTES, **decoding),
        time,
        names,
    )
    if "where" in given:
        planner.choose(given["where"])
    committed = (
        Options(transactions=transactions).transactions == "committed"
    )  # whose error is that of Options
    keys = listed("keys", given["keys"]) if "keys" in given else None
    if emitted(given) == "upserts":
        if not committed:
            raise ValueError("emit=upserts needs committed transactions: leave the option transactions out")
        planner.upsert(keys)
    elif keys is not None:
        raise ValueError("option keys needs emit=upserts")
    if schema is not None:
        tables, whole = planner.pinned(schema), schema
    else:
        columns = listed("columns", given["columns"]) if "columns" in given else None
        tables, whole = planner.chosen(columns, planner.metadata(given.get("metadata")))
    return SourcePlan(
        paths,
        tuple(
            table for table in tables if planner.where.tables is None or table.name in planner.where.tables
        ),
        planner.several,
        planner.options.metadata_prefix,
        committed,
        byte_count("partition_bytes", given.get("partition_bytes", str(SPARK_PARTITION_BYTES))),
        whole,
        planner.where,
        planner.upserts,
        starting,
        ending,
    )


def _catalog_of_segments(
    given: Mapping[str, str],
    paths: Sequence[str],
    names: Sequence[str],
    keep: Callable[[SegmentList], None],
) -> Catalog:
    """Returns the catalog of the segments, or of segments and server if `dsn` is given."""
    if "dsn" not in given:
        segments = SegmentList(paths)
        catalog = segments.read(catalog_of)
        keep(segments)
        return catalog
    from pgoutput_fast.spark.source.stream_capture import known_with_server

    return known_with_server(given, _names_or_oids(names))


def _names_or_oids(names: Sequence[str]) -> list[str | int]:
    """Converts digits to oids; other texts are names."""
    return [int(name) if name.isdecimal() else name for name in names]


def _merge_given_catalog(stored: Catalog, text: str | None, mode: SchemaMode) -> Catalog:
    """Returns the catalog of the option, merged with that of the segments if the query needs both."""
    if text is None:
        return stored
    try:
        catalog = Catalog.from_json(text)
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"option catalog must be what Catalog.to_json() gives: {problem}") from None
    return catalog if resolves_alone(catalog, mode) else catalog.merged(stored)


class _Planner:
    """Plans the tables of a query and the schema of their decoded rows."""

    def __init__(self, known: Catalog, options: Options, time: Time, names: Sequence[str]) -> None:
        self._known = known
        self._time = time
        self.options = options
        self._tables = _names_or_oids(names)
        self._versions = [known.named(table) for table in self._tables]
        self._names = [versions[-1].qualified_name for versions in self._versions]
        if len(set(self._names)) < len(names):
            raise ValueError("option table names a table twice")
        self._metadata = {field.name: field.type for field in metadata_fields(options.metadata_prefix)}
        self.several = len(names) > 1
        self._relation = f"{options.metadata_prefix}relation"
        self.where = EVERY_ROW
        self.upserts: Upserts | None = None

    def choose(self, text: str) -> None:
        """Takes the option `where`.

        Raises:
            ValueError: as `parse_where`.
        """
        self.where = parse_where(text, self.options.metadata_prefix, self._names if self.several else None)

    def upsert(self, keys: Sequence[str] | None) -> None:
        """Plans rows to upsert and to delete.

        Args:
            keys: the columns that identify a row; None for the replica identity of the newest version.

        Raises:
            ValueError: if the changes cannot give such rows.
        """
        name, versions = self._names[0], self._versions[0]
        if self.several:
            raise ValueError("emit=upserts gives the rows of one table: name one with the option table")
        if self.where.change_types is not None:
            raise ValueError("emit=upserts needs all changes: leave the change type out of the option where")
        if self.options.on_error == "quarantine":
            raise ValueError("emit=upserts cannot leave changes out: leave on_error=quarantine out")
        keys = key_of(versions[-1]) if keys is None else keys
        if not keys:
            raise ValueError(
                f"{name} has the replica identity {versions[-1].identity_in_words}, which does not tell the key: name "
                "the columns of its key with the option keys"
            )
        for version in versions:
            # Without a replica identity, the server sends inserts only.
            known = {column.name for column in version.columns if column.key} or set(keys)
            missing = [column for column in keys if column not in known]
            if missing:
                raise ValueError(
                    f"{name}: old rows do not have column {missing[0]!r} of the key, because it is not in the replica "
                    "identity. Name other columns with the option keys, or give the table REPLICA IDENTITY FULL and "
                    "read segments that begin after that"
                )
        self.upserts = Upserts(name, tuple(keys), self.options.metadata_prefix)

    def metadata(self, text: str | None) -> tuple[str, ...] | None:
        """Returns the metadata columns named by the option, None without the option."""
        if text is None:
            return None
        if not text.strip():
            raise ValueError(
                "option metadata must be all, none, or names of metadata columns, separated by commas"
            )
        named = () if text.strip() == "none" else listed("metadata", text)
        return choose_metadata("all" if text.strip() == "all" else named, self.options.metadata_prefix)

    def chosen(
        self, columns: Sequence[str] | None, metadata: Sequence[str] | None
    ) -> tuple[tuple[TablePlan, ...], StructType]:
        """Plans all tables with these columns of the result, or with all columns.

        Args:
            columns: the columns; these may be metadata columns if `metadata` is None.
            metadata: the metadata columns. They come before the other columns.
        """
        general = {*self._metadata, self._relation} if self.several else self._metadata
        own = [name for name in columns or () if name not in general]
        twice = [name for name in columns or () if metadata is not None and name in self._metadata]
        if twice:
            raise ValueError(
                f"options columns and metadata both choose {twice[0]}: name it in metadata alone"
            )
        if columns is not None and len(set(columns)) < max(len(columns), 1):
            raise ValueError("option columns must name columns, and none of them twice")
        if columns is not None and not self.several:
            self._expect(own, {column.name for each in self._versions[0] for column in each.columns})
        elif columns is not None:
            self._expect(own, set(self._names))
        resolved = []
        for at, name in enumerate(self._names):
            wanted = own if not self.several else None if columns is None or name in own else []
            resolved.append(self._resolved(at, None if columns is None else wanted))
        schema = (
            self._together(resolved) if self.several else spark_arrow_schema(resolved[0].schema, self._time)
        )
        names = list(schema.names if columns is None else columns)
        if metadata is not None:
            names = [*metadata, *(name for name in names if name not in self._metadata)]
        if not names:
            raise ValueError("the result would have no column: name one with the option metadata or columns")
        # Without field metadata, which Spark does not compare.
        bare = pa.schema([pa.field(f.name, f.type) for f in map(schema.field, names)])
        fields = spark_schema(bare, self._time)
        return self._planned(resolved, names), StructType([StructField(f.name, f.dataType) for f in fields])

    def _expect(self, names: Sequence[str], there: set[str]) -> None:
        missing = [name for name in names if name not in there]
        if missing:
            more = [self._relation] if self.several else []
            known = [*self._metadata, *more, *sorted(there)]
            raise KeyError(f"there is no column {', '.join(map(repr, missing))}; there is {', '.join(known)}")

    def pinned(self, schema: StructType) -> tuple[TablePlan, ...]:
        """Plans all tables, with their columns in the schema.

        Raises:
            ValueError: if the tables cannot have these columns.
        """
        images: dict[str, StructType] = {name: StructType([]) for name in self._names}
        own = [field for field in schema if field.name not in self._metadata]
        expected = {**self._metadata, **({self._relation: pa.string()} if self.several else {})}
        for field in schema:
            kind = expected.get(field.name)
            if kind is None and not self.several:
                continue
            if kind is not None and _arrow_type(field) != spark_arrow_type(kind):
                raise ValueError(
                    f"metadata column {field.name!r} is {_name(kind)}, but the schema says "
                    f"{field.dataType.simpleString()}"
                )
            if not field.nullable:
                raise ValueError(f"column {field.name!r} can be null: leave NOT NULL out of the schema")
            if kind is None and (field.name not in images or not isinstance(field.dataType, StructType)):
                raise ValueError(
                    f"column {field.name!r} must be a struct with the name of one of the tables: "
                    f"{', '.join(map(repr, self._names))}"
                )
        if self.several:
            images |= {f.name: f.dataType for f in own if isinstance(f.dataType, StructType)}
        else:
            images = {self._names[0]: StructType(own)}
        resolved = [self._pinned(at, images[name]) for at, name in enumerate(self._names)]
        return self._planned(resolved, schema.names)

    def _pinned(self, at: int, image: StructType) -> Resolved:
        wanted = None
        if self.options.extra_columns == "drop":
            # A pinned column that no version has is null.
            there = {column.name for each in self._versions[at] for column in each.columns}
            wanted = [name for name in image.names if name in there]
        decoded = [decoded_schema(each, self.options, self._known.types) for each in self._versions[at]]
        fields = []
        for field in image:
            kind = _arrow_type(field)
            # Keep the decoded type if it converts to the type expected by Spark.
            for schema in decoded:
                if (
                    field.name in schema.names
                    and spark_arrow_type(schema.field(field.name).type, self._time) == kind
                ):
                    kind = schema.field(field.name).type
            fields.append(pa.field(field.name, kind, nullable=field.nullable))
        return self._resolved(at, wanted, pa.schema(fields))

    def _resolved(self, at: int, columns: Sequence[str] | None, schema: pa.Schema | None = None) -> Resolved:
        if columns is not None:
            chosen = dict(self.options.columns or {})
            chosen.update((each.qualified_name, columns) for each in self._versions[at])
            self.options = replace(self.options, columns=chosen)
        return resolve(self._known, self._tables[at], self.options, schema)

    def _together(self, resolved: Sequence[Resolved]) -> pa.Schema:
        """Returns the schema of several tables: metadata, the relation's name, and a struct per table."""
        fields = [*spark_arrow_schema(pa.schema(metadata_fields(self.options.metadata_prefix)))]
        fields.append(pa.field(self._relation, pa.string()))
        for table in resolved:
            image = list(spark_arrow_schema(table.schema, self._time))[len(self._metadata) :]
            fields.append(pa.field(table.table, pa.struct([pa.field(f.name, f.type) for f in image])))
        return pa.schema(fields)

    def _planned(self, resolved: Sequence[Resolved], names: Sequence[str]) -> tuple[TablePlan, ...]:
        """Returns the tables' plans, with only those metadata columns that are in `names`."""
        metadata = [name for name in names if name in self._metadata]
        prefix = self.options.metadata_prefix
        # What rows are made or filtered by. The result leaves out what is not requested.
        needed: tuple[str, ...] = ("change_type",) if self.where.change_types is not None else ()
        needed = _OF_UPSERTS if self.upserts is not None else needed
        for key in self.upserts.keys if self.upserts is not None else ():
            if key not in resolved[0].schema.names:
                raise ValueError(f"emit=upserts needs column {key!r} of the key: do not leave it out")
        metadata += [prefix + name for name in needed if prefix + name not in metadata]
        chosen = []
        for each in resolved:
            empty = not metadata and len(each.schema) == len(self._metadata)
            # A batch without columns has no rows. `_seq` is free, and is not in the result.
            chosen.append(with_metadata(each, [f"{prefix}seq"] if empty else metadata, prefix))
        return tuple(
            TablePlan(
                each.table,
                each.oids,
                each.others,
                DecodeChanges(
                    each.catalog.to_json(),
                    self.options,
                    each.schema,
                    spark_arrow_schema(each.schema, self._time),
                    each.table,
                    each.fingerprint,
                ),
            )
            for each in chosen
        )


def _arrow_type(field: StructField) -> pa.DataType:
    (found,) = arrow_schema(StructType([field]))
    return found.type


def _name(kind: pa.DataType) -> str:
    (field,) = spark_schema(pa.schema([("c", kind)]))
    return str(field.dataType.simpleString())


def listed(option: str, text: str) -> list[str]:
    """Splits a text at commas outside double quotes. `option` names the option in errors."""
    names, at = [], 0
    while at < len(text.rstrip()):
        match = _LISTED.match(text, at)
        if match is None:
            raise ValueError(f"option {option}: separate the names with commas, not {text!r}")
        names.append(match[1])
        at = match.end()
    return names


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema with which Spark compares batches."""
    convert: Any = to_arrow_schema
    try:
        return convert(schema, timezone="UTC")
    except TypeError:  # before 4.3
        return convert(schema)
