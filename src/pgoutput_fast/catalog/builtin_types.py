"""PostgreSQL's built-in types from the server's catalog: the one table of their oids.

`schema/column_types.py`, which refers to this table by name, maps them to Arrow types.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = [
    "BUILT_IN_TYPES",
    "ELEMENT_OF_ARRAY",
    "FIRST_USER_OID",
    "NAME_OF_OID",
    "OID_OF_NAME",
    "TYPE_OF_OID",
    "BuiltInType",
    "is_built_in",
    "numeric_modifier",
]

# FirstGenbkiObjectId of the server: lower oids are the same on every server.
FIRST_USER_OID = 10_000


class BuiltInType(NamedTuple):
    """A row of pg_type.

    Attributes:
        name: its name in pg_catalog (typname).
        oid: its oid.
        array_oid: oid of the type of its arrays (typarray); 0 if there is none.
        delimiter: the character between the elements of its arrays in text (typdelim).
        kind: `base` is a type with its own functions (typtype `b`).
        of: for a range, oid of the type of its bounds (rngsubtype); for a multirange, of its range (rngtypid); else 0.
    """

    name: str
    oid: int
    array_oid: int
    delimiter: str = ","
    kind: Literal["base", "range", "multirange"] = "base"
    of: int = 0


# Without array types. Types of later versions are included: no earlier server uses their oids for other types.
BUILT_IN_TYPES: tuple[BuiltInType, ...] = (
    # begin: written by `python ci/generate_types.py` from PostgreSQL 19
    BuiltInType("bool", 16, 1000),
    BuiltInType("bytea", 17, 1001),
    BuiltInType("char", 18, 1002),
    BuiltInType("name", 19, 1003),
    BuiltInType("int8", 20, 1016),
    BuiltInType("int2", 21, 1005),
    BuiltInType("int2vector", 22, 1006),
    BuiltInType("int4", 23, 1007),
    BuiltInType("regproc", 24, 1008),
    BuiltInType("text", 25, 1009),
    BuiltInType("oid", 26, 1028),
    BuiltInType("tid", 27, 1010),
    BuiltInType("xid", 28, 1011),
    BuiltInType("cid", 29, 1012),
    BuiltInType("oidvector", 30, 1013),
    BuiltInType("json", 114, 199),
    BuiltInType("xml", 142, 143),
    BuiltInType("pg_node_tree", 194, 0),
    BuiltInType("point", 600, 1017),
    BuiltInType("lseg", 601, 1018),
    BuiltInType("path", 602, 1019),
    BuiltInType("box", 603, 1020, delimiter=";"),
    BuiltInType("polygon", 604, 1027),
    BuiltInType("line", 628, 629),
    BuiltInType("cidr", 650, 651),
    BuiltInType("float4", 700, 1021),
    BuiltInType("float8", 701, 1022),
    BuiltInType("circle", 718, 719),
    BuiltInType("macaddr8", 774, 775),
    BuiltInType("money", 790, 791),
    BuiltInType("macaddr", 829, 1040),
    BuiltInType("inet", 869, 1041),
    BuiltInType("aclitem", 1033, 1034),
    BuiltInType("bpchar", 1042, 1014),
    BuiltInType("varchar", 1043, 1015),
    BuiltInType("date", 1082, 1182),
    BuiltInType("time", 1083, 1183),
    BuiltInType("timestamp", 1114, 1115),
    BuiltInType("timestamptz", 1184, 1185),
    BuiltInType("interval", 1186, 1187),
    BuiltInType("timetz", 1266, 1270),
    BuiltInType("bit", 1560, 1561),
    BuiltInType("varbit", 1562, 1563),
    BuiltInType("numeric", 1700, 1231),
    BuiltInType("refcursor", 1790, 2201),
    BuiltInType("regprocedure", 2202, 2207),
    BuiltInType("regoper", 2203, 2208),
    BuiltInType("regoperator", 2204, 2209),
    BuiltInType("regclass", 2205, 2210),
    BuiltInType("regtype", 2206, 2211),
    BuiltInType("uuid", 2950, 2951),
    BuiltInType("txid_snapshot", 2970, 2949),
    BuiltInType("pg_lsn", 3220, 3221),
    BuiltInType("tsvector", 3614, 3643),
    BuiltInType("tsquery", 3615, 3645),
    BuiltInType("gtsvector", 3642, 3644),
    BuiltInType("regconfig", 3734, 3735),
    BuiltInType("regdictionary", 3769, 3770),
    BuiltInType("jsonb", 3802, 3807),
    BuiltInType("int4range", 3904, 3905, kind="range", of=23),
    BuiltInType("numrange", 3906, 3907, kind="range", of=1700),
    BuiltInType("tsrange", 3908, 3909, kind="range", of=1114),
    BuiltInType("tstzrange", 3910, 3911, kind="range", of=1184),
    BuiltInType("daterange", 3912, 3913, kind="range", of=1082),
    BuiltInType("int8range", 3926, 3927, kind="range", of=20),
    BuiltInType("jsonpath", 4072, 4073),
    BuiltInType("regnamespace", 4089, 4090),
    BuiltInType("regrole", 4096, 4097),
    BuiltInType("regcollation", 4191, 4192),
    BuiltInType("int4multirange", 4451, 6150, kind="multirange", of=3904),
    BuiltInType("nummultirange", 4532, 6151, kind="multirange", of=3906),
    BuiltInType("tsmultirange", 4533, 6152, kind="multirange", of=3908),
    BuiltInType("tstzmultirange", 4534, 6153, kind="multirange", of=3910),
    BuiltInType("datemultirange", 4535, 6155, kind="multirange", of=3912),
    BuiltInType("int8multirange", 4536, 6157, kind="multirange", of=3926),
    BuiltInType("pg_snapshot", 5038, 5039),
    BuiltInType("xid8", 5069, 271),
    BuiltInType("oid8", 6437, 6442),
    BuiltInType("regdatabase", 6490, 6491),
    # end
)

TYPE_OF_OID = {each.oid: each for each in BUILT_IN_TYPES}
"""{oid: its row}, without arrays."""

ELEMENT_OF_ARRAY = {each.array_oid: each.oid for each in BUILT_IN_TYPES if each.array_oid}
"""{oid of an array type: oid of its elements' type}."""

OID_OF_NAME = {each.name: each.oid for each in BUILT_IN_TYPES}
OID_OF_NAME |= {f"_{each.name}": each.array_oid for each in BUILT_IN_TYPES if each.array_oid}
"""{name in pg_catalog: oid}, with arrays: `_int4` is the name of int4[]."""

NAME_OF_OID = {oid: name for name, oid in OID_OF_NAME.items()}
"""The inverse of `OID_OF_NAME`."""


def is_built_in(oid: int) -> bool:
    """Whether the oid alone identifies the type; for other types a Type message or a catalog may do so."""
    return oid in NAME_OF_OID


def numeric_modifier(typmod: int) -> tuple[int, int] | None:
    """Precision and scale from a numeric's typmod, None without one. The scale is an 11-bit signed number."""
    if typmod < 4:
        return None
    packed = typmod - 4
    scale = packed & 0x7FF
    return packed >> 16 & 0xFFFF, scale - 0x800 if scale & 0x400 else scale
