"""One schema for several versions of a relation: columns by name, types widened only where nothing can be lost."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pgoutput_fast.catalog import Relation

__all__ = ["unify_schemas", "widen"]

_INTEGERS = [pa.int16(), pa.int32(), pa.int64()]
_FLOATS = [pa.float32(), pa.float64()]


def widen(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The type that holds every value of both, None if there is none.

    >>> widen(pa.int16(), pa.int64()), widen(pa.decimal128(5, 2), pa.decimal128(6, 1)), widen(pa.int32(), pa.string())
    (DataType(int64), Decimal128Type(decimal128(7, 2)), None)
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
        element = widen(a.value_type, b.value_type)
        return pa.list_(element) if element is not None else None
    return None


def unify_schemas(versions: Sequence[tuple[Relation, pa.Schema]]) -> pa.Schema:
    """The schema that all versions fit into. The last version leads: its columns come first, in its order, under its
    metadata; columns that only earlier ones had follow.

    Raises:
        ValueError: if a column's types cannot be one; the message names both versions.
    """
    if len({schema.fingerprint if hasattr(schema, "fingerprint") else schema for _, schema in versions}) == 1:
        return versions[-1][1]
    newest_first = list(reversed(versions))
    fields: dict[str, tuple[pa.Field, Relation]] = {}
    for relation, schema in newest_first:
        for field in schema:
            if field.name not in fields:
                fields[field.name] = (field, relation)
                continue
            known, first = fields[field.name]
            kind = widen(known.type, field.type)
            if kind is None:
                raise ValueError(
                    f"{relation.qualified_name}: column {field.name!r} is {field.type} in version {relation.version} "
                    f"and {known.type} in version {first.version}; no table can hold both, take `changes` by version"
                )
            fields[field.name] = (known.with_type(kind), first)
    return pa.schema([field for field, _ in fields.values()], metadata=versions[-1][1].metadata)
