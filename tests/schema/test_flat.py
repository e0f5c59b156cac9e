"""`Options(plain=True)`: tables that CSV, Parquet, DuckDB and others take, with the same values as text."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.schema.flat import flat_schema, flatten
from support.strategies import MODES, streams
from support.streams import ENRICHED, Stream

TABLE = RelationSpec(
    16384,
    "public",
    "t",
    (
        ColumnSpec("id", 23, key=True),
        ColumnSpec("spans", 1187),  # interval[]
        ColumnSpec("at", 1083),
        ColumnSpec("span", 1186),
        ColumnSpec("key", 2950),
        ColumnSpec("prices", 1231),  # numeric[]
        ColumnSpec("ranges", 3926),  # int8range
        ColumnSpec("days", 1182),  # date[]
        ColumnSpec("data", 1001),  # bytea[]
        ColumnSpec("rates", 1022),  # float8[]
    ),
)
ROW = [
    "1", '{"1 day",NULL}', "01:02:03", "1 mon 2 days", "6d819f2a-0d54-4a4c-8b0e-3b8fbb7d2c11", "{1.10,-0.5}", "[1,8)",
    "{2026-01-02,NULL}", '{"\\\\x00ff"}', "{1.5,NaN,Infinity}",
]  # fmt: skip


def _wal() -> list[bytes]:
    writer = Writer()
    return writer.begin(7, 100, 0) + writer.change(TABLE, "insert", new=ROW) + writer.commit(100, 108, 0)


def test_values() -> None:
    (row,) = pgo.decode(_wal(), options=pgo.Options(plain=True)).table("public.t").to_pylist()
    assert {name: value for name, value in row.items() if not name.startswith("_")} == {
        "id": 1,
        "spans": '["P1D", null]',
        "at": "01:02:03.000000",
        "span": "P1M2D",
        "key": "6d819f2a-0d54-4a4c-8b0e-3b8fbb7d2c11",
        "prices": '["1.10", "-0.5"]',
        "ranges": row["ranges"],
        "days": '["2026-01-02", null]',
        "data": '["\\\\x00ff"]',
        "rates": '[1.5, "NaN", "Infinity"]',
    }
    assert json.loads(row["ranges"])["lower"] == 1


def test_tools_take_them(tmp_path: Path) -> None:
    decoded = pgo.decode(_wal(), options=pgo.Options(plain=True, uuid="arrow.uuid", strings="string_view"))
    table = decoded.table("public.t")
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError)):
        pyarrow.csv.write_csv(pgo.decode(_wal()).table("public.t"), tmp_path / "no.csv")
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    assert pyarrow.csv.read_csv(tmp_path / "t.csv").column("prices").to_pylist() == ['["1.10", "-0.5"]']
    pq.write_table(table, tmp_path / "t.parquet")
    (row,) = pl.DataFrame(table).to_dicts()
    assert (row["span"], row["prices"], row["key"]) == ("P1M2D", '["1.10", "-0.5"]', ROW[4])
    path = str(tmp_path / "t.parquet")
    assert duckdb.sql(f"SELECT prices->>0 FROM '{path}'").fetchall() == [("1.10",)]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams(), MODES)
def test_it_is_what_the_other_form_is(stream: Stream, mode: Any) -> None:
    options = {"transactions": mode, "on_error": "quarantine"}
    whole = pgo.Decoder(pgo.Options(**options), catalog=ENRICHED).decode(stream.payloads)
    decoder = pgo.Decoder(pgo.Options(**options, plain=True), catalog=ENRICHED)
    flat = decoder.decode(stream.payloads)
    assert len(flat.changes) == len(whole.changes)
    for got, wanted in zip(flat.changes, whole.changes, strict=True):
        got.batch.validate(full=True)
        assert not any(map(pa.types.is_nested, got.batch.schema.types))
        assert got.batch.schema.equals(flat_schema(wanted.batch.schema), check_metadata=True)
        for name, column in zip(wanted.batch.schema.names, wanted.batch.columns, strict=True):
            found = got.batch.column(name)
            assert found.is_null().equals(column.is_null())
            if found.type.equals(column.type):
                assert found.equals(column) or str(found) == str(column)
            elif pa.types.is_list(column.type):
                assert _sizes(found) == pc.list_value_length(column).to_pylist()


def _sizes(texts: pa.Array) -> list[int | None]:
    return [None if each is None else len(json.loads(each)) for each in texts.to_pylist()]


def test_a_table_without_rows() -> None:
    writer = Writer()
    wal = writer.begin(7, 100, 0) + writer.change(TABLE, "insert", new=ROW)
    decoder = pgo.Decoder(pgo.Options(plain=True))
    first = decoder.decode(wal).table("public.t")
    assert decoder.decode(writer.commit(100, 108, 0)).table("public.t").schema.equals(first.schema)


def test_nested_values_are_json() -> None:
    kind = pa.struct([("n", pa.decimal128(5, 2)), ("l", pa.list_(pa.float64())), ("b", pa.binary())])
    values = [{"n": Decimal("1.10"), "l": [1.0, math.inf, None], "b": b"\xff"}, None]
    (text, none) = flatten(pa.record_batch({"s": pa.array(values, kind)})).column("s").to_pylist()
    assert json.loads(text) == {"n": "1.10", "l": [1.0, "Infinity", None], "b": "\\xff"}
    assert none is None


def test_a_map_is_an_object() -> None:
    kind = pa.map_(pa.string(), pa.string())
    values = [[("a", None), ("b", 'é"')], [], None]
    column = flatten(pa.record_batch({"m": pa.array(values, kind)})).column("m")
    assert column.to_pylist() == ['{"a": null, "b": "é\\""}', "{}", None]
    (text,) = flatten(pa.record_batch({"l": pa.array([values], pa.list_(kind))})).column("l").to_pylist()
    assert json.loads(text) == [{"a": None, "b": 'é"'}, {}, None]


def test_what_the_option_may_not_be() -> None:
    with pytest.raises(ValueError, match="plain must be True or False"):
        pgo.Options(plain="yes")  # type: ignore[arg-type]
