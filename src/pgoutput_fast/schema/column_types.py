"""The one mapping of PostgreSQL types to Arrow types.

`catalog/builtin_types.py` has the properties of the server's types (oids, arrays, delimiters). A converter
(`ColumnType.kernel`) is named in `_core/types/registry.hpp`, which has the code for text and for binary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pyarrow as pa

from pgoutput_fast.catalog.builtin_types import (
    ELEMENT_OF_ARRAY,
    NAME_OF_OID,
    OID_OF_NAME,
    TYPE_OF_OID,
    BuiltInType,
    is_built_in,
    numeric_modifier,
)
from pgoutput_fast.catalog.relations import Column
from pgoutput_fast.catalog.user_types import NO_TYPES, UserType, UserTypes
from pgoutput_fast.schema.extension_types import NEVER as _NEVER
from pgoutput_fast.schema.extension_types import OF_EXTENSIONS, TEXT_EXTENSIONS, geoarrow
from pgoutput_fast.schema.extension_types import Form as _Form
from pgoutput_fast.schema.options import Options

__all__ = ["ColumnType", "FieldType", "changed_type", "column_type_of", "column_types_of"]

MAX_DECIMAL_PRECISION = 38


@dataclass(frozen=True)
class ColumnType:
    """The Arrow type and converter of a column.

    Attributes:
        arrow: its Arrow type.
        kernel: the converter's name.
        precision, scale: for a decimal.
        element_oid: for an array, the oid of its element type; 0 accepts any.
        child: for an array, the element type.
        fields: for a struct.
        unknown: whether the type is unknown. Its text is kept unchanged; its binary values become `\\x` and hex digits.
        delimiter: the character between the elements of an array of this type in text.
        binary_agrees_since: the first major server version whose binary and text values are decoded to the same. This
            excludes the type's parts; `binary_agrees` includes them.
        name: the type's name if it is known, with its schema unless that is pg_catalog.
        metadata: further metadata of the column's field, as (name, value).
        size: number of types that it consists of, including itself. A part counts as often as it occurs.
        height: number of nesting levels.
    """

    arrow: pa.DataType
    kernel: str
    precision: int = 0
    scale: int = 0
    element_oid: int = 0
    child: ColumnType | None = None
    fields: tuple[FieldType, ...] = ()
    unknown: bool = False
    delimiter: str = field(default=",", compare=False)
    binary_agrees_since: int = field(default=0, compare=False)
    name: str = field(default="", compare=False)
    metadata: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    size: int = field(default=1, compare=False)
    height: int = field(default=1, compare=False)

    def leaves(self) -> int:
        """Number of columns without fields that it consists of."""
        if self.child is not None:
            return self.child.leaves()
        return sum(each.type.leaves() for each in self.fields) if self.fields else 1

    @property
    def parts(self) -> list[ColumnType]:
        """The types of its elements or fields."""
        return [*([self.child] if self.child is not None else []), *(each.type for each in self.fields)]

    def has(self, kernel: str) -> bool:
        """Whether a converter produces it or a part of it."""
        return self.kernel == kernel or any(part.has(kernel) for part in self.parts)

    def binary_agrees(self, major: int) -> bool:
        """Whether a server's binary and text values are decoded to the same, in all parts of the type.

        Args:
            major: the major version of the server.
        """
        return major >= self.binary_agrees_since and all(part.binary_agrees(major) for part in self.parts)


@dataclass(frozen=True)
class FieldType:
    """A field of a struct: its name, its oid in a binary composite (0 for none), and its type."""

    name: str
    oid: int
    type: ColumnType


# Built-in types by name. Numeric and uuid depend on options and are decided below. Point, ranges and multiranges
# consist of other types. docs/types.md lists the types that are omitted on purpose. The text of reg* is a name, its
# binary form an oid. Servers before 12 print the floats of geometric types with more digits than necessary.
_FORMS = {
    "bool": _Form("bool", pa.bool_()),
    "bytea": _Form("bytea", pa.binary()),
    "char": _Form("char", pa.string()),
    "name": _Form("string", pa.string()),
    "int8": _Form("int8", pa.int64()),
    "int2": _Form("int2", pa.int16()),
    "int2vector": _Form("int2vector", pa.string()),
    "int4": _Form("int4", pa.int32()),
    "regproc": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "text": _Form("string", pa.string()),
    "oid": _Form("oid", pa.int64()),
    "tid": _Form("tid", pa.string()),
    "xid": _Form("oid", pa.int64()),
    "cid": _Form("oid", pa.int64()),
    "oidvector": _Form("oidvector", pa.string()),
    "json": _Form("string", pa.string()),
    "xml": _Form("string", pa.string()),
    "pg_node_tree": _Form("string", pa.string()),
    "lseg": _Form("lseg", pa.string(), binary_agrees_since=12),
    "path": _Form("path", pa.string(), binary_agrees_since=12),
    "box": _Form("box", pa.string(), binary_agrees_since=12),
    "polygon": _Form("polygon", pa.string(), binary_agrees_since=12),
    "line": _Form("line", pa.string(), binary_agrees_since=12),
    "cidr": _Form("cidr", pa.string()),
    "float4": _Form("float4", pa.float32()),
    "float8": _Form("float8", pa.float64()),
    "circle": _Form("circle", pa.string(), binary_agrees_since=12),
    "macaddr8": _Form("macaddr8", pa.string()),
    "money": _Form("money", pa.decimal128(19, 2)),
    "macaddr": _Form("macaddr", pa.string()),
    "inet": _Form("inet", pa.string()),
    "aclitem": _Form(
        "unknown", pa.string(), binary_agrees_since=_NEVER
    ),  # has no binary form: text in binary rows, too
    "bpchar": _Form("string", pa.string()),
    "varchar": _Form("string", pa.string()),
    "date": _Form("date", pa.date32()),
    "time": _Form("time", pa.time64("us")),
    "timestamp": _Form("timestamp", pa.timestamp("us")),
    "timestamptz": _Form("timestamptz", pa.timestamp("us", tz="UTC")),
    "interval": _Form("interval", pa.month_day_nano_interval()),
    "timetz": _Form("timetz", pa.string()),
    "bit": _Form("bits", pa.string()),
    "varbit": _Form("bits", pa.string()),
    "numeric": _Form("numeric", pa.string()),
    "refcursor": _Form("string", pa.string()),
    "regprocedure": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "regoper": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "regoperator": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "regclass": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "regtype": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "uuid": _Form("uuid", pa.string()),
    "txid_snapshot": _Form("snapshot", pa.string()),
    "pg_lsn": _Form("pg_lsn", pa.string()),
    "tsvector": _Form("tsvector", pa.string()),
    "tsquery": _Form("tsquery", pa.string()),
    "gtsvector": _Form("unknown", pa.string(), binary_agrees_since=_NEVER),  # has no binary form, as aclitem
    "regconfig": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "regdictionary": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "jsonb": _Form("jsonb", pa.string()),
    "jsonpath": _Form("jsonb", pa.string()),  # as jsonb: a version byte before the text
    "regnamespace": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "regrole": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "regcollation": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
    "pg_snapshot": _Form("snapshot", pa.string()),
    "xid8": _Form("xid8", pa.string()),
    "oid8": _Form("xid8", pa.string()),  # as xid8, a number of up to 64 bits
    "regdatabase": _Form("reg", pa.string(), binary_agrees_since=_NEVER),
}
_SCALARS = {OID_OF_NAME[name]: form for name, form in _FORMS.items()}

# By the delimiter of the element type.
_LIST_KERNELS = {",": "list", ";": "list_of_boxes", ":": "list_of_geometries"}

# A type with more parts, or deeper ones, stays unknown, so that its column costs no more than strings. So does a column
# with which its table would exceed the limit for tables.
MAX_DEPTH = 32
MAX_PARTS = 4096
MAX_TABLE_PARTS = 2 * MAX_PARTS


def column_type_of(column: Column, options: Options, types: UserTypes = NO_TYPES) -> ColumnType:
    """The type of a relation's column: by its oid if that is built in or `types` has it, else by its Type message.

    If the Type message has another name than `types`, the Type message counts.
    """
    return column_types_of([column], options, types)[0]


def column_types_of(
    columns: Sequence[Column], options: Options, types: UserTypes = NO_TYPES
) -> list[ColumnType]:
    """The types of all columns of a relation, as `column_type_of`, up to a limit for their total size."""
    resolver = _Resolver(options, types)
    found, size = [], 0
    for column in columns:
        try:
            one = resolver.of_column(column)
            if one.size > MAX_PARTS or (one.size > 1 and size + one.size > MAX_TABLE_PARTS):
                raise _TooLargeError
            size += one.size
        except _TooLargeError:
            named = column.type_name is not None
            one = _unknown(f"{column.type_namespace}.{column.type_name}" if named else "")
        if options.strings == "string_view" and pa.types.is_string(one.arrow):
            one = replace(one, arrow=pa.string_view())
        found.append(one)
    return found


def changed_type(known: Sequence[Column], described: Sequence[Column], options: Options) -> int | None:
    """The ordinal of the first column whose Type message changes its type; None if there is none.

    A new name of a type that only a live server can identify is no change.
    """
    for k, (before, now) in enumerate(zip(known, described, strict=True)):
        if before != now and column_type_of(before, options) != column_type_of(now, options):
            return k
    return None


class _TooLargeError(Exception):
    """A type with more parts, or deeper ones, than the limits."""


class _Resolver:
    """Resolves the types of columns. Columns share the types of their parts, which are created once."""

    def __init__(self, options: Options, types: UserTypes) -> None:
        self._options = options
        self._types = types
        self._made: dict[tuple[int, int], ColumnType] = {}
        # The minimum depth at which a type was too deep or too large.
        self._refused: dict[tuple[int, int], int] = {}

    def of_column(self, column: Column) -> ColumnType:
        oid, name = column.type_oid, (column.type_namespace, column.type_name)
        if is_built_in(oid):
            return self._of_oid(oid, column.typmod)
        if oid in self._types and (column.type_name is None or self._agrees(oid, name)):
            return self._of_oid(oid, column.typmod)
        if column.type_namespace is None or column.type_name is None:
            return _unknown("")
        return self._of_name(column.type_namespace, column.type_name, column.typmod)

    def _agrees(self, oid: int, name: tuple[str | None, str | None]) -> bool:
        """Whether a Type message has the name in the catalog: for a domain that of its base type."""
        base = self._types.base_of(oid)
        known = self._types.get(base)
        if known is not None:
            return name == (known.namespace, known.name)
        return name == ("pg_catalog", NAME_OF_OID.get(base, name[1]))

    def _of_name(self, namespace: str, name: str, typmod: int) -> ColumnType:
        if namespace == "pg_catalog":
            # A domain: its Type message has the base type's name. The domain's typmod is not sent.
            base = OID_OF_NAME.get(name)
            return _unknown(name) if base is None else self._of_oid(base, typmod)
        if name.startswith("_") and len(name) > 1:
            element = name[1:]
            if element.startswith("_"):
                # There are no arrays of arrays: this is an element type whose name begins with _.
                return _list(_unknown(f"{namespace}.{element}"), 0)
            return _list(self._of_name(namespace, element, typmod), 0)
        return _base(namespace, name, "", typmod)

    def _of_oid(self, oid: int, typmod: int, depth: int = 0) -> ColumnType:
        if oid in _SCALARS:
            return _scalar(oid, typmod, self._options)
        key = oid, typmod
        if depth > min(MAX_DEPTH, self._refused.get(key, MAX_DEPTH + 1) - 1):
            raise _TooLargeError
        try:
            if key not in self._made:
                self._made[key] = self._make(oid, typmod, depth)
            if depth + self._made[key].height - 1 > MAX_DEPTH:
                raise _TooLargeError
        except _TooLargeError:
            self._refused[key] = depth
            raise
        return self._made[key]

    def _make(self, oid: int, typmod: int, depth: int) -> ColumnType:
        if oid in ELEMENT_OF_ARRAY:
            return _list(self._of_oid(ELEMENT_OF_ARRAY[oid], typmod, depth + 1), ELEMENT_OF_ARRAY[oid])
        if oid in TYPE_OF_OID:
            return self._of_parts(TYPE_OF_OID[oid], depth + 1)
        known = self._types.get(oid)
        return _unknown("") if known is None else self._of_user_type(known, typmod, depth + 1)

    def _of_parts(self, known: BuiltInType, depth: int) -> ColumnType:
        if known.kind == "range":
            return _range(known.name, self._of_oid(known.of, -1, depth))
        if known.kind == "multirange":
            return _multirange(known.name, self._of_oid(known.of, -1, depth))
        assert known.name == "point"
        float8 = _scalar(OID_OF_NAME["float8"], -1, self._options)
        return _struct(known.name, "point", [(axis, 0, float8) for axis in "xy"])

    def _of_user_type(self, known: UserType, typmod: int, depth: int) -> ColumnType:
        name = _qualified(known.namespace, known.name)
        if known.kind == "enum":
            return ColumnType(pa.string(), "string", name=name)
        if known.kind == "domain":
            base = self._of_oid(known.of, known.typmod, depth)
            return replace(base, height=base.height + 1)
        if known.kind == "array":
            element = self._of_oid(known.of, typmod, depth)
            element_type = self._types.get(known.of)
            if element_type is not None and element_type.delimiter != element.delimiter:
                return _unknown(name)
            return _list(element, known.of)
        if known.kind == "range":
            return _range(name, self._of_oid(known.of, -1, depth))
        if known.kind == "multirange":
            return _multirange(name, self._of_oid(known.of, -1, depth))
        if known.kind == "composite":
            fields = [(f.name, f.type_oid, self._of_oid(f.type_oid, f.typmod, depth)) for f in known.fields]
            if sum(kind.size for _, _, kind in fields) >= MAX_PARTS:
                raise _TooLargeError
            return _struct(name, "composite", fields)
        return _base(known.namespace, known.name, known.extension, typmod)


def _qualified(namespace: str, name: str) -> str:
    return name if namespace == "pg_catalog" else f"{namespace}.{name}"


def _base(namespace: str, name: str, extension: str, typmod: int) -> ColumnType:
    """A type with its own input and output functions; `extension` is empty if unknown."""
    qualified = _qualified(namespace, name)
    if name in TEXT_EXTENSIONS:
        return ColumnType(pa.string(), "string", name=qualified)
    form = OF_EXTENSIONS.get((extension, name))
    if form is None:
        return _unknown(qualified)
    child = None
    if pa.types.is_map(form.arrow):
        text = ColumnType(pa.string(), "string", name="text")
        child = _struct("", "composite", [("key", 0, text), ("value", 0, text)])
    elif pa.types.is_list(form.arrow):
        child = ColumnType(form.arrow.value_type, "float4", name="float4")
    return ColumnType(
        form.arrow,
        form.kernel,
        child=child,
        delimiter=form.delimiter,
        binary_agrees_since=form.binary_agrees_since,
        name=qualified,
        metadata=geoarrow(name, typmod) if form.kernel == "geometry" else (),
        size=1 if child is None else 1 + child.size,
        height=1 if child is None else 1 + child.height,
    )


def _struct(name: str, kernel: str, fields: list[tuple[str, int, ColumnType]]) -> ColumnType:
    return ColumnType(
        pa.struct([pa.field(each, kind.arrow) for each, _, kind in fields]),
        kernel,
        fields=tuple(FieldType(*each) for each in fields),
        unknown=any(kind.unknown for _, _, kind in fields),
        name=name,
        size=1 + sum(kind.size for _, _, kind in fields),
        height=1 + max((kind.height for _, _, kind in fields), default=0),
    )


def _range(name: str, bounds: ColumnType) -> ColumnType:
    flag = ColumnType(pa.bool_(), "bool", name="bool")
    flags = [(each, 0, flag) for each in ("lower_inc", "upper_inc", "empty")]
    return _struct(name, "range", [("lower", 0, bounds), ("upper", 0, bounds), *flags])


def _multirange(name: str, ranges: ColumnType) -> ColumnType:
    return ColumnType(
        pa.list_(ranges.arrow),
        "multirange",
        child=ranges,
        unknown=ranges.unknown,
        name=name,
        size=1 + ranges.size,
        height=1 + ranges.height,
    )


def _unknown(name: str) -> ColumnType:
    return ColumnType(pa.string(), "unknown", unknown=True, binary_agrees_since=_NEVER, name=name)


def _list(element: ColumnType, element_oid: int) -> ColumnType:
    return ColumnType(
        pa.list_(element.arrow),
        _LIST_KERNELS[element.delimiter],
        element_oid=element_oid,
        child=element,
        unknown=element.unknown,
        name=f"{element.name}[]",
        size=1 + element.size,
        height=1 + element.height,
    )


def _scalar(oid: int, typmod: int, options: Options) -> ColumnType:
    return _scalar_as(oid, typmod, options.numeric, options.uuid)


@lru_cache(maxsize=1024)
def _scalar_as(oid: int, typmod: int, numeric: str | pa.DataType, uuid: str) -> ColumnType:
    name, delimiter = NAME_OF_OID[oid], TYPE_OF_OID[oid].delimiter
    kernel, arrow, binary_agrees_since = _SCALARS[oid][:3]
    if kernel == "numeric":
        return _numeric(typmod, numeric)
    if kernel == "uuid":
        if uuid == "string":
            return ColumnType(pa.string(), "uuid_string", name=name)
        return ColumnType(pa.uuid() if uuid == "arrow.uuid" else pa.binary(16), "uuid_bytes", name=name)
    precision, scale = (arrow.precision, arrow.scale) if pa.types.is_decimal(arrow) else (0, 0)
    return ColumnType(
        arrow,
        kernel,
        precision,
        scale,
        delimiter=delimiter,
        binary_agrees_since=binary_agrees_since,
        name=name,
    )


def _numeric(typmod: int, numeric: str | pa.DataType) -> ColumnType:
    modifier = numeric_modifier(typmod)
    if modifier is not None:
        precision, scale = modifier
        if 1 <= precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision:
            return ColumnType(pa.decimal128(precision, scale), "decimal", precision, scale, name="numeric")
    if numeric == "string":
        return ColumnType(pa.string(), "numeric_string", name="numeric")
    if numeric == "float64":
        return ColumnType(pa.float64(), "numeric_float8", name="numeric")
    assert isinstance(numeric, pa.Decimal128Type)  # by Options
    return ColumnType(numeric, "decimal", numeric.precision, numeric.scale, name="numeric")
