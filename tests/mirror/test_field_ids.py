"""The Parquet files of Iceberg tables have the ids of their columns, so that readers need no mapping of names."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.formats import open_current
from pgoutput_fast.tables.options import TableOptions
from support.iceberg_files import files_of, forget_ids, has_ids, open_table, read_by_ids
from support.mirrors import Place, place

__all__ = ["place"]


@pytest.fixture
def prepared(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    place.database.execute(
        "CREATE TYPE pair AS (x int, words text[])",
        "CREATE TABLE t (id int PRIMARY KEY, note text, p pair, ps pair[], span int4range, ratio float8)",
        "INSERT INTO t SELECT n, n, ROW(n, '{a,NULL}'::text[])::pair, ARRAY[ROW(n, '{b}'::text[])::pair], int4range(n, n + 2), n / 2.0 "
        "FROM generate_series(1, 5) n",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run(format="iceberg")
    return place


def _table(place: Place) -> Any:
    return open_table(place.target / "current", "public.t")


def _expect_rows(place: Place) -> None:
    """Each reader finds the rows of the server."""
    with place.database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, note, (p).x, (ps[1]).words[1], lower(span), ratio FROM t ORDER BY id")
        expected = cursor.fetchall()
    native = pl.scan_iceberg(_table(place), reader_override="native").collect().to_arrow()
    for rows in (_table(place).scan().to_arrow(), native):
        assert _chosen(rows) == expected


def _chosen(rows: Any) -> list[tuple[Any, ...]]:
    found = []
    for row in sorted(rows.to_pylist(), key=lambda row: row["id"]):
        words, span = row["ps"][0]["words"][0] if row["ps"] else None, row["span"] and row["span"]["lower"]
        found.append((row["id"], row["note"], row["p"] and row["p"]["x"], words, span, row["ratio"]))
    return found


@pytest.mark.slow
def test_files_have_ids(prepared: Place) -> None:
    database = prepared.database
    for statements in (
        ["UPDATE t SET note = 'new' WHERE id = 2", "INSERT INTO t (id) VALUES (6)"],
        ["ALTER TABLE t ADD later pair", "UPDATE t SET later = (7, '{c}') WHERE id = 1"],
        [
            "ALTER TABLE t DROP note",
            "ALTER TABLE t ADD note text",
            "UPDATE t SET id = id + 10 WHERE id > 3",
        ],
        ["TRUNCATE t", "INSERT INTO t (id, later) VALUES (1, (7, '{c}'))"],
    ):
        database.execute(*statements)
        prepared.run(format="iceberg")
        table = _table(prepared)
        assert all(map(has_ids, files_of(table)))
        expected = table.scan().to_arrow().sort_by("id")
        assert read_by_ids(table).sort_by("id").equals(expected)
    assert expected["later"].to_pylist() == [{"x": 7, "words": ["c"]}]


@pytest.mark.slow
def test_tables_of_earlier_versions(prepared: Place) -> None:
    forget_ids(_table(prepared))
    _expect_rows(prepared)
    prepared.database.execute("INSERT INTO t (id, note, ps) VALUES (6, 'new', '{}'), (7, NULL, '{}')")
    prepared.run(format="iceberg")
    assert sorted(map(has_ids, files_of(_table(prepared)))) == [False, True]
    _expect_rows(prepared)
    prepared.database.execute("UPDATE t SET note = 'new', p.x = 8 WHERE id = 2")
    prepared.run(format="iceberg")
    assert all(map(has_ids, files_of(_table(prepared))))
    _expect_rows(prepared)


def test_names_that_iceberg_cannot_tell_apart(place: Place) -> None:
    place.database.execute(
        "CREATE TYPE pair AS (b int)",
        'CREATE TABLE t (id int PRIMARY KEY, a pair, "a.b" int)',
        'CREATE TABLE l (id int PRIMARY KEY, l int[], "l.element" int)',
        'CREATE TABLE r (id int PRIMARY KEY, r int4range, "r.lower" int)',
        "CREATE TABLE ok (id int PRIMARY KEY)",
        "INSERT INTO ok VALUES (1)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    with place.mirror(format="iceberg") as mirror:
        mirror.run(until_lsn="now")
        problems = {each.table: each.error for each in mirror.status()}
    assert problems.pop("public.ok") is None
    for table, parts in {
        "public.t": "'a' and 'a.b'",
        "public.l": "'l' and 'l.element'",
        "public.r": "'r' and 'r.lower'",
    }.items():
        assert f"cannot have both columns {parts}: in Iceberg" in str(problems[table])


@pytest.mark.slow
def test_schemas_that_are_no_namespaces(place: Place) -> None:
    schemas = ["..", " ", ".a", "a..b"]
    for schema in schemas:
        place.database.execute(f'CREATE SCHEMA "{schema}"', f'CREATE TABLE "{schema}".t (id int PRIMARY KEY)')
    place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
    place.run(format="iceberg")
    place.database.execute(*(f'INSERT INTO "{schema}".t VALUES (1)' for schema in schemas))
    place.run(format="iceberg")
    for schema in schemas:
        rows = open_current("iceberg", open_store(place.target), f'"{schema}".t', TableOptions()).read()
        assert rows["id"].to_pylist() == [1]
