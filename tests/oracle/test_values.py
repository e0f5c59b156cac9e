"""Every type in scope on every server: what the server says its values are is what is decoded, text and binary."""

from __future__ import annotations

import io
import random
import struct
from dataclasses import dataclass
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.scalar_cases import CASES, SEED, TEXT_LIKE, Case, create, fill_arrays
from pgoutput_fast.decoding.result import Decoded
from support import pg
from support.oracle import comparable, plain_records, plain_type, same_as_reference

pytestmark = pytest.mark.few_servers

# A domain shows itself under its base type's name; its own typmod is not on the wire.
DOMAINS = [
    "bool",
    "int4",
    "float8",
    "numeric",
    "numeric_10_2",
    "varchar_40",
    "bytea",
    "uuid",
    "jsonb",
    "date",
    "timestamptz",
]


@dataclass
class Sent:
    """What a server sent for all cases, and what it says they are."""

    version: int
    payloads: dict[str, list[pg.Payload]]  # by format
    decoded: dict[str, Decoded]
    said: dict[str, list[Any]]  # table -> expected values, in order of id
    texts: dict[str, list[str]]  # table -> what the server prints


@pytest.fixture(scope="module")
def sent(database: pg.Database) -> Sent:
    print(f"seed {SEED} (PGOUTPUT_FAST_SEED)")
    version = database.version
    cases = {name: case for name, case in CASES.items() if version >= case.since}
    with database.slot() as slot:
        slot.execute(TEXT_LIKE.format("citext"))
        said, texts = {}, {}
        for name, case in cases.items():
            values = [None, *case.values_for(version, random.Random(f"{SEED} {name}")), None]
            create(slot, name, case.sql, values)
            fill_arrays(slot, name, case.sql)
            said[name], texts[name] = scalars(slot, f"v_{name}", case)
            said[f"{name}[]"], texts[f"{name}[]"] = arrays(slot, f"a_{name}", case)
        for name in DOMAINS:
            case = cases[name]
            slot.execute(
                f"CREATE DOMAIN d_{name} AS {case.sql}",
                f"CREATE TABLE vd_{name} (id int PRIMARY KEY, v d_{name})",
            )
            slot.execute(f"INSERT INTO vd_{name} SELECT * FROM v_{name}")
            slot.execute(
                f"CREATE DOMAIN da_{name} AS {case.sql}[]",
                f"CREATE TABLE ad_{name} (id int PRIMARY KEY, v da_{name})",
            )
            slot.execute(f"INSERT INTO ad_{name} SELECT * FROM a_{name}")
        payloads = {"text": slot.peek()}
        if version >= pg.FIRST_BINARY_VERSION:
            payloads["binary"] = slot.peek({"binary": "true"})
    decoded = {
        kind: pgo.decode([data for _, data in those], lsn=[lsn for lsn, _ in those])
        for kind, those in payloads.items()
    }
    return Sent(version, payloads, decoded, said, texts)


@dataclass(frozen=True)
class Expected:
    """A value; whether it, or an element of it, has no Arrow form; whether a lower bound was dropped."""

    value: Any
    unrepresentable: bool = False
    lower_bound_dropped: bool = False


def scalars(slot: pg.Slot, table: str, case: Case) -> tuple[list[Expected], list[str]]:
    rows = slot.execute(f"SELECT v IS NULL, {case.read.format('v')}, v::text FROM {table} ORDER BY id")
    expected = [
        Expected(None) if null else Expected(value := case.parse(read), value is None)
        for null, read, _ in rows
    ]
    return expected, [text for _, _, text in rows]


def arrays(slot: pg.Slot, table: str, case: Case) -> tuple[list[Expected], list[str]]:
    elements: dict[int, list[tuple[Any, bool]]] = {}
    for array, null, read in slot.execute(
        f"SELECT id, v[i] IS NULL, {case.read.format('v[i]')} FROM {table}, generate_subscripts(v, 1) AS i"
        " WHERE array_ndims(v) = 1 ORDER BY id, i"
    ):
        value = None if null else case.parse(read)
        elements.setdefault(array, []).append((value, value is None and not null))
    expected, texts = [], []
    for key, dimensions, lower, null, text in slot.execute(
        f"SELECT id, coalesce(array_ndims(v), 0), array_lower(v, 1), v IS NULL, v::text FROM {table} ORDER BY id"
    ):
        texts.append(text)
        if null:
            expected.append(Expected(None))
        elif dimensions > 1:
            expected.append(Expected(None, unrepresentable=True))
        else:
            those = elements.get(key, [])
            bad = any(unrepresentable for _, unrepresentable in those)
            expected.append(Expected([value for value, _ in those], bad, lower not in (None, 1) and not bad))
    return expected, texts


def check(sent: Sent, table: str, arrow: pa.DataType, expected: list[Expected], texts: list[str]) -> None:
    """Values, names of the unrepresentable and rejects are what the server's own reading demands."""
    names = set()
    for format_, out in sent.decoded.items():
        decoded = out.table(f"public.{table}").sort_by("id")
        assert decoded.schema.field("v").type == arrow
        rows = plain_records(decoded)
        assert [row["v"] for row in rows] == comparable([each.value for each in expected]), format_
        flagged = [row["_unrepresentable"] for row in rows]
        assert flagged == [["v"] if each.unrepresentable else None for each in expected], format_
        payload_of = dict(enumerate(data for _, data in sent.payloads[format_]))
        listed = [row for row in out.rejects.to_pylist() if row["relation"] == f"public.{table}"]
        rejects = {row["seq"]: row for row in listed}
        assert [row["seq"] for row in listed] == sorted(
            row["_seq"]
            for row, each in zip(rows, expected, strict=True)
            if each.unrepresentable or each.lower_bound_dropped
        )
        for row, text in zip(rows, texts, strict=True):
            reject = rejects.get(row["_seq"])
            if reject is None:
                continue
            assert (reject["column"], reject["change_type"], reject["format"]) == ("v", "insert", format_)
            assert reject["lsn"] == row["_lsn"]
            assert reject["type_oid"] == int(decoded.schema.field("v").metadata[b"pg.type_oid"])
            at = reject["byte_offset"]
            assert payload_of[row["_seq"]][at : at + len(reject["raw"])] == reject["raw"]
            if format_ == "text":
                assert reject["raw"].decode() == text
        names.add(format_)
    assert names == ({"text", "binary"} if sent.version >= pg.FIRST_BINARY_VERSION else {"text"})


def case_for(sent: Sent, name: str) -> Case:
    case = CASES[name]
    if sent.version < case.since:
        pytest.skip(f"{case.sql} exists since {case.since}")
    return case


@pytest.mark.parametrize("name", CASES)
def test_value_is_what_the_server_says_it_is(sent: Sent, name: str) -> None:
    case = case_for(sent, name)
    check(sent, f"v_{name}", case.arrow, sent.said[name], sent.texts[name])


@pytest.mark.parametrize("name", CASES)
def test_array_has_the_elements_that_the_server_says_it_has(sent: Sent, name: str) -> None:
    case = case_for(sent, name)
    check(sent, f"a_{name}", pa.list_(case.arrow), sent.said[f"{name}[]"], sent.texts[f"{name}[]"])


@pytest.mark.parametrize("name", DOMAINS)
def test_domain_decodes_as_its_base_type(sent: Sent, name: str) -> None:
    """Its own precision is not on the wire: a domain of numeric(10,2) is a numeric of any size."""
    for prefix, key in (("vd", name), ("ad", f"{name}[]")):
        arrow, said = CASES[name].arrow, sent.said[key]
        if pa.types.is_decimal(arrow):
            arrow, texts = pa.string(), sent.texts[key]
            if prefix == "vd":
                said = [Expected(text) for text in texts]
            else:
                said = [
                    Expected(
                        as_strings(each.value, text), each.value is None and each.unrepresentable, lower(text)
                    )
                    for each, text in zip(said, texts, strict=True)
                ]
        check(sent, f"{prefix}_{name}", arrow if prefix == "vd" else pa.list_(arrow), said, sent.texts[key])


def as_strings(value: Any, text: str | None) -> list[str | None] | None:
    """The elements of an array of numerics as the server prints them: nothing in there is ever quoted."""
    if value is None or text is None:
        return None
    body = text[text.index("{") + 1 : -1]
    return [None if each == "NULL" else each for each in body.split(",")] if body else []


def lower(text: str | None) -> bool:
    return text is not None and text.startswith("[") and "][" not in text


def test_text_and_binary_give_the_same_tables(sent: Sent) -> None:
    if "binary" not in sent.decoded:
        pytest.skip("binary values exist since 14")
    text, binary = (sent.decoded[kind] for kind in ("text", "binary"))
    tables = [each.relation.qualified_name for each in text.changes]
    assert tables == [each.relation.qualified_name for each in binary.changes]
    assert len(tables) > 2 * len(CASES)
    for a, b in zip(text.changes, binary.changes, strict=True):
        assert a.relation == b.relation
        assert a.batch.schema.equals(b.batch.schema, check_metadata=True)
        assert plain_records(a.batch) == plain_records(b.batch), a.relation.qualified_name
    columns = ("seq", "lsn", "relation", "column", "change_type", "type_oid", "reason")
    assert text.rejects.select(columns).equals(binary.rejects.select(columns))


@pytest.mark.newest_server
def test_fast_and_reference_decoder_agree_on_every_value(sent: Sent) -> None:
    for payloads in sent.payloads.values():
        # What no decoder of whole numbers in Python digests in time.
        same_as_reference([each for each in payloads if len(each[1]) < 100_000])


def test_binary_cells_come_as_binary(sent: Sent) -> None:
    """Else the comparison of text with binary would compare text with text."""
    if "binary" not in sent.decoded:
        pytest.skip("binary values exist since 14")
    assert any(data[:1] == b"I" and b"b\0\0\0\x04" in data for _, data in sent.payloads["binary"])
    assert set(sent.decoded["binary"].rejects.column("format").to_pylist()) == {"binary"}
    assert set(sent.decoded["text"].rejects.column("format").to_pylist()) == {"text"}


def test_unrepresentable_raise_names_the_place_and_not_the_value(sent: Sent) -> None:
    for format_, out in sent.decoded.items():
        first = out.rejects.slice(0, 1).to_pylist()[0]
        payloads = [data for _, data in sent.payloads[format_]]
        with pytest.raises(pgo.DecodeError) as caught:
            pgo.decode(payloads, options=pgo.Options(unrepresentable="raise"))
        error = caught.value
        assert (error.seq, error.relation, error.column) == (first["seq"], first["relation"], first["column"])
        assert error.byte_offset == first["byte_offset"]


# --- types that need more than their oid ------------------------------------------------------------------


def decode_table(database: pg.Database, table: str, statements: list[str], format_: str) -> pa.Table:
    options = {"binary": "true"} if format_ == "binary" else {}
    payloads = database.capture(statements, options=options)
    return same_as_reference(payloads)[0].table(f"public.{table}")


def seen(format_: str, text: str | None) -> str | None:
    """An unexplained type's text as it is decoded."""
    return text if format_ == "text" or text is None else "\\x" + text.encode().hex()


def test_type_nobody_explains_is_a_string_whatever_its_cells(database: pg.Database, format_: str) -> None:
    """Enum labels and composite fields are never on the wire; a schema must not depend on cells."""
    table = f"unexplained_{format_}"
    database.execute(
        "DROP TYPE IF EXISTS mood, pair CASCADE",
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'très, \"bien\"')",
        "CREATE TYPE pair AS (a int, b text)",
        f"CREATE TABLE {table} (id int PRIMARY KEY, e mood, es mood[], p pair, ps pair[])",
    )
    decoded = decode_table(
        database, table,
        [f"""INSERT INTO {table} VALUES (1, 'ok', '{{sad,NULL,"très, \\"bien\\""}}', '(1,x)', '{{"(1,x)"}}'),
            (2, NULL, NULL, NULL, NULL)"""],
        format_,
    )  # fmt: skip
    for name, kind in (
        ("e", pa.string()),
        ("es", pa.list_(pa.string())),
        ("p", pa.string()),
        ("ps", pa.list_(pa.string())),
    ):
        assert decoded.schema.field(name).type == kind
        assert decoded.schema.field(name).metadata[b"pg.unknown"] == b"true"
    first, second = decoded.select(["e", "es", "p", "ps"]).to_pylist()
    assert second == dict.fromkeys(["e", "es", "p", "ps"])
    assert first["e"] == seen(format_, "ok")
    assert first["es"] == [seen(format_, "sad"), None, seen(format_, 'très, "bien"')]
    if format_ == "text":
        assert (first["p"], first["ps"]) == ("(1,x)", ["(1,x)"])
    else:
        record = struct.pack(">iIiiIi", 2, 23, 4, 1, 25, 1) + b"x"
        assert (first["p"], first["ps"]) == ("\\x" + record.hex(), ["\\x" + record.hex()])


def test_array_of_a_domain_is_a_list_of_the_unexplained(database: pg.Database, format_: str) -> None:
    """The array's Type message names `_d`, and nothing names `d` itself."""
    if database.version < 11:
        pytest.skip("arrays of domains exist since 11")
    table = f"domains_{format_}"
    database.execute(
        "DROP DOMAIN IF EXISTS positive CASCADE",
        "CREATE DOMAIN positive AS int",
        f"CREATE TABLE {table} (id int PRIMARY KEY, v positive[])",
    )
    decoded = decode_table(database, table, [f"INSERT INTO {table} VALUES (1, '{{1,NULL}}')"], format_)
    expected = "1" if format_ == "text" else "\\x00000001"
    assert decoded.column("v").to_pylist() == [[expected, None]]


def test_text_that_is_not_utf8_is_null_and_kept_in_rejects(database: pg.Database) -> None:
    """A decoding session with another client_encoding sends what UTF-8 cannot be."""
    database.execute("CREATE TABLE latin (id int PRIMARY KEY, v text, a text[])")
    with database.slot() as slot:
        slot.execute("INSERT INTO latin VALUES (1, 'é', ARRAY['a', 'é']), (2, 'e', ARRAY['e'])")
        slot.execute("SET client_encoding = 'LATIN1'")
        payloads = slot.peek()
        slot.execute("SET client_encoding = 'UTF8'")
    (out,) = same_as_reference(payloads)
    decoded = out.table("public.latin").select(["v", "a", "_unrepresentable"]).to_pylist()
    assert decoded == [
        {"v": None, "a": ["a", None], "_unrepresentable": ["v", "a"]},
        {"v": "e", "a": ["e"], "_unrepresentable": None},
    ]
    assert [(row["column"], row["raw"]) for row in out.rejects.to_pylist()] == [
        ("v", b"\xe9"),
        ("a", b"{a,\xe9}"),
    ]


@pytest.mark.parametrize(
    ("setting", "column", "literal", "hint"),
    [
        ("DateStyle = 'SQL, DMY'", "date", "2024-03-15", "DateStyle"),
        ("DateStyle = 'German'", "timestamp", "2024-03-15 12:00", "DateStyle"),
        ("DateStyle = 'Postgres'", "timestamptz", "2024-03-15 12:00", "DateStyle"),
        ("bytea_output = 'escape'", "bytea", "abc", "bytea_output"),
    ],
)
def test_text_of_a_session_with_other_settings_is_refused_not_guessed(
    database: pg.Database, setting: str, column: str, literal: str, hint: str
) -> None:
    table = f"hostile_{column}"
    database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v {column})")
    with database.slot() as slot:
        slot.execute(f"INSERT INTO {table} VALUES (1, '{literal}')", f"SET {setting}")
        payloads = slot.peek()
    with pytest.raises(pgo.DecodeError, match=hint) as caught:
        pgo.decode([data for _, data in payloads])
    assert (caught.value.relation, caught.value.column) == (f"public.{table}", "v")


def test_timestamptz_in_any_zone_is_the_same_moment(database: pg.Database) -> None:
    """Offsets with minutes and seconds, such as local mean time, included."""
    database.execute("CREATE TABLE zones (id int PRIMARY KEY, v timestamptz)")
    moments = [
        "1800-01-01 00:00:00+00",
        "1970-01-01 00:00:00+00",
        "2024-07-01 12:00:00.5+00",
        "0044-03-15 12:00:00+00 BC",
    ]
    with database.slot() as slot:
        for number, moment in enumerate(moments):
            slot.execute(f"INSERT INTO zones VALUES ({number}, '{moment}')")
        found = []
        for zone in ("UTC", "Asia/Kolkata", "Europe/Amsterdam", "America/St_Johns", "<+15>-15", "<-15>+15"):
            slot.execute(f"SET TimeZone = '{zone}'")
            found.append(same_as_reference(slot.peek())[0].table("public.zones").column("v").cast(pa.int64()))
    assert len(found[0]) == len(moments)
    assert all(each.equals(found[0]) for each in found)


def test_timestamptz_in_a_posix_zone_is_the_same_moment(database: pg.Database) -> None:
    """Their offsets go to 168 hours west and 169 hours east; in summer they may have seconds."""
    database.execute("CREATE TABLE posix_zones (id int PRIMARY KEY, v timestamptz, r tstzrange)")
    moments = ["2003-01-01 00:00:00+00", "2003-07-01 12:00:00.5+00", "0044-07-15 12:00:00+00 BC"]
    with database.slot() as slot:
        for number, moment in enumerate(moments):
            slot.execute(f"INSERT INTO posix_zones VALUES ({number}, '{moment}', '[{moment},)')")
        slot.execute("SET TimeZone = 'UTC'")
        expected = same_as_reference(slot.peek())[0].table("public.posix_zones").select(["v", "r"])
        furthest = set()
        for zone in ("utc+20", "utc-20", "ABC+167:59:60DEF", "ABC-167:59:60DEF", "ABC-167DEF-166:59:59"):
            slot.execute(f"SET TimeZone = '{zone}'")
            payloads = slot.peek()
            table = same_as_reference(payloads)[0].table("public.posix_zones")
            assert table.select(["v", "r"]).cast(expected.schema).equals(expected), zone
            sent = b"".join(data for _, data in payloads)
            furthest |= {
                offset for offset in (b"-20", b"+20", b"-168", b"+169", b"+166:59:59") if offset in sent
            }
        assert furthest == {b"-20", b"+20", b"-168", b"+169", b"+166:59:59"}


# What a timetz's zone can be: in digits below 16 hours, in POSIX's way up to a week (and an hour, in summer), and
# through timezone() any number of 32 bits, the least included, whose opposite is none.
TIMETZ_ZONES = {
    "'17:52:02 utc+20'::timetz": "17:52:02-20",
    "'17:52:02 utc-20'::timetz": "17:52:02+20",
    "'00:00 utc+167:59:59'::timetz": "00:00:00-167:59:59",
    "'00:00 utc-167:59:59'::timetz": "00:00:00+167:59:59",
    "'00:00 utc+167:59:60'::timetz": "00:00:00-168",
    "'2003-07-01 00:00 ABC-167:59:60DEF'::timetz": "00:00:00+169",
    "timezone(interval '-1000:00:07', '12:00:00.25+00'::timetz)": "19:59:53.25-1000:00:07",
    "timezone(interval '596523:14:07', '12:00+00'::timetz)": "15:14:07+596523:14:07",
    "timezone(interval '-596523:14:07', '12:00:00.000001+00'::timetz)": "08:45:53.000001-596523:14:07",
    "timezone(interval '596523:14:08', '12:00:00.000001+00'::timetz)": "08:45:52.000001+4294370773:4294967282:4294967288",
}


def test_timetz_of_any_zone_is_the_same_in_text_and_in_binary(database: pg.Database) -> None:
    database.execute("CREATE TABLE any_zone (id int PRIMARY KEY, v timetz, a timetz[])")
    with database.slot() as slot:
        for number, value in enumerate(TIMETZ_ZONES):
            slot.execute(f"INSERT INTO any_zone VALUES ({number}, {value}, ARRAY[{value}, NULL])")
        found = [same_as_reference(slot.peek())]
        if database.version >= pg.FIRST_BINARY_VERSION:
            found.append(same_as_reference(slot.peek({"binary": "true"})))
    expected = list(TIMETZ_ZONES.values())
    if database.version < 11:
        # What the wrapped numbers are printed as has changed; no server that sends binary prints them so.
        expected[-1] = "08:45:52.000001+-596523:-14:-8"
    for (out,) in found:
        table = out.table("public.any_zone")
        assert table.column("v").to_pylist() == expected
        assert table.column("a").to_pylist() == [[text, None] for text in expected]
        assert out.rejects.num_rows == 0


@pytest.mark.parametrize("zone", [57_600, -57_600])
def test_a_server_takes_no_timetz_in_binary_that_it_sends(database: pg.Database, zone: int) -> None:
    """The bound that timetz_recv knows, 16 hours, says nothing of what timetz_send sends."""
    database.execute("CREATE TABLE IF NOT EXISTS refused_zone (v timetz)")
    row = struct.pack(">hiqi", 1, 12, 0, zone)
    copied = io.BytesIO(b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0) + row + struct.pack(">h", -1))
    with (
        database.session() as connection,
        connection.cursor() as cursor,
        pytest.raises(psycopg2.DataError, match="displacement out of range"),
    ):
        cursor.copy_expert("COPY refused_zone FROM STDIN (FORMAT binary)", copied)


def test_float_text_of_fifteen_digits_can_be_beyond_its_type(database: pg.Database) -> None:
    """10 and 11 print so unless told otherwise: the largest float is rounded up to what is none."""
    database.execute("CREATE TABLE largest (id int PRIMARY KEY, v float8)")
    with database.slot() as slot:
        slot.execute("INSERT INTO largest VALUES (1, 1.7976931348623157e308)", "SET extra_float_digits = 0")
        payloads = slot.peek()
    (out,) = same_as_reference(payloads)
    assert out.table("public.largest").select(["v", "_unrepresentable"]).to_pylist() == [
        {"v": None, "_unrepresentable": ["v"]}
    ]
    assert out.rejects.column("raw").to_pylist() == [b"1.79769313486232e+308"]


def test_column_of_nothing_but_empty_values(database: pg.Database, format_: str) -> None:
    """A batch whose strings have no bytes at all."""
    table = f"hollow_{format_}"
    database.execute(f"CREATE TABLE {table} (a text, b bytea, c text[], d text)")
    for row in ("'', '', '{}'", "NULL, NULL, NULL", "NULL, '', '{\"\"}'"):
        payloads = database.capture(
            [f"INSERT INTO {table} VALUES ({row}, 'something that lies behind it')"],
            options={"binary": "true"} if format_ == "binary" else {},
        )
        (out,) = same_as_reference(payloads)
        assert out.table(f"public.{table}").num_rows == 1


def test_vector_cast_to_an_array_is_an_array(database: pg.Database, format_: str) -> None:
    """int2vector and oidvector count from 0, and an empty one has a dimension without elements."""
    table = f"vectors_{format_}"
    database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int2[])")
    payloads = database.capture(
        [f"INSERT INTO {table} VALUES (1, '1 2'::int2vector::int2[]), (2, ''::int2vector::int2[])"],
        options={"binary": "true"} if format_ == "binary" else {},
    )
    (out,) = same_as_reference(payloads)
    assert out.table(f"public.{table}").column("v").to_pylist() == [[1, 2], []]
    assert out.rejects.num_rows == 1


def test_plain_type_is_exact() -> None:
    """The helper that this file trusts: timestamps stay integers of microseconds."""
    assert plain_type(pa.list_(pa.timestamp("us", tz="UTC"))) == pa.list_(pa.int64())
    assert comparable([0.0, -0.0, float("nan")]) == ["0x0.0p+0", "-0x0.0p+0", "NaN"]
