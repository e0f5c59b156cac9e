"""Finds the typed files of a table, and the one schema that all of them fit into. The files' footers tell it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.catalog.relations import Relation, no_such_table
from pgoutput_fast.schema.evolution import unify_schemas
from pgoutput_fast.storage.paths import open_file, shown
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.storage.table_directories import table_directory
from pgoutput_fast.typed_files.progress import TYPED, typed_files

__all__ = ["TypedTable", "find_typed_table"]

# Footers are small, and in a store each costs a round trip.
_THREADS = 16


@dataclass(frozen=True)
class TypedTable:
    """The typed files of a table.

    Attributes:
        directories: names of the directories with its files in the store, one per relation version.
        schema: the schema that all files fit into, with the metadata of the newest one.
    """

    directories: tuple[str, ...]
    schema: pa.Schema


@dataclass(frozen=True)
class _Footer:
    relation: Relation
    schema: pa.Schema
    last_seq: int


def find_typed_table(store: Store, table: str) -> TypedTable:
    """Finds the finished typed files of a table, and unifies their schemas as those of relation versions.

    The version with the newest change comes first. This call reads the footer of each file of the table.

    Args:
        store: the store of the segments.
        table: the table's qualified name, quoted as in SQL.

    Raises:
        FileNotFoundError: if the store has no typed files.
        KeyError: if it has none of this table; the message lists the tables that it has.
        ValueError: if no schema can hold all versions, or if a file is damaged or is not a typed file.
    """
    names = _names_by_table(store)
    parts = parse_qualified_name(table)
    found = [] if parts is None else _read_footers(store, names.get(table_directory(*parts), []))
    if not found:
        some = _read_footers(store, [own[0] for own in names.values()])
        raise KeyError(no_such_table(table, [footer.relation for _, footer in some]))
    versions: list[tuple[Relation, pa.Schema]] = []
    for _, footer in sorted(found, key=lambda each: each[1].last_seq, reverse=True):
        if not any(footer.schema.equals(schema) for _, schema in versions):
            versions.append((footer.relation, footer.schema))
    directories = sorted({name.rpartition("/")[0] for name, _ in found})
    return TypedTable(tuple(directories), unify_schemas(versions[::-1]))


def _names_by_table(store: Store) -> dict[str, list[str]]:
    """Returns {directory of a table: names of its finished files}.

    Raises:
        FileNotFoundError: if there is no file.
    """
    found: dict[str, list[str]] = {}
    for entry in typed_files(store):
        parts = entry.name.split("/")
        if len(parts) == 4 and not entry.hidden:
            found.setdefault(parts[1], []).append(entry.name)
    if not found:
        raise FileNotFoundError(
            f"there are no typed files in {store}/{TYPED}: pass the directory of the segments, or a target of "
            "pgspark.write_tables. A capture makes the files, also of segments that are there already: Capture(..., "
            "typed=True), or the option --typed of python -m pgoutput_fast.capture. A table has files as soon as one "
            "of its changes has committed"
        )
    return found


def _read_footers(store: Store, names: Sequence[str]) -> list[tuple[str, _Footer]]:
    """Reads the footers of these files, without the files that are removed meanwhile."""
    with ThreadPoolExecutor(_THREADS) as threads:
        footers = threads.map(lambda name: _read_footer(store, name), names)
        return [(name, footer) for name, footer in zip(names, footers, strict=True) if footer is not None]


def _read_footer(store: Store, name: str) -> _Footer | None:
    """Reads the footer of a file; None if retention has removed the file."""
    path = str(store.at(name))
    try:
        with pq.ParquetFile(open_file(path)) as file:
            schema, footer = file.schema_arrow, file.metadata
    except FileNotFoundError:
        return None
    except pa.ArrowInvalid as problem:
        raise ValueError(f"typed file {shown(path)} is damaged: {problem}") from None
    try:
        texts = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        relation = Relation(
            int(texts["pg.relation_oid"]),
            int(texts["pg.version"]),
            texts["pg.namespace"],
            texts["pg.relation"],
            texts["pg.replica_identity"],
            (),
        )
    except (KeyError, ValueError):
        raise ValueError(
            f"{shown(path)} is not a typed file: its schema does not name the relation. Move it away"
        ) from None
    return _Footer(relation, schema, _last_seq(footer))


def _last_seq(footer: pq.FileMetaData) -> int:
    """Returns the ordinal of the file's last change. The ordinals are the second metadata column."""
    statistics = [footer.row_group(k).column(1).statistics for k in range(footer.num_row_groups)]
    return max((each.max for each in statistics if each is not None and each.has_min_max), default=-1)
