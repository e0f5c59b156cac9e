"""Reads a mirrored table as it is now: its current table, and the later changes of its history."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.merge.effect.effect import COMMIT_LSN, UNREPRESENTABLE
from pgoutput_fast.merge.effect.fill import Fill, Part, parts_of
from pgoutput_fast.merge.effect.renames import all_names
from pgoutput_fast.mirror.follow.apply_order import ORDER
from pgoutput_fast.mirror.view.layers import Changed, Filled, Renamed, Rows
from pgoutput_fast.mirror.view.moment import Moment, Position, open_moment
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.tables.options import TableOptions

__all__ = [
    "batches_of",
    "chosen_columns",
    "effects_of",
    "fresh",
    "fresh_batches",
    "needed_columns",
    "rows_of",
]

_NEEDED = (*ORDER, "_key_only", "_unchanged", "_unrepresentable")
# Attempts to read a table, if the mirror removes one of its files meanwhile.
_TRIES = 3


def fresh(
    target: str | os.PathLike[str],
    table: str,
    columns: Sequence[str] | None = None,
    position: Position = "latest",
    *,
    storage_options: Mapping[str, str] | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> pa.Table:
    """Reads a mirrored table with all changes of its history, even those not yet in its current table.

    The mirror may run meanwhile. For polars: `polars.from_arrow(fresh(...))`.

    Args:
        target: of the mirror: a path or a URI.
        table: qualified name, quoted as in SQL.
        columns: the columns; None for all.
        position: `"latest"`; an LSN, as for `parse_lsn`; or a datetime with a time zone, for all commits until then.
            Tables read at the same LSN, or at the same time, are consistent with each other.
        storage_options: options of delta-rs for the store, besides the URI.
        iceberg_catalog: that of the mirror, if it was given one.

    Returns:
        The rows in no particular order: the columns of the current table, `_commit_lsn` and `_unrepresentable` among
        them. The metadata of the schema has the position, as `position`.

    Raises:
        KeyError: if the table is not mirrored, or has no such column.
        LookupError: if the position cannot be read; the message says which can.
        MirrorError: if the table is stopped, or must be loaded.
        ValueError, TypeError: if `position` is not a position; ValueError also if changes are missing.
    """
    for left in reversed(range(_TRIES)):
        try:
            with fresh_batches(
                target,
                table,
                columns,
                position,
                storage_options=storage_options,
                iceberg_catalog=iceberg_catalog,
            ) as reader:
                return reader.read_all()
        except FileNotFoundError:
            if not left:
                raise
    raise AssertionError


def fresh_batches(
    target: str | os.PathLike[str],
    table: str,
    columns: Sequence[str] | None = None,
    position: Position = "latest",
    *,
    storage_options: Mapping[str, str] | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> pa.RecordBatchReader:
    """Reads the same as `fresh`, in batches: only the changes, and a part of a file, are in memory at a time.

    If current tables are in DuckDB or DuckLake, the table is copied into a temporary file first. If the mirror removes
    a file meanwhile, this raises FileNotFoundError: then begin again. A mirror keeps the files of its recorded points.
    """
    if columns is not None:
        expect_list("columns", columns)
    moment = open_moment(target, table, position, TableOptions(storage_options, iceberg_catalog))
    chosen = chosen_columns(columns, moment.schema, table)
    rows = rows_of(moment, chosen)
    metadata = {b"position": format_lsn(moment.position).encode()}
    result = pa.schema([rows.schema.field(name) for name in chosen], metadata=metadata)
    return pa.RecordBatchReader.from_batches(result, batches_of(rows, result))


def batches_of(rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All rows, with these columns, in batches."""
    for piece in rows.pieces(schema.names):
        yield from piece.cast(schema).to_batches()


def chosen_columns(columns: Sequence[str] | None, schema: pa.Schema, table: str) -> list[str]:
    """The requested columns; all by default.

    Raises:
        KeyError: if the table lacks one.
    """
    if columns is None:
        return list(schema.names)
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise KeyError(
            f"{table} has no column {', '.join(map(repr, missing))}; it has {', '.join(schema.names)}"
        )
    return list(columns)


def rows_of(moment: Moment, columns: Sequence[str]) -> Rows:
    """The rows of a table at a moment, with at least these columns.

    Raises:
        ValueError: if changes are missing.
    """
    rows: Rows = moment.base
    place = moment.table
    for part in effects_of(moment, columns):
        if isinstance(part, Fill):
            rows = Filled(Renamed(rows, part) if part.renamed else rows, part, place)
        else:
            rows = Changed(rows, part, place)
    return rows


def needed_columns(moment: Moment, columns: Sequence[str]) -> set[str]:
    """The columns of a table that must be read to get these columns of the rows at a moment."""
    if not moment.changes.files:
        return set(columns)
    needed = {*columns, *(name for key in moment.keys for name in key)}
    if () in moment.keys or UNREPRESENTABLE in columns:
        needed |= set(moment.schema.names)
    return moment.with_former(needed)


def effects_of(moment: Moment, columns: Sequence[str]) -> Iterator[Part]:
    """The net effects of the changes of a moment, to apply to its base in this order.

    One part of the changes is in memory at a time.

    Args:
        moment: the table at a moment.
        columns: the columns that the rows must have.
    """
    changes = moment.changes
    if not changes.files:
        return
    parts = parse_qualified_name(moment.table)
    assert parts is not None
    new = [
        field
        for field in moment.schema
        if field.name in columns and field.name not in {*moment.base.schema.names, *all_names(moment.renames)}
    ]
    if new:  # there may be no change that has them
        yield Fill(pa.Table.from_pylist([{}], pa.schema(new)), pa.table({}))
    metadata = {b"pg.namespace": parts[0].encode(), b"pg.relation": parts[1].encode()}
    needed = needed_columns(moment, columns)
    changed = [name for name in moment.changed if name in needed]
    for part in changes.read_parts([*_NEEDED, *changed]):
        yield from _effects(moment, part.replace_schema_metadata(metadata))
        # Only its effects stay in memory, while the next part is read.
        del part
        pa.default_memory_pool().release_unused()


def _effects(moment: Moment, changes: pa.Table) -> Iterator[Part]:
    for key, rows in moment.by_key(changes):
        kept = set(moment.columns(key, int(rows[COMMIT_LSN][0].as_py())))
        names = [name for name in rows.column_names if name in kept or name in _NEEDED]
        yield from parts_of(rows.select(names), key, moment.renames)
