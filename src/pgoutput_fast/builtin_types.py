"""PostgreSQL's built-in types: their oids, names and arrays, and what each becomes."""

from __future__ import annotations

import pyarrow as pa

__all__ = [
    "ELEMENT_OF",
    "FIRST_USER_OID",
    "MULTIRANGES",
    "NAME_OF_OID",
    "OID_OF_NAME",
    "POINT",
    "RANGES",
    "SCALARS",
    "is_built_in",
]

# FirstGenbkiObjectId: below it every oid means the same on every server.
FIRST_USER_OID = 10_000

# oid -> (name, array's oid (0: there is none), converter, Arrow type); numeric and uuid depend on more and are decided
# below. What is not here on purpose is listed in docs/types.md.
SCALARS: dict[int, tuple[str, int, str, pa.DataType]] = {
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
# oid -> (name, array's oid, oid of the bounds' type); of a multirange the range's.
RANGES = {
    3904: ("int4range", 3905, 23),
    3906: ("numrange", 3907, 1700),
    3908: ("tsrange", 3909, 1114),
    3910: ("tstzrange", 3911, 1184),
    3912: ("daterange", 3913, 1082),
    3926: ("int8range", 3927, 20),
}
MULTIRANGES = {
    4451: ("int4multirange", 6150, 3904),
    4532: ("nummultirange", 6151, 3906),
    4533: ("tsmultirange", 6152, 3908),
    4534: ("tstzmultirange", 6153, 3910),
    4535: ("datemultirange", 6155, 3912),
    4536: ("int8multirange", 6157, 3926),
}
POINT = {600: ("point", 1017)}

_NAME_AND_ARRAY = {
    oid: entry[:2] for table in (SCALARS, RANGES, MULTIRANGES, POINT) for oid, entry in table.items()
}
ELEMENT_OF = {array: oid for oid, (_, array) in _NAME_AND_ARRAY.items() if array}
OID_OF_NAME = {name: oid for oid, (name, _) in _NAME_AND_ARRAY.items()}
OID_OF_NAME |= {f"_{name}": array for name, array in _NAME_AND_ARRAY.values() if array}
NAME_OF_OID = {oid: name for name, oid in OID_OF_NAME.items()}


def is_built_in(oid: int) -> bool:
    """Whether the oid alone says what a column becomes; of other types a Type message or a catalog may tell more."""
    return oid in NAME_OF_OID
