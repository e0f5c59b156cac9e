"""Plans the tables of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.resolve import Resolved, resolve
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.spark.tables.problems import TableProblems
from pgoutput_fast.spark.tables.run import Run
from pgoutput_fast.spark.tasks.changes import DecodeChanges, with_commit_date
from pgoutput_fast.spark.tasks.tables import TablePart, rejects_of
from pgoutput_fast.spark.types import spark_arrow_schema
from pgoutput_fast.storage.table_directories import table_directory
from pgoutput_fast.tables.formats import FORMATS
from pgoutput_fast.tables.naming import Naming
from pgoutput_fast.tables.partitions import Partitioning, check_partition_columns
from pgoutput_fast.tables.table import Mode
from pgoutput_fast.tables.target import FileTarget

__all__ = [
    "DescribedTable",
    "PartitionBy",
    "PlannedTable",
    "TargetNames",
    "described_tables",
    "partition_columns",
    "plan_tables",
]

# Columns of all tables, or qualified name -> columns.
PartitionBy = Sequence[str] | Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class DescribedTable:
    """A table as described by the source.

    Attributes:
        resolved: its versions, and the schema of its rows.
        schema: its columns in plain types.
        partition_columns: the columns by which its files are partitioned.
    """

    resolved: Resolved
    schema: pa.Schema
    partition_columns: tuple[str, ...]


@dataclass(frozen=True)
class PlannedTable:
    """A table of a run.

    Attributes:
        described: the table as described by the source.
        part: what the run adds to it.
    """

    described: DescribedTable
    part: TablePart


@dataclass(frozen=True)
class TargetNames:
    """Where the tables of a source are in a target.

    Attributes:
        catalog: all relation versions of the source.
        format: the format of the tables.
        naming: their names there.
        database: the database of the source; None if it does not say it.
    """

    catalog: Catalog
    format: str
    naming: Naming
    database: str | None

    def directory(self, table: str | int) -> str:
        """The directory of a table.

        Raises:
            KeyError: if the source does not describe it.
        """
        relation = self.catalog.named(table)[-1]
        names = self.naming.of(self.database, relation.namespace, relation.name)
        target = FORMATS[self.format]
        assert issubclass(target, FileTarget)
        return target.directory(table_directory(*names))

    def directories(self, tables: Iterable[str | int]) -> dict[str | int, str]:
        """The directories of tables.

        Raises:
            ValueError: if two tables would have the same one.
        """
        found, owners = dict[str | int, str](), dict[str, str]()
        for each in tables:
            name, directory = self.catalog.named(each)[-1].qualified_name, self.directory(each)
            if (other := owners.setdefault(directory, name)) != name:
                raise ValueError(
                    f"namespace= and table_name= give {other} and {name} the same name: {directory}"
                )
            found[each] = directory
        return found


def described_tables(
    names: TargetNames,
    tables: Sequence[str | int],
    options: Options,
    partition_by: PartitionBy,
    problems: TableProblems,
    *,
    more: bool,
) -> list[DescribedTable]:
    """The tables with these names, without duplicates. Does not access a target.

    Args:
        names: the tables of the source.
        tables: qualified names, quoted as in SQL, or oids.
        options: how to decode.
        partition_by: the partition columns of all tables, or of some by name.
        problems: what becomes of a ValueError.
        more: whether the source may describe no table: it does so later, or cannot.

    Raises:
        KeyError: if there is no such table.
        ValueError: if the versions of a table do not fit into a single schema, if a table lacks a partition column, or
            if two tables have the same directory.
    """
    known, found = names.catalog, dict[str, DescribedTable]()
    for name, directory in names.directories(tables).items():
        with problems.of(directory):
            resolved = resolve(known, name, options, _pinned(known, name, options))
            if resolved.table in found:  # another spelling of its name, or its oid
                continue
            schema = stored_schema(spark_arrow_schema(resolved.schema), "parquet")
            bare = pa.schema([pa.field(field.name, field.type) for field in schema])
            columns = partition_columns(partition_by, resolved.table)
            bare = with_commit_date(bare, columns, options.metadata_prefix)
            check_partition_columns(bare, columns, resolved.table)
            found[resolved.table] = DescribedTable(resolved, bare, columns)
    if not found and not more and not problems.reasons:
        raise KeyError("the source describes no table, or exclude= names all of them")
    if not more and isinstance(partition_by, Mapping):
        _check_names(partition_by, [known.named(name)[-1].qualified_name for name in tables])
    return list(found.values())


def plan_tables(
    tables: Sequence[DescribedTable],
    options: Options,
    names: TargetNames,
    run: Run,
    mode: Mode,
    problems: TableProblems,
) -> list[PlannedTable]:
    """Plans tables. A table without a position gets everything.

    Args:
        tables: the tables.
        options: how to decode.
        names: where they are.
        run: its target has the positions of the tables.
        mode: with a mode other than `"append"`, everything is written, regardless of positions.
        problems: what becomes of the error of a table.

    Raises:
        ValueError: if a table cannot be read.
    """
    planned = []
    for each in tables:
        directory = names.directory(each.resolved.table)
        with problems.of(directory):
            planned.append(PlannedTable(each, _part(each, options, directory, run, mode)))
    return planned


def _part(each: DescribedTable, options: Options, directory: str, run: Run, mode: Mode) -> TablePart:
    resolved = each.resolved
    decode = DecodeChanges(
        resolved.catalog.to_json(),
        options,
        resolved.schema,
        each.schema,
        resolved.table,
        resolved.fingerprint,
    )
    table = run.table(directory)
    position = run.ordinal(directory) if mode == "append" else None
    rejected = None if mode == "overwrite" else run.ordinal(rejects_of(directory))
    partitioning = Partitioning(
        each.partition_columns, table.partition_directories, table.partition_columns_stored
    )
    return TablePart(
        directory,
        resolved.oids,
        resolved.others,
        decode,
        None if position is None else position.seq,
        None if rejected is None else rejected.seq,
        partitioning,
    )


def _pinned(known: Catalog, name: str | int, options: Options) -> pa.Schema | Relation | None:
    """The schema that the options pin for a table, by its name, by another spelling of it, or by an oid."""
    versions = known.named(name)
    keys = [name, versions[-1].qualified_name, *(each.oid for each in versions[::-1])]
    return next((pinned for pinned in map(options.pinned, keys) if pinned is not None), None)


def _check_names(partition_by: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    known = {parse_qualified_name(name) for name in names}
    unknown = [name for name in partition_by if parse_qualified_name(name) not in known]
    if unknown:
        raise KeyError(
            f"partition_by names {unknown[0]}, which is not written; these tables are: {', '.join(names)}"
        )


def partition_columns(partition_by: PartitionBy, table: str) -> tuple[str, ...]:
    """The partition columns of a table. In a mapping, names of tables may be quoted in any valid SQL form."""
    if not isinstance(partition_by, Mapping):
        return tuple(partition_by)
    found = {parse_qualified_name(name): columns for name, columns in partition_by.items()}
    return tuple(found.get(parse_qualified_name(table), ()))
