"""The columns of current tables. Only this module decides what a decoded column becomes in one.

| decoded as | all current tables have | why |
|---|---|---|
| time64[us] | string, `HH:MM:SS.ffffff` | Delta has no times |
| month_day_nano_interval | string, ISO 8601 | Delta and Parquet have no type for months, days and time at once |
| fixed_size_binary(16), arrow.uuid | binary | Delta has neither |
| string_view, large_string, large_binary | string, binary | they are layouts of the same values |
| struct without fields | string, `()` | Parquet has no such struct |
| list or struct of any of these | list or struct of the new type | |
| any other type that this package decodes | the same type | |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from pgoutput_fast.schema.evolution import widen, widest
from pgoutput_fast.schema.plain import plain_schema, to_types
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = ["check_names", "fitted", "in_schema", "joined", "merged", "stored_schema"]

_PLAIN = (
    *(pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as current tables of every format store them.

    Raises:
        ValueError: if a column has a type that this package does not decode.

    >>> stored_schema(pa.schema({"at": pa.time64("us"), "id": pa.binary(16), "l": pa.list_(pa.large_string())})).types
    [DataType(string), DataType(binary), ListType(list<element: string>)]
    """
    fields = [pa.field(field.name, _stored(field.type)) for field in plain_schema(schema)]
    for field in fields:
        if not _is_known(field.type):
            raise ValueError(
                f"the column {field.name!r} is {field.type}, a type that current tables do not have"
            )
    return pa.schema(fields)


def _is_known(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _is_known(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_known(field.type) for field in kind)
    return kind in _PLAIN or pa.types.is_decimal128(kind)


def _stored(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _stored(kind.storage_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _stored(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _stored(field.type)) for field in kind])
    return kind


def check_names(names: list[str], place: str, *, folded: bool) -> None:
    """Checks that a table can have columns with these names.

    Args:
        names: of all columns.
        place: names the table, for errors.
        folded: whether `a` and `A` are the same name there.

    Raises:
        ValueError: if two columns have the same name.
    """
    seen: dict[str, str] = {}
    for name in names:
        same = seen.setdefault(name.lower() if folded else name, name)
        if same is not name:
            raise ValueError(
                f"{place} cannot have both columns {same!r} and {name!r}"
                + (": in tables of this kind, small and capital letters are the same" if same != name else "")
                + ". Rename one on the server, or leave one out of the publication"
            )


def fitted(
    there: pa.Schema | None, new: pa.Schema, place: str, can_widen: Callable[[pa.DataType, pa.DataType], bool]
) -> pa.Schema:
    """The types in which a table stores rows and looks up keys.

    Args:
        there: the columns of the table; None if there is no table.
        new: those of the decoded rows.
        place: names the table, for errors.
        can_widen: whether a column of the first type can become the second, wider one.

    Raises:
        ValueError: if a column has a type that the table cannot take.
    """
    fields = []
    for field in stored_schema(new):
        if there is not None and field.name in there.names:
            known = there.field(field.name).type
            wide = widen(known, field.type)
            if wide is None or not (wide.equals(known) or can_widen(known, wide)):
                raise ValueError(
                    f"{place} has another type: its column {field.name!r} is {known}, and the rows have {field.type}. "
                    f"{'A column cannot change in this way' if wide is None else 'Tables of this kind cannot widen it'}"
                    f": {LOAD_ANY_AGAIN}"
                )
            field = field.with_type(wide)
        fields.append(field)
    return pa.schema(fields)


def merged(there: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """The columns of a table after it takes rows: its own, with the types of the rows, and then the new ones."""
    known = [rows.field(field.name) if field.name in rows.names else field for field in there]
    return pa.schema([*known, *(field for field in rows if field.name not in there.names)])


def in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of a schema, in its order and types. Missing columns are null."""
    columns = []
    for field in schema:
        if field.name in rows.schema.names:
            one = pa.table([rows.column(field.name)], names=[field.name])
            columns.append(to_types(one, pa.schema([field])).column(0))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def joined(parts: Sequence[pa.Table], place: str) -> pa.Table:
    """Concatenates tables, with the columns of all. Missing columns are null.

    Args:
        parts: at least one.
        place: names the table, for errors.

    Raises:
        ValueError: if a column has types that do not fit together.
    """
    schema = widest([each.schema for each in parts], place)
    return pa.concat_tables(
        [each if each.schema.equals(schema) else in_schema(each, schema) for each in parts]
    )
