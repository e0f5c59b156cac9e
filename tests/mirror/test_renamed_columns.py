"""Columns that get their new names in place (`rename_columns`): readers at each position, and kills between the steps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import fresh, verify
from pgoutput_fast.mirror.view.datasets import TablesAt
from pgoutput_fast.tables.options import TableOptions
from support.forms import and_slow
from support.iceberg_files import open_table, read_by_ids
from support.mirrors import (
    Place,
    comparable,
    current_of,
    loads_of,
    opened,
    place,
    rows_of,
)

__all__ = ["place"]

_FORMS = and_slow(["iceberg on_read"], [("iceberg on_write",), ("duckdb on_write",)])
_TABLES = ("with_key", "whole")
# What is done to both tables (id, a, b, e), a step for each run. In the table with a key, the first step is a transaction.
_STEPS = (
    (
        "INSERT INTO {t} VALUES (20, 1, 'y')",
        "UPDATE {t} SET a = 3 WHERE id = 3",
        "ALTER TABLE {t} RENAME b TO c",
        "INSERT INTO {t} VALUES (21, 1, 'z')",
        "UPDATE {t} SET a = 5 WHERE id IN (20, 3)",
    ),
    (
        "UPDATE {t} SET c = 'c' WHERE id = 4",
        "ALTER TABLE {t} RENAME c TO d",
        "UPDATE {t} SET a = 7 WHERE id = 2",
    ),
    (
        "INSERT INTO {t} (id, d) VALUES (22, 'd')",
        "ALTER TABLE {t} ADD b text",
        "UPDATE {t} SET b = 'new' WHERE id = 2",
    ),
    (
        "DELETE FROM {t} WHERE id = 4",
        "ALTER TABLE {t} RENAME id TO pid",
        "UPDATE {t} SET a = 8 WHERE pid IN (1, 2)",
    ),
    (
        "ALTER TABLE {t} ADD id int",
        "INSERT INTO {t} (pid, id) VALUES (23, 5)",
        "DELETE FROM {t} WHERE pid = 3",
    ),
    ("ALTER TABLE {t} RENAME b TO c", "INSERT INTO {t} (pid, c) VALUES (24, 'c')"),
)
# Where a process is killed before the current table has the changes, which the history has.
_KILLS = {
    "iceberg": ["pgoutput_fast.merge.local", "LocalMerge.apply_parts", 1],
    "duckdb": ["pgoutput_fast.merge.duckdb", "DuckDBMerge.apply_parts", 1],
}


def _make(place: Place, *tables: str) -> None:
    for table in tables:
        place.database.execute(
            f"CREATE TABLE {table} (id int {'PRIMARY KEY' if table == 'with_key' else 'NOT NULL'}, a int, b text, e real)",
            f"ALTER TABLE {table} ALTER b SET STORAGE EXTERNAL",  # an update does not send a large value again
            f"INSERT INTO {table} SELECT g, g, 'b' || g, g / 2.0 FROM generate_series(1, 6) g",
            f"UPDATE {table} SET b = repeat('b', 9000) WHERE id = 3",
            *([] if table == "with_key" else [f"ALTER TABLE {table} REPLICA IDENTITY FULL"]),
        )
    place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")


def _seen(rows: pa.Table) -> tuple[list[str], Counter[str]]:
    names = sorted(name for name in rows.column_names if name[0] != "_")
    return names, Counter(repr([comparable(row[name]) for name in names]) for row in rows.to_pylist())


def _on_server(place: Place, table: str) -> tuple[list[str], Counter[str]]:
    names, rows = rows_of(place.database, table)
    order = sorted(range(len(names)), key=lambda k: names[k])
    found: Counter[str] = Counter()
    for row, count in rows.items():
        found[repr([eval(row)[k] for k in order])] += count
    return sorted(names), found


def _expect_fresh(place: Place, table: str, expected: tuple[list[str], Counter[str]], **more: Any) -> None:
    """`fresh` gives the rows, whatever columns are read; and so do the datasets of `query`."""
    rows = fresh(place.target, f"public.{table}", **more)
    assert _seen(rows) == expected
    for name in expected[0]:
        one = fresh(place.target, f"public.{table}", [name], **more)
        assert Counter(one[name].to_pylist()) == Counter(rows[name].to_pylist()), name
    at = TablesAt(place.target, more.get("position", "latest"), TableOptions()).open(f"public.{table}")
    assert _seen(at.scanner().to_table()) == expected


@pytest.mark.few_servers
@pytest.mark.parametrize("form", _FORMS)
def test_each_position(server: Server, tmp_path: Path, form: str) -> None:
    """Before the current table has a rename, which only the history has then, and after it."""
    format, merge = form.split()
    with opened(server, tmp_path) as place:
        more = {"format": format, "merge": merge, "rename_columns": True}
        _make(place, *_TABLES)
        place.run(**more)
        seen = []
        for n, step in enumerate(_STEPS):
            for table in _TABLES:
                statements = [each.format(t=table) for each in step]
                if n == 0 and table == "with_key":
                    statements = [f"BEGIN; {'; '.join(statements)}; COMMIT"]
                place.database.execute(*statements)
            place.killed(_KILLS[format], "--format", format, "--merge", merge, "--rename-columns")
            expected = {table: _on_server(place, table) for table in _TABLES}
            for table in _TABLES:
                _expect_fresh(place, table, expected[table])
            lsn = fresh(place.target, "public.whole").schema.metadata[b"position"].decode()
            place.run(**more)
            for table in _TABLES:
                _expect_fresh(place, table, expected[table])
                assert _seen(current_of(place.target, f"public.{table}", format=format)) == expected[table]
                assert loads_of(place, f"public.{table}") == 1, (n, table)
            seen.append((lsn, expected))
        assert [str(each) for each in verify(place.target, place.database.dsn) if not each.equal] == []
        for lsn, expected in seen if format == "iceberg" else ():
            for table in _TABLES:
                _expect_fresh(place, table, expected[table], position=lsn)
        for table in _TABLES if format == "iceberg" else ():
            _expect_others(place, table, expected[table])


def _expect_others(place: Place, table: str, expected: tuple[list[str], Counter[str]]) -> None:
    """Other readers of Iceberg find the columns by their ids."""
    found = open_table(place.target / "current", f"public.{table}")
    assert _seen(found.scan().to_arrow()) == expected
    if not any(task.delete_files for task in found.scan().plan_files()):
        native = pl.scan_iceberg(found, reader_override="native").collect().to_arrow()
        assert _seen(native) == expected
    assert _seen(read_by_ids(found)) == expected
