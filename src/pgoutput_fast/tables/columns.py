"""Columns of tables: how those of rows fit into those of a table, which may become wider."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from pgoutput_fast.schema.evolution import widen, widest
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = [
    "FIELD_ID",
    "check_names",
    "column_id",
    "fit_types",
    "fitted",
    "in_schema",
    "joined",
    "merged",
    "names_in",
]

# Where Arrow has the id of a column of a Parquet file. Columns of Iceberg tables have ids.
FIELD_ID = "PARQUET:field_id"


def column_id(column: pa.Field) -> bytes | None:
    """The id of a column; None if it has none."""
    found: bytes | None = (column.metadata or {}).get(FIELD_ID.encode())
    return found


def names_in(columns: pa.Schema, others: pa.Schema) -> dict[str, str]:
    """{name of a column: its name among the columns of a file or of another version of the table}.

    They are the same column if they have the same id. Without ids, they have the same name.
    """
    ids = {number: each.name for each in others if (number := column_id(each)) is not None}
    known, found = set(others.names), {}
    for each in columns:
        number = column_id(each)
        if ids and number is not None:
            if number in ids:
                found[each.name] = ids[number]
        elif each.name in known:
            found[each.name] = each.name
    return found


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
                + (", because tables of this format ignore case" if same != name else "")
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
    return fit_types(there, stored_schema(new, "current"), place, can_widen, LOAD_ANY_AGAIN)


def fit_types(
    there: pa.Schema | None,
    new: pa.Schema,
    place: str,
    can_widen: Callable[[pa.DataType, pa.DataType], bool],
    remedy: str,
    *,
    more_fields: bool = False,
) -> pa.Schema:
    """The types that rows need to fit into a table, for columns in types that its format has.

    Args:
        there, new, place, can_widen: as for `fitted`.
        remedy: what to do if there is no such type.
        more_fields: whether structs of the rows may have more fields, as in `widen`.

    Raises:
        ValueError: if there is no such type.
    """
    fields = []
    for field in new:
        if there is not None and field.name in there.names:
            known = there.field(field.name).type
            wide = widen(known, field.type, more_fields=more_fields)
            if wide is None or not (wide.equals(known) or can_widen(known, wide)):
                why = (
                    "A column cannot change its type in this way"
                    if wide is None
                    else "Tables of this kind cannot widen it"
                )
                raise ValueError(
                    f"{place} has another schema: its column {field.name!r} is {known}, and the rows have "
                    f"{field.type}. {why}: {remedy}"
                )
            field = field.with_type(wide)
        fields.append(field)
    return pa.schema(fields)


def merged(there: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """The columns of a table after it takes rows: its own, with the types of the rows, and then the new ones."""
    known = [
        _with_id(rows.field(field.name), field) if field.name in rows.names else field for field in there
    ]
    return pa.schema([*known, *(field for field in rows if field.name not in there.names)])


def _with_id(column: pa.Field, there: pa.Field) -> pa.Field:
    number = column_id(there)
    return column if number is None else column.with_metadata({FIELD_ID: number})


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
