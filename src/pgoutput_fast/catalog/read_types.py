"""Reads type details from a live server that the protocol does not send: enum labels, fields, domains, ranges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pgoutput_fast.catalog.builtin_types import is_built_in
from pgoutput_fast.catalog.encodings import NAME_BYTES, read_json, read_name
from pgoutput_fast.catalog.user_types import Kind, TypeField, UserType, UserTypes

__all__ = ["read_types"]

# Names as bytes, because the server may be unable to send some as text. One statement, so that all data are from one
# snapshot. pg_range has multiranges from 14 on: as JSON the column may be missing.
_QUERY = f"""
SELECT pg_catalog.getdatabaseencoding()::pg_catalog.text, t.oid::pg_catalog.int8,
       {NAME_BYTES.format("n.nspname::pg_catalog.text")},
       {NAME_BYTES.format("t.typname::pg_catalog.text")}, t.typtype::pg_catalog.text,
       t.typbasetype::pg_catalog.int8, t.typtypmod::pg_catalog.int8, t.typdelim::pg_catalog.text,
       coalesce(e.oid, 0)::pg_catalog.int8, coalesce(r.rngsubtype, 0)::pg_catalog.int8,
       coalesce(m.rngtypid, 0)::pg_catalog.int8,
       {NAME_BYTES.format("coalesce(x.extname::pg_catalog.text, '')")},
       (SELECT {
    NAME_BYTES.format(
        "pg_catalog.json_agg(l.enumlabel::pg_catalog.text ORDER BY l.enumsortorder)::pg_catalog.text"
    )
} FROM pg_catalog.pg_enum l WHERE l.enumtypid OPERATOR(pg_catalog.=) t.oid),
       (SELECT {
    NAME_BYTES.format(
        "pg_catalog.json_agg(pg_catalog.json_build_array(a.attname::pg_catalog.text, a.atttypid::pg_catalog.int8, "
        "a.atttypmod::pg_catalog.int8) ORDER BY a.attnum)::pg_catalog.text"
    )
} FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) t.typrelid
         AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped),
       t.oid OPERATOR(pg_catalog.=) ANY (
           SELECT a.atttypid
           FROM pg_catalog.pg_attribute a
           JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) a.attrelid
           JOIN pg_catalog.pg_namespace cn ON cn.oid OPERATOR(pg_catalog.=) c.relnamespace
           WHERE c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'p'])
             AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
             AND cn.nspname OPERATOR(pg_catalog.<>) ALL (ARRAY['pg_catalog', 'information_schema', 'pg_toast']))
       OR n.nspname OPERATOR(pg_catalog.<>) ALL (ARRAY['pg_catalog', 'information_schema', 'pg_toast'])
          AND pg_catalog.left(n.nspname::pg_catalog.text, 7) OPERATOR(pg_catalog.<>) 'pg_temp'
          AND coalesce(c.relkind, ec.relkind, 'c') OPERATOR(pg_catalog.=) 'c'
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace
LEFT JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.typrelid
LEFT JOIN pg_catalog.pg_type e ON e.typarray OPERATOR(pg_catalog.=) t.oid
     AND e.typarray OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
LEFT JOIN pg_catalog.pg_class ec ON ec.oid OPERATOR(pg_catalog.=) e.typrelid
LEFT JOIN pg_catalog.pg_range r ON r.rngtypid OPERATOR(pg_catalog.=) t.oid
LEFT JOIN pg_catalog.pg_range m
  ON (pg_catalog.to_json(m) OPERATOR(pg_catalog.->>) 'rngmultitypid')::pg_catalog.oid OPERATOR(pg_catalog.=) t.oid
LEFT JOIN pg_catalog.pg_depend d
  ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass
     AND d.objid OPERATOR(pg_catalog.=) t.oid
     AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
     AND d.deptype OPERATOR(pg_catalog.=) 'e'
LEFT JOIN pg_catalog.pg_extension x ON x.oid OPERATOR(pg_catalog.=) d.refobjid
WHERE t.typtype OPERATOR(pg_catalog.<>) 'p' AND t.typisdefined
"""

_KINDS: dict[str, Kind] = {
    "b": "base",
    "c": "composite",
    "d": "domain",
    "e": "enum",
    "m": "multirange",
    "r": "range",
}


def read_types(connection: Any) -> UserTypes:
    """The current types of a live server's database that are not built in.

    These are the types outside of the system schemas (of row types only those in use), and all types that columns of
    tables refer to. Dropped attributes are omitted, as in the protocol.

    Args:
        connection: a DB-API connection to the stream's database, such as psycopg2's. One SELECT runs in the
            connection's current transaction, without commit or rollback.

    Raises:
        TypeError: if `connection` is not a connection.
        Exception: the error of the driver, if the query fails.
    """
    if not callable(getattr(connection, "cursor", None)):
        raise TypeError(f"connection must be a DB-API connection, not {type(connection).__name__}")
    cursor = connection.cursor()
    try:
        cursor.execute(_QUERY)
        rows = cursor.fetchall()
    finally:
        cursor.close()
    requested = [row[1] for row in rows if row[-1]]
    return UserTypes(_reachable(requested, {row[1]: _type_of(*row[:-1]) for row in rows}))


def _type_of(
    encoding: str,
    oid: int,
    namespace: bytes,
    name: bytes,
    typtype: str,
    base: int,
    typmod: int,
    delimiter: str,
    element: int,
    bounds: int,
    range_of_multirange: int,
    extension: bytes,
    labels: bytes | None,
    fields: bytes | None,
) -> UserType:
    return UserType(
        oid,
        read_name(namespace, encoding),
        read_name(name, encoding),
        "array" if element else _KINDS[typtype],
        element or base or bounds or range_of_multirange,
        typmod,
        tuple(read_json(labels, encoding)) if labels else (),
        tuple(TypeField(*field) for field in read_json(fields, encoding)) if fields else (),
        delimiter,
        read_name(extension, encoding),
    )


def _reachable(oids: Iterable[int], known: dict[int, UserType]) -> list[UserType]:
    """The types with these oids and all types that they consist of, without built-in types."""
    found: dict[int, UserType] = {}
    pending = list(oids)
    while pending:
        oid = pending.pop()
        if oid in found or oid not in known or is_built_in(oid):
            continue
        one = found[oid] = known[oid]
        pending += [one.of, *(field.type_oid for field in one.fields)]
    return [found[oid] for oid in sorted(found)]
