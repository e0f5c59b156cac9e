"""Values of the scalar types: SQL that makes a server store them, and what Arrow should hold."""

from __future__ import annotations

import datetime
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
RANDOM_VALUES = 60
FLOATS = [
    "0",
    "-0",
    "NaN",
    "Infinity",
    "-Infinity",
    "1",
    "0.1",
    "-0.1",
    "123456789",
    "1e15",
    "1e16",
    "1e-5",
    "1e-4",
]
STRINGS = [
    "",
    " ",
    "NULL",
    "null",
    "a b",
    "é€😀",
    "\\",
    '"',
    "{",
    "}",
    ",",
    "\t\n\r\v\f",
    "\\x00",
    "'",
    "x" * 3000,
]
CLOCKS = ["00:00:00", "00:00:00.000001", "12:34:56.7", "23:59:59.999999"]
TIMESTAMPS = [
    "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2000-01-01 00:00:00", "1999-12-31 23:59:59.999999",
    "0001-01-01 00:00:00", "0001-12-31 23:59:59.5 BC", "4714-11-24 00:00:00 BC", "9999-12-31 23:59:59.999999",
    "10000-01-01 00:00:00", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808",
    "294276-12-31 23:59:59.999999", "infinity", "-infinity", "2024-02-29 12:00:00.000001", "1900-02-28 23:59:59",
]  # fmt: skip
DATES = [
    "1970-01-01", "1969-12-31", "2000-02-29", "0001-01-01", "0001-12-31 BC", "4714-11-24 BC", "5874897-12-31",
    "10000-01-01", "99999-12-31", "infinity", "-infinity",
]  # fmt: skip
JSON = ["null", "{}", "[]", '"é\\u20ac"', '{"a": [1, 2.50, null], "b": {"c": true}}', "1e3", '{"b":1, "a":2}']
NUMERICS = [
    "0", "0.00", "-0.0", "1", "-1", "10000", "9999", "0.0001", "0.00010", "-12345678901234567890.12345678901234567890",
    "NaN", "1e-30", "1e100", "99999999999999999999999999999999999999", "123456789.5", "1000000000000",
]  # fmt: skip


# Integers of microseconds, exactly: extract(epoch) is a float before 14.
MICROSECONDS_OF_DAY = (
    "extract(hour FROM {0})::int8 * 3600000000 + extract(minute FROM {0})::int8 * 60000000"
    " + extract(microseconds FROM {0})::int8"
)
DAYS = "CASE WHEN isfinite({0}) THEN ({0} - date '1970-01-01')::text END"
MICROSECONDS = (
    "CASE WHEN isfinite({0}) THEN (({0}::date - date '1970-01-01')::numeric * 86400000000 + ("
    + MICROSECONDS_OF_DAY
    + "))::text END"
)


def float_of(code: str) -> Callable[[str], float]:
    return lambda digits: struct.unpack(f">{code}", bytes.fromhex(digits))[0]


def decimal_or_none(text: str) -> Decimal | None:
    value = Decimal(text)
    return value if value.is_finite() else None


def int_within(bits: int) -> Callable[[str | None], int | None]:
    """None where Arrow's integer ends (or the server had no number to give)."""
    return lambda text: (
        None if text is None or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1) else int(text)
    )


@dataclass(frozen=True)
class Case:
    """A type and its values.

    `read` is the SQL by which the server tells what a value `{0}` is, `parse` makes that what Arrow should hold: None
    for a value without an Arrow form.
    """

    sql: str
    arrow: pa.DataType
    values: list[str]
    read: str = "{0}::text"
    parse: Callable[[Any], Any] = str
    more: Callable[[random.Random], str] | None = None
    since: int = 10
    newer: dict[int, list[str]] = field(default_factory=dict)

    def values_for(self, version: int, rng: random.Random) -> list[str]:
        values = self.values + [
            value for since, more in self.newer.items() if version >= since for value in more
        ]
        return values + ([self.more(rng) for _ in range(RANDOM_VALUES)] if self.more else [])


def integer(bits: int) -> Callable[[random.Random], str]:
    return lambda rng: str(rng.getrandbits(rng.randint(1, bits - 1)) * rng.choice([1, -1]))


def any_float(code: str) -> Callable[[random.Random], str]:
    size = struct.calcsize(code)
    return lambda rng: repr(struct.unpack(f">{code}", rng.randbytes(size))[0])


def any_string(rng: random.Random) -> str:
    alphabet = "ab \"'\\{},\n\tNULé€😀\x7f\x01"
    return "".join(rng.choices(alphabet, k=rng.randint(0, 12)))


def any_numeric(rng: random.Random) -> str:
    digits = "".join(rng.choices("0123456789", weights=[9] + [1] * 9, k=rng.randint(1, 60)))
    point = rng.randint(0, len(digits))
    return f"{rng.choice(['', '-'])}{digits[:point] or '0'}.{digits[point:] or '0'}"


def any_decimal(precision: int, scale: int) -> Callable[[random.Random], str]:
    def more(rng: random.Random) -> str:
        size = rng.randint(1, precision)
        return str(Decimal(rng.randrange(10**size) * rng.choice([1, -1])).scaleb(-scale))

    return more


def any_timestamp(rng: random.Random) -> str:
    moment = datetime.datetime(1, 1, 1) + datetime.timedelta(
        microseconds=rng.randrange(315_537_897_600_000_000)
    )
    return str(moment)


def any_date(rng: random.Random) -> str:
    return f"{rng.randint(1, 4713):04}-{rng.randint(1, 12)}-{rng.randint(1, 28)} {rng.choice(['BC', 'AD'])}"


def any_time(rng: random.Random) -> str:
    return str(
        (
            datetime.datetime(2000, 1, 1) + datetime.timedelta(microseconds=rng.randrange(86_400_000_000))
        ).time()
    )


def any_uuid(rng: random.Random) -> str:
    return rng.randbytes(16).hex()


def numeric(precision: int, scale: int, values: list[str]) -> Case:
    return Case(
        f"numeric({precision},{scale})", pa.decimal128(precision, scale), [*values, "NaN", "0", "-0.4", "1e-9"],
        "{0}::text", decimal_or_none, any_decimal(precision, scale),
    )  # fmt: skip


def strings(sql: str, values: list[str] | None = None) -> Case:
    return Case(sql, pa.string(), STRINGS if values is None else values, "{0}", str, any_string)


CASES = {
    "bool": Case("bool", pa.bool_(), ["t", "f"], "{0}", bool),
    "int2": Case("int2", pa.int16(), ["0", "-32768", "32767", "-1"], "{0}::text", int, integer(16)),
    "int4": Case("int4", pa.int32(), ["0", "-2147483648", "2147483647"], "{0}::text", int, integer(32)),
    "int8": Case("int8", pa.int64(), ["0", str(-(2**63)), str(2**63 - 1)], "{0}::text", int, integer(64)),
    "oid": Case("oid", pa.int64(), ["0", "2147483648", "4294967295"], "{0}::text", int),
    "float4": Case(
        "float4", pa.float32(), [*FLOATS, "3.4028235e38", "1.17549435e-38", "1e-45", "16777217"],
        "encode(float4send({0}), 'hex')", float_of("f"), any_float("f"),
    ),
    "float8": Case(
        "float8", pa.float64(), [*FLOATS, "1.7976931348623157e308", "2.2250738585072014e-308", "5e-324", "1e23"],
        "encode(float8send({0}), 'hex')", float_of("d"), any_float("d"),
    ),
    "numeric": Case(
        "numeric", pa.string(), [*NUMERICS, "9" * 131072, "0." + "0" * 16382 + "1"], "{0}::text", str, any_numeric,
        newer={14: ["Infinity", "-Infinity"]},
    ),
    "numeric_10_2": numeric(10, 2, ["99999999.99", "-99999999.99", "0.005"]),
    "numeric_38_0": numeric(38, 0, ["9" * 38, "-" + "9" * 38]),
    "numeric_38_38": numeric(38, 38, ["0." + "9" * 38, "-0." + "9" * 38]),
    "numeric_5_5": numeric(5, 5, ["0.99999", "-0.00001"]),
    "numeric_18_9": numeric(18, 9, ["999999999.999999999"]),
    "numeric_19_9": numeric(19, 9, ["9999999999.999999999"]),
    "numeric_39_2": Case("numeric(39,2)", pa.string(), ["9" * 37, "NaN", "-0.01"], "{0}::text", str),
    "numeric_1000_500": Case("numeric(1000,500)", pa.string(), ["9" * 500, "1e-500"], "{0}::text", str),
    "numeric_negative_scale": Case("numeric(3,-2)", pa.string(), ["12345", "99949", "0", "-50", "NaN"], since=15),
    "numeric_scale_beyond_precision": Case("numeric(3,5)", pa.string(), ["0.00999", "0", "-0.00001"], since=15),
    "text": strings("text"),
    "varchar": strings("varchar"),
    "varchar_40": strings("varchar(40)", ["", "a  ", "é"]),
    "bpchar_13": strings("char(13)", ["", "a", "é", "  b  "]),
    "bpchar": strings("bpchar", ["", "a  "]),
    "name": strings("name", ["", "a b", "é" * 31, "n" * 63]),
    "citext": strings("citext"),
    "bytea": Case(
        "bytea", pa.binary(), ["", "\\x", "\\x00", "\\xff", "\\x" + bytes(range(256)).hex(), "\\x5c5c"],
        "encode({0}, 'hex')", bytes.fromhex, lambda rng: "\\x" + rng.randbytes(rng.randint(0, 20)).hex(),
    ),
    "uuid": Case("uuid", pa.string(), ["0" * 32, "F" * 32], "{0}::text", str, any_uuid),
    "json": Case("json", pa.string(), [*JSON, ' { "a" :  1 }', '{"a":1,"a":2}'], "{0}::text", str),
    "jsonb": Case("jsonb", pa.string(), JSON, "{0}::text", str),
    "date": Case("date", pa.date32(), DATES, DAYS, int_within(32), any_date),
    "time": Case(
        "time", pa.time64("us"), [*CLOCKS, "24:00:00"], MICROSECONDS_OF_DAY,
        lambda n: None if n == 86_400_000_000 else int(n), any_time,
    ),
    "timestamp": Case("timestamp", pa.timestamp("us"), TIMESTAMPS, MICROSECONDS, int_within(64), any_timestamp),
    "timestamp_3": Case("timestamp(3)", pa.timestamp("us"), TIMESTAMPS[:9], MICROSECONDS, int_within(64)),
    "timestamptz": Case(
        "timestamptz", pa.timestamp("us", tz="UTC"), TIMESTAMPS, MICROSECONDS, int_within(64), any_timestamp,
    ),
}  # fmt: skip


# A type that is text in all but its oid, as the extension's is, which not every server package has.
TEXT_LIKE = """
    CREATE TYPE {0};
    CREATE FUNCTION {0}_in(cstring) RETURNS {0} LANGUAGE internal IMMUTABLE STRICT AS 'textin';
    CREATE FUNCTION {0}_out({0}) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
    CREATE FUNCTION {0}_recv(internal) RETURNS {0} LANGUAGE internal IMMUTABLE STRICT AS 'textrecv';
    CREATE FUNCTION {0}_send({0}) RETURNS bytea LANGUAGE internal IMMUTABLE STRICT AS 'textsend';
    CREATE TYPE {0} (INPUT = {0}_in, OUTPUT = {0}_out, RECEIVE = {0}_recv, SEND = {0}_send, LIKE = text);
    CREATE CAST (text AS {0}) WITHOUT FUNCTION
"""


def create(slot: pg.Slot, name: str, sql: str, values: list[str | None]) -> None:
    slot.execute(f"CREATE TABLE v_{name} (id int PRIMARY KEY, v {sql})")
    with slot.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO v_{name} SELECT n, value::{sql} FROM unnest(%s::text[]) WITH ORDINALITY AS u (value, n)",
            (values,),
        )


def fill_arrays(slot: pg.Slot, name: str, sql: str) -> None:
    """Arrays of the table's values: null, empty, with nulls, single, and what Arrow's lists cannot say."""
    pieces = (
        f"SELECT id % 7 AS n, array_agg(v ORDER BY id) AS a FROM v_{name}"
        " WHERE octet_length(v::text) < 5000 OR v IS NULL GROUP BY 1"
    )
    slot.execute(
        f"CREATE TABLE a_{name} (id int PRIMARY KEY, v {sql}[])",
        f"INSERT INTO a_{name} VALUES (0, NULL), (1, '{{}}'), (2, ARRAY[NULL]::{sql}[])",
        f"INSERT INTO a_{name} SELECT 10 + n, a FROM ({pieces}) AS p",
        f"INSERT INTO a_{name} SELECT 100 + id, ARRAY[v] FROM v_{name} WHERE octet_length(v::text) < 5000",
        f"INSERT INTO a_{name} SELECT 20 + n, ARRAY[a, a] FROM ({pieces}) AS p",
        f"INSERT INTO a_{name} SELECT 30 + n, ('[' || n || ':' || n || ']=' || ARRAY[v]::text)::{sql}[]"
        f" FROM (SELECT id - 4 AS n, v FROM v_{name} WHERE id < 9 AND octet_length(v::text) < 5000) AS p",
        f"INSERT INTO a_{name} SELECT 50 + n, ('[0:0][-3:-3]=' || ARRAY[ARRAY[v]]::text)::{sql}[]"
        f" FROM (SELECT id AS n, v FROM v_{name} WHERE id < 4 AND octet_length(v::text) < 5000) AS p",
    )
