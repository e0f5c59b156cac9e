"""The option `where` of `format("pgoutput")`: exactly the rows that Spark's filter gives, and fewer of them are read."""

from __future__ import annotations

import itertools
import operator
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, list_segments, write_segment
from pgoutput_fast.spark.source.where import parse_where
from pgoutput_fast.spark.tasks.rows import changes_of
from pyspark_pgoutput import DefaultSource
from support.forms import and_slow

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
OTHER = RelationSpec(16402, "public", "Other, Table", (ColumnSpec("id", 23, key=True),))
OTHER_NAME = 'public."Other, Table"'
TABLES = f"public.orders, {OTHER_NAME}"
SECOND = 1_000_000  # of the server's clock, which begins in 2000


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight segments. As sent, rows of streams have no LSN of a commit. One stream is never committed."""
    directory: Path = tmp_path_factory.mktemp("segments")
    writer, state = Writer(4, streaming="on"), None
    for n in range(8):
        lsn, at = 1000 * (n + 1), n * SECOND
        wal = writer.begin(100 + n, lsn, at)
        wal += writer.change(ORDERS, "insert", new=[str(n), "new"])
        wal += writer.change(ORDERS, "update", old=[str(n), "new"], new=[str(n), "changed"])
        wal += writer.change(OTHER, "insert", new=[str(n)])
        wal += (
            writer.change(ORDERS, "delete", key=[str(n), None]) if n % 2 else writer.truncate([ORDERS, OTHER])
        )
        wal += writer.commit(lsn, lsn + 8, at)
        if n in (2, 5):
            wal += writer.stream_start(900 + n)
            wal += writer.change(ORDERS, "insert", new=[str(-n), "streamed"], xid=900 + n)
            wal += writer.stream_stop()
        if n == 6:
            wal += writer.stream_commit(902, 7500, 7508, 6 * SECOND)
        lsns = [lsn - 500 + k if k % 3 else None for k in range(len(wal))]
        tagged, state = pgo.tag(wal, state, lsn=lsns)
        write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
    return directory


def _reader(path: Path, where: str | None, **more: str) -> Any:
    options = {"path": str(path), "table": TABLES, **more, **({} if where is None else {"where": where})}
    source = DefaultSource(CaseInsensitiveDict(options))
    return source.reader(source.schema())


def _rows_of(reader: Any, parts: Any) -> list[dict[str, Any]]:
    task = pickle.loads(cloudpickle.dumps(reader))
    return [row for part in parts for each in task.read(part) for row in each.to_pylist()]


def _read(path: Path, where: str | None, **more: str) -> list[dict[str, Any]]:
    reader = _reader(path, where, **more)
    return _rows_of(reader, reader.partitions())


def _at(second: int) -> datetime:
    return datetime(2000, 1, 1, 0, 0, second, tzinfo=UTC)


# Columns -> a value in the middle, as it is written, and as it is.
VALUES: dict[str, tuple[str, Any]] = {
    "_seq": ("20", 20),
    "_lsn": ("4504", 4504),
    "_txn": ("8", 8),
    "_xid": ("103", 103),
    "_commit_lsn": ("5000", 5000),
    "_commit_timestamp": ("'2000-01-01 00:00:04Z'", _at(4)),
}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _one(column: str, compare: str) -> tuple[str, Callable[[dict[str, Any]], bool]]:
    text, value = VALUES[column]

    def passes(row: dict[str, Any]) -> bool:
        return row[column] is not None and COMPARISONS[compare](row[column], value)

    return f"{column} {compare} {text}", passes


def _among(column: str, *values: Any) -> Callable[[dict[str, Any]], bool]:
    return lambda row: row[column] in values


CASES: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
    *(_one(column, compare) for column, compare in itertools.product(VALUES, COMPARISONS)),
    ("_seq IN (2, 30, 1000)", _among("_seq", 2, 30)),
    ("_lsn in(4504,4505)", _among("_lsn", 4504, 4505)),
    ("_commit_lsn IN (3000, 7500)", _among("_commit_lsn", 3000, 7500)),
    ("_commit_lsn = '0/1D4C'", _among("_commit_lsn", 7500)),
    ("_commit_lsn IN ('0/BB8', 7500) AND _commit_lsn IN (7500, 8000)", _among("_commit_lsn", 7500)),
    ("_commit_lsn > 9000 AND _commit_lsn < 10", _among("_seq")),
    ("_commit_lsn > 99999999999999999999", _among("_seq")),
    ("_subxid >= 0", lambda row: row["_subxid"] is not None),
    (
        "_commit_timestamp IN (TIMESTAMP '2000-01-01T00:00:04+00:00', '2000-01-01 02:00:06+02:00')",
        _among("_commit_timestamp", _at(4), _at(6)),
    ),
    ("_change_type = 'update_postimage'", _among("_change_type", "update_postimage")),
    ("_change_type IN ('update_preimage', 'delete')", _among("_change_type", "update_preimage", "delete")),
    ("_change_type = 'truncate' AND _change_type = 'insert'", _among("_seq")),
    ("_relation = 'public.\"Other, Table\"'", _among("_relation", OTHER_NAME)),
    (f"_relation IN ('public.orders', '{OTHER_NAME}')", lambda row: True),
    (
        "  _relation = 'public.orders'\nand `_change_type` = 'insert' AND _commit_lsn > 2000 AND _seq < 60 ",
        lambda row: (
            row["_relation"] == "public.orders"
            and row["_change_type"] == "insert"
            and (row["_commit_lsn"] or 0) > 2000
            and row["_seq"] < 60
        ),
    ),
]


@pytest.mark.parametrize("transactions", ["committed", "as_sent"])
def test_exactly_the_rows_that_pass(segments: Path, transactions: str) -> None:
    every = _read(segments, None, transactions=transactions)
    assert {row["_commit_lsn"] is None for row in every} == {False, transactions == "as_sent"} | {False}
    assert {row["_lsn"] is None for row in every} == {False, True}
    empty = 0
    for where, passes in CASES:
        wanted = [row for row in every if passes(row)]
        found = _read(segments, where, transactions=transactions)
        assert sorted(found, key=str) == sorted(wanted, key=str), where
        empty += not wanted
    assert empty < len(CASES) / 4


def test_a_condition_needs_no_column_of_the_result(segments: Path) -> None:
    where = "_change_type = 'update_postimage' AND _commit_lsn = 3000"
    assert _read(segments, where, table="public.orders", columns="note", transactions="committed") == [
        {"note": "changed"}
    ]
    assert _read(segments, where, metadata="_seq", transactions="committed") == [
        {
            "_seq": row["_seq"],
            "_relation": "public.orders",
            "public.orders": {"id": 2, "note": "changed"},
            OTHER_NAME: None,
        }
        for row in _read(segments, where, transactions="committed")
    ]
    given = {"path": str(segments), "table": "public.orders", "where": where, "extra_columns": "drop"}
    pinned = DefaultSource(CaseInsensitiveDict(given)).reader(
        StructType().add("note", "string").add("_seq", "long")
    )
    assert _rows_of(pinned, pinned.partitions()) == [{"note": "changed", "_seq": 16}]
    renamed = _read(segments, "pg_seq = 2", table="public.orders", metadata_prefix="pg_")
    assert [(row["pg_seq"], row["id"]) for row in renamed] == [(2, 0)]


@pytest.mark.parametrize(
    ("transactions", "where", "expected"),
    [
        # With outcomes, the driver knows the transactions, and leaves out segments.
        ("committed", "_commit_lsn > 7000", (6, 3, 15)),
        ("committed", "_commit_lsn = 7500", (1, 2, 11)),
        ("committed", "_commit_timestamp > '2100-01-01T00:00:00Z'", (0, 0, 0)),
        ("committed", "_seq < 8", (6, 1, 5)),
        # As sent, tasks look at the statistics of row groups, and read none that has no such row.
        ("as_sent", "_commit_lsn > 7000", (5, 8, 4)),
        ("as_sent", "_lsn = 4504", (2, 8, 2)),
        # Rows of other tables and kinds are not decoded.
        ("as_sent", "_relation = 'public.orders'", (34, 8, 38)),
        ("as_sent", "_change_type = 'update_preimage'", (8, 8, 38)),
    ],
)
def test_less_is_read(segments: Path, transactions: str, where: str, expected: tuple[int, int, int]) -> None:
    def work(where: str | None) -> tuple[int, int, int]:
        """(the number of rows for Spark, of tasks, of tagged changes that they read)"""
        reader = _reader(segments, where, transactions=transactions, partition_bytes="1")
        parts = [part for part in reader.partitions() if part.spec.parts]
        changes = sum(each.num_rows for part in parts for each in changes_of(part.spec))
        return len(_rows_of(reader, parts)), len(parts), changes

    assert work(None) == ({"committed": 45, "as_sent": 46}[transactions], 8, 38)
    assert work(where) == expected


@pytest.mark.parametrize("transactions", ["committed", "as_sent"])
def test_a_stream(segments: Path, transactions: str) -> None:
    ends = [0, *(each.last_seq + 1 for each in list_segments(segments))]
    options = {"path": str(segments), "table": TABLES, "transactions": transactions, "where": CASES[-1][0]}
    source = DefaultSource(CaseInsensitiveDict(options))
    reader = source.streamReader(source.schema())
    found = [
        row
        for begin, end in itertools.pairwise(ends)
        for row in _rows_of(reader, reader.partitions({"seq": begin}, {"seq": end}))
    ]
    every = _read(segments, None, transactions=transactions)
    assert sorted(found, key=str) == sorted(filter(CASES[-1][1], every), key=str)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "must be conditions joined by AND"),
        ("_seq > 5 AND", "must be conditions joined by AND"),
        ("_seq > 5 OR _seq < 3", r"not '_seq > 5 OR _seq < 3'"),
        ("_seq > 5 AND NOT _seq = 7", r"not 'NOT _seq = 7'"),
        ("_seq <> 5", "must be conditions joined by AND"),
        ("_seq IN ()", "must be conditions joined by AND"),
        ("id = 5", r"can have _change_type, _seq, .*_relation, not id: let Spark filter by other columns"),
        ("seq = 5", "not seq: let Spark filter"),
        ("_seq = 'x'", "'x' is no value of _seq"),
        ("_commit_lsn = '0/XYZ'", "'0/XYZ' is no value of _commit_lsn"),
        ("_commit_timestamp > '2024-02-29 12:00:00'", "needs a time zone, as in"),
        ("_commit_timestamp > 5", "5 is no value of _commit_timestamp"),
        ("_change_type = 'update'", "'update' is no value of _change_type: there is insert, update_preimage"),
        ("_change_type < 'update'", "is no value of _change_type"),
        ("_change_type > 'delete'", "compare _change_type with = or IN, not with >"),
        ("_relation = 'public.nothing'", "no value of _relation: there is public.orders, "),
    ],
)
def test_other_texts_are_refused(segments: Path, where: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"option where.*{message}"):
        _reader(segments, where)


def test_one_table_has_no_column_of_relations() -> None:
    with pytest.raises(ValueError, match="not _relation: let Spark"):
        parse_where("_relation = 'public.orders'", "_", None)


# --- on Spark -----------------------------------------------------------------------------------------------------


def _frame(spark: Any, path: Path, transactions: str, **more: str) -> Any:
    reader = spark.read.format("pgoutput").option("table", TABLES).option("transactions", transactions)
    return reader.options(**more).load(str(path))


def _sorted(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row["_seq"], row["_change_type"], row["_relation"]))


@pytest.mark.parametrize("transactions", and_slow(["committed"], ["as_sent"]))
@pytest.mark.parametrize("cases", and_slow([CASES[-1:]], [CASES[:-1]]))
def test_conditions_mean_what_spark_means(
    spark: Any, segments: Path, transactions: str, cases: list[tuple[str, Any]]
) -> None:
    every = _frame(spark, segments, transactions).cache()
    for where, _ in cases:
        if "0/" in where:  # Spark has no LSNs as texts
            continue
        chosen = _frame(spark, segments, transactions, where=where)
        assert _sorted(chosen) == _sorted(every.where(where)), where
    every.unpersist()


@pytest.mark.slow
def test_filters_of_spark_do_not_change_other_queries(spark: Any, segments: Path) -> None:
    """Spark 4.3 reads for all queries of a DataFrame what the last pushed filter left, and so lost rows."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = _frame(spark, segments, "as_sent", metadata="_seq", columns="public.orders")
        few, many = frame.where("_seq < 20").select("_seq"), frame.where("_seq > 20").select("_seq")
        assert few.count() == 17
        assert frame.select("_seq").count() == 46
        assert few.union(many).count() == 46 - frame.where("_seq = 20").count()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
