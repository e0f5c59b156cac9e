#!/usr/bin/env python3
"""Write the tables of built-in types from the catalog of a running PostgreSQL.

    python ci/generate_types.py [--check]

It starts a temporary server of the newest supported version (`python ci/fetch_servers.py` fetches the programs). It
asks this server for the types of pg_catalog that a column can have, and writes them between the marker comments of
``src/pgoutput_fast/catalog/builtin_types.py``. The oids that C++ code uses go to ``_core/types/oids.hpp``. With --check
it writes nothing. It needs psycopg2.

Exit status: 0; 1 if a file is stale (--check), or if that server version is not installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from repository import PACKAGE, ROOT, SERVERS, load_module

PYTHON_TABLE = PACKAGE / "catalog" / "builtin_types.py"
NATIVE_TABLE = PACKAGE / "_core" / "types" / "oids.hpp"

VERSION = 19
COMMAND = "python ci/generate_types.py"

# Types that a column can have but that are not in the table. The oid alone does not determine how to convert them.
LEFT_OUT = {
    "pg_ndistinct": "extended statistics, in system catalogs only; no input",
    "pg_dependencies": "extended statistics, in system catalogs only; no input",
    "pg_mcv_list": "extended statistics, in system catalogs only; no input",
    "pg_brin_bloom_summary": "a summary inside of a BRIN index; no input",
    "pg_brin_minmax_multi_summary": "a summary inside of a BRIN index; no input",
}

# Types whose oid C++ code needs. If you add a name here, C++ gets a constant for it, like INT2_OID.
NATIVE = ("int2", "oid")

# An array type has no row of its own: its oid is in the row of the element type. Oids from 10000 on differ by server.
QUERY = """
SELECT t.typname, t.oid, t.typarray, t.typdelim, t.typtype, coalesce(r.rngsubtype, m.rngtypid, 0)
FROM pg_catalog.pg_type AS t
LEFT JOIN pg_catalog.pg_range AS r ON r.rngtypid = t.oid
LEFT JOIN pg_catalog.pg_range AS m
  ON (pg_catalog.to_json(m) ->> 'rngmultitypid')::pg_catalog.oid = t.oid
WHERE t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace AND t.oid < 10000 AND t.typisdefined
  AND t.typtype IN ('b', 'd', 'e', 'r', 'm')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_type AS e WHERE e.typarray = t.oid)
ORDER BY t.oid
"""
KINDS = {"b": "base", "r": "range", "m": "multirange"}


class Row(NamedTuple):
    """A type in the server's catalog; see `BuiltInType` in builtin_types.py."""

    name: str
    oid: int
    array_oid: int
    delimiter: str
    kind: str
    of: int


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write the tables of built-in types from a running PostgreSQL."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table is stale")
    check = parser.parse_args(arguments).check

    servers = load_module(SERVERS)
    installation = next((each for each in servers.find_installations() if each.version == VERSION), None)
    if installation is None:
        print(f"PostgreSQL {VERSION} is not installed: run `python ci/fetch_servers.py {VERSION}`")
        return 1
    with servers.Server(installation) as server:
        connection = server.connect(dbname="postgres")
        try:
            rows = read_rows(connection)
        finally:
            connection.close()
    stale = [path for path, text in written(rows).items() if path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'stale: run `' + COMMAND + '`' if check else 'written'}")
        if not check:
            path.write_text(written(rows)[path])
    if not stale:
        print(f"the tables match PostgreSQL {VERSION}")
    return 1 if check and stale else 0


def read_rows(connection: Any) -> list[Row]:
    """A server's data on all types that a column can have, without those in `LEFT_OUT`."""
    with connection.cursor() as cursor:
        cursor.execute(QUERY)
        found = cursor.fetchall()
    return [
        Row(name, oid, array_oid, delimiter, KINDS[kind], of)
        for name, oid, array_oid, delimiter, kind, of in found
        if name not in LEFT_OUT
    ]


def written(rows: Iterable[Row]) -> dict[Path, str]:
    """The text that every file should have."""
    oids = {row.name: row.oid for row in rows}
    tables = {
        PYTHON_TABLE: [f"    {python_row(row)},\n" for row in rows],
        NATIVE_TABLE: [f"inline constexpr uint32_t {name.upper()}_OID = {oids[name]};\n" for name in NATIVE],
    }
    return {path: between_markers(path.read_text(), lines) for path, lines in tables.items()}


def python_row(row: Row) -> str:
    parts = [f'"{row.name}"', str(row.oid), str(row.array_oid)]
    if row.delimiter != ",":
        parts.append(f'delimiter="{row.delimiter}"')
    if row.kind != "base":
        parts += [f'kind="{row.kind}"', f"of={row.of}"]
    return f"BuiltInType({', '.join(parts)})"


def between_markers(text: str, lines: list[str]) -> str:
    """Replace the lines between the marker comments of a text."""
    kept = text.splitlines(keepends=True)
    (begin,) = (k for k, line in enumerate(kept) if f"begin: written by `{COMMAND}`" in line)
    (end,) = (k for k, line in enumerate(kept) if k > begin and line.strip() in ("# end", "// end"))
    return "".join([*kept[: begin + 1], *lines, *kept[end:]])


if __name__ == "__main__":
    sys.exit(main())
