"""What the wire never says of types, read from a live server: enum labels, composite fields, domains, ranges."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pgoutput_fast.types import is_built_in
from pgoutput_fast.user_types import Kind, TypeField, UserType, UserTypes

__all__ = ["read_types"]

# One statement, so that all of it is of one moment. pg_range names multiranges from 14 on: as JSON the column may lack.
_QUERY = """
SELECT t.oid::int8, n.nspname::text, t.typname::text, t.typtype::text, t.typbasetype::int8, t.typtypmod::int8,
       t.typdelim::text, coalesce(e.oid, 0)::int8, coalesce(r.rngsubtype, 0)::int8, coalesce(m.rngtypid, 0)::int8,
       coalesce(x.extname::text, ''),
       (SELECT json_agg(l.enumlabel::text ORDER BY l.enumsortorder)::text
        FROM pg_catalog.pg_enum l WHERE l.enumtypid = t.oid),
       (SELECT json_agg(json_build_array(a.attname::text, a.atttypid::int8, a.atttypmod::int8) ORDER BY a.attnum)::text
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
       t.oid IN (SELECT a.atttypid
                 FROM pg_catalog.pg_attribute a
                 JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
                 JOIN pg_catalog.pg_namespace cn ON cn.oid = c.relnamespace
                 WHERE c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
                   AND cn.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast'))
       OR n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') AND left(n.nspname::text, 7) <> 'pg_temp'
          AND coalesce(c.relkind, ec.relkind, 'c') = 'c'
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
LEFT JOIN pg_catalog.pg_type e ON e.typarray = t.oid AND e.typarray <> 0
LEFT JOIN pg_catalog.pg_class ec ON ec.oid = e.typrelid
LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid
LEFT JOIN pg_catalog.pg_range m ON (to_json(m) ->> 'rngmultitypid')::oid = t.oid
LEFT JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = t.oid
     AND d.refclassid = 'pg_catalog.pg_extension'::regclass AND d.deptype = 'e'
LEFT JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid
WHERE t.typtype <> 'p' AND t.typisdefined
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
    """The types of a live server's database that are not built in, as they are now.

    They are those outside of the system's schemas (of tables' row types only the used ones), and whatever the columns
    of tables refer to. Dropped attributes are left out, as they are on the wire.

    Args:
        connection: a DB-API connection to the database that the stream comes from, such as psycopg2's. It gets one
            SELECT, in whichever transaction it is in; nothing is committed or rolled back.

    Raises:
        TypeError: if that is no connection.
        Whatever the driver raises if the query fails.
    """
    if not callable(getattr(connection, "cursor", None)):
        raise TypeError(f"a DB-API connection is needed, not {type(connection).__name__}")
    cursor = connection.cursor()
    try:
        cursor.execute(_QUERY)
        rows = cursor.fetchall()
    finally:
        cursor.close()
    wanted = [row[0] for row in rows if row[-1]]
    return UserTypes(_reached(wanted, {row[0]: _type_of(*row[:-1]) for row in rows}))


def _type_of(
    oid: int,
    namespace: str,
    name: str,
    typtype: str,
    base: int,
    typmod: int,
    delimiter: str,
    element: int,
    bounds: int,
    range_of_multirange: int,
    extension: str,
    labels: str | None,
    fields: str | None,
) -> UserType:
    return UserType(
        oid,
        namespace,
        name,
        "array" if element else _KINDS[typtype],
        element or base or bounds or range_of_multirange,
        typmod,
        tuple(json.loads(labels)) if labels else (),
        tuple(TypeField(*field) for field in json.loads(fields)) if fields else (),
        delimiter,
        extension,
    )


def _reached(oids: Iterable[int], known: dict[int, UserType]) -> list[UserType]:
    """The types of those oids and all that they are made of, but for what is built in."""
    found: dict[int, UserType] = {}
    left = list(oids)
    while left:
        oid = left.pop()
        if oid in found or oid not in known or is_built_in(oid):
            continue
        one = found[oid] = known[oid]
        left += [one.of, *(field.type_oid for field in one.fields)]
    return [found[oid] for oid in sorted(found)]
