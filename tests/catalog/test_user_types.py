"""Enums, domains, composites and extension types on every server, with and without a catalog that knows them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.extensions import GEOGRAPHY, GEOMETRY
from cells.nested import TYPES as KNOWN
from cells.scalar_cases import CASES
from pgoutput_fast.capture import Snapshot
from pgoutput_fast.decoding.result import Decoded
from pgoutput_fast.schema.column_types import column_type_of
from support import pg
from support.extensions import TYPES, decoded_as_read, require_extension
from support.oracle import comparable, enriched, plain_records, same_as_reference
from support.snapshots import same_as_changes

# Fields of one composite: every scalar case that is quick to write.
FIELDS = [name for name in CASES if name != "citext"]


def decode(slot: pg.Slot, format_: str) -> Decoded:
    (out,) = same_as_reference(slot.peek({"binary": "true"} if format_ == "binary" else {}), **enriched(slot))
    return out


def fresh(slot: pg.Slot, *types: str) -> None:
    """Types of that name may be left from the other format's test."""
    for each in types:
        slot.execute(f"DROP TYPE IF EXISTS {each} CASCADE")


def names_for(version: int) -> list[str]:
    return [name for name in FIELDS if CASES[name].since <= version]


def test_composite_has_the_fields_that_the_server_says_it_has(database: pg.Database, format_: str) -> None:
    names = names_for(database.version)
    values = {name: [None, *(v for v in CASES[name].values if len(v) < 3000)] for name in names}
    count = max(map(len, values.values()))
    with database.slot() as slot:
        fresh(slot, "every")
        slot.execute(
            f"CREATE TYPE every AS ({', '.join(f'c_{name} {CASES[name].sql}' for name in names)})",
            "CREATE TABLE composed (id int PRIMARY KEY, v every, a every[])",
            "INSERT INTO composed VALUES (1000, NULL, NULL)",
        )
        with slot.connection.cursor() as cursor:
            for k in range(count):
                row = [values[name][k % len(values[name])] for name in names]
                record = ", ".join(f"%s::{CASES[name].sql}" for name in names)
                cursor.execute(
                    f"INSERT INTO composed SELECT {k}, r, ARRAY[r, NULL, r] FROM (SELECT ROW({record})::every AS r) AS s",
                    row,
                )
        reads = ", ".join(f"(v).c_{n} IS NULL, {CASES[n].read.format(f'(v).c_{n}')}" for n in names)
        asked = slot.execute(f"SELECT {reads} FROM composed WHERE id < 1000 ORDER BY id")
        out = decode(slot, format_)
        slot.execute("DROP TABLE composed")
    expected: list[Any] = []
    lost = []
    for row in asked:
        record_of = {}
        missing = False
        for k, name in enumerate(names):
            value = None if row[2 * k] else CASES[name].parse(row[2 * k + 1])
            record_of[f"c_{name}"] = value
            missing = missing or (value is None and not row[2 * k])
        expected.append(record_of)
        lost.append(missing)
    table = out.table("public.composed").sort_by("id")
    struct = pa.struct([(f"c_{name}", CASES[name].arrow) for name in names])
    assert table.schema.field("v").type == struct
    assert table.schema.field("a").type == pa.list_(struct)
    assert b"pg.unknown" not in table.schema.field("a").metadata
    rows = plain_records(table)
    assert [row["v"] for row in rows] == [*comparable(expected), None]
    assert [row["a"] for row in rows] == [*([each, None, each] for each in comparable(expected)), None]
    assert [row["_unrepresentable"] for row in rows] == [
        *(["v", "a"] if each else None for each in lost),
        None,
    ]
    assert any(lost)
    assert [row["seq"] for row in out.rejects.to_pylist()] == sorted(
        row["_seq"] for row, each in zip(rows, lost, strict=False) if each for _ in "va"
    )


USER_TYPES = [
    """CREATE TYPE mood AS ENUM ('sad', 'ok', 'très, "bien"', 'null', '{}')""",
    "CREATE DOMAIN price AS numeric(10,2)",
    "CREATE DOMAIN discount AS price CHECK (VALUE < 10)",
    "CREATE DOMAIN tags AS text[]",
    "CREATE DOMAIN feeling AS mood",
    "CREATE TYPE pair AS (a int, gone text, b text)",
    "ALTER TYPE pair DROP ATTRIBUTE gone",
    "CREATE TYPE one AS (x text)",
    'CREATE TYPE "Odd ""t"" ype" AS ("a b" pair, ps pair[], p point, r tsrange, d discount, t tags, m mood)',
    "CREATE TYPE nothing AS ()",
    "CREATE TABLE kind (id int, label text, gone int, last bool)",
    "ALTER TABLE kind DROP COLUMN gone",
]
NAMES = ["mood", "price", "discount", "tags", "feeling", "pair", "one", '"Odd ""t"" ype"', "nothing"]


def test_types_of_users(database: pg.Database, format_: str) -> None:
    with database.slot() as slot:
        slot.execute("DROP TABLE IF EXISTS used, kind CASCADE")
        fresh(slot, *NAMES[::-1])
        slot.execute(*USER_TYPES)
        slot.execute(
            """CREATE TABLE used (id int PRIMARY KEY, m mood, ms mood[], p price, d discount, t tags, f feeling, c pair,
                cs pair[], x one, o "Odd ""t"" ype", n nothing, k kind)""",
            r"""INSERT INTO used VALUES (1, 'très, "bien"', '{sad,NULL,"null","très, \"bien\"","{}"}', 1.5, -2.25, '{a,NULL,"b c"}',
                'ok', '(1,"")', ARRAY['(1,x)', NULL, '(,"a ""\\b")']::pair[], ROW(NULL),
                ROW(ROW(1, 'é (")'), ARRAY[ROW(2, NULL)::pair, NULL], '(1,-0)', '[2000-01-01,infinity)', 9.99, '{"{}"}', 'sad'),
                ROW(), ROW(7, 'seven', true))""",
            "INSERT INTO used (id) VALUES (2)",
            """INSERT INTO used (id, x, cs, o) VALUES (3, ROW(''), '{}', ROW(NULL, '{}', NULL, 'empty', NULL, '{}', NULL))""",
        )  # fmt: skip
        out = decode(slot, format_)
    table = out.table("public.used")
    first, second, third = plain_records(table)
    columns = table.schema.names[11:]
    assert {name: second[name] for name in columns} == {"id": 2} | dict.fromkeys(columns[1:])
    assert {name: first[name] for name in columns} == {
        "id": 1, "m": 'très, "bien"', "ms": ["sad", None, "null", 'très, "bien"', "{}"],
        "p": first["p"], "d": first["d"], "t": ["a", None, "b c"], "f": "ok", "c": {"a": 1, "b": ""},
        "cs": [{"a": 1, "b": "x"}, None, {"a": None, "b": 'a "\\b'}], "x": {"x": None},
        "o": {
            "a b": {"a": 1, "b": 'é (")'}, "ps": [{"a": 2, "b": None}, None], "p": {"x": (1.0).hex(), "y": (-0.0).hex()},
            "r": {"lower": 946684800000000, "upper": None, "lower_inc": True, "upper_inc": False, "empty": False},
            "d": first["o"]["d"], "t": ["{}"], "m": "sad",
        },
        "n": {}, "k": {"id": 7, "label": "seven", "last": True},
    }  # fmt: skip
    assert [str(each) for each in (first["p"], first["d"], first["o"]["d"])] == ["1.50", "-2.25", "9.99"]
    assert (third["x"], third["cs"], third["o"]["ps"], third["o"]["t"]) == ({"x": ""}, [], [], [])
    assert third["o"]["r"]["empty"] is True
    assert [row["_unrepresentable"] for row in (first, second, third)] == [["o"], None, None]
    assert table.schema.field("p").type == pa.decimal128(10, 2)
    assert all(b"pg.unknown" not in field.metadata for field in table.schema if field.metadata)


def test_array_of_a_domain(database: pg.Database, format_: str) -> None:
    if database.version < 11:
        pytest.skip("arrays of domains exist since 11")
    with database.slot() as slot:
        slot.execute("DROP TABLE IF EXISTS domained")
        fresh(slot, "positives", "pos2")
        slot.execute(
            "CREATE DOMAIN pos2 AS numeric(6,2)",
            "CREATE DOMAIN positives AS pos2[]",
            "CREATE TABLE domained (id int PRIMARY KEY, v pos2[], w positives)",
            "INSERT INTO domained VALUES (1, '{1,NULL,NaN}', '{2.5}')",
        )
        out = decode(slot, format_)
    table = out.table("public.domained")
    assert table.schema.field("v").type == table.schema.field("w").type == pa.list_(pa.decimal128(6, 2))
    assert [str(each) for each in table.column("v").to_pylist()[0]] == ["1.00", "None", "None"]
    assert out.rejects.column("column").to_pylist() == ["v"]


def test_without_a_catalog_they_are_strings(database: pg.Database, format_: str) -> None:
    """The schema does not depend on the cells, and says that nobody explained the type."""
    with database.slot() as slot:
        slot.execute("DROP TABLE IF EXISTS bare")
        fresh(slot, "tone", "duo")
        slot.execute(
            "CREATE TYPE tone AS ENUM ('low', 'high')",
            "CREATE TYPE duo AS (a int, b tone)",
            "CREATE TABLE bare (id int PRIMARY KEY, t tone, d duo, ds duo[])",
            "INSERT INTO bare VALUES (1, 'low', '(1,high)', '{\"(2,low)\"}')",
        )
        payloads = slot.peek({"binary": "true"} if format_ == "binary" else {})
    (out,) = same_as_reference(payloads)
    table = out.table("public.bare")
    assert [table.schema.field(name).type for name in ("t", "d", "ds")] == [
        pa.string(), pa.string(), pa.list_(pa.string()),
    ]  # fmt: skip
    assert {table.schema.field(name).metadata[b"pg.unknown"] for name in ("t", "d", "ds")} == {b"true"}
    (t,) = table.column("t").to_pylist()
    assert t == ("low" if format_ == "text" else "\\x" + b"low".hex())


@pytest.mark.parametrize("name", TYPES)
def test_types_of_extensions(database: pg.Database, format_: str, name: str) -> None:
    """A column, an array and a domain have what SQL reads from the server, in text and in binary."""
    case = TYPES[name]
    require_extension(database, case.extension)
    with_array = case.has_binary or format_ == "text"
    array = f", a {case.sql}[]" if with_array else ""
    with database.slot() as slot:
        slot.execute(
            f"DROP TABLE IF EXISTS of_{name}",
            f"DROP DOMAIN IF EXISTS d_{name}",
            f"CREATE DOMAIN d_{name} AS {case.sql}",
            f"CREATE TABLE of_{name} (id int PRIMARY KEY, v {case.sql}, d d_{name}{array})",
            f"INSERT INTO of_{name} (id) VALUES (-1)",
        )
        with slot.connection.cursor() as cursor:
            for number, value in enumerate(case.values):
                arrays = f", ARRAY[%(v)s, NULL]::{case.sql}[]" if with_array else ""
                cursor.execute(f"INSERT INTO of_{name} VALUES ({number}, %(v)s, %(v)s{arrays})", {"v": value})
        expected = [
            decoded_as_read(value)
            for (value,) in slot.execute(f"SELECT {case.read.format('v')} FROM of_{name} ORDER BY id")
        ]
        catalog = pgo.Catalog().enriched(slot.connection)
        payloads = slot.peek({"binary": "true"} if format_ == "binary" else {})
        with Snapshot(database.dsn, [slot.name], tables=[f"public.of_{name}"]) as snapshot:
            loaded = same_as_changes(snapshot, payloads)[f"public.of_{name}"].sort_by("id")
        slot.execute(f"DROP TABLE of_{name}")
    table = pgo.Decoder(catalog=catalog).decode([data for _, data in payloads]).table(f"public.of_{name}")
    assert table.sort_by("id").column("v").equals(loaded.column("v"))
    table.validate(full=True)
    for column in ("v", "d"):
        assert [case.plain(value) for value in table.column(column).to_pylist()] == expected
        assert b"pg.unknown" not in table.schema.field(column).metadata
    if with_array:
        elements = [each and [case.plain(value) for value in each] for each in table.column("a").to_pylist()]
        assert elements == [None, *([value, None] for value in expected[1:])]


def test_what_geoarrow_says_of_a_geometry(database: pg.Database) -> None:
    require_extension(database, "postgis")
    with database.slot() as slot:
        slot.execute(
            """CREATE TABLE places (id int PRIMARY KEY, a geometry, b geometry(Point, 4326), c geometry(PointZ), d geography,
                e geography(LineString, 4267))""",
            "INSERT INTO places (id) VALUES (1)",
        )
        catalog = pgo.Catalog().enriched(slot.connection)
        payloads = slot.peek()
        slot.execute("DROP TABLE places")
    table = pgo.Decoder(catalog=catalog).decode([data for _, data in payloads]).table("public.places")
    fields = [table.schema.field(name).metadata for name in "abcde"]
    assert {each[b"ARROW:extension:name"] for each in fields} == {b"geoarrow.wkb"}
    assert [json.loads(each.get(b"ARROW:extension:metadata", "null")) for each in fields] == GEOARROW


GEOARROW = [
    None,
    {"crs": "4326", "crs_type": "srid"},
    None,
    {"crs": "4326", "crs_type": "srid", "edges": "spherical"},
    {"crs": "4267", "crs_type": "srid", "edges": "spherical"},
]


def test_what_geoarrow_says_of_recorded_modifiers() -> None:
    """atttypmod of the columns above, from PostGIS 3.3.2."""
    columns = [(GEOMETRY, -1), (GEOMETRY, 1107460), (GEOMETRY, 6), (GEOGRAPHY, -1), (GEOGRAPHY, 1092360)]
    found = [dict(column_type_of(pgo.Column("c", *each), pgo.Options(), KNOWN).metadata) for each in columns]
    assert {each["ARROW:extension:name"] for each in found} == {"geoarrow.wkb"}
    assert [json.loads(each.get("ARROW:extension:metadata", "null")) for each in found] == GEOARROW
