"""Values of cells against what a server sent."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest

from pgoutput_fast.encode.values import array_to_binary, array_to_text, to_binary, to_text

# --- values ---

TWO_HOURS_AHEAD = timezone(timedelta(hours=2))

# PostgreSQL 15.18, UTC: SELECT encode(<type>_send(<value>), 'hex'), <value>::text; for bool boolout(<value>).
# The send functions of bool, the ints, oid, the floats, the strings and bytea have no underscore in the name.
VALUES = [
    ("bool", True, "01", "t"),
    ("bool", False, "00", "f"),
    ("int2", -2, "fffe", "-2"),
    ("int4", 65536, "00010000", "65536"),
    ("int8", -1, "ffffffffffffffff", "-1"),
    ("oid", 4294967295, "ffffffff", "4294967295"),
    ("float4", 0.1, "3dcccccd", "0.1"),
    ("float4", 1e6, "49742400", "1e+06"),
    ("float4", 3.4028235e38, "7f7fffff", "3.4028235e+38"),
    ("float4", 16777216, "4b800000", "1.6777216e+07"),
    ("float8", 1e23, "44b52d02c7e14af6", "9.999999999999999e+22"),
    ("float8", -0.0, "8000000000000000", "-0"),
    ("float8", 1e15, "430c6bf526340000", "1e+15"),
    ("float8", 123456789012345, "42dc12218377de40", "123456789012345"),
    ("float8", 0.00001, "3ee4f8b588e368f1", "1e-05"),
    ("float8", 0.0001, "3f1a36e2eb1c432d", "0.0001"),
    ("float8", 2.0**-44, "3d30000000000000", "5.684341886080802e-14"),
    ("float8", 5e-324, "0000000000000001", "5e-324"),
    ("float8", 1.7976931348623157e308, "7fefffffffffffff", "1.7976931348623157e+308"),
    ("float8", float("nan"), "7ff8000000000000", "NaN"),
    ("float8", float("-inf"), "fff0000000000000", "-Infinity"),
    ("float8", 100, "4059000000000000", "100"),
    ("numeric", 0, "0000000000000000", "0"),
    ("numeric", "0.00", "0000000000000002", "0.00"),
    ("numeric", "-0", "0000000000000000", "0"),
    ("numeric", 10000, "00010001000000000001", "10000"),
    ("numeric", Decimal("99999.9999"), "00030001000000040009270f270f", "99999.9999"),
    ("numeric", "1e-20", "0001fffb000000140001", "0.00000000000000000001"),
    ("numeric", Decimal("-123456.789"), "0003000140000003000c0d801ed2", "-123456.789"),
    ("numeric", "1.20e1", "0001000000000001000c", "12.0"),
    ("numeric", "NaN", "00000000c0000000", "NaN"),
    ("numeric", Decimal("Infinity"), "00000000d0000020", "Infinity"),
    ("numeric", "-Infinity", "00000000f0000020", "-Infinity"),
    ("text", "é", "c3a9", "é"),
    ("varchar", "", "", ""),
    ("bpchar", "a ", "6120", "a "),
    ("json", '{"a" : 1}', "7b226122203a20317d", '{"a" : 1}'),
    ("jsonb", '{"a": 1}', "017b2261223a20317d", '{"a": 1}'),
    ("bytea", b"\x00\xff", "00ff", "\\x00ff"),
    (
        "uuid",
        UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        "a0eebc999c0b4ef8bb6d6bb9bd380a11",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    ),
    (
        "uuid",
        "A0EEBC999C0B4EF8BB6D6BB9BD380A11",
        "a0eebc999c0b4ef8bb6d6bb9bd380a11",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    ),
    ("date", date(2024, 2, 29), "00002279", "2024-02-29"),
    ("date", -730120, "fff4dbf8", "0001-12-31 BC"),
    ("date", -2451545, "ffda97a7", "4714-11-24 BC"),
    ("date", 2145031948, "7fda970c", "5874897-12-31"),
    ("date", "infinity", "7fffffff", "infinity"),
    ("date", 2**31 - 1, "7fffffff", "infinity"),
    ("date", -(2**31), "80000000", "-infinity"),
    ("time", 86_400_000_000, "000000141dd76000", "24:00:00"),
    ("time", time(1, 2, 3, 100_000), "00000000dde9ff60", "01:02:03.1"),
    ("timestamp", -211_813_488_000_000_000, "fd0f7cc1411fa000", "4714-11-24 00:00:00 BC"),
    ("timestamp", datetime(1999, 12, 31, 23, 59, 59, 500_000), "fffffffffff85ee0", "1999-12-31 23:59:59.5"),
    (
        "timestamptz",
        datetime(2024, 2, 29, 12, 0, 0, 500_000, TWO_HOURS_AHEAD),
        "0002b58117586920",
        "2024-02-29 10:00:00.5+00",
    ),
    ("timestamptz", -64_464_508_800_000_000, "ff1af9deec5b2000", "0044-03-15 00:00:00+00 BC"),
    (
        "timestamptz",
        9_223_371_331_199_999_999,
        "7fffff5bb3b29fff",
        "294276-12-31 23:59:59.999999+00",
    ),
    ("timestamptz", 2**63 - 1, "7fffffffffffffff", "infinity"),
    ("timestamptz", "-infinity", "8000000000000000", "-infinity"),
]


@pytest.mark.parametrize(("type_name", "value", "binary", "text"), VALUES)
def test_values(type_name, value, binary, text):
    assert to_binary(type_name, value).hex() == binary
    assert to_text(type_name, value) == text


def test_numeric_reaches_the_limits_of_the_type():
    # SELECT encode(numeric_send('1e131071'), 'hex')
    assert to_binary("numeric", Decimal("1e131071")).hex() == "00017fff0000000003e8"
    # SELECT encode(numeric_send('5e-16383'), 'hex')
    assert to_binary("numeric", "5e-16383").hex() == "0001f00000003fff0032"
    for beyond in ("1e131072", "1e-16384", "0e-16384", "1e999999999"):
        with pytest.raises(ValueError, match=r"^value is out of range for numeric$"):
            to_binary("numeric", beyond)


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("int2", 2**15),
        ("int4", -(2**31) - 1),
        ("int8", 2**63),
        ("oid", -1),
        ("float4", 1e39),
        pytest.param("float8", 10**400, id="float8-10**400"),
        ("numeric", "one"),
        ("text", "a\x00"),
        ("json", "\ud800"),
        ("uuid", "a0ee"),
        ("date", -2451546),
        ("date", 2145031949),
        ("date", "tomorrow"),
        ("time", 86_400_000_001),
        ("time", -1),
        ("time", time(tzinfo=UTC)),
        ("timestamp", -211_813_488_000_000_001),
        ("timestamp", 9_223_371_331_200_000_000),
        ("timestamp", datetime(2000, 1, 1, tzinfo=UTC)),
        ("timestamptz", datetime(2000, 1, 1)),
        ("timestamptz", "now"),
    ],
)
@pytest.mark.parametrize("encode", [to_binary, to_text])
def test_values_that_the_type_cannot_hold(encode, type_name, value):
    with pytest.raises(ValueError, match=type_name) as raised:
        encode(type_name, value)
    assert repr(value) not in str(raised.value)


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("bool", 1),
        ("int4", True),
        ("int4", "1"),
        ("float8", True),
        ("float8", "1"),
        ("numeric", 1.5),
        ("numeric", True),
        ("text", b"a"),
        ("bytea", "a"),
        ("uuid", 1),
        ("date", datetime(2000, 1, 1)),
        ("date", None),
        ("time", "00:00"),
        ("timestamp", date(2000, 1, 1)),
    ],
)
@pytest.mark.parametrize("encode", [to_binary, to_text])
def test_python_types_that_do_not_fit(encode, type_name, value):
    with pytest.raises(TypeError, match=type_name):
        encode(type_name, value)


@pytest.mark.parametrize(
    "encode",
    [
        lambda: to_binary("nothing", 1),
        lambda: to_text("nothing", 1),
        lambda: array_to_binary(791, "nothing", []),
    ],
)
def test_unknown_type_names(encode):
    with pytest.raises(ValueError, match=r"^type_name must be one of bool, int2"):
        encode()


# PostgreSQL 15.18: SELECT encode(array_send(<array>), 'hex'), <array>::text
@pytest.mark.parametrize(
    ("elem_oid", "elem_type_name", "items", "lower_bound", "binary", "text"),
    [
        (23, "int4", [], 1, "00000000 00000000 00000017", "{}"),
        (23, "int4", [], 5, "00000000 00000000 00000017", "{}"),
        (
            23,
            "int4",
            [1, None],
            1,
            "00000001 00000001 00000017 00000002 00000001 00000004 00000001 ffffffff",
            "{1,NULL}",
        ),
        (
            23,
            "int4",
            [1, 2],
            2,
            "00000001 00000000 00000017 00000002 00000002 00000004 00000001 00000004 00000002",
            "[2:3]={1,2}",
        ),
        (
            25,
            "text",
            ["a", ""],
            1,
            "00000001 00000000 00000019 00000002 00000001 00000001 61 00000000",
            '{a,""}',
        ),
    ],
)
def test_arrays(elem_oid, elem_type_name, items, lower_bound, binary, text):
    assert array_to_binary(elem_oid, elem_type_name, items, lower_bound) == bytes.fromhex(binary)
    texts = [None if item is None else to_text(elem_type_name, item) for item in items]
    assert array_to_text(texts, lower_bound) == text


def test_array_quoting():
    # PostgreSQL 15.18: SELECT ARRAY['plain', NULL, 'NULL', 'null', 'nulls', '', ' ', 'a,b', '{', '}', 'q"',
    # E'b\\s', E't\t', E'n\n', E'r\r', E'f\f', E'v\x0b', U&'\00A0', 'a;b', '''']::text
    items = ["plain", None, "NULL", "null", "nulls", "", " ", "a,b", "{", "}", 'q"', "b\\s"]
    items += ["t\t", "n\n", "r\r", "f\f", "v\v", "\xa0", "a;b", "'"]
    assert array_to_text(items) == (
        '{plain,NULL,"NULL","null",nulls,""," ","a,b","{","}","q\\"","b\\\\s",'
        '"t\t","n\n","r\r","f\f","v\v",\xa0,a;b,\'}'
    )


def test_array_bounds():
    # A server takes '[2147483646:2147483646]={1}' and refuses a greater upper bound.
    assert array_to_text(["1"], 2147483646) == "[2147483646:2147483646]={1}"
    with pytest.raises(ValueError, match=r"^lower_bound"):
        array_to_text(["1"], 2147483647)
    with pytest.raises(ValueError, match=r"^lower_bound"):
        array_to_binary(23, "int4", [1, 2], 2147483646)
    with pytest.raises(ValueError, match=r"^elem_oid"):
        array_to_binary(-1, "int4", [])
