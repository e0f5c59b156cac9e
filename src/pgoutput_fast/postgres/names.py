"""Names of published tables that a server cannot send, because they have a byte without a UTF-8 form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pgoutput_fast.catalog.encodings import CODECS, NAME_BYTES, has_form, read_name
from pgoutput_fast.postgres.errors import CaptureError
from pgoutput_fast.postgres.published import published

__all__ = ["Unsendable", "expect_sendable_names", "unsendable_names"]

_NAMED = """
WITH RECURSIVE published AS (
    SELECT c.oid FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
    JOIN ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]), pg_catalog.unnest(%s::pg_catalog.text[]))
      AS w (schema, name)
      ON n.nspname OPERATOR(pg_catalog.=) w.schema AND c.relname OPERATOR(pg_catalog.=) w.name)
"""

# A load also reads the names of partitions and types. An array's type is renamed with its element's.
_NAMES = f"""

SELECT pg_catalog.getdatabaseencoding()::pg_catalog.text,
       c.oid::pg_catalog.int8, {NAME_BYTES.format("c.relname::pg_catalog.text")},
       n.oid::pg_catalog.int8, {NAME_BYTES.format("n.nspname::pg_catalog.text")},
       a.attnum::pg_catalog.int4, {NAME_BYTES.format("a.attname::pg_catalog.text")},
       y.oid::pg_catalog.int8, {NAME_BYTES.format("y.typname::pg_catalog.text")},
       s.oid::pg_catalog.int8, {NAME_BYTES.format("s.nspname::pg_catalog.text")}
FROM (
    WITH RECURSIVE below (oid) AS (
        SELECT p.oid FROM published p
        UNION
        SELECT i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) b.oid
        JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) b.oid AND c.relkind OPERATOR(pg_catalog.=) 'p')
    SELECT oid FROM below) t
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.oid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid
 AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_type x ON x.oid OPERATOR(pg_catalog.=) a.atttypid
LEFT JOIN pg_catalog.pg_type y ON y.oid OPERATOR(pg_catalog.=) (CASE
    WHEN x.typlen OPERATOR(pg_catalog.=) -1 AND x.typelem OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
    THEN x.typelem ELSE x.oid END)
LEFT JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) y.typnamespace
ORDER BY c.oid, a.attnum
"""

_MOST_SHOWN = 5


class Unsendable(NamedTuple):
    """An object whose name a server cannot send in UTF-8.

    Attributes:
        what: description of the object, with escapes for bytes without a UTF-8 form.
        renaming: the statement that renames it to `new_name`, in ASCII.
    """

    what: str
    renaming: str


def unsendable_names(
    cursor: Any, publications: Sequence[str], named: Sequence[tuple[str, str]] = ()
) -> list[Unsendable]:
    """The unsendable names among published tables and their schemas, partitions, columns and types.

    Args:
        cursor: of a session.
        publications: names of the publications.
        named: (schema, name) of tables, instead of the tables of publications.

    Raises:
        psycopg2.Error: if a query fails.
    """
    if cursor.connection.get_parameter_status("server_encoding") not in ("SQL_ASCII", *CODECS):
        return []
    if named:
        cursor.execute(_NAMED + _NAMES, tuple(map(list, zip(*named, strict=True))))
    else:
        cursor.execute(published(cursor.connection.server_version // 10000) + _NAMES, (list(publications),))
    return list(dict.fromkeys(each for row in cursor.fetchall() for each in _of_row(*row)))


def expect_sendable_names(
    cursor: Any, publications: Sequence[str], named: Sequence[tuple[str, str]] = ()
) -> None:
    """Checks that there are no unsendable names.

    Raises:
        CaptureError: if there are any; the message says how to rename them.
        psycopg2.Error: if a query fails.
    """
    found = unsendable_names(cursor, publications, named)
    if found:
        first = found[:_MOST_SHOWN]
        more = "" if len(found) == len(first) else f" (and {len(found) - len(first)} more)"
        raise CaptureError(
            f"the server cannot send the name of {'; '.join(each.what for each in first)}{more}: a byte of "
            "it, here with an escape, has no form in UTF-8. Do not publish it, or rename it in any session: "
            f"{'; '.join(each.renaming for each in first)}"
        )


def _of_row(
    encoding: str,
    table: int,
    table_name: bytes,
    schema: int,
    schema_name: bytes,
    number: int | None,
    column: bytes | None,
    type_oid: int | None,
    type_name: bytes | None,
    type_schema: int | None,
    type_schema_name: bytes | None,
) -> Iterator[Unsendable]:
    full = f"{read_name(schema_name, encoding)}.{read_name(table_name, encoding)}"
    for oid, name in ((schema, schema_name), (type_schema, type_schema_name)):
        if name is not None and not has_form(name, encoding):
            yield Unsendable(
                f"schema {read_name(name, encoding)}",
                _renaming("SCHEMA %s", f"{oid}::pg_catalog.regnamespace"),
            )
    if not has_form(table_name, encoding):
        yield Unsendable(f"table {full}", _renaming("TABLE %s", f"{table}::pg_catalog.regclass"))
    if type_name is not None and not has_form(type_name, encoding):
        yield Unsendable(
            f"type {read_name(type_name, encoding)}", _renaming("TYPE %s", f"{type_oid}::pg_catalog.regtype")
        )
    if column is not None and not has_form(column, encoding):
        attribute = (
            f"(SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = {table} AND attnum = {number})"
        )
        yield Unsendable(
            f"column {read_name(column, encoding)} of {full}",
            _renaming("TABLE %s RENAME COLUMN %I", f"{table}::pg_catalog.regclass, {attribute}"),
        )


def _renaming(what: str, arguments: str) -> str:
    rename = "" if "RENAME" in what else " RENAME"
    return f"DO $$ BEGIN EXECUTE pg_catalog.format('ALTER {what}{rename} TO new_name', {arguments}); END $$"
