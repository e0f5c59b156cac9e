"""Columns that get their new names in place (`rename_columns`): readers at each position, and kills between the steps."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import fresh, verify
from pgoutput_fast.mirror.follow.quiet_tables import QuietTables
from pgoutput_fast.mirror.view.datasets import TablesAt
from pgoutput_fast.tables.options import TableOptions
from support.ducklake import LAKE
from support.forms import and_slow
from support.iceberg_files import files_of, forget_ids, has_ids, open_table, read_by_ids
from support.mirrors import (
    Place,
    comparable,
    current_of,
    history_of,
    loads_of,
    mirrored_rows,
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
_KILLS |= {"delta": _KILLS["iceberg"], "ducklake": _KILLS["duckdb"]}


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


def _marks(rows: pa.Table, names: list[str]) -> dict[int, list[str]]:
    """The columns whose values have no Arrow form, as far as the server has them, by id."""
    marks = rows.select(["id", "_unrepresentable"]).to_pylist()
    assert len({row["id"] for row in marks}) == len(marks)
    return {row["id"]: [name for name in names if name in (row["_unrepresentable"] or ())] for row in marks}


def _marks_on_server(place: Place, table: str) -> tuple[list[str], dict[int, list[str]]]:
    with place.database.session() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table} LIMIT 0")
        names = [column.name for column in cursor.description]
        cursor.execute(f"SELECT id, {', '.join(f'{name}::text' for name in names)} FROM {table}")
        rows = {
            row[0]: [name for name, text in zip(names, row[1:], strict=True) if "infinity" in (text or "")]
            for row in cursor.fetchall()
        }
        return names, rows


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


@pytest.mark.newest_server
@pytest.mark.parametrize("form", _FORMS)
def test_each_position(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Before the current table has a rename, which only the history has then, and after it."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
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


# What is done to both tables (id, a, b, z), whose columns b (a list of dates) and z (a date) have infinite values.
_MARKED_STEPS = (
    (
        "INSERT INTO {t} VALUES (6, 6, '{{infinity}}', NULL)",
        "UPDATE {t} SET a = 7 WHERE id = 5",
        "ALTER TABLE {t} RENAME b TO c",
        "INSERT INTO {t} VALUES (7, 7, '{{2020-01-01, -infinity}}', 'infinity')",
        "UPDATE {t} SET a = a + 10 WHERE id IN (3, 6)",
        "DELETE FROM {t} WHERE id = 1",
    ),
    (
        "ALTER TABLE {t} RENAME c TO d",
        "DELETE FROM {t} WHERE id = 5",
        "UPDATE {t} SET a = 8 WHERE id IN (2, 3)",
    ),
    ("ALTER TABLE {t} DROP z", "DELETE FROM {t} WHERE id = 7", "UPDATE {t} SET a = 9 WHERE id IN (2, 6)"),
    ("ALTER TABLE {t} RENAME d TO e",),
    ("ALTER TABLE {t} ADD d date[]", "UPDATE {t} SET d = '{{infinity}}' WHERE id IN (2, 3)"),
)


@pytest.mark.newest_server
@pytest.mark.parametrize(
    "form",
    [
        *and_slow(
            ["delta on_write beside", "iceberg on_read in place"],
            [
                ("duckdb on_write in place",),
                ("delta on_read beside",),
                ("iceberg on_write beside",),
                ("iceberg on_write in place",),
                ("duckdb on_write beside",),
            ],
        ),
        pytest.param("ducklake on_write beside", marks=LAKE),
        pytest.param("ducklake on_write in place", marks=LAKE),
    ],
)
def test_values_without_an_arrow_form(server: Server, tmp_path: Path, form: str) -> None:
    """`_unrepresentable` has the name that a column has now: in the table, in `fresh` before it, and for `verify`."""
    format, merge, way = form.split(" ", 2)
    more = {"format": format, "merge": merge, "rename_columns": way == "in place"}
    options = ["--format", format, "--merge", merge, *(["--rename-columns"] if way == "in place" else [])]
    with opened(server, tmp_path) as place:
        for table in _TABLES:
            place.database.execute(
                f"CREATE TABLE {table} (id int {'PRIMARY KEY' if table == 'with_key' else 'NOT NULL'}, a int, b date[], z date)",
                f"ALTER TABLE {table} ALTER b SET STORAGE EXTERNAL",  # an update does not send a large value again
                f"ALTER TABLE {table} REPLICA IDENTITY {'DEFAULT' if table == 'with_key' else 'FULL'}",
                f"INSERT INTO {table} VALUES (1, 1, '{{infinity}}', 'infinity'), (2, 2, '{{2020-01-01}}', 'infinity'), "
                "(3, 3, array_fill('infinity'::date, ARRAY[3000]), 'infinity'), (4, 4, NULL, NULL), "
                "(5, 5, '{infinity}', '2020-01-01')",
            )
        place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
        place.run(**more)
        seen: list[Any] = []
        # Beside it, the old column is still there: a new one of its name needs a load.
        for n, step in enumerate(_MARKED_STEPS if way == "in place" else _MARKED_STEPS[:-1]):
            for table in _TABLES:
                statements = [each.format(t=table) for each in step]
                if n == 0 and table == "with_key":
                    statements = [f"BEGIN; {'; '.join(statements)}; COMMIT"]
                place.database.execute(*statements)
            if len(step) > 1:
                place.killed([*_KILLS[format][:2], 1], *options)
            else:
                place.run(**more)
            for done in (len(step) == 1, True):
                if done:
                    place.run(**more)
                for table in _TABLES:
                    names, expected = _marks_on_server(place, table)
                    assert _marks(fresh(place.target, f"public.{table}"), names) == expected
                    few = fresh(place.target, f"public.{table}", ["_unrepresentable", "id"])
                    assert _marks(few, names) == expected
                    if done:
                        rows = current_of(place.target, f"public.{table}", format=format)
                        assert _marks(rows, names) == expected
            assert [str(each) for each in verify(place.target, place.database.dsn) if not each.equal] == []
            at = fresh(place.target, "public.whole").schema.metadata[b"position"].decode()
            seen.append((at, {table: _marks_on_server(place, table) for table in _TABLES}))
        assert [loads_of(place, f"public.{table}") for table in _TABLES] == [1, 1]
        for at, tables in seen if format != "duckdb" else ():
            for table, (names, expected) in tables.items():
                assert _marks(fresh(place.target, f"public.{table}", position=at), names) == expected


def _expect_others(place: Place, table: str, expected: tuple[list[str], Counter[str]]) -> None:
    """Other readers of Iceberg find the columns by their ids."""
    found = open_table(place.target / "current", f"public.{table}")
    assert _seen(found.scan().to_arrow()) == expected
    if not any(task.delete_files for task in found.scan().plan_files()):
        native = pl.scan_iceberg(found, reader_override="native").collect().to_arrow()
        assert _seen(native) == expected
    assert _seen(read_by_ids(found)) == expected


@pytest.mark.parametrize("ids", [True, False])
def test_the_files_stay(place: Place, ids: bool) -> None:
    """Of a table without changes, whose values only the catalogs bring. Files without ids are written again."""
    _make(place, "whole")
    more: dict[str, Any] = {"format": "iceberg", "rename_columns": True}
    place.run(**more)
    before = files_of(open_table(place.target / "current", "public.whole"))
    if not ids:
        forget_ids(open_table(place.target / "current", "public.whole"))
    place.database.execute("ALTER TABLE whole RENAME b TO c")
    for _ in range(2):
        place.run(**more)
    table = open_table(place.target / "current", "public.whole")
    assert (files_of(table) == before) == ids
    assert all(map(has_ids, files_of(table)))
    assert _seen(table.scan().to_arrow()) == _seen(read_by_ids(table)) == _on_server(place, "whole")
    _expect_fresh(place, "whole", _on_server(place, "whole"))
    place.database.execute("UPDATE whole SET a = 9 WHERE id = 2", "DELETE FROM whole WHERE id = 3")
    place.run(**more)
    _expect_fresh(place, "whole", _on_server(place, "whole"))
    assert loads_of(place, "public.whole") == 1


@pytest.mark.parametrize("format", and_slow(["iceberg"], [("duckdb",)]))
@pytest.mark.parametrize("number", and_slow([1], [(-1,)]))
@pytest.mark.parametrize("at", and_slow(["table"], [("history",)]))
def test_killed_at_a_table_without_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch, format: str, number: int, at: str
) -> None:
    """A rename that the current table has is in place, whatever the option of the next run is."""
    kill = (
        _KILLS[format][:2] if at == "table" else ["pgoutput_fast.mirror.follow.history", "AppendTable.commit"]
    )
    _make(place, "whole")
    place.run(format=format)
    place.database.execute("ALTER TABLE whole RENAME b TO c")
    with monkeypatch.context() as patch:
        patch.setattr(QuietTables, "_fill", lambda *_: None)
        place.run(format=format)
    place.killed([*kill, number], "--format", format, "--rename-columns")
    if at == "table":
        place.run(format=format)
    else:
        place.run(format=format, rename_columns=True)
    assert _seen(current_of(place.target, "public.whole", format=format)) == _on_server(place, "whole")
    place.database.execute("INSERT INTO whole VALUES (9, 9, 'c')")
    place.run(format=format)
    _expect_fresh(place, "whole", _on_server(place, "whole"))
    assert history_of(place.target, "public.whole")["_change_type"].to_pylist().count("alter") == 1
    assert loads_of(place, "public.whole") == 1


@pytest.mark.parametrize("format", and_slow(["duckdb"], [("iceberg",)]))
def test_each_run_may_choose(place: Place, format: str) -> None:
    """A column that became a new one stays so, and one that got its name in place, too."""
    _make(place, "with_key")
    place.run(format=format)
    for former, name, in_place in (("b", "c", False), ("e", "f", True), ("c", "d", True), ("d", "g", False)):
        place.database.execute(
            f"ALTER TABLE with_key RENAME {former} TO {name}", "UPDATE with_key SET a = a + 1 WHERE id = 2"
        )
        place.run(format=format, rename_columns=in_place)
        names, expected = rows_of(place.database, "with_key")
        assert mirrored_rows(fresh(place.target, "public.with_key"), names) == expected
    rows = current_of(place.target, "public.with_key", format=format)
    assert {name for name in rows.column_names if name[0] != "_"} == {"id", "a", "b", "d", "f", "g"}
    assert loads_of(place, "public.with_key") == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("seed", range(6))
def test_random_names(place: Place, seed: int, form: str) -> None:
    """Columns come, go and get names that others had. Some runs are killed. With an odd seed, some lack the option.

    There, each step ends with a change: without one, a column does not get the name of another one that is still there.
    """
    dice = random.Random(seed)
    format, merge = form.split()
    _make(place, *_TABLES)
    place.run(format=format, merge=merge)
    done, seen = list[str](), dict[str, dict[str, Any]]()
    for step in range(12):
        for table in _TABLES:
            names = [name for name in _on_server(place, table)[0] if name not in ("id", "a", "e")]
            free = [name for name in "bcdfg" if name not in names]
            statements = [
                *(f"UPDATE {table} SET {name} = '{step}' WHERE id = 2" for name in names[:1]),
                f"INSERT INTO {table} (id, a) VALUES ({100 + step}, 1)",
                f"UPDATE {table} SET a = a + 1 WHERE id % 3 = {step % 3}",
                f"DELETE FROM {table} WHERE id = {dice.randrange(3, 6)} AND a > 5",
            ]
            alter = dice.choice(
                [
                    *(f"RENAME {name} TO {dice.choice(free)}" for name in names if free),
                    *(f"ADD {name} text" for name in free[:1]),
                    *(f"DROP {dice.choice(names)}" for _ in names[2:3]),
                ]
            )
            at = dice.randrange(1, len(statements) + 1)
            statements.insert(at, f"ALTER TABLE {table} {alter}")
            if seed % 2:
                statements.append(f"UPDATE {table} SET a = a + 1 WHERE id = 1")
            elif dice.random() < 0.3:
                statements = statements[at:] if dice.random() < 0.5 else [statements[at]]
            done += statements
            place.database.execute(*statements)
        in_place = not seed % 2 or dice.random() < 0.6
        options = ["--format", format, "--merge", merge, *(["--rename-columns"] if in_place else [])]
        try:
            if dice.random() < 0.3:
                with contextlib.suppress(AssertionError):  # without changes, it ends
                    place.killed(_KILLS[format], *options)
            for _ in range(2):
                place.run(format=format, merge=merge, rename_columns=in_place)
            lsn = fresh(place.target, "public.whole").schema.metadata[b"position"].decode()
            for table in _TABLES:
                names, expected = rows_of(place.database, table)
                rows = fresh(place.target, f"public.{table}")
                assert mirrored_rows(rows, names) == expected
                assert (
                    mirrored_rows(current_of(place.target, f"public.{table}", format=format), names)
                    == expected
                )
                seen.setdefault(lsn, {})[table] = rows
            for position, tables in seen.items() if format == "iceberg" else ():
                for table, rows in tables.items():
                    if loads_of(place, f"public.{table}") == 1:
                        found = fresh(place.target, f"public.{table}", position=position)
                        assert _seen(found) == _seen(rows), (position, table)
        except Exception as problem:
            raise AssertionError(f"seed {seed}, step {step}: {done}") from problem


def test_delta_cannot(place: Place) -> None:
    with pytest.raises(ValueError, match=r"rename_columns is not possible for delta tables, .* leave it out"):
        place.mirror(rename_columns=True)
