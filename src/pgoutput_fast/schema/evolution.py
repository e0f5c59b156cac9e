"""One schema for several versions of a relation: columns match by name, and types are widened without loss."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.schema.types import leaf_pairs

__all__ = [
    "EXTRA_COLUMNS",
    "check_nulls",
    "differ_in_case",
    "fits",
    "pin_schema",
    "unify_schemas",
    "widen",
    "widest",
]

EXTRA_COLUMNS = ("error", "drop")

_INTEGERS = [pa.int16(), pa.int32(), pa.int64()]
_FLOATS = [pa.float32(), pa.float64()]
# Types with the same values in different layouts.
_STRINGS = [pa.string(), pa.large_string(), pa.string_view()]
_BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view()]


def widen(a: pa.DataType, b: pa.DataType, *, more_fields: bool = False) -> pa.DataType | None:
    """The type that can hold every value of both types, None if there is none.

    Args:
        a, b: the types.
        more_fields: whether a struct of `b` may have more fields after those of `a`, which are null in values of `a`.

    >>> widen(pa.int16(), pa.int64()), widen(pa.decimal128(5, 2), pa.decimal128(6, 1)), widen(pa.int32(), pa.string())
    (DataType(int64), Decimal128Type(decimal128(7, 2)), None)
    >>> pair, triple = pa.struct({"x": pa.int32()}), pa.struct({"x": pa.int64(), "y": pa.string()})
    >>> widen(pair, triple), widen(triple, pair, more_fields=True), widen(pair, triple, more_fields=True) == triple
    (None, None, True)
    """
    if a.equals(b):
        return a
    for ladder in (_INTEGERS, _FLOATS):
        if a in ladder and b in ladder:
            return max(a, b, key=ladder.index)
    if pa.types.is_decimal128(a) and pa.types.is_decimal128(b):
        scale = max(a.scale, b.scale)
        precision = max(a.precision - a.scale, b.precision - b.scale) + scale
        return pa.decimal128(precision, scale) if precision <= 38 else None
    if pa.types.is_list(a) and pa.types.is_list(b):
        element = widen(a.value_type, b.value_type, more_fields=more_fields)
        return pa.list_(element) if element is not None else None
    if pa.types.is_struct(a) and pa.types.is_struct(b) and _has_fields(a, b, more_fields):
        kinds = [
            widen(a.field(k).type, b.field(k).type, more_fields=more_fields) for k in range(a.num_fields)
        ]
        if None not in kinds:
            new = [b.field(k) for k in range(a.num_fields, b.num_fields)]
            return pa.struct([*(a.field(k).with_type(kind) for k, kind in enumerate(kinds)), *new])
    return None


def _has_fields(a: pa.StructType, b: pa.StructType, more: bool) -> bool:
    """Whether `b` has the fields of `a`, by name and position, and with `more` possibly others after them."""
    names = _names(b)
    # A struct without fields becomes a text in a table, so it cannot get fields later.
    return names == _names(a) or (more and a.num_fields > 0 and names[: a.num_fields] == _names(a))


def _names(struct: pa.StructType) -> list[str]:
    return [struct.field(k).name for k in range(struct.num_fields)]


def fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether the type `target` can hold every value of the type `source` without a loss.

    >>> fits(pa.int16(), pa.int32()), fits(pa.int32(), pa.int16()), fits(pa.string(), pa.large_string())
    (True, False, True)
    """
    return all(_leaf_fits(*pair) for pair in leaf_pairs(source, target))


def _leaf_fits(source: pa.DataType, target: pa.DataType) -> bool:
    if any(source in layouts and target in layouts for layouts in (_STRINGS, _BINARIES)):
        return True
    wide = widen(source, target)
    return wide is not None and bool(wide.equals(target))


def differ_in_case(names: Iterable[str]) -> tuple[str, str] | None:
    """Two of the names that differ only in case; None if there are none.

    >>> differ_in_case(["id", "note", "Id"]), differ_in_case(["id", "note"])
    (('id', 'Id'), None)
    """
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(name.lower(), name)
        if other != name:
            return other, name
    return None


def unify_schemas(
    versions: Sequence[tuple[Relation, pa.Schema]],
    advice: str = "read `changes`, which has a batch per version",
) -> pa.Schema:
    """The schema that all versions fit into.

    It has the metadata of the last version, then the columns of the last version in its order, then columns that only
    earlier versions have.

    Args:
        versions: relation versions with the schemas of their rows.
        advice: advice in the error; `{version}` in it is the earlier one of two incompatible versions.

    Raises:
        ValueError: if no type holds all values of a column; the error text names both versions.
    """
    newest_first = list(reversed(versions))
    fields: dict[str, tuple[pa.Field, Relation]] = {}
    for relation, schema in newest_first:
        for field in schema:
            if field.name not in fields:
                fields[field.name] = (field, relation)
                continue
            known, first = fields[field.name]
            kind = widen(known.type, field.type)
            if kind is known.type:
                continue
            if kind is None:
                raise ValueError(
                    f"{relation.qualified_name}: column {field.name!r} is {field.type} in version {relation.version} "
                    f"and {known.type} in version {first.version}; one table cannot have both: "
                    + advice.format(version=relation.version)
                )
            fields[field.name] = (known.with_type(kind), first)
    return pa.schema([field for field, _ in fields.values()], metadata=versions[-1][1].metadata)


def widest(schemas: Sequence[pa.Schema], table: str, *, more_fields: bool = False) -> pa.Schema:
    """The columns of all schemas, widened to hold the values of all, with the metadata of the first.

    Args:
        schemas: at least one.
        table: names it, for errors.
        more_fields: as for `widen`.

    Raises:
        ValueError: if a column has no such type.

    >>> narrow, wide = pa.schema({"a": pa.int32()}), pa.schema({"a": pa.int64(), "b": pa.string()})
    >>> widest([narrow, wide], "public.t") == wide
    True
    """
    fields = {field.name: field for field in schemas[0]}
    for field in (field for schema in schemas[1:] for field in schema):
        known = fields.setdefault(field.name, field)
        wide = widen(known.type, field.type, more_fields=more_fields)
        if wide is None:
            raise ValueError(
                f"{table}: its column {field.name!r} was {known.type} and became {field.type}: one table cannot have "
                "both"
            )
        fields[field.name] = known.with_type(wide)
    return pa.schema(list(fields.values()), metadata=schemas[0].metadata)


def pin_schema(
    versions: Sequence[tuple[Relation, pa.Schema]],
    pinned: pa.Schema,
    metadata: Sequence[pa.Field],
    extra_columns: str = "error",
) -> pa.Schema:
    """The metadata columns followed by the columns of a pinned schema, if every version fits into it.

    Args:
        versions: relation versions with the schemas of their batches; empty if there are no rows.
        pinned: the pinned schema; columns match by name. It may have metadata columns, but only with their own types.
        metadata: the fields of the metadata columns.
        extra_columns: what to do with a column that the pinned schema lacks: `"error"` raises, `"drop"` leaves it out.

    Raises:
        ValueError: if a version does not fit; the error text names the version, the column and both types.
    """
    if len(set(pinned.names)) < len(pinned.names):
        raise ValueError("the pinned schema names a column twice")
    names = {field.name for field in metadata}
    pinned_metadata = {field.name: field for field in pinned if field.name in names}
    for field in metadata:
        if field.name in pinned_metadata and not pinned_metadata[field.name].type.equals(field.type):
            where = f"{versions[-1][0].qualified_name}: " if versions else ""
            raise ValueError(
                f"{where}metadata column {field.name!r} is {field.type}, but the pinned schema "
                f"says {pinned_metadata[field.name].type}"
            )
    own = {field.name: field for field in pinned if field.name not in names}
    for relation, schema in versions:
        _check_version(relation, schema, own, names, extra_columns)
    return pa.schema([*metadata, *own.values()], metadata=pinned.metadata)


def _check_version(
    relation: Relation,
    schema: pa.Schema,
    pinned: dict[str, pa.Field],
    metadata_columns: Collection[str],
    extra_columns: str,
) -> None:
    where = f"{relation.qualified_name}: version {relation.version}"
    existing = {field.name: field for field in schema}
    extra = [name for name in existing if name not in pinned and name not in metadata_columns]
    if extra and extra_columns == "error":
        raise ValueError(
            f"{where} has {', '.join(map(repr, extra))}, which the pinned schema lacks; pass extra_columns='drop' "
            "to leave them out"
        )
    for name, field in pinned.items():
        if name not in existing:
            if not field.nullable:
                raise ValueError(
                    f"{where} lacks {name!r}, but the pinned schema says that this column has no nulls"
                )
        elif not fits(existing[name].type, field.type):
            raise ValueError(
                f"{where} has column {name!r} as {existing[name].type}, which has values that do not fit the "
                f"pinned schema's {field.type}"
            )


def check_nulls(rows: pa.Table | pa.RecordBatch, schema: pa.Schema, table: str) -> None:
    """Checks that columns that a pinned schema declares as not nullable have no nulls.

    Args:
        rows: rows of a table, with the columns of the schema.
        schema: the schema.
        table: name of the table, for errors.

    Raises:
        ValueError: if such a column has nulls.
    """
    for field in schema:
        if not field.nullable and rows.column(field.name).null_count:
            raise ValueError(
                f"{table}: column {field.name!r} has nulls, but the pinned schema says that it has none"
            )
