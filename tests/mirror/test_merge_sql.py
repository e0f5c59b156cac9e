"""Generated MERGE statements: on DuckDB they give what the changes give one by one, and Spark takes them as they are."""

from __future__ import annotations

import itertools
import re
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pgoutput_fast.mirror import effect_rows, merge_statements, net_effect
from pgoutput_fast.mirror.current.columns import in_schema, stored_schema
from pgoutput_fast.mirror.effect.effect import Effect, Unfilled, current_schema
from reference.current import CurrentRows
from support.histories import History, histories
from support.mirrors import Place, place
from support.paths import DOCS

__all__ = ["place"]

TARGET, SOURCE = 'shop."my orders"', '"effect rows"'
ODD = ["it's \"`\\", "select", "a b"]


def _connection(schema: pa.Schema) -> Any:
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA shop")
    connection.register("empty", schema.empty_table())
    connection.execute(f"CREATE TABLE {TARGET} AS SELECT * FROM empty")
    return connection


def _run(connection: Any, effect: Effect) -> None:
    rows = effect_rows(effect)
    connection.register(SOURCE[1:-1], rows)
    names = [name for name in effect.rows.column_names if name not in effect.key]
    unfilled = [each.column for each in effect.unfilled]
    truncated = effect.truncated
    for statement in merge_statements(
        TARGET, SOURCE, effect.key, names, "duckdb", truncated=truncated, unfilled=unfilled
    ):
        connection.execute(statement)


def _rows(connection: Any, key: tuple[str, ...], schema: pa.Schema) -> list[str]:
    found = CurrentRows(key, schema)
    found.rows = in_schema(connection.sql(f"SELECT * FROM {TARGET}").to_arrow_table(), schema).to_pylist()
    return found.sorted()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories(keyed=True), st.lists(st.integers(1, 8), max_size=4))
def test_merges_give_what_the_changes_give(history: History, cuts: list[int]) -> None:
    """Each stretch is merged twice, as after a crash."""
    kinds = [history.schema.field(name).type for name in history.key]
    assume(not any(map(pa.types.is_floating, kinds)))  # DuckDB sees no difference between 0 and -0
    schema = stored_schema(current_schema(history.columns))
    one_by_one = CurrentRows(history.key, history.columns)
    edges = sorted({0, *(cut for cut in cuts if cut < len(history.transactions)), len(history.transactions)})
    with _connection(schema) as connection:
        for begin, end in itertools.pairwise(edges):
            changes = [change for each in history.transactions[begin:end] for change in each]
            table = history.table(changes)
            one_by_one.apply_changes(table.to_pylist())
            effect = net_effect(table, history.key)
            for _ in range(2):
                _run(connection, effect)
                assert _rows(connection, history.key, schema) == one_by_one.sorted()


def _moved(old: int) -> Effect:
    """A row gets the key 2. One of its values is that of the row which had another key before."""
    columns = pa.schema([(ODD[0], pa.int64()), (ODD[1], pa.string()), (ODD[2], pa.string())])
    schema = current_schema(columns)
    rows = pa.Table.from_pylist([{ODD[0]: 2, ODD[1]: "new", "_commit_lsn": 200}], schema)
    keys = pa.table({ODD[0]: [old]})
    return Effect((ODD[0],), False, keys, rows, (Unfilled(ODD[2], pa.array([0]), keys),))


BEFORE = {ODD[0]: 1, ODD[1]: "old", ODD[2]: "large", "_commit_lsn": 100, "_unrepresentable": [ODD[2]]}
AFTER = {ODD[0]: 2, ODD[1]: "new", ODD[2]: "large", "_commit_lsn": 200, "_unrepresentable": [ODD[2]]}


def test_a_value_that_was_not_sent_comes_from_the_row_with_the_old_key() -> None:
    schema = _moved(1).rows.schema
    with _connection(schema) as connection:
        connection.register("there", pa.Table.from_pylist([BEFORE], schema))
        connection.execute(f"INSERT INTO {TARGET} SELECT * FROM there")
        _run(connection, _moved(1))
        _run(connection, _moved(1))
        assert in_schema(connection.sql(f"FROM {TARGET}").to_arrow_table(), schema).to_pylist() == [AFTER]
    with (
        _connection(schema) as connection,
        pytest.raises(duckdb.Error, match="lacks a row that changes refer"),
    ):
        _run(connection, _moved(1))


@pytest.mark.classic("the parser is in the JVM")
@pytest.mark.parametrize("dialect", ["delta", "iceberg"])
def test_spark_parses_the_statements(spark: Any, dialect: Any) -> None:
    parser = spark._jsparkSession.sessionState().sqlParser()
    for unfilled in ([], [ODD[2]]):
        statements = merge_statements(
            "lake.shop.`my orders`",
            "`effect rows`",
            [ODD[0]],
            ODD[1:],
            dialect,
            truncated=True,
            unfilled=unfilled,
        )
        plans = [parser.parsePlan(each).toString() for each in statements]
        assert plans[0].startswith("'DeleteFromTable")
        assert "MergeIntoTable" in plans[1]


def test_spark_runs_the_query_of_the_source(spark: Any) -> None:
    """All of a statement but MERGE itself, for which there is no engine here."""
    effect = _moved(1)
    spark.createDataFrame(effect_rows(effect)).createOrReplaceTempView("merge_effect")
    spark.createDataFrame(pa.Table.from_pylist([BEFORE], effect.rows.schema)).createOrReplaceTempView(
        "merge_there"
    )
    (merge,) = merge_statements("merge_there", "merge_effect", [ODD[0]], ODD[1:], "delta", unfilled=[ODD[2]])
    query = merge.partition("USING (")[2].partition(") AS s\n")[0]
    put, gone = spark.sql(query).orderBy("_commit_lsn", ascending=False).toArrow().to_pylist()
    assert put == {**AFTER, "_op": "put"}
    assert (gone["_op"], gone[ODD[0]]) == ("gone", 1)
    spark.createDataFrame(effect_rows(_moved(3))).createOrReplaceTempView("merge_effect")
    with pytest.raises(Exception, match="lacks a row that changes refer"):
        spark.sql(query).collect()


def test_the_page(place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """docs/current-tables.md: a history becomes a table of DuckDB."""
    page = (DOCS / "current-tables.md").read_text()
    (code,) = [
        each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "merge_statements" in each
    ]
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "INSERT INTO orders VALUES (1, 'first'), (2, 'second')",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    place.run()
    place.database.execute("UPDATE orders SET id = 3 WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    place.run()
    monkeypatch.chdir(place.target.parent)
    names: dict[str, Any] = {}
    exec(compile(code, "current-tables.md", "exec"), names)
    assert names["engine"].sql("SELECT id, note FROM orders").fetchall() == [(3, "first")]
    assert "first" in capfd.readouterr().out


def test_wrong_arguments() -> None:
    for arguments, message in (
        (([], ["a"], "delta"), "its rows are copies"),
        ((["a"], ["a"], "delta"), "a column is named twice"),
        ((["a"], ["b"], "oracle"), "dialect must be"),
    ):
        with pytest.raises(ValueError, match=message):
            merge_statements("t", "s", *arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key must be a list"):
        merge_statements("t", "s", "id", [], "delta")
    none = pa.table({"a": pa.array([], pa.int64()), "_op": pa.array([], pa.string())})
    rows = current_schema(none.schema).empty_table()
    with pytest.raises(ValueError, match="its rows are copies"):
        effect_rows(Effect((), False, none, rows))
    with pytest.raises(ValueError, match=r"has a column '_op'"):
        effect_rows(Effect(("a",), False, none.select(["a"]), rows))
