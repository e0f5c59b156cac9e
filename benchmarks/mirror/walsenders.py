"""Measures what several walsenders would give, each with a part of the changes.

    python -m benchmarks.mirror.walsenders        # some two minutes; rewrites the figures in README.md

One walsender after another decodes the same backlog for pg_recvlogical: for all of eight tables, for some of them, or
for a share of the rows of all (a row filter). Every walsender reads and reorders all of the WAL. So the CPU time for a
part says how much faster several walsenders can be, if each has a core of its own, and what they cost the server.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.mirror.processes import ProcessTree
from benchmarks.mirror.systems import Walsender, wait
from benchmarks.report import README, Section, machine, rewrite
from pgoutput_fast.capture import create_slot
from pgoutput_fast.demo.servers import Server, find_installations

__all__ = ["main", "section"]

MARKERS = "<!-- walsender figures -->", "<!-- end of walsender figures -->"
ROWS, IN_A_TRANSACTION = 1_600_000, 800
_TABLES = "abcdefgh"
_COLUMNS = (
    "id int8 PRIMARY KEY, a int, b int, c int8, price numeric(12, 2), rate float8, at timestamptz, name text, "
    "note text"
)
_ROW = "g, g, g * 3, g, g * 1.25, g / 7.0, now(), 'name ' || g, repeat(md5(g::text), 2)"
_PARTS = {"whole": 1, "tables_2": 2, "tables_8": 8, "rows_2": 2, "rows_8": 8}
_NAMED = {
    "whole": "all tables",
    "tables_2": "half of the tables",
    "tables_8": "an eighth of the tables",
    "rows_2": "half of the rows, by a row filter",
    "rows_8": "an eighth of the rows, by a row filter",
}


class _Part(Walsender):
    """A walsender for a publication."""

    def __init__(self, dsn: str, table: str, directory: Path, bindir: Path) -> None:
        super().__init__(dsn, table, directory, bindir)
        self.slot = table

    def prepare(self) -> None:
        """Nothing: the slot is older than the backlog."""


def _publications() -> list[str]:
    """The statements that create them."""
    made = []
    for name, parts in _PARTS.items():
        chosen = _TABLES if name.startswith("rows") else _TABLES[: len(_TABLES) // parts]
        where = f" WHERE (id % {parts} = 0)" if name.startswith("rows") else ""
        made.append(f"CREATE PUBLICATION {name} FOR TABLE {', '.join(each + where for each in chosen)}")
    return made


def _cpu_of(part: _Part, end: int) -> float:
    """The CPU seconds of the walsender for the whole backlog."""
    with part:
        pid = part.walsender()
        assert pid is not None
        tree = ProcessTree(pid)
        wait(lambda: part.sent() >= end, part.process)
        return tree.cpu


def measured(rows: int, directory: Path) -> dict[str, float]:
    """The CPU seconds of a walsender, by its publication.

    Raises:
        LookupError: if no installation of PostgreSQL has pg_recvlogical and row filters.
    """
    able = [
        each
        for each in find_installations()
        if (each.bindir / "pg_recvlogical").exists() and each.version >= 15
    ]
    if not able:
        raise LookupError("no PostgreSQL installation here has pg_recvlogical and is 15 or newer")
    with Server(able[-1], {"max_wal_size": "8GB"}) as server:
        connection = server.connect()
        connection.autocommit = True
        with connection.cursor() as cursor:
            for table in _TABLES:
                cursor.execute(f"CREATE TABLE {table} ({_COLUMNS})")
            parts = []
            for name, statement in zip(_PARTS, _publications(), strict=True):
                cursor.execute(statement)
                create_slot(server.dsn, name)
                parts.append(_Part(server.dsn, name, directory / name, able[-1].bindir))
            each = IN_A_TRANSACTION // len(_TABLES)
            for first in range(0, rows // len(_TABLES), each):
                inserts = [
                    f"INSERT INTO {table} SELECT {_ROW} FROM generate_series({first}, {first + each - 1}) g"
                    for table in _TABLES
                ]
                cursor.execute("; ".join(inserts))
            cursor.execute("SELECT (pg_current_wal_lsn() - '0/0')::int8")
            (end,) = cursor.fetchone() or (0,)
        connection.close()
        return {part.table: _cpu_of(part, int(end)) for part in parts}


def section(rows: int) -> Section:
    """Measures all parts.

    Raises:
        ValueError: for so few rows that the system counts no CPU time for a part.
    """
    with tempfile.TemporaryDirectory(prefix="pgoutput-fast-walsenders-") as directory:
        found = measured(rows, Path(directory))
    if not all(found.values()):
        raise ValueError(f"{rows:,} rows are too few to measure: {found}")
    table = Section(
        f"CPU time of a walsender for a backlog of {rows:,} rows in {len(_TABLES)} tables",
        ["a walsender with", "CPU s/million", "of all", "with so many, faster by", "CPU of the server"],
    )
    for name, parts in _PARTS.items():
        share = found[name] / found["whole"]
        table.rows.append(
            [
                _NAMED[name],
                f"{found[name] / rows * 1e6:.2f}",
                f"{share:.2f}",
                f"{1 / share:.2f}",
                f"{parts * share:.2f}",
            ]
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.mirror.walsenders", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the backlog")
    parser.add_argument("--no-readme", action="store_true", help="do not rewrite README.md")
    given = parser.parse_args(arguments)
    text = f"{machine()}; {os.cpu_count()} cores here.\n\n{section(given.rows)}"
    print(text)
    if given.rows == ROWS and not given.no_readme:
        rewrite(README, text, *MARKERS)


if __name__ == "__main__":
    main()
