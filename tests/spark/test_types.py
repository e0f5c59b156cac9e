"""Every type that the core decodes, on real Spark: what the JVM holds is what Arrow has, from text and from binary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.types
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.errors import AnalysisException
from pyspark.sql import functions

import pgoutput_fast as pgo
from cells import built_in_cases, scalar_cases
from cells.built_in_cases import COLUMN_TYPES, LEFT_OUT, pg_type_sql
from cells.range_cases import MULTIRANGES, POINTS, RANGES
from pgoutput_fast import encode
from pgoutput_fast import spark as pgspark
from pgoutput_fast.catalog.builtin_types import BUILT_IN_TYPES
from pgoutput_fast.decoding.result import Decoded
from pgoutput_fast.encode.values import to_text
from pgoutput_fast.schema.column_types import column_type_of
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.segments import Source, write_segment
from pgoutput_fast.spark.types import spark_schema
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.files import TableFiles
from support import pg
from support.forms import and_slow
from support.oracle import plain_records
from support.paths import DOCS

# Of each type so many values, the first of its list: the others differ for the core only.
ROWS = 24
VALIDATE = "spark.sql.execution.arrow.pyspark.validateSchema.enabled"
USER_TYPES = """
    CREATE TYPE mood AS ENUM ('ok', 'not "so", {ok}');
    CREATE TYPE pair AS (at time, spent interval, u uuid, "A b" numeric(10,2));
    CREATE TYPE span AS RANGE (subtype = interval);
    CREATE DOMAIN price AS numeric(10,2)
"""
# Columns of types that need more than values, and of those that a server must explain.
MORE = {
    "u_mood": ("mood", ["ok", 'not "so", {ok}']),
    "u_moods": ("mood[]", ['{ok,NULL,"not \\"so\\", {ok}"}']),
    "u_pair": ("pair", ["(12:34:56.5,1 mon,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,1.5)", "(,,,)", "(24:00:00,,,NaN)"]),
    "u_pairs": ("pair[]", ['{"(00:00:00,-1 day,,)",NULL}']),
    "u_span": ("span", ["[1 day,2 days)", "empty", "(,)"]),
    "u_price": ("price", ["12345678.90", "NaN"]),
    "u_times": ("time[]", ["{23:59:59.999999,24:00:00,NULL}", "[2:2]={00:00:01}", "{{00:00:01},{00:00:02}}"]),
    "u_days": ("interval[]", ["{1 year,-00:00:01,NULL}"]),
}  # fmt: skip


def _columns(version: int) -> dict[str, tuple[str, list[str]]]:
    """Column -> (type, values), for every case that the tests of the core have, alone, as arrays and as ranges."""
    found: dict[str, tuple[str, list[str]]] = {}
    cases: dict[str, Any] = {**scalar_cases.CASES, **built_in_cases.CASES}
    for name, case in cases.items():
        if version < case.since:
            continue
        newer = [value for since, more in case.newer.items() if version >= since for value in more]
        values = [value for value in [*newer, *case.values] if len(value) < 20_000][:ROWS]
        found[f"v_{name}"] = (case.sql, values)
        if getattr(case, "has_array", True):
            found[f"a_{name}"] = (f"{case.sql}[]", values)
    for name, ranges in RANGES.items():
        bounds = [value for value in ranges.bounds.values if len(value) < 200][:ROWS]
        literals = ["empty", "(,)", *("[" + _quoted(value) + ",)" for value in bounds)]
        found[f"v_{name}"] = (name, literals)
        found[f"a_{name}"] = (f"{name}[]", literals)
        found[f"m_{name}"] = (MULTIRANGES[name], ["{" + value + "}" for value in literals])
        found[f"ma_{name}"] = (f"{MULTIRANGES[name]}[]", ["{" + value + "}" for value in literals])
    found["v_point"] = ("point", POINTS)
    found["a_point"] = ("point[]", POINTS)
    return found | MORE


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'


@dataclass
class Every:
    """A table with a column of every type, as a server sent it in both formats.

    `texts` has what the server says an interval is, in ISO 8601, by its months, days and microseconds.
    """

    tagged: dict[str, pa.RecordBatch]
    decoded: dict[str, Decoded]
    state: pgo.StreamState
    texts: dict[tuple[int, int, int], str]

    @property
    def catalog(self) -> pgo.Catalog:
        return self.state.catalog

    def wal(self, spark: Any, format_: str) -> Any:
        return spark.createDataFrame(pa.Table.from_batches([self.tagged[format_]]))

    def expected(self, format_: str) -> list[dict[str, Any]]:
        table = self.decoded[format_].table("public.every")
        kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
        return [
            {name: self._on_spark(kinds[name], value) for name, value in row.items()}
            for row in plain_records(table)
        ]

    def _on_spark(self, kind: pa.DataType, value: Any) -> Any:
        """A value as the table of types promises it, written without what makes it so."""
        if value is None:
            return None
        if pa.types.is_time(kind):
            seconds, micros = divmod(value, 10**6)
            return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
        if pa.types.is_interval(kind):
            return self.texts[value[0], value[1], value[2] // 1000]
        if pa.types.is_list(kind):
            return [self._on_spark(kind.value_type, each) for each in value]
        if pa.types.is_struct(kind):
            return {field.name: self._on_spark(field.type, value[field.name]) for field in kind}
        return value


@pytest.fixture(scope="module")
def every(servers: pg.Servers) -> Iterator[Every]:
    """On the newest server that there is: the others are for the tests of the core."""
    if not pg.installations():
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(pg.installations())])
    try:
        yield _captured(database)
    finally:
        database.drop()


def _captured(database: pg.Database) -> Every:
    with database.slot() as slot:
        slot.execute(
            scalar_cases.TEXT_LIKE.format("citext"),
            'CREATE TYPE textrange AS RANGE (subtype = text, collation = "C")',
            "CREATE TYPE floatrange AS RANGE (subtype = float8)",
            USER_TYPES,
            'CREATE TABLE "odd ""name" ()',
        )
        columns = _columns(database.version)
        named = {sql for sql, _ in columns.values()}
        others = [
            (f"c_{oid}", pg_type_sql(name))
            for oid, name, _, element, category, _ in database.execute(COLUMN_TYPES)
            if name not in named and element not in LEFT_OUT and category != "c"
        ]
        described = [(name, sql) for name, (sql, _) in columns.items()] + others
        slot.execute(
            "CREATE TABLE every (id int, " + ", ".join(f'"{name}" {sql}' for name, sql in described) + ")"
        )
        with slot.connection.cursor() as cursor:
            for row in range(ROWS):
                cells = {
                    name: (sql, values[row])
                    for name, (sql, values) in columns.items()
                    if row < len(values) and _taken(cursor, name, sql, values[row])
                }
                names = ", ".join(f'"{name}"' for name in ["id", *cells])
                holes = ", ".join(["%s", *(_hole(name, sql) for name, (sql, _) in cells.items())])
                literals = [row, *(value for _, value in cells.values())]
                cursor.execute(f"INSERT INTO every ({names}) VALUES ({holes})", literals)
        slot.execute("INSERT INTO every (id) VALUES (-1)")
        sent = {"text": slot.peek(), "binary": slot.peek({"binary": "true"})}
        catalog = pgo.Catalog().enriched(slot.connection)
        tagged, decoded = {}, {}
        for format_, payloads in sent.items():
            messages = [data for _, data in payloads]
            tagged[format_], state = pgo.tag(messages, pgo.StreamState(catalog=catalog))
            decoded[format_] = pgo.Decoder(catalog=catalog).decode(messages)
        texts = _iso_8601(slot, decoded.values())
    return Every(tagged, decoded, state, texts)


def _is_array_of_one(name: str) -> bool:
    return name.startswith(("a_", "ma_"))


def _hole(name: str, sql: str) -> str:
    return f"ARRAY[%s::{sql[:-2]}, NULL]" if _is_array_of_one(name) else f"%s::{sql}"


def _taken(cursor: Any, name: str, sql: str, value: str) -> bool:
    """Whether the server takes it: the largest bound of a range has no successor, and some are built without xml."""
    try:
        cursor.execute(f"SELECT {_hole(name, sql)}", [value])
    except (cursor.connection.DataError, cursor.connection.NotSupportedError):
        return False
    return True


def _iso_8601(slot: pg.Slot, decoded: Any) -> dict[tuple[int, int, int], str]:
    found: set[tuple[int, int, int]] = set()

    def look(kind: pa.DataType, value: Any) -> None:
        if value is None:
            return
        if pa.types.is_interval(kind):
            found.add((value[0], value[1], value[2] // 1000))
        elif pa.types.is_list(kind):
            for each in value:
                look(kind.value_type, each)
        elif pa.types.is_struct(kind):
            for field in kind:
                look(field.type, value[field.name])

    for out in decoded:
        table = out.table("public.every")
        for field in table.schema:
            if "interval" in str(field.type):
                for row in plain_records(table.select([field.name])):
                    look(field.type, row[field.name])
    keys = sorted(found)
    slot.execute("SET IntervalStyle = 'iso_8601'")
    with slot.connection.cursor() as cursor:
        literals = [to_text("interval", (months, days, micros * 1000)) for months, days, micros in keys]
        cursor.execute(
            "SELECT v::interval::text FROM unnest(%s::text[]) WITH ORDINALITY AS u (v, n) ORDER BY n",
            (literals,),
        )
        said = [text for (text,) in cursor.fetchall()]
    return dict(zip(keys, said, strict=True))


# --- values -------------------------------------------------------------------------------------------------


def _rows(frame: Any) -> list[dict[str, Any]]:
    return sorted(plain_records(frame.toArrow()), key=lambda row: row["_seq"])


def test_no_type_is_forgotten(every: Every) -> None:
    schema = every.decoded["text"].table("public.every").schema
    seen = {field.metadata[b"pg.type"].decode() for field in schema if field.metadata}
    assert {each.name for each in BUILT_IN_TYPES} - seen == set()
    assert {f"{each.name}[]" for each in BUILT_IN_TYPES if each.array_oid} - seen == set()
    assert not [field.name for field in schema if (field.metadata or {}).get(b"pg.unknown")]


@pytest.mark.parametrize(
    ("format_", "validate"),
    and_slow([("text", "true"), ("binary", "false")], [("text", "false"), ("binary", "true")]),
)
def test_spark_holds_what_arrow_has(every: Every, spark: Any, format_: str, validate: str) -> None:
    spark.conf.set(VALIDATE, validate)
    try:
        got = _rows(pgspark.changes(every.wal(spark, format_), "public.every", catalog=every.catalog))
    finally:
        spark.conf.set(VALIDATE, "true")
    expected = every.expected(format_)
    assert len(got) == len(expected) == ROWS + 1
    for name in expected[0]:
        assert [row[name] for row in got] == [row[name] for row in expected], name
    empty = {name for name in got[0] if all(row[name] is None for row in got)}
    # Those that no cast makes, and what servers are built without.
    assert {name for name in empty if name[:2] in ("v_", "a_", "m_", "u_")} <= {"v_xml", "a_xml"}


@pytest.mark.parametrize("format_", ["text", "binary"])
def test_the_source_holds_it_too(every: Every, spark: Any, format_: str, tmp_path: Path) -> None:
    write_segment(tmp_path, every.tagged[format_], every.state, source=Source("1", "d", "s"))
    frame = spark.read.format("pgoutput").option("table", "public.every").load(str(tmp_path))
    expected = every.expected(format_)
    got = _rows(frame)
    for name in expected[0]:
        assert [row[name] for row in got] == [row[name] for row in expected], name


@pytest.mark.parametrize("arrow", and_slow([True], [False]) if hasattr(functions, "arrow_udf") else [False])
def test_decode_row_holds_it_too(every: Every, spark: Any, arrow: bool) -> None:
    relation = every.catalog.named("public.every")[-1]
    row = pgspark.udf.decode_row(relation, catalog=every.catalog, arrow=arrow)("payload", "in_stream")
    frame = every.wal(spark, "binary").select("seq", row.alias("row")).where("row is not null")
    got = {record["seq"]: record["row"]["after"] for record in plain_records(frame.toArrow())}
    expected = every.expected("binary")
    assert len(got) == len(expected)
    for row in expected:
        for name, value in got[row["_seq"]].items():
            assert value == row[name], name


@pytest.mark.slow
def test_what_spark_holds_can_be_written_and_read_again(every: Every, spark: Any, tmp_path: Path) -> None:
    frame = pgspark.changes(every.wal(spark, "binary"), "public.every", catalog=every.catalog)
    frame.write.format("noop").mode("overwrite").save()
    frame.write.parquet(str(tmp_path / "changes"))
    again = spark.read.parquet(str(tmp_path / "changes"))
    assert _rows(again) == _rows(frame)
    # The JVM has a text for every value.
    assert again.selectExpr("count(cast(struct(*) as string))").collect()[0][0] == ROWS + 1


@pytest.mark.parametrize("format_", ["text", "binary"])
def test_what_has_no_arrow_form_is_a_reject(every: Every, spark: Any, format_: str) -> None:
    found = pgspark.rejects(every.wal(spark, format_), "public.every", catalog=every.catalog)
    key = lambda row: (row["seq"], row["byte_offset"])  # noqa: E731
    got = sorted(found.toArrow().to_pylist(), key=key)
    assert got == sorted(every.decoded[format_].rejects.to_pylist(), key=key)
    columns = {row["column"] for row in got}
    assert {
        "v_date",
        "v_time",
        "v_timestamptz",
        "v_numeric_10_2",
        "v_interval",
        "a_date",
        "u_pair",
    } <= columns


@pytest.mark.slow
def test_moments_beyond_those_of_python(spark: Any) -> None:
    """Spark's dates and timestamps reach as far as Arrow's; only `collect` and Python functions end at 1 and 9999."""
    columns = {"d": 1082, "ts": 1114, "tz": 1184}
    spec = encode.RelationSpec(
        1, "public", "t", tuple(encode.ColumnSpec(name, oid) for name, oid in columns.items())
    )
    rows = [
        ["4714-11-24 BC", "4714-11-24 00:00:00 BC", "4714-11-24 00:00:00+00 BC"],
        ["0001-12-31 BC", "0001-12-31 23:59:59.999999 BC", "0001-12-31 23:59:59.999999+00 BC"],
        ["10000-01-01", "10000-01-01 00:00:00", "10000-01-01 00:00:00+00"],
        ["5874897-12-31", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775807+00"],
    ]
    writer = encode.Writer()
    wal = writer.begin(1, 1, 1)
    for row in rows:
        wal += writer.change(spec, "insert", new=row)
    wal += writer.commit(1, 2, 1)
    tagged = spark.createDataFrame(pa.Table.from_batches([pgo.tag(wal)[0]]))
    frame = pgspark.changes(tagged, "public.t")
    texts = frame.orderBy("_seq").selectExpr("cast(d as string)", "cast(ts as string)", "cast(tz as string)")
    # As astronomers count: the year before 1 is 0.
    assert [tuple(row) for row in texts.collect()] == [
        ("-4713-11-24", "-4713-11-24 00:00:00", "-4713-11-24 00:00:00"),
        ("0000-12-31", "0000-12-31 23:59:59.999999", "0000-12-31 23:59:59.999999"),
        ("+10000-01-01", "+10000-01-01 00:00:00", "+10000-01-01 00:00:00"),
        ("+5874897-12-31", "+294247-01-10 04:00:54.775807", "+294247-01-10 04:00:54.775807"),
    ]
    assert frame.where("d < date'0001-01-01'").count() == 2
    for column in columns:
        with pytest.raises((ValueError, OverflowError), match=r"out of range|ordinal must be"):
            frame.select(column).collect()
    assert pgspark.rejects(tagged).count() == 0
    [block] = re.findall(r"```python\n(.*?)```", section("What Spark holds"), re.DOTALL)
    exec(compile(block, "types.md", "exec"), {"far": frame})


@pytest.mark.slow
def test_times_can_be_of_type_time(every: Every, spark: Any) -> None:
    wal = every.wal(spark, "binary")
    if not hasattr(pyspark.sql.types, "TimeType"):
        with pytest.raises(ValueError, match=r"no type TIME: use Spark 4\.1 or later"):
            pgspark.changes(wal, "public.every", catalog=every.catalog, time="TIME")
        return
    columns = ["_seq", "v_time", "u_times", "u_pair", "a_time"]
    frame = pgspark.changes(wal, "public.every", catalog=every.catalog, time="TIME").select(columns)
    as_text = pgspark.changes(wal, "public.every", catalog=every.catalog).select(columns)
    assert frame.schema["v_time"].dataType == pyspark.sql.types.TimeType()
    # Spark prints no zeros at the end.
    cut = r"rtrim('.', rtrim('0', {}))"
    shown = frame.selectExpr(
        "_seq", "cast(v_time as string) v", "cast(u_times[0] as string) l", "cast(u_pair.at as string) s"
    )
    said = as_text.selectExpr(
        "_seq",
        *(
            f"{cut.format(name)} {short}"
            for name, short in (("v_time", "v"), ("u_times[0]", "l"), ("u_pair.at", "s"))
        ),
    )
    assert _rows(shown) == _rows(said)
    assert shown.where("v is not null").count() == 4
    frame.write.format("noop").mode("overwrite").save()
    with pytest.raises(ValueError, match="time must be"):
        pgspark.changes(wal, "public.every", catalog=every.catalog, time="time")  # type: ignore[arg-type]


def test_names_that_differ_in_case_alone(spark: Any, tmp_path: Path) -> None:
    spec = encode.RelationSpec(1, "public", "t", (encode.ColumnSpec("id", 23), encode.ColumnSpec("ID", 25)))
    writer = encode.Writer()
    wal = writer.begin(1, 1, 1) + writer.change(spec, "insert", new=["1", "x"]) + writer.commit(1, 2, 1)
    tagged, state = pgo.tag(wal)
    write_segment(tmp_path, tagged, state, source=Source("1", "d", "s"))
    for frame in (
        pgspark.changes(spark.createDataFrame(pa.Table.from_batches([tagged])), "public.t"),
        spark.read.format("pgoutput").option("table", "public.t").load(str(tmp_path)),
    ):
        assert tuple(frame.collect()[0])[-2:] == (1, "x")
        with pytest.raises(AnalysisException, match="AMBIGUOUS_REFERENCE"):
            _ = frame.select("id").schema
        spark.conf.set("spark.sql.caseSensitive", "true")
        try:
            assert tuple(frame.select("id", "ID").collect()[0]) == (1, "x")
        finally:
            spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.slow
def test_a_value_of_many_megabytes(spark: Any) -> None:
    spec = encode.RelationSpec(
        1,
        "public",
        "t",
        (encode.ColumnSpec("t", 25), encode.ColumnSpec("b", 17), encode.ColumnSpec("j", 1009)),
    )
    size = 8 << 20
    writer = encode.Writer()
    wal = writer.begin(1, 1, 1)
    wal += writer.change(
        spec, "insert", new=["é" * (size // 2), "\\x" + "ff" * size, "{" + "x" * size + ",NULL}"]
    )
    wal += writer.commit(1, 2, 1)
    frame = pgspark.changes(spark.createDataFrame(pa.Table.from_batches([pgo.tag(wal)[0]])), "public.t")
    lengths = frame.selectExpr("octet_length(t)", "length(b)", "length(j[0])", "j[1] is null").collect()
    assert [tuple(row) for row in lengths] == [(size, size, size, True)]


# --- the table of the page ----------------------------------------------------------------------------------

PAGE = (DOCS / "types.md").read_text()


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_page_says_what_the_code_does() -> None:
    """Every built-in type is in one row of the table, and that row is right."""
    said: dict[str, tuple[str, str]] = {}
    lines = re.findall(
        r"^\| ([^|]+) \| `([^|]+)` \| `([^|]+)` \|$", section("Each built-in type"), re.MULTILINE
    )
    for names, arrow, on_spark in lines:
        for name in re.split(r", (?![^(]*\))", names):
            assert name not in said, name
            said[name] = (arrow, on_spark)
    assert said == dict(_table())


def _table() -> Iterator[tuple[str, tuple[str, str]]]:
    """What the code makes of each type: its name, Arrow's type, Spark's."""
    for each in BUILT_IN_TYPES:
        if each.name != "numeric":
            yield each.name, _both(each.oid, -1, Options())
    yield "numeric(12,2)", _both(1700, (12 << 16 | 2) + 4, Options())
    yield "numeric", _both(1700, -1, Options())
    yield 'numeric with `numeric="float64"`', _both(1700, -1, Options(numeric="float64"))
    yield (
        "numeric with `numeric=pa.decimal128(20, 4)`",
        _both(1700, -1, Options(numeric=pa.decimal128(20, 4))),
    )
    yield 'uuid with `uuid="fixed_size_binary"`', _both(2950, -1, Options(uuid="fixed_size_binary"))
    yield 'uuid with `uuid="arrow.uuid"`', _both(2950, -1, Options(uuid="arrow.uuid"))
    yield 'text with `strings="string_view"`', _both(25, -1, Options(strings="string_view"))
    yield "int4[]", _both(1007, -1, Options())
    yield "time[]", _both(1183, -1, Options())


def test_the_page_says_what_tables_in_a_lake_have(tmp_path: Path) -> None:
    """The types that `write_tables` gives to columns of each Spark type, by the writers and libraries themselves."""
    said = re.findall(
        r"^\| `([^|]+)` \| `([^|]+)` \| `([^|]+)` \| `([^|]+)` \|$",
        section("Types of tables in a lake"),
        re.MULTILINE,
    )
    found = []
    for spark_name, *_ in said:
        kind = LAKE_TYPES[spark_name]
        assert spark_schema(pa.schema([("c", kind)]))["c"].dataType.simpleString() == spark_name
        schema = stored_schema(pa.schema([("c", kind)]), "table")
        with TableFiles(open_store(tmp_path), "run", False) as files:
            files.add(
                str(len(found)),
                pa.RecordBatch.from_arrays([pa.nulls(1, kind)], schema=pa.schema([("c", kind)])),
            )
        column = pq.read_metadata(tmp_path / str(len(found)) / files.written[0].name).schema.column(0)
        logical = column.logical_type.type
        parquet = f"{column.physical_type}{'' if logical == 'NONE' else f' ({logical})'}"
        (delta,) = json.loads(deltalake.Schema.from_arrow(schema).to_json())["fields"]
        with load_catalog("memory", type="in-memory", warehouse=str(tmp_path)) as catalog:
            catalog.create_namespace_if_not_exists("n")
            iceberg = catalog.create_table(f"n.t{len(found)}", schema).schema().find_field("c").field_type
        found.append((spark_name, parquet, delta["type"], str(iceberg).replace(" ", "")))
    assert found == said
    assert len(said) == len(LAKE_TYPES)


LAKE_TYPES = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(12,2)": pa.decimal128(12, 2),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def _both(oid: int, typmod: int, options: Options) -> tuple[str, str]:
    arrow = column_type_of(pgo.Column("c", oid, typmod, False), options).arrow
    schema = spark_schema(pa.schema([("c", arrow)]))
    return str(arrow).replace("item: ", ""), schema["c"].dataType.simpleString()
