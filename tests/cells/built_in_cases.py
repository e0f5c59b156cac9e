"""Values of the built-in types that become text, and the SQL that makes the server print them."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from support import pg

SEED = int(os.environ.get("PGOUTPUT_FAST_SEED", "20260401"))
RANDOM_VALUES = 40
NANOS = pa.month_day_nano_interval()

FLOATS = [
    "0", "-0", "1", "-1.5", "0.1", "0.0001", "0.00001", "1e14", "1e15", "123456789012345", "1234567890123456", "1e22",
    "1e23", "9007199254740993", "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308", "NaN", "Infinity",
    "-Infinity", "0.30000000000000004", "100", "123456.789", "9.5367431640625e-07", "4503599627370497.5",
]  # fmt: skip


# Values that the server prints but does not accept as input.
NOT_READ_AGAIN = {"-2562047788:00:54.775808"}


def any_float(rng: random.Random) -> str:
    """A float with random bits, a power of two, or a round decimal."""
    (bits,) = struct.unpack(">d", rng.randbytes(8))
    return repr(
        rng.choice(
            [bits, 2.0 ** rng.randint(-1074, 1023), float(f"{rng.randint(1, 99)}e{rng.randint(-30, 30)}")]
        )
    )


def floats_of(shape: str) -> Callable[[random.Random], str]:
    return lambda rng: shape.format(*(any_float(rng) for _ in range(shape.count("{}"))))


def all_floats(shape: str) -> list[str]:
    """The edge values, in groups of as many as the shape has places."""
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
    """(months, days, nanoseconds) of the server's bytes; None for values beyond Arrow's range and for infinity."""
    micros, days, months = struct.unpack(">qii", bytes.fromhex(digits))
    return (months, days, micros * 1000) if -(2**63) <= micros * 1000 < 2**63 else None


# This uses the type's own output function: the casts of inet and xml to text print more.
PRINTED = "CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END"


@dataclass(frozen=True)
class Case:
    """A type, its values, the SQL that prints a value, and the expected Arrow value (None: no Arrow form)."""

    sql: str
    values: list[str]
    arrow: pa.DataType = field(default_factory=pa.string)
    read: str = PRINTED
    parse: Callable[[str], Any] = str
    more: Callable[[random.Random], str] | None = None
    since: int = 10
    newer: dict[int, list[str]] = field(default_factory=dict)
    # The expected value for the binary format, if it differs from the text format.
    read_binary: str | None = None
    has_array: bool = True

    def values_for(self, version: int, name: str) -> list[str]:
        rng = random.Random(f"{SEED} {name}")
        newer = [value for since, more in self.newer.items() if version >= since for value in more]
        return self.values + newer + ([self.more(rng) for _ in range(RANDOM_VALUES)] if self.more else [])


def reg(sql: str, values: list[str], since: int = 10) -> Case:
    """A reg type: name in text, oid in binary. 0 prints as a dash, except where an operator could have that name."""
    return Case(sql, [*values, "0", "4000000000"], since=since, read_binary="{0}::oid::text")


def lsn_as_before(text: str) -> str:
    """As servers before 19 print it: without zeros after the slash."""
    high, low = text.split("/")
    return f"{high}/{int(low, 16):X}"


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
    "pg_lsn": Case("pg_lsn", ["0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848", "0/1", "A0/0", "80000000/10", "1/0000100", "F/F0"], parse=lsn_as_before),
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
    "oid8": Case("oid8", ["0", "4294967296", "18446744073709551615"], since=19),
    "regdatabase": reg("regdatabase", ["postgres", "template1"], since=19),
    "xml": Case("xml", ["<a/>", "text", '<?xml version="1.0" encoding="UTF-8"?><a>é</a>', "<a>\n</a>", '<?xml version="1.1"?>\n<b c="d"/>']),
}  # fmt: skip


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


# Those that docs/types.md lists as left out: no cell of them has a form that every version of the server shares.
LEFT_OUT = {
    "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary",
    "abstime", "reltime", "tinterval", "smgr",
}  # fmt: skip


COLUMN_TYPES = """
    SELECT t.oid, t.typname, coalesce(e.oid, 0), coalesce(e.typname, t.typname), coalesce(e.typtype, t.typtype), t.typdelim
    FROM pg_type AS t LEFT JOIN pg_type AS e ON e.typarray = t.oid
    -- A row of pg_attribute holds an anyarray, which no table's column may.
    WHERE coalesce(e.typname, t.typname) <> 'pg_attribute' AND t.oid < 10000 AND t.typtype IN ('b', 'c', 'd', 'e', 'r', 'm')
        AND t.typname <> '_cstring' AND t.typisdefined
    ORDER BY t.oid
"""


def pg_type_sql(name: str) -> str:
    """The type's name in pg_catalog, of which some are keywords."""
    return f'pg_catalog."{name}"'
