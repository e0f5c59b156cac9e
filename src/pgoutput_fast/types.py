"""The one table from PostgreSQL types to Arrow types; every face asks here.

A converter (`ColumnType.kernel`) is named in `_core/converters.hpp`, which has the code for text and for binary.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pgoutput_fast.catalog import Column
    from pgoutput_fast.options import Options

__all__ = ["FIRST_USER_OID", "ColumnType", "column_type_of", "is_built_in"]

# FirstGenbkiObjectId: below it every oid means the same on every server.
FIRST_USER_OID = 10_000

MAX_DECIMAL_PRECISION = 38


@dataclass(frozen=True)
class ColumnType:
    """What a column becomes.

    Attributes:
        arrow: its Arrow type.
        kernel: the converter's name.
        precision, scale: of a decimal.
        element_oid: of an array whose elements' type is known; 0 accepts any.
        child: the elements' type.
        unknown: whether nobody explained the type: text as it came, binary as `\\x` and hex digits.
        name: the type's name as far as it is known, with its schema unless that is pg_catalog.
    """

    arrow: pa.DataType
    kernel: str
    precision: int = 0
    scale: int = 0
    element_oid: int = 0
    child: ColumnType | None = None
    unknown: bool = False
    name: str = field(default="", compare=False)


# oid -> (name, array's oid (0: there is none), converter, Arrow type); numeric and uuid depend on more and are decided
# below. What is not here on purpose is listed in docs/types.md.
_BUILT_IN: dict[int, tuple[str, int, str, pa.DataType]] = {
    16: ("bool", 1000, "bool", pa.bool_()),
    17: ("bytea", 1001, "bytea", pa.binary()),
    18: ("char", 1002, "char", pa.string()),
    19: ("name", 1003, "string", pa.string()),
    20: ("int8", 1016, "int8", pa.int64()),
    21: ("int2", 1005, "int2", pa.int16()),
    22: ("int2vector", 1006, "int2vector", pa.string()),
    23: ("int4", 1007, "int4", pa.int32()),
    24: ("regproc", 1008, "reg", pa.string()),
    25: ("text", 1009, "string", pa.string()),
    26: ("oid", 1028, "oid", pa.int64()),
    27: ("tid", 1010, "tid", pa.string()),
    28: ("xid", 1011, "oid", pa.int64()),
    29: ("cid", 1012, "oid", pa.int64()),
    30: ("oidvector", 1013, "oidvector", pa.string()),
    114: ("json", 199, "string", pa.string()),
    142: ("xml", 143, "string", pa.string()),
    194: ("pg_node_tree", 0, "string", pa.string()),
    601: ("lseg", 1018, "lseg", pa.string()),
    602: ("path", 1019, "path", pa.string()),
    603: ("box", 1020, "box", pa.string()),
    604: ("polygon", 1027, "polygon", pa.string()),
    628: ("line", 629, "line", pa.string()),
    650: ("cidr", 651, "cidr", pa.string()),
    700: ("float4", 1021, "float4", pa.float32()),
    701: ("float8", 1022, "float8", pa.float64()),
    718: ("circle", 719, "circle", pa.string()),
    774: ("macaddr8", 775, "macaddr8", pa.string()),
    790: ("money", 791, "money", pa.decimal128(19, 2)),
    829: ("macaddr", 1040, "macaddr", pa.string()),
    869: ("inet", 1041, "inet", pa.string()),
    1033: ("aclitem", 1034, "unknown", pa.string()),  # has no binary form: text in binary rows, too
    1042: ("bpchar", 1014, "string", pa.string()),
    1043: ("varchar", 1015, "string", pa.string()),
    1082: ("date", 1182, "date", pa.date32()),
    1083: ("time", 1183, "time", pa.time64("us")),
    1114: ("timestamp", 1115, "timestamp", pa.timestamp("us")),
    1184: ("timestamptz", 1185, "timestamptz", pa.timestamp("us", tz="UTC")),
    1186: ("interval", 1187, "interval", pa.month_day_nano_interval()),
    1266: ("timetz", 1270, "timetz", pa.string()),
    1560: ("bit", 1561, "bits", pa.string()),
    1562: ("varbit", 1563, "bits", pa.string()),
    1700: ("numeric", 1231, "numeric", pa.string()),
    1790: ("refcursor", 2201, "string", pa.string()),
    2202: ("regprocedure", 2207, "reg", pa.string()),
    2203: ("regoper", 2208, "reg", pa.string()),
    2204: ("regoperator", 2209, "reg", pa.string()),
    2205: ("regclass", 2210, "reg", pa.string()),
    2206: ("regtype", 2211, "reg", pa.string()),
    2950: ("uuid", 2951, "uuid", pa.string()),
    2970: ("txid_snapshot", 2949, "snapshot", pa.string()),
    3220: ("pg_lsn", 3221, "pg_lsn", pa.string()),
    3614: ("tsvector", 3643, "tsvector", pa.string()),
    3615: ("tsquery", 3645, "tsquery", pa.string()),
    3642: ("gtsvector", 3644, "unknown", pa.string()),  # has no binary form, as aclitem
    3734: ("regconfig", 3735, "reg", pa.string()),
    3769: ("regdictionary", 3770, "reg", pa.string()),
    3802: ("jsonb", 3807, "jsonb", pa.string()),
    4072: ("jsonpath", 4073, "jsonb", pa.string()),  # as jsonb: a version byte before the text
    4089: ("regnamespace", 4090, "reg", pa.string()),
    4096: ("regrole", 4097, "reg", pa.string()),
    4191: ("regcollation", 4192, "reg", pa.string()),
    5038: ("pg_snapshot", 5039, "snapshot", pa.string()),
    5069: ("xid8", 271, "xid8", pa.string()),
}
_ELEMENT_OF = {array: oid for oid, (_, array, _, _) in _BUILT_IN.items() if array}
_OID_OF_NAME = {entry[0]: oid for oid, entry in _BUILT_IN.items()}
_OID_OF_NAME |= {f"_{entry[0]}": entry[1] for entry in _BUILT_IN.values() if entry[1]}


def is_built_in(oid: int) -> bool:
    """Whether the oid alone says what a column becomes; of other types a Type message may tell more."""
    return oid in _BUILT_IN or oid in _ELEMENT_OF


# Extension types whose binary form is their text.
_TEXT_EXTENSIONS = frozenset({"citext"})


def numeric_modifier(typmod: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric's typmod, None without one. The scale is an 11-bit signed number."""
    if typmod < 4:
        return None
    packed = typmod - 4
    scale = packed & 0x7FF
    return packed >> 16 & 0xFFFF, scale - 0x800 if scale & 0x400 else scale


def column_type_of(column: Column, options: Options) -> ColumnType:
    """The type of a relation's column: by its oid where that is built in, else by what a Type message said of it."""
    found = _type_of(column.type_oid, column.typmod, column.type_namespace, column.type_name, options)
    if options.strings == "string_view" and pa.types.is_string(found.arrow):
        return replace(found, arrow=pa.string_view())
    return found


def _type_of(oid: int, typmod: int, namespace: str | None, name: str | None, options: Options) -> ColumnType:
    if oid in _BUILT_IN:
        return _scalar(oid, typmod, options)
    if oid in _ELEMENT_OF:
        return _list(_scalar(_ELEMENT_OF[oid], typmod, options), _ELEMENT_OF[oid])
    if name is None or namespace is None:
        return _unknown("")
    if namespace == "pg_catalog":
        # A domain: its Type message bears the base type's name. The domain's own typmod is not on the wire.
        base = _OID_OF_NAME.get(name)
        return _unknown(name) if base is None else _type_of(base, typmod, None, None, options)
    if name.startswith("_") and len(name) > 1:
        element = name[1:]
        if element.startswith("_"):
            # There are no arrays of arrays: its name begins with _, and what it is nobody said.
            return _list(_unknown(f"{namespace}.{element}"), 0)
        return _list(_type_of(0, typmod, namespace, element, options), 0)
    qualified = f"{namespace}.{name}"
    if name in _TEXT_EXTENSIONS:
        return ColumnType(pa.string(), "string", name=qualified)
    return _unknown(qualified)


def _unknown(name: str) -> ColumnType:
    return ColumnType(pa.string(), "unknown", unknown=True, name=name)


def _list(element: ColumnType, element_oid: int) -> ColumnType:
    return ColumnType(
        pa.list_(element.arrow),
        "list_of_boxes" if element.kernel == "box" else "list",
        element_oid=element_oid,
        child=element,
        unknown=element.unknown,
        name=f"{element.name}[]",
    )


def _scalar(oid: int, typmod: int, options: Options) -> ColumnType:
    name, _, kernel, arrow = _BUILT_IN[oid]
    if kernel == "numeric":
        return _numeric(typmod, options)
    if kernel == "uuid":
        if options.uuid == "string":
            return ColumnType(pa.string(), "uuid_string", name=name)
        return ColumnType(
            pa.uuid() if options.uuid == "arrow.uuid" else pa.binary(16), "uuid_bytes", name=name
        )
    if pa.types.is_decimal(arrow):
        return ColumnType(arrow, kernel, arrow.precision, arrow.scale, name=name)
    return ColumnType(arrow, kernel, name=name)


def _numeric(typmod: int, options: Options) -> ColumnType:
    modifier = numeric_modifier(typmod)
    if modifier is not None:
        precision, scale = modifier
        if 1 <= precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision:
            return ColumnType(pa.decimal128(precision, scale), "decimal", precision, scale, name="numeric")
    if options.numeric == "string":
        return ColumnType(pa.string(), "numeric_string", name="numeric")
    if options.numeric == "float64":
        return ColumnType(pa.float64(), "numeric_float8", name="numeric")
    assert isinstance(options.numeric, pa.Decimal128Type)  # by Options
    return ColumnType(
        options.numeric, "decimal", options.numeric.precision, options.numeric.scale, name="numeric"
    )
