"""The fresh view on Spark is what the server has, while current tables are behind."""

from __future__ import annotations

from typing import Any

import pytest

from pgoutput_fast import spark as pgspark
from pgoutput_fast.mirror import fresh
from support.fresh import ahead, expect_rows, position_now, settled
from support.mirrors import Place, loads_of, lose_rows, place
from support.workload import Workload

__all__ = ["place"]


@pytest.mark.slow
def test_read_fresh(spark: Any, place: Place) -> None:
    """With files of a table whose name has characters that paths and SQL have for themselves."""
    database = place.database
    work = Workload("w", "fresh spark", database.version)
    odd = "public.\"a {b} 'c' `d`\""
    tables = [*(f"public.{name}" for name in work.tables), odd]
    database.execute(
        work.schema,
        f'CREATE TABLE {odd} ("k {{`}}" int PRIMARY KEY, "v\'\\" float8, big text)',
        f"ALTER TABLE {odd} ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO {odd} SELECT g, g, repeat('x', 5000) FROM generate_series(1, 5) g",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    database.execute(*work.transactions(5))
    with ahead(place):
        database.execute(*work.transactions(5))
        database.execute(f'UPDATE {odd} SET "k {{`}}" = 10, "v\'\\" = -0.0 WHERE "k {{`}}" = 1')
        lsn = position_now(place)
        for table in tables:
            rows = pgspark.read_fresh(place.target, table, position=settled(table, place, lsn), spark=spark)
            expect_rows(place, table, rows.toArrow())
        assert pgspark.read_fresh(place.target, odd, ["_commit_lsn"], lsn, spark).columns == ["_commit_lsn"]


@pytest.mark.slow
def test_tables_that_the_driver_reads(spark: Any, place: Place) -> None:
    """Current tables in DuckDB."""
    database = place.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamp)", "CREATE PUBLICATION mirrored FOR TABLE t"
    )
    with ahead(place, format="duckdb"):
        database.execute("INSERT INTO t VALUES (1, '2026-02-28 11:30:00'), (2, NULL)")
        lsn = position_now(place)
        expect_rows(
            place, "public.t", pgspark.read_fresh(place.target, "public.t", None, lsn, spark).toArrow()
        )


@pytest.mark.slow
def test_new_columns_with_values(spark: Any, place: Place) -> None:
    """The files of the current tables do not have them yet."""
    made = "(id int PRIMARY KEY, note text)", "SELECT g, 'n' || g FROM generate_series(1, 5) g"
    place.database.execute(
        *(f"CREATE TABLE {t} {made[0]}; INSERT INTO {t} {made[1]}" for t in ("filled", "renamed")),
        "CREATE PUBLICATION mirrored FOR TABLE filled, renamed",
    )
    with ahead(place):
        place.database.execute(
            *(f"UPDATE {t} SET note = 'm' WHERE id = 1" for t in ("filled", "renamed")),
            "ALTER TABLE filled ADD c numeric(5, 2) DEFAULT 1.5, ADD d date DEFAULT '2020-02-29'",
            "UPDATE filled SET c = NULL WHERE id = 2",
            "ALTER TABLE renamed RENAME note TO text",
            "INSERT INTO renamed (id) VALUES (6)",
        )
        lsn = position_now(place)
        for table in ("public.filled", "public.renamed"):
            expect_rows(place, table, pgspark.read_fresh(place.target, table, None, lsn, spark).toArrow())
        one = pgspark.read_fresh(place.target, "public.renamed", ["text"], lsn, spark).toArrow()
        assert sorted(map(str, one["text"].to_pylist())) == ["None", "m", "n2", "n3", "n4", "n5"]
    assert [loads_of(place, f"public.{table}") for table in ("filled", "renamed")] == [1, 1]


@pytest.mark.slow
def test_renamed_columns_in_place(spark: Any, place: Place) -> None:
    """Tasks read files of a table without former names. Later the driver does, which finds columns by their ids."""
    more: dict[str, Any] = {"format": "iceberg", "rename_columns": True}
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text, a int)",
        "INSERT INTO t SELECT g, 'n' || g, g FROM generate_series(1, 5) g",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    with ahead(place, **more):
        place.database.execute(
            "UPDATE t SET note = 'm' WHERE id = 1",
            "ALTER TABLE t RENAME note TO text",
            "INSERT INTO t (id) VALUES (6)",
            "DELETE FROM t WHERE id = 2",
        )
        lsn = position_now(place)
        rows = pgspark.read_fresh(place.target, "public.t", None, lsn, spark)
        assert {"id", "text", "a"} == {name for name in rows.columns if name[0] != "_"}
        expect_rows(place, "public.t", rows.toArrow())
        one = pgspark.read_fresh(place.target, "public.t", ["text"], lsn, spark).toArrow()
        assert sorted(map(str, one["text"].to_pylist())) == ["None", "m", "n3", "n4", "n5"]
    place.run(**more)
    place.database.execute("ALTER TABLE t ADD note text", "UPDATE t SET note = 'new' WHERE id = 3")
    place.run(**more)
    expect_rows(place, "public.t", pgspark.read_fresh(place.target, "public.t", spark=spark).toArrow())
    assert loads_of(place, "public.t") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{}, {"format": "iceberg", "rename_columns": True}], ids=["beside", "in place"]
)
def test_values_without_an_arrow_form(spark: Any, place: Place, more: dict[str, Any]) -> None:
    """`_unrepresentable` has the new name of a renamed column, and a row without a key is found by it."""
    tables = ("with_key", "whole")
    place.database.execute(
        *(f"CREATE TABLE {table} (id int, b date, z date)" for table in tables),
        "ALTER TABLE with_key ADD PRIMARY KEY (id)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        *(
            f"INSERT INTO {table} VALUES (1, 'infinity', 'infinity'), (2, 'infinity', NULL), (3, NULL, 'infinity')"
            for table in tables
        ),
        "CREATE PUBLICATION mirrored FOR TABLE with_key, whole",
    )
    with ahead(place, **more):
        for table in tables:
            place.database.execute(
                f"ALTER TABLE {table} RENAME b TO c",
                f"INSERT INTO {table} VALUES (4, '-infinity', NULL)",
                f"DELETE FROM {table} WHERE id = 1",
            )
        lsn = position_now(place)
        for table in tables:
            read = pgspark.read_fresh(place.target, f"public.{table}", ["id", "_unrepresentable"], lsn, spark)
            marks = {row["id"]: row["_unrepresentable"] for row in read.toArrow().to_pylist()}
            assert marks == {2: ["c"] if more else ["b", "c"], 3: ["z"], 4: ["c"]}
            rows = fresh(place.target, f"public.{table}", ["id", "_unrepresentable"], lsn)
            assert {row["id"]: row["_unrepresentable"] for row in rows.to_pylist()} == marks
    assert [loads_of(place, f"public.{table}") for table in tables] == [1, 1]


@pytest.mark.slow
def test_rows_that_are_marked_deleted(spark: Any, place: Place) -> None:
    """The files have them. A version without marked rows is read by tasks."""
    database = place.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT n, 0 FROM generate_series(1, 100) n",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run(merge="on_read")
    database.execute("UPDATE t SET n = 1 WHERE id < 10", "DELETE FROM t WHERE id = 50")
    place.run(merge="on_read")
    with ahead(place, merge="on_read"):
        database.execute("UPDATE t SET n = 2 WHERE id < 5", "DELETE FROM t WHERE id = 60")
        lsn = position_now(place)
        rows = pgspark.read_fresh(place.target, "public.t", None, settled("public.t", place, lsn), spark)
        expect_rows(place, "public.t", rows.toArrow())
    assert any(place.target.glob("current/public.t/_vectors/*"))


@pytest.mark.slow
def test_columns_that_go_without_a_key(spark: Any, place: Place) -> None:
    """Whole rows are compared by the columns of their time."""
    database = place.database
    database.execute(
        "CREATE TABLE t (a int, b int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 10), (2, 20)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    with ahead(place):
        database.execute("DELETE FROM t WHERE b = 10", "ALTER TABLE t DROP COLUMN b", "DELETE FROM t")
        database.execute("INSERT INTO t VALUES (5)")
        lsn = position_now(place)
        expect_rows(
            place, "public.t", pgspark.read_fresh(place.target, "public.t", None, lsn, spark).toArrow()
        )


@pytest.mark.slow
def test_rows_that_are_lost(spark: Any, place: Place) -> None:
    database = place.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, 1, repeat('x', 5000))",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    with ahead(place, sound=False):
        database.execute("UPDATE t SET n = 2")
        position_now(place)
        lose_rows(place, "public.t")
        with pytest.raises(ValueError, match="the table lacks 1 row that changes refer to"):
            pgspark.read_fresh(place.target, "public.t", spark=spark)
