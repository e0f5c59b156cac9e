"""Built-in types that print their binary form, on every server: text, binary and the server's own ::text are the same."""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pg
import pgoutput_fast as pgo
from oracle import comparable, plain_records, same_as_reference
from pgoutput_fast._core.column import convert
from pgoutput_fast.decoded import Decoded
from pgoutput_fast.encode_values import array_to_text, to_binary, to_text
from pgoutput_fast.types import column_type_of
from test_oracle_values import CASES as OTHER_CASES

SEED = int(os.environ.get("PGOUTPUT_FAST_SEED", "20260401"))
RANDOM_VALUES = 40
NANOS = pa.month_day_nano_interval()

# Those that docs/types.md lists as left out: no cell of them has a form that every version of the server shares.
LEFT_OUT = {
    "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary",
    "abstime", "reltime", "tinterval", "smgr",
}  # fmt: skip

FLOATS = [
    "0", "-0", "1", "-1.5", "0.1", "0.0001", "0.00001", "1e14", "1e15", "123456789012345", "1234567890123456", "1e22",
    "1e23", "9007199254740993", "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308", "NaN", "Infinity",
    "-Infinity", "0.30000000000000004", "100", "123456.789", "9.5367431640625e-07", "4503599627370497.5",
]  # fmt: skip


# What the server prints but does not take.
NOT_READ_AGAIN = {"-2562047788:00:54.775808"}


def any_float(rng: random.Random) -> str:
    """Any bits, a power of two, or a round decimal."""
    (bits,) = struct.unpack(">d", rng.randbytes(8))
    return repr(
        rng.choice(
            [bits, 2.0 ** rng.randint(-1074, 1023), float(f"{rng.randint(1, 99)}e{rng.randint(-30, 30)}")]
        )
    )


def floats_of(shape: str) -> Callable[[random.Random], str]:
    return lambda rng: shape.format(*(any_float(rng) for _ in range(shape.count("{}"))))


def all_floats(shape: str) -> list[str]:
    """The edge values, as many at a time as the shape has places."""
    places = shape.count("{}")
    return [
        shape.format(*(FLOATS[(at + k) % len(FLOATS)] for k in range(places))) for at in range(len(FLOATS))
    ]


def any_tsquery(rng: random.Random, depth: int = 4) -> str:
    kind = rng.randint(0, 5) if depth else 0
    if kind < 2:
        word = "'" + "".join(rng.choices("ab'\\ é&|!()<>:*", k=rng.randint(1, 4))).replace(
            "\\", "\\\\"
        ).replace("'", "''")
        weights = ":" + rng.choice(["", "*"]) + "".join(sorted(rng.sample("ABCD", rng.randint(1, 4))))
        return word + "'" + rng.choice(["", weights, ":*"])
    if kind == 2:
        return f"!({any_tsquery(rng, depth - 1)})"
    operator = rng.choice(["&", "|", "<->", "<0>", "<16384>", "<7>"])
    return f"({any_tsquery(rng, depth - 1)}) {operator} ({any_tsquery(rng, depth - 1)})"


def any_tsvector(rng: random.Random) -> str:
    words = []
    for _ in range(rng.randint(0, 5)):
        word = "".join(rng.choices("ab'\\ é:,", k=rng.randint(1, 4))).replace("\\", "\\\\").replace("'", "''")
        places = ",".join(
            f"{rng.randint(1, 20000)}{rng.choice(['', 'A', 'B', 'C'])}" for _ in range(rng.randint(0, 4))
        )
        words.append(f"'{word}'" + (f":{places}" if places else ""))
    return " ".join(words)


def any_interval(rng: random.Random) -> str:
    months, days = (rng.choice([0, rng.randint(-40, 40)]) for _ in range(2))
    micros = rng.choice([0, rng.randint(-(10**13), 10**13), rng.randint(-5, 5), 3_600_000_000])
    return f"{months} months {days} days {Decimal(micros).scaleb(-6):f} seconds"


def any_v6(rng: random.Random) -> str:
    groups = [rng.choice(["0", "0", "0", "ffff", f"{rng.getrandbits(16):x}", "1"]) for _ in range(8)]
    return ":".join(groups) + rng.choice(["", f"/{rng.randint(0, 128)}"])


def from_interval_send(digits: str) -> tuple[int, int, int] | None:
    """Months, days, nanoseconds of what the server sends; None beyond Arrow's range, and for infinity."""
    micros, days, months = struct.unpack(">qii", bytes.fromhex(digits))
    return (months, days, micros * 1000) if -(2**63) <= micros * 1000 < 2**63 else None


# By the type's own output function: inet and xml have casts to text that say more.
PRINTED = "CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END"


@dataclass(frozen=True)
class Case:
    """A type and its values; how the server says what one is, and what Arrow then should hold (None: no such form)."""

    sql: str
    values: list[str]
    arrow: pa.DataType = field(default_factory=pa.string)
    read: str = PRINTED
    parse: Callable[[str], Any] = str
    more: Callable[[random.Random], str] | None = None
    since: int = 10
    newer: dict[int, list[str]] = field(default_factory=dict)
    # What binary gives instead where that is not what text gives.
    read_binary: str | None = None
    has_array: bool = True

    def values_for(self, version: int, name: str) -> list[str]:
        rng = random.Random(f"{SEED} {name}")
        newer = [value for since, more in self.newer.items() if version >= since for value in more]
        return self.values + newer + ([self.more(rng) for _ in range(RANDOM_VALUES)] if self.more else [])


def reg(sql: str, values: list[str], since: int = 10) -> Case:
    """Names in text, oids in binary; 0 prints as a dash, except where an operator could be called so."""
    return Case(sql, [*values, "0", "4000000000"], since=since, read_binary="{0}::oid::text")


CASES = {
    "char": Case('"char"', ["a", " ", "\\", '"', "{", "", "'", ",", "~", "\x7f"], newer={15: ["\\200", "\\377", "é"]}),
    "int2vector": Case("int2vector", ["", "1", "-32768 32767 0", " ".join(map(str, range(90)))]),
    "regproc": reg("regproc", ["now", "pg_catalog.now"]),
    "tid": Case("tid", ["(0,0)", "(4294967295,65535)", "(1,2)", "(100000,10)"]),
    "xid": Case("xid", ["0", "3", "4294967295"], pa.int64(), parse=int),
    "cid": Case("cid", ["0", "7", "4294967295"], pa.int64(), parse=int),
    "oidvector": Case("oidvector", ["", "0", "4294967295 1 23", " ".join(map(str, range(90)))]),
    "lseg": Case("lseg", all_floats("[({},{}),({},{})]"), more=floats_of("[({},{}),({},{})]")),
    "path": Case("path", [*all_floats("[({},{}),({},{})]"), *all_floats("(({},{}))"), "[(1,2)]"],
                 more=floats_of("(({},{}),({},{}),({},{}))")),
    "box": Case("box", all_floats("({},{}),({},{})"), more=floats_of("({},{}),({},{})")),
    "polygon": Case("polygon", [*all_floats("(({},{}),({},{}))"), "((1,2))"], more=floats_of("(({},{}),({},{}),({},{}))")),
    "line": Case("line", ["{1,2,3}", "{-1,0,-0}", "{0,1e23,NaN}", "{1e-300,-1e15,Infinity}"], more=floats_of("{{1,{},{}}}")),
    "cidr": Case("cidr", ["0.0.0.0/0", "10.0.0.0/8", "192.168.100.128/25", "1.2.3.4/32", "::/0", "2001:db8::/32", "::1/128",
                          "::ffff:1.2.3.4/128", "::1.2.3.4/128", "fe80::/10", "ffff::/16"]),
    "circle": Case("circle", [*all_floats("<({},{}),1.5>"), "<(0,0),0>", "<(1,2),1e23>", "<(1,2),Infinity>"],
                   more=lambda rng: f"<({any_float(rng)},{any_float(rng)}),{abs(float(any_float(rng)))!r}>"),
    "macaddr8": Case("macaddr8", ["00:00:00:00:00:00:00:00", "08:00:2b:01:02:03:04:05", "ff:ff:ff:ff:ff:ff:ff:ff"],
                     more=lambda rng: rng.randbytes(8).hex()),
    "money": Case("money", ["0", "0.01", "-0.01", "1", "999.99", "1000", "-1000", "123456.78", "-92233720368547758.08",
                            "92233720368547758.07", "-99.5", "1000000"],
                  pa.decimal128(19, 2), "{0}::numeric::text", Decimal, lambda rng: str(rng.randint(-10**15, 10**15) / 100)),
    "macaddr": Case("macaddr", ["00:00:00:00:00:00", "08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"],
                    more=lambda rng: rng.randbytes(6).hex()),
    "inet": Case("inet", ["0.0.0.0", "255.255.255.255", "192.168.1.5/24", "1.2.3.4/0", "10.20.30.40/31", "::", "::1", "1::",
                          "::/0", "2001:db8::8:800:200c:417a", "2001:0:0:1:0:0:0:1/64", "::ffff:1.2.3.4", "::1.2.3.4", "::0.0.0.5",
                          "::ffff:0:1", "0:0:0:0:0:ffff:0:0/96", "1:0:0:2:0:0:3:4", "0:1:0:1:0:1:0:1", "::1:0", "::1:2:3",
                          "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/127"], more=any_v6),
    "timetz": Case("timetz", ["00:00:00+00", "24:00:00-15:59:59", "12:34:56.7+05:30", "23:59:59.999999+00:19:32",
                              "04:05:06.000001-08", "24:00:00+15:59:59", "12:00:00+00:00:01", "01:02:03.45-03:30"]),
    "timetz_2": Case("timetz(2)", ["12:34:56.789+05:30"]),
    "interval": Case(
        "interval", ["0", "1 year", "-1 year", "2 years 1 mon", "-2 years -11 mons", "1 mon -1 day", "-1 mon 1 day +1 sec",
                     "1 day -0.000001 sec", "-1 day 00:00:01", "-00:00:00.5", "100:59:59.999999", "1 mon", "11 mons 29 days",
                     "178956970 years 7 mons", "-178956970 years -8 mons", "2147483647 days -2147483648 mons",
                     "2562047:47:16.854775", "-2562047:47:16.854775", "2562047:47:16.854776", "-2562047:47:16.854776",
                     "1 year -1 mon", "1 day 1 hour", "-2147483648 days", "00:00:00.1", "00:00:00.12", "99:00:00", "10000:00:00"],
        NANOS, "encode(interval_send({0}), 'hex')", from_interval_send, any_interval,
        newer={15: ["2562047788:00:54.775807", "-9223372036854775808 microseconds",
                    "178956970 years 7 mons 2147483647 days 2562047788:00:54.775806",
                    "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807"],
               17: ["infinity", "-infinity"]},
    ),
    "interval_day": Case("interval day to second(3)", ["1 day 00:00:00.1239"], NANOS, "encode(interval_send({0}), 'hex')",
                         from_interval_send),
    "bit": Case("bit", ["0", "1"]),
    "bit_13": Case("bit(13)", ["0000000000000", "1111111111111", "1010101010101"]),
    "bit_64": Case("bit(64)", ["01" * 32]),
    "varbit": Case("varbit", ["", "0", "1", "10101010", "101010101", "1" * 4001, "0" * 17],
                   more=lambda rng: "".join(rng.choices("01", k=rng.randint(0, 70)))),
    "refcursor": Case("refcursor", ["", "c", "é \"'\\", "NULL"]),
    "regprocedure": reg("regprocedure", ["now()", "int4pl(int4,int4)"]),
    "regoper": reg("regoper", ["pg_catalog.||/", "!!="][:1]),
    "regoperator": reg("regoperator", ["+(int4,int4)", "||/(none,float8)"]),
    "regclass": reg("regclass", ["pg_class", '"odd ""name"', "information_schema.tables"]),
    "regtype": reg("regtype", ["int4", "text[]", "timestamp with time zone", '"char"']),
    "txid_snapshot": Case("txid_snapshot", ["1:1:", "10:20:10,14,15", "9223372036854775806:9223372036854775807:"]),
    "pg_lsn": Case("pg_lsn", ["0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848", "0/1", "A0/0", "80000000/10"]),
    "tsvector": Case("tsvector", ["", "a", "'it''s' b:1A,2B,3C,4D c:16383", "'back\\\\slash' 'sp ace' '1':1", "é:5 €", "''''",
                                  " ".join(f"w{n}:{n}" for n in range(1, 300)), "x" * 2046], more=any_tsvector),
    "tsquery": Case("tsquery", ["", "a", "!a", "!!a", "a & b | c", "a & (b | c)", "(a | b) & c", "a <-> b <-> c", "a <-> (b <-> c)",
                                "(a <-> b) <2> c", "!(a & b)", "!a & b", "a <0> b", "a <16384> b", "(a | b) <-> c", "a:*", "a:ABCD",
                                "a:*AD & b:C", "'it''s' | 'back\\\\slash'", "é & 'sp ace'", "a | (b | c)", "a & (b & c)",
                                "!(a | b) <-> c", "(!a) <-> b", "a <-> !b", " & ".join(f"w{n}" for n in range(120)),
                                "!" * 30 + "a", "(" * 30 + "a" + "".join(f" | b{n}) & c" for n in range(30))], more=any_tsquery),
    "regconfig": reg("regconfig", ["simple", "english"]),
    "regdictionary": reg("regdictionary", ["simple", "english_stem"]),
    "jsonpath": Case("jsonpath", ["$", "strict $.a[*] ? (@.b > 1)", '$."é €"', 'lax $.x.size()', '$.**{2 to last} ? (@ like_regex "^a")'],
                     since=14),
    "regnamespace": reg("regnamespace", ["pg_catalog", "public"]),
    "regrole": reg("regrole", []),
    "regcollation": reg("regcollation", ['"C"', '"POSIX"', 'pg_catalog."default"'], since=14),
    "pg_snapshot": Case("pg_snapshot", ["1:1:", "10:20:10,14,15", "9223372036854775806:9223372036854775807:"], since=14),
    "xid8": Case("xid8", ["0", "4294967296", "18446744073709551615"], since=14),
    "xml": Case("xml", ["<a/>", "text", '<?xml version="1.0" encoding="UTF-8"?><a>é</a>', "<a>\n</a>", '<?xml version="1.1"?>\n<b c="d"/>']),
}  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """A value by format; whether it, or an element of it, has no Arrow form; whether a lower bound was dropped."""

    value: dict[str, Any]
    unrepresentable: bool = False
    lower_bound_dropped: bool = False


@dataclass
class Sent:
    version: int
    payloads: dict[str, list[pg.Payload]]  # by format
    decoded: dict[str, Decoded]
    said: dict[str, list[Expected]]  # table -> in order of id
    texts: dict[str, list[str | None]]  # table -> what the server prints


@pytest.fixture(scope="module")
def sent(database: pg.Database) -> Sent:
    print(f"seed {SEED} (PGOUTPUT_FAST_SEED)")
    version = database.version
    said: dict[str, list[Expected]] = {}
    texts: dict[str, list[str | None]] = {}
    with database.slot() as slot:
        slot.execute('CREATE TABLE "odd ""name" ()')
        for name, case in CASES.items():
            if version < case.since or (name == "xml" and not has_xml(database)):
                continue
            scalars = fill(slot, f"v_{name}", case, [None, *case.values_for(version, name), None])
            said[f"v_{name}"], texts[f"v_{name}"] = scalars
            said[f"a_{name}"], texts[f"a_{name}"] = fill_arrays(slot, f"a_{name}", case, *scalars)
        payloads = {"text": slot.peek()}
        if version >= pg.FIRST_BINARY_VERSION:
            payloads["binary"] = slot.peek({"binary": "true"})
    decoded = {
        kind: pgo.decode([data for _, data in those], lsn=[lsn for lsn, _ in those])
        for kind, those in payloads.items()
    }
    return Sent(version, payloads, decoded, said, texts)


def has_xml(database: pg.Database) -> bool:
    """Not every server is built with libxml."""
    rows = database.execute(
        "SELECT setting FROM pg_config WHERE name = 'CONFIGURE' AND setting LIKE '%with-libxml%'"
    )
    return bool(rows)


def insert(slot: pg.Slot, table: str, sql: str, values: list[str | None]) -> None:
    """Through the type's own input function: a cast from text may be another one."""
    literals = ("NULL" if value is None else pg.literal(value) for value in values)
    rows = ", ".join(f"({n}, {literal})" for n, literal in enumerate(literals))
    slot.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v {sql})", f"INSERT INTO {table} VALUES {rows}")


def fill(
    slot: pg.Slot, table: str, case: Case, values: list[str | None]
) -> tuple[list[Expected], list[str | None]]:
    insert(slot, table, case.sql, values)
    read = case.read.format("v")
    read_binary = (case.read_binary or case.read).format("v")
    expected, texts = [], []
    for in_text, in_binary, text in slot.execute(
        f"SELECT {read}, {read_binary}, {PRINTED.format('v')} FROM {table} ORDER BY id"
    ):
        there = {
            "text": None if text is None else case.parse(in_text),
            "binary": None if text is None else case.parse(in_binary),
        }
        expected.append(Expected(there, text is not None and there["text"] is None))
        texts.append(text)
    return expected, texts


def fill_arrays(
    slot: pg.Slot, table: str, case: Case, scalars: list[Expected], texts: list[str | None]
) -> tuple[list[Expected], list[str | None]]:
    """Arrays of the values: null, empty, all at once, each alone, shifted, and of two dimensions."""
    delimiter = ";" if case.sql == "box" else ","
    rows: list[tuple[str | None, Expected]] = [(None, Expected({"text": None, "binary": None}))]

    def add(numbers: list[int], lower: int = 1) -> None:
        literal = array_to_text([texts[n] for n in numbers], lower, delimiter)
        values = {kind: [scalars[n].value[kind] for n in numbers] for kind in ("text", "binary")}
        bad = any(scalars[n].unrepresentable for n in numbers)
        rows.append((literal, Expected(values, bad, lower != 1 and bool(numbers) and not bad)))

    short = [n for n, text in enumerate(texts) if len(text or "") < 300 and text not in NOT_READ_AGAIN]
    add([])
    for count in (7, 3, 1):
        for start in range(0, len(short), count):
            add(short[start : start + count])
    for lower in (0, -3, 2):
        add(short[lower : lower + 3], lower)
    both = [f"{{{array_to_text([texts[short[1]]], 1, delimiter)[1:-1]}}}" for _ in range(2)]
    rows.append(
        ("{" + delimiter.join(both) + "}", Expected({"text": None, "binary": None}, unrepresentable=True))
    )
    insert(slot, table, f"{case.sql}[]", [literal for literal, _ in rows])
    printed = [text for (text,) in slot.execute(f"SELECT v::text FROM {table} ORDER BY id")]
    return [expected for _, expected in rows], printed


TABLES = [f"{prefix}_{name}" for name, prefix in itertools.product(CASES, "va")]


@pytest.mark.parametrize("table", TABLES)
def test_value_is_what_the_server_says_it_is(sent: Sent, table: str) -> None:
    """Values, names of the unrepresentable and rejects."""
    case = CASES[table[2:]]
    if table not in sent.said:
        pytest.skip(f"this server has no {case.sql}")
    assert set(sent.decoded) == ({"text", "binary"} if sent.version >= pg.FIRST_BINARY_VERSION else {"text"})
    for format_, out in sent.decoded.items():
        decoded = out.table(f"public.{table}").sort_by("id")
        assert decoded.schema.field("v").type == (pa.list_(case.arrow) if table[0] == "a" else case.arrow)
        assert b"pg.unknown" not in decoded.schema.field("v").metadata
        rows = plain_records(decoded)
        said = sent.said[table]
        assert [row["v"] for row in rows] == comparable([each.value[format_] for each in said]), format_
        flagged = [row["_unrepresentable"] for row in rows]
        assert flagged == [["v"] if each.unrepresentable else None for each in said], format_
        rejects = [row for row in out.rejects.to_pylist() if row["relation"] == f"public.{table}"]
        assert [row["seq"] for row in rejects] == [
            row["_seq"]
            for row, each in zip(rows, said, strict=True)
            if each.unrepresentable or each.lower_bound_dropped
        ]
        if format_ == "text":
            text_of = {row["_seq"]: text for row, text in zip(rows, sent.texts[table], strict=True)}
            assert all(row["raw"].decode() == text_of[row["seq"]] for row in rejects)


def test_text_and_binary_give_the_same_tables(sent: Sent) -> None:
    """All but reg*, which are names in one and oids in the other."""
    if "binary" not in sent.decoded:
        pytest.skip("binary values exist since 14")
    compared = 0
    for a, b in zip(sent.decoded["text"].changes, sent.decoded["binary"].changes, strict=True):
        assert a.relation == b.relation
        assert a.batch.schema.equals(b.batch.schema, check_metadata=True)
        if CASES[a.relation.name[2:]].read_binary is None:
            assert plain_records(a.batch) == plain_records(b.batch), a.relation.qualified_name
            compared += 1
    assert compared > 60
    columns = ("seq", "lsn", "relation", "column", "change_type", "type_oid", "reason")
    assert sent.decoded["text"].rejects.select(columns).equals(sent.decoded["binary"].rejects.select(columns))
    cells = {data[8:9] for _, data in sent.payloads["binary"] if data[:1] == b"I"}
    assert cells == {b"b"}  # else text would have been compared with text


def test_fast_and_reference_decoder_agree_on_every_value(sent: Sent) -> None:
    for payloads in sent.payloads.values():
        same_as_reference(payloads)


def test_encoding_is_the_inverse_of_decoding(sent: Sent) -> None:
    """What the values that were decoded are encoded to is what the server sent."""
    encoded = 0
    for format_, out in sent.decoded.items():
        payloads = dict(enumerate(data for _, data in sent.payloads[format_]))
        for each in out.changes:
            column = each.batch.schema.field("v")
            name = column.metadata[b"pg.type"].decode()
            if each.relation.name[0] == "a" or (format_ == "text" and name.startswith("reg")):
                continue
            for seq, value in zip(*(each.batch.column(of).to_pylist() for of in ("_seq", "v")), strict=True):
                if value is None:
                    continue
                raw = to_binary(name, value) if format_ == "binary" else to_text(name, value).encode()
                encoded += 1
                if name == "tsquery":  # its text does not tell a | (b | c) from (a | b) | c
                    kind = column_type_of(pgo.Column("v", 3615, -1, False), pgo.Options())
                    assert convert(kind, [raw], format_ == "binary")[0].to_pylist() == [value]
                    continue
                cell = payloads[seq][read_cell(payloads[seq], 8) :]
                assert cell == (b"b" if format_ == "binary" else b"t") + len(raw).to_bytes(4, "big") + raw
    assert encoded > 500


def read_cell(payload: bytes, at: int) -> int:
    """Where the cell behind the one at `at` begins."""
    return at + 5 + int.from_bytes(payload[at + 1 : at + 5], "big")


# --- none is forgotten --------------------------------------------------------------------------------------

COLUMN_TYPES = """
    SELECT t.oid, t.typname, coalesce(e.oid, 0), coalesce(e.typname, t.typname), coalesce(e.typtype, t.typtype), t.typdelim
    FROM pg_type AS t LEFT JOIN pg_type AS e ON e.typarray = t.oid
    WHERE t.oid < 10000 AND t.typtype IN ('b', 'd', 'e', 'r', 'm') AND t.typname <> '_cstring' AND t.typisdefined
    ORDER BY t.oid
"""
# Ranges, multiranges, catalogs' rows and point are nested types, and tested as such.
NESTED = {"r", "m", "c"}


def test_every_built_in_type_that_a_table_can_hold_is_decoded_or_listed(database: pg.Database) -> None:
    """A table with a column of each, as pg_type has them: none falls through to the unknown but those listed."""
    types = [
        row
        for row in database.execute(COLUMN_TYPES)
        if str(row[4]) not in NESTED and row[3] != "point" and not str(row[3]).startswith("pg_ddl")
    ]
    assert len(types) > 100
    with database.slot() as slot:
        columns = ", ".join(f"c{oid} {pg_type_sql(name)}" for oid, name, *_ in types)
        slot.execute(f"CREATE TABLE every_type (id int, {columns})", "INSERT INTO every_type VALUES (1)")
        (out,) = same_as_reference(slot.peek())
    schema = out.table("public.every_type").schema
    documented = (Path(__file__).parent.parent / "docs" / "types.md").read_text()
    tested = {*CASES, *OTHER_CASES, "aclitem", "gtsvector", "pg_node_tree"}
    for oid, name, element_oid, element, _, delimiter in types:
        found = schema.field(f"c{oid}")
        if element in LEFT_OUT:
            assert found.metadata[b"pg.unknown"] == b"true", name
            assert f"`{element}`" in documented, element
            continue
        assert b"pg.unknown" not in found.metadata, f"{name} ({oid}) is neither decoded nor listed"
        assert found.metadata[b"pg.type"].decode() == (f"{element}[]" if element_oid else name)
        assert element in tested, f"no values of {element} are tested"
        if element_oid:
            kind = column_type_of(pgo.Column("c", oid, -1, False), pgo.Options())
            assert kind.element_oid == element_oid
            assert kind.kernel == ("list_of_boxes" if delimiter == ";" else "list")


def pg_type_sql(name: str) -> str:
    """The type's name in pg_catalog, of which some are keywords."""
    return f'pg_catalog."{name}"'


# --- types that need more than values -----------------------------------------------------------------------


@pytest.fixture(params=["text", "binary"])
def format_(request: pytest.FixtureRequest, database: pg.Database) -> str:
    if request.param == "binary" and database.version < pg.FIRST_BINARY_VERSION:
        pytest.skip("binary values exist since 14")
    return str(request.param)


def decode_rows(database: pg.Database, format_: str, *statements: str) -> Decoded:
    options = {"binary": "true"} if format_ == "binary" else {}
    (out,) = same_as_reference(database.capture(statements, options=options))
    return out


def test_aclitem_comes_as_text_in_both_formats(database: pg.Database, format_: str) -> None:
    """It has no send function. An array of it ends a binary stream with the server's own error."""
    table = f"acl_{format_}"
    acl = "'=r*w/' || quote_ident(current_user)"
    database.execute(f"CREATE TABLE {table} (v aclitem, a aclitem[], g gtsvector, gs gtsvector[])")
    array = f"ARRAY[({acl})::aclitem, NULL]" if format_ == "text" else "NULL"
    out = decode_rows(database, format_, f"INSERT INTO {table} VALUES (({acl})::aclitem, {array})")
    said = database.execute(f"SELECT v::text, array_to_json(a::text[])::text, g::text FROM {table}")[0]
    (row,) = out.table(f"public.{table}").select(["v", "a", "g", "gs"]).to_pylist()
    assert row["v"] == said[0]
    assert row["a"] == ([said[0], None] if format_ == "text" else None)
    assert (row["g"], row["gs"]) == (None, None)
    if format_ == "binary":
        with pytest.raises(Exception, match="no binary output function available for type aclitem"):
            decode_rows(
                database, format_, f"INSERT INTO {table} VALUES (NULL, ARRAY[({acl})::aclitem], NULL, NULL)"
            )


def test_expression_trees_are_strings(database: pg.Database, format_: str) -> None:
    """pg_node_tree takes no input, but a table made from a catalog holds it."""
    table = f"trees_{format_}"
    database.execute(
        f"CREATE TABLE {table} AS SELECT 1 AS id, ev_action AS v FROM pg_rewrite ORDER BY oid LIMIT 0",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
    )
    out = decode_rows(
        database, format_, f"INSERT INTO {table} SELECT 1, ev_action FROM pg_rewrite ORDER BY oid LIMIT 3"
    )
    said = database.execute(f"SELECT v::text FROM {table}")
    assert out.table(f"public.{table}").column("v").to_pylist() == [text for (text,) in said]


def test_statistics_are_left_as_they_came(database: pg.Database, format_: str) -> None:
    """Their binary form is the server's memory: text in one format, bytes in the other."""
    table = f"statistics_{format_}"
    catalog = "pg_statistic_ext_data" if database.version >= 14 else "pg_statistic_ext"
    database.execute(
        f"CREATE TABLE s_{table} AS SELECT n % 5 AS a, n % 5 AS b FROM generate_series(1, 100) AS n",
        f"CREATE STATISTICS st_{table} (ndistinct, dependencies) ON a, b FROM s_{table}",
        f"ANALYZE s_{table}",
        f"CREATE TABLE {table} AS SELECT stxdndistinct AS v, stxddependencies AS w FROM {catalog} LIMIT 0"
        if database.version >= 14
        else f"CREATE TABLE {table} AS SELECT stxndistinct AS v, stxdependencies AS w FROM {catalog} LIMIT 0",
    )
    columns = "stxdndistinct, stxddependencies" if database.version >= 14 else "stxndistinct, stxdependencies"
    out = decode_rows(
        database, format_, f"INSERT INTO {table} SELECT {columns} FROM {catalog} LIMIT 1"
    ).table(f"public.{table}")
    ((ndistinct, dependencies),) = database.execute(f"SELECT v::text, w::text FROM {table}")
    (row,) = out.select(["v", "w"]).to_pylist()
    if format_ == "text":
        assert (row["v"], row["w"]) == (ndistinct, dependencies)
    else:
        assert row["v"].startswith("\\x")
        assert row["w"].startswith("\\x")


def test_char_beyond_ascii_before_15_has_no_text(database: pg.Database, format_: str) -> None:
    """Servers before 15 print the bare byte, which is no UTF-8; in binary it is what 15 prints."""
    table = f"high_{format_}"
    database.execute(f'CREATE TABLE {table} (v "char")')
    value = "\\303" if database.version >= 15 else "é"
    out = decode_rows(database, format_, f"INSERT INTO {table} VALUES ('{value}'::text::\"char\")")
    (row,) = out.table(f"public.{table}").select(["v", "_unrepresentable"]).to_pylist()
    if format_ == "text" and database.version < 15:
        assert row == {"v": None, "_unrepresentable": ["v"]}
    else:
        assert row == {"v": "\\303", "_unrepresentable": None}


@pytest.mark.parametrize(
    ("setting", "column", "literal", "hint"),
    [
        ("IntervalStyle = 'iso_8601'", "interval", "1 day 02:00", "IntervalStyle"),
        ("IntervalStyle = 'sql_standard'", "interval", "1 year 1 day 02:00", "IntervalStyle"),
        ("IntervalStyle = 'postgres_verbose'", "interval", "1 day 02:00", "IntervalStyle"),
    ],
)
def test_text_of_a_session_with_other_settings_is_refused_not_guessed(
    database: pg.Database, setting: str, column: str, literal: str, hint: str
) -> None:
    table = "hostile_" + setting.split("'")[1]
    database.execute(f"CREATE TABLE {table} (v {column})")
    with database.slot() as slot:
        slot.execute(f"INSERT INTO {table} VALUES ('{literal}')", f"SET {setting}")
        payloads = slot.peek()
    with pytest.raises(pgo.DecodeError, match=hint) as caught:
        pgo.decode([data for _, data in payloads])
    assert (caught.value.relation, caught.value.column) == (f"public.{table}", "v")
