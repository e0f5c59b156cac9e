"""Rebuilds tables from their changes and compares them with the server's tables. This is the demo's proof."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pgoutput_fast.capture import PINS
from pgoutput_fast.catalog.builtin_types import OID_OF_NAME
from pgoutput_fast.catalog.identifiers import quoted
from pgoutput_fast.demo.servers import Server

__all__ = ["differences", "read_server", "rebuild", "server_rows"]

Row = dict[str, Any]


def rebuild(changes: Iterable[Mapping[str, Any]], key: Sequence[str]) -> dict[tuple[Any, ...], Row]:
    """Returns the rows after all changes, by key.

    Args:
        changes: dicts with the metadata columns and the relation's columns, in apply order.
        key: names of the columns that identify a row.

    Raises:
        KeyError: if a change refers to a missing row: changes were lost.
    """
    rows: dict[tuple[Any, ...], Row] = {}
    before: tuple[Any, ...] | None = None
    for change in changes:
        kind = change["_change_type"]
        values = {name: value for name, value in change.items() if not name.startswith("_")}
        primary_key = tuple(values[name] for name in key)
        if kind == "truncate":
            rows.clear()
        elif kind == "insert":
            rows[primary_key] = values
        elif kind == "update_preimage":
            before = primary_key
        elif kind == "update_postimage":
            old = rows.pop(primary_key if before is None else before)
            before = None
            for name in change["_unchanged"] or ():
                values[name] = old[name]
            rows[primary_key] = values
        else:
            del rows[primary_key]
    return rows


def server_rows(
    connection: Any, table: str, columns: pa.Schema, key: Sequence[str]
) -> dict[tuple[Any, ...], Row]:
    """Returns the server's rows, by key.

    Columns decoded to strings are queried as text, all others as psycopg2's own values.
    """
    rows: dict[tuple[Any, ...], Row] = {}
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table} LIMIT 0")
        times = {column.name for column in cursor.description if column.type_code == OID_OF_NAME["time"]}
        asked = []
        for field in columns:
            name = quoted(field.name)
            if field.name in times:
                # In Spark a time of day is a string with six fractional digits.
                moment = f"'2000-01-01'::pg_catalog.date OPERATOR(pg_catalog.+) {name}"
                name = f"pg_catalog.to_char({moment}, 'HH24:MI:SS.US')"
            elif pa.types.is_string(field.type):
                name = f"{name}::pg_catalog.text"
            asked.append(name)
        cursor.execute(f"SELECT {', '.join(asked)} FROM {table}")
        for values in cursor:
            row = {
                name: bytes(value) if isinstance(value, memoryview) else value
                for name, value in zip(columns.names, values, strict=True)
            }
            rows[tuple(row[name] for name in key)] = row
    return rows


def read_server(
    server: Server, table: str, columns: pa.Schema, key: Sequence[str]
) -> dict[tuple[Any, ...], Row]:
    """As `server_rows`, through a session in which values have the same form as in a capture."""
    connection = server.connect()
    try:
        with connection, connection.cursor() as cursor:
            for setting, value in PINS.items():
                cursor.execute("SELECT pg_catalog.set_config(%s, %s, false)", (setting, value))
        return server_rows(connection, table, columns, key)
    finally:
        connection.close()


def differences(rebuilt: Mapping[Any, Row], server: Mapping[Any, Row]) -> list[str]:
    """Returns one line per kind of difference: numbers of rows, without values."""
    found: list[str] = []
    missing, extra = server.keys() - rebuilt.keys(), rebuilt.keys() - server.keys()
    if missing:
        found.append(f"{len(missing)} rows of the server are missing")
    if extra:
        found.append(f"{len(extra)} rows are not on the server")
    unequal: dict[str, int] = {}
    for key in server.keys() & rebuilt.keys():
        for name, value in server[key].items():
            if rebuilt[key].get(name) != value:
                unequal[name] = unequal.get(name, 0) + 1
    found += [f"column {name} differs in {count} rows" for name, count in sorted(unequal.items())]
    return found
