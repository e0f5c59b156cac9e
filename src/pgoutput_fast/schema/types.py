"""The one place that decides the stored form of a type: what a decoded type becomes in Spark, in a file, in a table.

| decoded as | `parquet` | `spark` | `spark_time` | `table` | `current` | `json` |
|---|---|---|---|---|---|---|
| time64[us] | string | string | time64[ns] | | string | string |
| month_day_nano_interval | string | string | string | | string | string |
| string_view | string | string | string | string | string | string |
| large_string | | | | string | string | string |
| large_binary, binary_view | | | | binary | binary | string |
| fixed_size_binary | | binary | binary | binary | binary | |
| decimal, date, timestamp | | | | | | string |
| an extension such as arrow.uuid | | its storage's form | the same | the same | the same | string |
| struct without fields | string | | | | string | |
| list, large_list | list of the element's form, in all columns | | | | | |
| map | map of the forms of its keys and values, in all columns | | | | | |
| struct | struct of the forms of its fields, in all columns | | | | | |

An empty cell: the type stays. A time becomes `HH:MM:SS.ffffff`, an interval ISO 8601, a struct without fields `()`.

The columns are the forms:

- `parquet`: files that every reader of Parquet understands. It lacks intervals and structs without fields, and many
  readers lack times.
- `spark`: what Spark accepts. It has no fixed-size binary, and no type for months, days and time at once.
- `spark_time`: the same with Spark's TIME, which needs nanoseconds and exists only from Spark 4.1 on.
- `table`: the columns of a Delta or Iceberg table, as its library reads them or as rows have them: one layout of equal
  values, elements of lists named `element`, no metadata. So schemas of both origins can be compared.
- `current`: the columns of a current table, in every format. Delta has no times. Types that no format has are an error.
- `json`: types whose Python values are valid in JSON, or bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Literal

import pyarrow as pa

__all__ = ["Form", "has_lists", "leaf_pairs", "map_type", "stored_schema", "stored_type", "walk_type"]

Form = Literal["parquet", "spark", "spark_time", "table", "current", "json"]

_FORMS: tuple[Form, ...] = ("parquet", "spark", "spark_time", "table", "current", "json")
#: Their lists and structs have the field names of Delta and Parquet, and no metadata.
_BARE = ("table", "current")

_STRING, _BINARY, _TIME = pa.string(), pa.binary(), pa.time64("ns")
_IS = pa.types
_TABLE: tuple[tuple[tuple[Callable[[pa.DataType], bool], ...], tuple[pa.DataType | None, ...]], ...] = (
    ((_IS.is_time,), (_STRING, _STRING, _TIME, None, _STRING, _STRING)),
    ((_IS.is_interval,), (_STRING, _STRING, _STRING, None, _STRING, _STRING)),
    ((_IS.is_string_view,), (_STRING, _STRING, _STRING, _STRING, _STRING, _STRING)),
    ((_IS.is_large_string,), (None, None, None, _STRING, _STRING, _STRING)),
    ((_IS.is_large_binary, _IS.is_binary_view), (None, None, None, _BINARY, _BINARY, _STRING)),
    ((_IS.is_fixed_size_binary,), (None, _BINARY, _BINARY, _BINARY, _BINARY, None)),
    ((_IS.is_decimal, _IS.is_date, _IS.is_timestamp), (None, None, None, None, None, _STRING)),
    ((_IS.is_struct,), (_STRING, None, None, None, _STRING, None)),
)

_CURRENT = (
    *(pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
)


def stored_schema(schema: pa.Schema, form: Form) -> pa.Schema:
    """The schema with all types in one form. In `table` and `current`, it has no metadata, and every field may be null.

    Raises:
        ValueError: if a column has a type that the form `current` lacks.

    >>> times = pa.schema({"at": pa.time64("us"), "spans": pa.list_(pa.month_day_nano_interval())})
    >>> stored_schema(times, "parquet").types
    [DataType(string), ListType(list<item: string>)]
    >>> stored_schema(pa.schema({"id": pa.binary(16), "l": pa.list_(pa.large_string())}), "current").types
    [DataType(binary), ListType(list<element: string>)]
    """
    types = [stored_type(field.type, form) for field in schema]
    if form == "current":
        for name, kind in zip(schema.names, types, strict=True):
            if not all(_is_current(part) for _, part in walk_type(name, kind)):
                raise ValueError(f"the column {name!r} is {kind}, a type that current tables do not have")
    if form in _BARE:
        return pa.schema(list(zip(schema.names, types, strict=True)))
    fields = [field.with_type(kind) for field, kind in zip(schema, types, strict=True)]
    return pa.schema(fields, metadata=schema.metadata)


def stored_type(kind: pa.DataType, form: Form) -> pa.DataType:
    """The form of a type.

    >>> stored_type(pa.struct({"at": pa.time64("us"), "n": pa.int32()}), "spark")
    StructType(struct<at: string, n: int32>)
    """

    def leaf(part: pa.DataType) -> pa.DataType:
        if isinstance(part, pa.BaseExtensionType):
            return {"parquet": part, "json": _STRING}.get(form) or stored_type(part.storage_type, form)
        return _stored_leaf(part, form)

    return map_type(kind, leaf, bare=form in _BARE)


# The columns of hundreds of tables have a few types.
@lru_cache(1024)
def _stored_leaf(kind: pa.DataType, form: Form) -> pa.DataType:
    column = _FORMS.index(form)
    for rules, forms in _TABLE:
        if any(applies(kind) for applies in rules):
            return forms[column] or kind
    return kind


def _is_current(kind: pa.DataType) -> bool:
    return kind in _CURRENT or any(
        is_of(kind) for is_of in (_IS.is_decimal128, _IS.is_list, _IS.is_map, _IS.is_struct)
    )


def map_type(
    kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType], *, bare: bool = False
) -> pa.DataType:
    """The type with its leaves replaced. Large lists become lists.

    Args:
        kind: the type.
        leaf: called with every part that is not a list, a map or a struct with fields.
        bare: whether fields lose their metadata, and elements of lists are named `element`.
    """
    if _is_any_list(kind):
        element = map_type(kind.value_type, leaf, bare=bare)
        return pa.list_(pa.field("element", element) if bare else kind.value_field.with_type(element))
    if _IS.is_map(kind):
        return pa.map_(map_type(kind.key_type, leaf, bare=bare), map_type(kind.item_type, leaf, bare=bare))
    if not _IS.is_struct(kind) or not kind.num_fields:
        return leaf(kind)
    types = [map_type(field.type, leaf, bare=bare) for field in kind]
    return pa.struct(
        [
            pa.field(field.name, part) if bare else field.with_type(part)
            for field, part in zip(kind, types, strict=True)
        ]
    )


def walk_type(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yields (path, type) of a column and its parts, outermost first.

    The path of a list's elements ends in `element`, those of a map's keys and values in `key` and `value`.

    >>> [path for path, _ in walk_type("a", pa.list_(pa.struct({"x": pa.int32()})))]
    ['a', 'a.element', 'a.element.x']
    """
    yield path, kind
    if _is_any_list(kind):
        yield from walk_type(f"{path}.element", kind.value_type)
    elif _IS.is_map(kind):
        yield from walk_type(f"{path}.key", kind.key_type)
        yield from walk_type(f"{path}.value", kind.item_type)
    elif _IS.is_struct(kind):
        for field in kind:
            yield from walk_type(f"{path}.{field.name}", field.type)


def leaf_pairs(a: pa.DataType, b: pa.DataType) -> Iterator[tuple[pa.DataType, pa.DataType]]:
    """Yields the leaves of two types, by position. Parts of different kinds, such as a list and a number, are a pair.

    >>> a, b = pa.struct({"x": pa.int32(), "y": pa.int16()}), pa.struct({"x": pa.int64(), "y": pa.list_(pa.int16())})
    >>> list(leaf_pairs(a, b))
    [(DataType(int32), DataType(int64)), (DataType(int16), ListType(list<item: int16>))]
    """
    if _is_any_list(a) and _is_any_list(b):
        yield from leaf_pairs(a.value_type, b.value_type)
    elif _IS.is_map(a) and _IS.is_map(b):
        yield from leaf_pairs(a.key_type, b.key_type)
        yield from leaf_pairs(a.item_type, b.item_type)
    elif _IS.is_struct(a) and _IS.is_struct(b) and a.num_fields and _names(a) == _names(b):
        for field, other in zip(a, b, strict=True):
            yield from leaf_pairs(field.type, other.type)
    else:
        yield a, b


def has_lists(kind: pa.DataType) -> bool:
    """Whether the type is or contains a list."""
    return any(_is_any_list(part) for _, part in walk_type("", kind))


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(_IS.is_list(kind) or _IS.is_large_list(kind))


def _names(struct: pa.StructType) -> list[str]:
    return [field.name for field in struct]
