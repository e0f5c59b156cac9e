"""The reference decoder's values, from text and from binary, with the expected ones written out."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import pytest

from reference.messages import decode
from reference.output import ReferenceError
from reference.types import MalformedError, PgType, convert, resolve
from support.raw_messages import begin, commit, insert, relation, u32, user_type


def value(type_oid: int, raw: bytes, binary: bool = False, typmod: int = -1) -> Any:
    """The value, or "unrepresentable" or "malformed"."""
    try:
        result = convert(resolve(type_oid, typmod), binary, raw)
    except MalformedError:
        return "malformed"
    return "unrepresentable" if result.unrepresentable and result.value is None else result.value


D_10_2, D_38_38, D_NEGATIVE = (10 << 16 | 2) + 4, (38 << 16 | 38) + 4, (3 << 16 | 0x7FE) + 4


# fmt: off
TEXT_VALUES: list[tuple[int, bytes, Any]] = [
    (16, b"t", True), (16, b"f", False), (17, b"\\x", b""), (17, b"\\x00ff", b"\0\xff"),
    (21, b"32767", 32767),
    (20, b"-9223372036854775808", -(2**63)), (23, b"-2147483648", -(2**31)), (26, b"4294967295", 2**32 - 1),
    (25, b"\xc3\xa9", "é"), (1042, b"a  ", "a  "), (1043, b"", ""), (19, b"n", "n"), (114, b"{}", "{}"),
    (3802, b"1", "1"), (600, b"(1,2)", "(1,2)"), (700, b"0.1", 0.10000000149011612),
    (700, b"1e-45", 1.401298464324817e-45), (700, b"3.4028235e+38", 3.4028234663852886e38),
    (701, b"0.1", 0.1),
    (701, b"Infinity", math.inf), (701, b"5e-324", 5e-324), (701, b"9.999999999999999e+22", 1e23),
    (701, b"1.7976931348623157e+308", 1.7976931348623157e308),
    (2950, b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    (1082, b"1970-01-02", 1), (1082, b"0001-12-31 BC", -719_163), (1082, b"5874897-12-31", 2_145_042_905),
    (1082, b"4714-11-24 BC", -2_440_588), (1083, b"00:00:00.5", 500_000),
    (1083, b"23:59:59.999999", 86_399_999_999),
    (1114, b"1969-12-31 23:59:59.9", -100_000), (1114, b"294247-01-10 04:00:54.775807", 2**63 - 1),
    (1184, b"1970-01-01 00:00:00+00", 0), (1184, b"1970-01-01 05:30:00+05:30", 0),
    (1184, b"1969-12-31 23:30:00-00:30", 0), (1184, b"1970-01-01 00:19:32+00:19:32", 0),
    (1184, b"0044-03-15 00:00:00+00 BC", -63_517_824_000_000_000),
    (1700, b"1.50", "1.50"), (1700, b"NaN", "NaN"), (1700, b"-Infinity", "-Infinity"),
]
TEXT_WITHOUT_ARROW_FORM = {
    25: [b"\xff", b"\xed\xa0\x80"], 600: [b"\xff"], 700: [b"3.4028236e+38", b"-1e+39"],
    701: [b"1.79769313486232e+308", b"1e-400"], 1082: [b"infinity", b"-infinity", b"9999999-01-01"],
    1083: [b"24:00:00"], 1114: [b"infinity", b"294247-01-10 04:00:54.775808"], 1184: [b"-infinity"],
}
MALFORMED_TEXT = {
    16: "true|T|", 17: r"\x0|ab|\xFF", 20: "9223372036854775808", 21: "32768", 23: "abc| 1|+1|1_0|01|-0||1\n",
    26: "-1|4294967296", 700: "1e5", 701: "1e5|.5|nan|inf|0x1p3|1E+05|1_0.0", 1700: "1e5|-0.0|.5|007|+1",
    2950: "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11|a0eebc99",
    1082: "15/03/2024|2024-1-1|2023-02-29|0000-01-01|02024-01-01|12345678-01-01",
    1083: "24:00:01|23:59:60|1:00:00|infinity|00:00:00.1234567|00:00:00.",
    1114: "2024-01-01T00:00:00|2024-01-01 24:00:00|2024-01-01 00:00:00+00|2024-01-01 00:00:60",
    1184: "1970-01-01 00:00:00|1970-01-01 00:00:00+0|1970-01-01 00:00:00+0530|1970-01-01 00:00:00+170"
          "|1970-01-01 00:00:00Z|1970-01-01 BC 00:00:00+00",
}
# fmt: on


@pytest.mark.parametrize(("type_oid", "text", "expected"), TEXT_VALUES)
def test_text_values(type_oid: int, text: bytes, expected: Any) -> None:
    assert value(type_oid, text) == expected


def test_text_without_arrow_form_and_malformed_text() -> None:
    for type_oid, texts in TEXT_WITHOUT_ARROW_FORM.items():
        assert {text: value(type_oid, text) for text in texts} == dict.fromkeys(texts, "unrepresentable")
    for type_oid, joined in MALFORMED_TEXT.items():
        texts = joined.encode().split(b"|")
        assert {text: value(type_oid, text) for text in texts} == dict.fromkeys(texts, "malformed")


def test_float4_text_is_rounded_once() -> None:
    """Halfway between two float4, plus less than a float8 can show, which would round down."""
    assert value(700, b"1.00000005960464477539062500001") == 1.0000001192092896
    assert value(700, b"1.000000059604644775390625") == 1.0
    assert math.copysign(1, value(700, b"-0")) == -1
    assert math.isnan(value(701, b"NaN"))


@pytest.mark.parametrize(
    ("type_oid", "raw", "expected"),
    [
        (16, b"\1", True), (16, b"\0", False), (16, b"\2", "malformed"), (16, b"", "malformed"),
        (17, b"\0\xff", b"\0\xff"), (20, struct.pack(">q", -5), -5), (21, b"\xff\xff", -1),
        (23, b"\0", "malformed"),
        (23, b"\0\0\0\0\0", "malformed"), (26, b"\xff\xff\xff\xff", 2**32 - 1), (25, b"a\0b", "a\0b"),
        (700, struct.pack(">f", 0.1), 0.10000000149011612), (701, struct.pack(">d", -2.5), -2.5),
        (1082, struct.pack(">i", -10957), 0), (1082, struct.pack(">i", 2**31 - 1), "unrepresentable"),
        (1082, struct.pack(">i", -(2**31)), "unrepresentable"),
        (1082, struct.pack(">i", 2**31 - 2), "unrepresentable"),
        (1083, struct.pack(">q", 86_400_000_000), "unrepresentable"),
        (1083, struct.pack(">q", -1), "malformed"),
        (1083, struct.pack(">q", 86_400_000_001), "malformed"), (1083, struct.pack(">q", 1), 1),
        (1114, struct.pack(">q", -946_684_800_000_000), 0), (1114, struct.pack(">q", 2**63 - 1),
        "unrepresentable"),
        (1184, struct.pack(">q", -(2**63)), "unrepresentable"),
        (1184, struct.pack(">q", 2**63 - 2), "unrepresentable"),
        (2950, bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"), (2950, bytes(15), "malformed"),
        (3802, b"\1[]", "[]"), (3802, b"\2[]", "malformed"), (3802, b"", "malformed"), (114, b"[]", "[]"),
        (600, b"\0\xfe", "\\x00fe"),
        (1700, struct.pack(">hhHh", 0, 0, 0, 2), "0.00"),
        (1700, struct.pack(">hhHhh", 1, -1, 0x4000, 3, 5), "-0.000"[1:]),
        (1700, struct.pack(">hhHhhh", 2, 1, 0x4000, 0, 1, 2), "-10002"),
        (1700, struct.pack(">hhHhhh", 2, 0, 0, 5, 12, 3400), "12.34000"),
        (1700, struct.pack(">hhHhh", 1, -2, 0, 8, 12), "0.00000012"),
        (1700, struct.pack(">hhHhh", 1, 2, 0, 0, 12), "1200000000"),
        (1700, struct.pack(">hhHh", 0, 0, 0xC000, 0), "NaN"),
        (1700, struct.pack(">hhHh", 0, 0, 0xF000, 0), "-Infinity"),
        (1700, struct.pack(">hhHh", 0, 0, 1, 0), "malformed"),
        (1700, struct.pack(">hhHhh", 1, 0, 0, 0, 10000), "malformed"),
        (1700, struct.pack(">hhHh", 1, 0, 0, 0), "malformed"),
        (1700, struct.pack(">hhHhh", 0, 0, 0, 0, 1), "malformed"),
        (1700, struct.pack(">hhHH", 0, 0, 0, 0x4000), "malformed"),
    ],
)  # fmt: skip
def test_binary_values(type_oid: int, raw: bytes, expected: Any) -> None:
    assert value(type_oid, raw, binary=True) == expected


@pytest.mark.parametrize(
    ("text", "typmod", "expected"),
    [
        (b"10.25", D_10_2, "10.25"), (b"1.5", D_10_2, "1.50"), (b"0", D_10_2, "0.00"),
        (b"1.250", D_10_2, "1.25"),
        (b"1.255", D_10_2, "unrepresentable"), (b"100000000.00", D_10_2, "unrepresentable"),
        (b"-99999999.99", D_10_2, "-99999999.99"), (b"NaN", D_10_2, "unrepresentable"),
        (b"-Infinity", D_10_2, "unrepresentable"), (b"x", D_10_2, "malformed"),
        (b"0.1", D_38_38, "0.1" + "0" * 37), (b"1", D_38_38, "unrepresentable"),
    ],
)  # fmt: skip
def test_numeric_with_a_typmod_is_a_decimal(text: bytes, typmod: int, expected: str) -> None:
    found = value(1700, text, typmod=typmod)
    assert isinstance(found, Decimal) or expected in ("unrepresentable", "malformed")
    assert str(found) == expected


@pytest.mark.parametrize("typmod", [D_NEGATIVE, (39 << 16 | 2) + 4, (3 << 16 | 5) + 4, -1])
def test_numeric_beyond_decimal128_is_a_string(typmod: int) -> None:
    assert value(1700, b"12300", typmod=typmod) == "12300"


# --- arrays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", []), (b"{a,b}", ["a", "b"]), (b'{NULL,"NULL",""}', [None, "NULL", ""]),
        (b'{"a\\"b\\\\c,{} "}', ['a"b\\c,{} ']), (b"[2:3]={a,b}", ["a", "b"]), (b"[-1:-1]={a}", ["a"]),
        (b"{{a},{b}}", "unrepresentable"), (b"[0:1][1:1]={{a},{b}}", "unrepresentable"),
        (b'{{"}","{"},{NULL,"\\""}}', "unrepresentable"), (b"[0:0][1:2][1:1]={{{a},{b}}}", "unrepresentable"),
        (b"{{a},{b,c}}", "malformed"), (b"{{}}", "malformed"), (b"{{a},b}", "malformed"), (b"{{a}x{b}}", "malformed"),
        (b"[0:1][1:2]={{a},{b}}", "malformed"), (b"{{{{{{{a}}}}}}}", "malformed"),
        (b"{a,\xff}", ["a", None]),
        (b"", "malformed"), (b"{", "malformed"), (b"{a", "malformed"), (b"{a}x", "malformed"),
        (b"{a,}", "malformed"),
        (b"{,}", "malformed"), (b"{a, b}", "malformed"), (b"{null}", "malformed"), (b'{"a}', "malformed"),
        (b'{"a"b}', "malformed"), (b"{a,{b}}", "malformed"), (b"[2:4]={a,b}", "malformed"),
        (b"[1:2]={a,b}", "malformed"), (b"[2:1]={}", "malformed"), (b"[2:3]{a,b}", "malformed"),
        (b"[2:3][1:1]={a,b}", "malformed"), (b"[2:2]={{a}}", "malformed"), (b"[+2:3]={a,b}", "malformed"),
    ],
)  # fmt: skip
def test_text_arrays(text: bytes, expected: Any) -> None:
    assert value(1009, text) == expected


def binary_array(*elements: bytes | None, oid: int = 23, flags: int = 0, lower: int = 1) -> bytes:
    body = b"".join(b"\xff" * 4 if element is None else u32(len(element)) + element for element in elements)
    return struct.pack(">iiIii", 1, flags, oid, len(elements), lower) + body


ONE = u32(1)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (struct.pack(">iiI", 0, 0, 23), []), (binary_array(ONE, None, flags=1), [1, None]),
        (binary_array(), []), (binary_array(lower=0), []), (binary_array(ONE, lower=5), [1]),
        (struct.pack(">iiIiiii", 2, 0, 23, 1, 1, 1, 1) + u32(4) + ONE, "unrepresentable"),
        (struct.pack(">iiI", 0, 0, 23) + b"\0", "malformed"), (struct.pack(">iiI", -1, 0, 23), "malformed"),
        (struct.pack(">iiI", 7, 0, 23), "malformed"), (binary_array(ONE, flags=2), "malformed"),
        (binary_array(ONE, oid=21), "malformed"), (binary_array(ONE) + b"\0", "malformed"),
        (binary_array(ONE)[:-1], "malformed"), (binary_array(b"\0"), "malformed"),
        (struct.pack(">iiIii", 1, 0, 23, -1, 1), "malformed"),
        (struct.pack(">iiIii", 1, 0, 23, 2**31 - 1, 1), "malformed"),
        (struct.pack(">iiIiii", 1, 0, 23, 1, 1, -2), "malformed"),
    ],
)  # fmt: skip
def test_binary_arrays(raw: bytes, expected: Any) -> None:
    assert value(1007, raw, binary=True) == expected


def test_array_element_without_arrow_form_is_null_with_one_reject_for_the_cell() -> None:
    raw = b"{infinity,1970-01-02,-infinity}"
    out = decode([begin(), relation((b"d", 1182, -1)), insert(raw), commit()])
    assert out.rows[0]["columns"] == {"d": [None, 1, None]}
    assert out.rows[0]["_unrepresentable"] == ["d"]
    assert [reject["raw"] for reject in out.rejects] == [raw]


def test_array_lower_bound_is_dropped_with_a_reject_that_keeps_it() -> None:
    for sent in (b"[0:1]={1,2}", ("b", binary_array(ONE, u32(2), lower=0))):
        payloads = [begin(), relation((b"a", 1007, -1)), insert(sent), commit()]
        out = decode(payloads)
        assert out.rows[0]["columns"] == {"a": [1, 2]}
        assert out.rows[0]["_unrepresentable"] is None
        assert [reject["column"] for reject in out.rejects] == ["a"]
        with pytest.raises(ReferenceError):
            decode(payloads, unrepresentable="raise")


# --- types by name ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("explained", "expected"),
    [
        (None, PgType("unknown")),
        (("pg_catalog", "int4"), PgType("int4", 5)),
        (("pg_catalog", "_varchar"), PgType("varchar", 5, is_list=True, element_oid=1043)),
        (("pg_catalog", "pg_ndistinct"), PgType("unknown")),
        (("public", "int4"), PgType("unknown")),
        (("public", "_int4"), PgType("unknown", is_list=True)),
        (("public", "citext"), PgType("citext")),
        (("public", "_citext"), PgType("citext", is_list=True)),
        (("pg_catalog", "citext"), PgType("unknown")),
        (("public", "_"), PgType("unknown")),
    ],
)
def test_types_by_name(explained: tuple[str, str] | None, expected: PgType) -> None:
    assert resolve(20000, 5, explained) == expected


def test_user_types_from_text_and_binary() -> None:
    types = [(20000, b"", b"int4"), (20001, b"", b"_int4"), (20002, b"s", b"_mood"), (20003, b"s", b"citext"),
             (20004, b"s", b"mood")]  # fmt: skip
    head = [begin(), *(user_type(*one) for one in types)]
    head.append(relation(*((b"c%d" % oid, oid, -1) for oid, _, _ in types)))
    text = insert(b"7", b"{7}", b"{sad}", b"Mix", b"sad")
    binary = insert(
        *(
            ("b", raw)
            for raw in (u32(7), binary_array(u32(7)), binary_array(b"sad", oid=20004), b"Mix", b"sad")
        )
    )
    first, second = (row["columns"] for row in decode([*head, text, binary, commit()]).rows)
    assert list(first.values()) == [7, [7], ["sad"], "Mix", "sad"]
    assert list(second.values()) == [7, [7], ["\\x736164"], "Mix", "\\x736164"]
