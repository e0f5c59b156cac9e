"""Columns of tables: how those of rows fit into those of a table, which may become wider."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from pgoutput_fast.schema.evolution import widen, widest
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = ["check_names", "fit_types", "fitted", "in_schema", "joined", "merged"]


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
