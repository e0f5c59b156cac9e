"""The column ids of an Iceberg table, which its files have, too: readers find columns by them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgoutput_fast.schema.evolution import widen
from pgoutput_fast.schema.types import leaf_pairs, walk_type
from pgoutput_fast.tables.columns import FIELD_ID, column_id

__all__ = [
    "can_become",
    "can_widen",
    "change_columns",
    "check_iceberg_names",
    "rename_columns",
    "with_field_ids",
]


def with_field_ids(schema: pa.Schema, table: Any) -> pa.Schema:
    """Columns with the ids of a table's columns, for files with these ids.

    Args:
        schema: the columns.
        table: the columns of the table, a `pyiceberg.schema.Schema`.
    """
    return pa.schema([_numbered(field, table.fields) for field in schema])


def _numbered(field: pa.Field, known: Any) -> pa.Field:
    found = next(each for each in known if each.name == field.name)
    kind = _with_inner_ids(field.type, found.field_type)
    return pa.field(field.name, kind, metadata={FIELD_ID: str(found.field_id)})


def _with_inner_ids(kind: pa.DataType, known: Any) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_numbered(field, known.fields) for field in kind])
    if pa.types.is_list(kind):
        inner = _with_inner_ids(kind.value_type, known.element_type)
        return pa.list_(pa.field("element", inner, metadata={FIELD_ID: str(known.element_id)}))
    if pa.types.is_map(kind):
        key = _with_inner_ids(kind.key_type, known.key_type)
        item = _with_inner_ids(kind.item_type, known.value_type)
        return pa.map_(
            pa.field("key", key, nullable=False, metadata={FIELD_ID: str(known.key_id)}),
            pa.field("value", item, metadata={FIELD_ID: str(known.value_id)}),
        )
    return kind


def change_columns(transaction: Any, there: pa.Schema, schema: pa.Schema, *, replaced: bool) -> None:
    """Gives a table the necessary columns, in a transaction.

    Args:
        transaction: of pyiceberg.
        there: the columns of the table.
        schema: the columns of the rows.
        replaced: whether all earlier rows are removed.
    """
    if replaced:
        with transaction.update_schema() as update:
            for field in there:
                if not can_become(field, schema):
                    update.delete_column((field.name,))
    with transaction.update_schema() as update:
        update.union_by_name(schema)


def rename_columns(transaction: Any, schema: pa.Schema) -> bool:
    """Gives columns of a table the names of those with the same ids, in a transaction. Returns whether any changes.

    Args:
        transaction: of pyiceberg.
        schema: the columns of the rows.
    """
    known = {str(field.field_id).encode(): field.name for field in transaction.table_metadata.schema().fields}
    before = {field.name: known.get(column_id(field) or b"", field.name) for field in schema}
    renamed = {name: former for name, former in before.items() if name != former}
    if renamed:
        with transaction.update_schema() as update:
            for name, former in renamed.items():
                update.rename_column((former,), name)
    return bool(renamed)


def can_become(field: pa.Field, schema: pa.Schema) -> bool:
    """Whether a column can stay if the table gets the columns of this schema."""
    if field.name not in schema.names:
        return False
    wide = widen(field.type, schema.field(field.name).type)
    return wide is not None and wide.equals(schema.field(field.name).type) and can_widen(field.type, wide)


def can_widen(there: pa.DataType, wide: pa.DataType) -> bool:
    """Whether Iceberg can widen a column in this way."""
    return all(
        not pa.types.is_decimal128(a) or (pa.types.is_decimal128(b) and a.scale == b.scale)
        for a, b in leaf_pairs(there, wide)
    )


def check_iceberg_names(schema: pa.Schema, place: str) -> None:
    """Checks that column names are unique in Iceberg, which joins the names of nested columns with dots.

    Args:
        schema: the columns.
        place: names the table, for errors.

    Raises:
        ValueError: if they are not.
    """
    owners: dict[str, str] = {}
    for field in schema:
        for path, _ in walk_type(field.name, field.type):
            other = owners.setdefault(path, field.name)
            if other != field.name:
                raise ValueError(
                    f"{place} cannot have both columns {other!r} and {field.name!r}: in Iceberg, {path!r} is the name "
                    "of both, or of a part of one. Rename one on the server, leave one out of the publication, or use "
                    "another format"
                )
