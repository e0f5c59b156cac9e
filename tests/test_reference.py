"""The reference decoder against hand-made messages, rule by rule, with the expected values written out."""

from __future__ import annotations

import hashlib
import math
import struct
from decimal import Decimal
from typing import Any

import pytest

import reference
from reference import ReferenceError, decode
from reference_types import MalformedError, PgType, convert, resolve

# --- messages -----------------------------------------------------------------------------------------------

TIME = 5_000_000  # microseconds since 2000
TIME_1970 = 946_684_805_000_000
INT4, TEXT, NUMERIC, TIMESTAMPTZ = 23, 25, 1700, 1184


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def cell(value: bytes | tuple[str, bytes] | None) -> bytes:
    """bytes: a text cell; ("b", bytes): a binary one; None: null; Ellipsis: not sent."""
    if value is None:
        return b"n"
    if value is ...:
        return b"u"
    kind, raw = value if isinstance(value, tuple) else ("t", value)
    return kind.encode() + u32(len(raw)) + raw


def tup(*cells: Any) -> bytes:
    return struct.pack(">h", len(cells)) + b"".join(map(cell, cells))


def begin(lsn: int = 100, xid: int = 7) -> bytes:
    return b"B" + struct.pack(">qqI", lsn, TIME, xid)


def commit(lsn: int = 100, flags: int = 0) -> bytes:
    return b"C" + struct.pack(">bqqq", flags, lsn, lsn + 8, TIME)


def begin_prepare(xid: int = 7, gid: bytes = b"g") -> bytes:
    return b"b" + struct.pack(">qqqI", 500, 508, TIME, xid) + gid + b"\0"


def prepare(xid: int = 7, gid: bytes = b"g", tag: bytes = b"P") -> bytes:
    return tag + struct.pack(">bqqqI", 0, 500, 508, TIME, xid) + gid + b"\0"


def commit_prepared(xid: int = 7, gid: bytes = b"g") -> bytes:
    return b"K" + struct.pack(">bqqqI", 0, 600, 608, TIME + 1, xid) + gid + b"\0"


def rollback_prepared(xid: int = 7, gid: bytes = b"g") -> bytes:
    return b"r" + struct.pack(">bqqqqI", 0, 508, 708, TIME, TIME + 2, xid) + gid + b"\0"


def start(xid: int = 9, first: int = 1) -> bytes:
    return b"S" + u32(xid) + bytes([first])


STOP = b"E"


def stream_commit(xid: int = 9, lsn: int = 400) -> bytes:
    return b"c" + u32(xid) + struct.pack(">bqqq", 0, lsn, lsn + 8, TIME)


def abort(xid: int = 9, subxid: int | None = None) -> bytes:
    return b"A" + u32(xid) + u32(xid if subxid is None else subxid)


def relation(
    *columns: tuple[bytes, int, int], oid: int = 1, name: bytes = b"t", xid: int | None = None
) -> bytes:
    described = b"".join(b"\0" + column + b"\0" + struct.pack(">Ii", *kind) for column, *kind in columns)
    body = u32(oid) + b"public\0" + name + b"\0d" + struct.pack(">h", len(columns)) + described
    return b"R" + (b"" if xid is None else u32(xid)) + body


def user_type(oid: int, namespace: bytes, name: bytes, xid: int | None = None) -> bytes:
    return b"Y" + (b"" if xid is None else u32(xid)) + u32(oid) + namespace + b"\0" + name + b"\0"


def insert(*cells: Any, oid: int = 1, xid: int | None = None) -> bytes:
    return b"I" + (b"" if xid is None else u32(xid)) + u32(oid) + b"N" + tup(*cells)


def message(transactional: int, xid: int | None = None, lsn: int = 190) -> bytes:
    head = b"M" + (b"" if xid is None else u32(xid))
    return head + struct.pack(">bq", transactional, lsn) + b"p\0" + u32(3) + b"abc"


def origin(name: bytes = b"o") -> bytes:
    return b"O" + struct.pack(">q", 77) + name + b"\0"


ID = (b"id", INT4, -1)
R = relation(ID)
R_STREAM = relation(ID, xid=9)


def ids(out: reference.Decoded) -> list[Any]:
    return [row["columns"]["id"] for row in out.rows]


def quarantined(payloads: list[bytes], **options: Any) -> tuple[list[Any], list[int]]:
    """The ids that were decoded, and the seqs that were rejected whole."""
    out = decode(payloads, on_error="quarantine", **options)
    for reject in out.rejects:
        assert reject["raw"] == payloads[reject["seq"]]
        assert (reject["format"], reject["change_type"], reject["type_oid"]) == (None, None, None)
    return ids(out), [reject["seq"] for reject in out.rejects]


def malformed(payloads: list[bytes]) -> ReferenceError:
    with pytest.raises(ReferenceError) as caught:
        decode(payloads)
    return caught.value


# --- values -------------------------------------------------------------------------------------------------


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
    1184: "1970-01-01 00:00:00|1970-01-01 00:00:00+0|1970-01-01 00:00:00+0530|1970-01-01 00:00:00+16"
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


# --- rows ---------------------------------------------------------------------------------------------------


def test_insert_row_with_all_its_metadata() -> None:
    version = hashlib.sha256(R[1:]).digest()[:8]
    out = decode([begin(), R, insert(b"1"), commit()], [5, 0, 6, None])
    assert out.rows == [
        {
            "relation": (1, "public", "t"), "version": int.from_bytes(version, "big", signed=True),
            "columns": {"id": 1}, "_change_type": "insert", "_seq": 2, "_lsn": 6, "_txn": 0, "_xid": 7,
            "_subxid": None, "_commit_lsn": 100, "_commit_timestamp": TIME_1970, "_key_only": False,
            "_unchanged": None, "_unrepresentable": None,
        }
    ]  # fmt: skip


def test_version_does_not_depend_on_the_xid_prefix() -> None:
    out = decode([begin(), R, insert(b"1"), commit(), start(), R_STREAM, insert(b"2", xid=9), STOP])
    assert out.rows[0]["version"] == out.rows[1]["version"]


def test_empty_namespace_is_pg_catalog() -> None:
    out = decode([begin(), R.replace(b"public", b""), insert(b"1"), commit()])
    assert out.rows[0]["relation"] == (1, "pg_catalog", "t")


def test_update_and_delete_images() -> None:
    two = relation(ID, (b"v", TEXT, -1))
    key_update = b"U" + u32(1) + b"K" + tup(b"1", None) + b"N" + tup(b"2", b"a")
    bare_update, delete = b"U" + u32(1) + b"N" + tup(b"2", b"b"), b"D" + u32(1) + b"O" + tup(b"2", b"b")
    key_delete = b"D" + u32(1) + b"K" + tup(b"3", None)
    out = decode([begin(), two, key_update, bare_update, delete, key_delete, commit()])
    assert [(r["_seq"], r["_change_type"], r["_key_only"], *r["columns"].values()) for r in out.rows] == [
        (2, "update_preimage", True, 1, None),
        (2, "update_postimage", False, 2, "a"),
        (3, "update_postimage", False, 2, "b"),
        (4, "delete", False, 2, "b"),
        (5, "delete", True, 3, None),
    ]


def test_unchanged_toast_is_listed_unless_the_old_tuple_answers_it() -> None:
    two = relation(ID, (b"v", TEXT, -1))
    bare = b"U" + u32(1) + b"N" + tup(b"2", ...)
    answered = b"U" + u32(1) + b"O" + tup(b"2", b"old") + b"N" + tup(b"2", ...)
    null_is_no_answer = b"U" + u32(1) + b"K" + tup(b"2", None) + b"N" + tup(b"3", ...)
    out = decode([begin(), two, bare, answered, null_is_no_answer, insert(b"4", ...), commit()])
    found = [(row["columns"]["v"], row["_unchanged"]) for row in out.rows]
    assert found == [
        (None, ["v"]), ("old", None), ("old", None), (None, None), (None, ["v"]), (None, ["v"]),
    ]  # fmt: skip


def test_unrepresentable_cell_is_null_and_a_reject_with_its_place() -> None:
    named = relation((b"at", TIMESTAMPTZ, -1), name=b"My t")
    payloads = [begin(), named, insert(b"infinity"), commit()]
    out = decode(payloads, [0, 0, 33, 0])
    assert out.rows[0]["columns"] == {"at": None}
    assert out.rows[0]["_unrepresentable"] == ["at"]
    reject = out.rejects[0]
    assert reject.pop("reason")
    assert reject == {
        "seq": 2, "lsn": 33, "relation": 'public."My t"', "column": "at", "change_type": "insert",
        "format": "text", "type_oid": TIMESTAMPTZ, "byte_offset": 1 + 4 + 1 + 2 + 1 + 4, "raw": b"infinity",
    }  # fmt: skip
    with pytest.raises(ReferenceError) as caught:
        decode(payloads, unrepresentable="raise")
    assert (caught.value.seq, caught.value.column, caught.value.byte_offset) == (2, "at", 13)


def test_unrepresentable_old_value_that_fills_a_new_one_counts_for_both_rows() -> None:
    update = b"U" + u32(1) + b"O" + tup(b"\xff") + b"N" + tup(...)
    out = decode([begin(), relation((b"v", TEXT, -1)), update, commit()])
    assert [(row["_unrepresentable"], row["_unchanged"]) for row in out.rows] == [(["v"], None)] * 2
    assert [reject["change_type"] for reject in out.rejects] == ["update_preimage", "update_postimage"]


def test_truncate_gives_a_row_per_relation() -> None:
    truncate = b"T" + u32(2) + b"\3" + u32(1) + u32(2)
    out = decode([begin(), R, relation(ID, oid=2, name=b"u"), truncate, commit()])
    assert [(r["relation"][2], r["_change_type"], r["columns"]) for r in out.rows] == [
        ("t", "truncate", {"id": None}),
        ("u", "truncate", {"id": None}),
    ]
    assert out.truncates == [
        {"seq": 3, "txn": 0, "relations": [1, 2], "cascade": True, "restart_identity": True}
    ]  # fmt: skip
    for bad in (
        b"T" + u32(0) + b"\0",
        b"T" + u32(1) + b"\4" + u32(1),
        b"T" + u32(2) + b"\0" + u32(1) + u32(3),
    ):
        assert malformed([begin(), R, bad]).seq == 2


# --- malformed messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        relation(ID, ID), R.replace(b"\0d", b"\0x"), R.replace(b"\1\0id", b"\1\2id"), R + b"\0", R[:-1],
        R.replace(b"public", b"\xff"), b"R" + u32(1) + b"p\0t\0d\xff\xff", user_type(9, b"", b"\xff"),
        b"Y" + u32(9) + b"a",
        insert(), insert(b"1", b"2"), insert(b"x"), insert(b"1") + b"\0", insert(b"1", oid=2),
        insert(b"1")[:-1],
        insert(b"1").replace(b"N", b"K"), b"I" + u32(1) + b"N\0\1x",
        b"I" + u32(1) + b"N\0\1t\xff\xff\xff\xff",
        b"U" + u32(1) + b"K" + tup(b"1"), b"D" + u32(1) + b"N" + tup(b"1"), message(2), message(1) + b"\0",
        message(1)[:-1], origin()[:-1], b"?", b"",
    ],
)  # fmt: skip
def test_malformed_messages_raise(bad: bytes) -> None:
    assert malformed([begin(), R, bad]).seq == 2


@pytest.mark.parametrize(
    "payloads",
    [
        [insert(b"1")], [R, insert(b"1")], [origin()], [message(1)], [b"T" + u32(1) + b"\0" + u32(1)],
        [commit()], [STOP], [prepare()], [stream_commit()], [prepare(9, tag=b"p")], [start(first=0)],
        [begin(), begin()], [begin(), begin_prepare()], [begin(), start()], [begin(), prepare()], [begin(),
        STOP],
        [begin(), commit(101)], [begin(), commit(flags=1)], [begin(), abort()], [begin(), stream_commit()],
        [begin(), commit_prepared()], [begin(), rollback_prepared()], [begin_prepare(), commit()],
        [begin_prepare(), prepare(8)], [begin_prepare(), prepare(gid=b"h")], [begin(-1)], [start(first=2)],
        [start(), begin()], [start(), start()], [start(), abort()], [start(), stream_commit()],
        [b"B" + struct.pack(">qqI", 1, 2**63 - 1, 7)], [STOP + b"\0"], [abort() + bytes(8)],
    ],
)  # fmt: skip
def test_what_is_out_of_place_or_out_of_range_raises(payloads: list[bytes]) -> None:
    assert malformed(payloads).seq == len(payloads) - 1


def test_error_names_the_place() -> None:
    error = malformed([begin(), R, insert(b"abc")])
    assert (error.relation, error.column, error.byte_offset) == ("public.t", "id", 13)
    assert isinstance(error, ValueError)
    assert "abc" not in str(error)


# --- boundaries ---------------------------------------------------------------------------------------------


def boundaries(payloads: list[bytes], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in decode(payloads).transactions]


def test_plain_transaction_with_an_origin() -> None:
    out = decode([begin(), origin(), commit()])
    common = {"txn": 0, "xid": 7, "subxid": None, "lsn": 100, "timestamp": TIME_1970,
    "prepare_timestamp": None,
              "gid": None, "first_segment": None}  # fmt: skip
    assert out.transactions == [
        {"seq": 0, "kind": "begin", "end_lsn": None, "origin": None, "origin_lsn": None, **common},
        {"seq": 2, "kind": "commit", "end_lsn": 108, "origin": "o", "origin_lsn": 77, **common},
    ]
    assert out.outcomes == [
        {"txn": 0, "subxid": None, "outcome": "committed", "at_seq": 2, "commit_lsn": 100,
         "commit_timestamp": TIME_1970}
    ]  # fmt: skip


def test_two_phase_boundaries() -> None:
    payloads = [
        begin_prepare(),
        prepare(),
        commit_prepared(),
        begin_prepare(8),
        prepare(8),
        rollback_prepared(8),
    ]
    keys = ("kind", "txn", "xid", "lsn", "end_lsn", "timestamp", "prepare_timestamp", "gid")
    assert boundaries(payloads, *keys) == [
        ("begin_prepare", 0, 7, 500, 508, TIME_1970, TIME_1970, "g"),
        ("prepare", 0, 7, 500, 508, TIME_1970, TIME_1970, "g"),
        ("commit_prepared", 0, 7, 600, 608, TIME_1970 + 1, TIME_1970, "g"),
        ("begin_prepare", 3, 8, 500, 508, TIME_1970, TIME_1970, "g"),
        ("prepare", 3, 8, 500, 508, TIME_1970, TIME_1970, "g"),
        ("rollback_prepared", 3, 8, 508, 708, TIME_1970 + 2, TIME_1970, "g"),
    ]
    outcomes = decode(payloads).outcomes
    assert [(o["txn"], o["outcome"], o["at_seq"], o["commit_lsn"]) for o in outcomes] == [
        (0, "committed", 2, 600),
        (3, "aborted", 5, None),
    ]


def test_stream_boundaries_and_origin_on_the_row_that_ends_the_transaction() -> None:
    with_time = abort(9, 10) + struct.pack(">qq", 0, TIME)
    payloads = [
        start(),
        origin(),
        STOP,
        with_time,
        start(first=0),
        STOP,
        prepare(9, tag=b"p"),
        commit_prepared(9),
    ]
    keys = ("kind", "txn", "xid", "subxid", "lsn", "timestamp", "origin", "first_segment")
    assert boundaries(payloads, *keys) == [
        ("stream_start", 0, 9, None, None, None, None, True),
        ("stream_stop", 0, 9, None, None, None, None, None),
        ("stream_abort", 0, 9, 10, None, TIME_1970, None, None),
        ("stream_start", 0, 9, None, None, None, None, False),
        ("stream_stop", 0, 9, None, None, None, None, None),
        ("stream_prepare", 0, 9, None, 500, TIME_1970, "o", None),
        ("commit_prepared", 0, 9, None, 600, TIME_1970 + 1, None, None),
    ]
    for end in (stream_commit(), abort()):
        assert boundaries([start(), origin(), STOP, end], "origin", "origin_lsn")[-1] == ("o", 77)


def test_ends_of_transactions_never_seen_are_tolerated() -> None:
    out = decode([abort(), abort(9, 10), commit_prepared(), rollback_prepared()])
    assert [(row["txn"], row["xid"], row["subxid"]) for row in out.transactions] == [
        (None, 9, 9), (None, 9, 10), (None, 7, None), (None, 7, None),
    ]  # fmt: skip
    assert [row["prepare_timestamp"] for row in out.transactions] == [None, None, None, TIME_1970]
    assert out.outcomes == []


def test_a_new_transaction_of_a_known_xid_voids_the_older_one() -> None:
    for older in ([start(9), STOP], [start(9), STOP, prepare(9, tag=b"p")], [begin_prepare(9), prepare(9)]):
        for newer in (start(9), begin(xid=9), begin_prepare(9)):
            if newer[:1] == b"S" and older[-1] != STOP:
                continue  # what is prepared may be streamed again
            out = decode([*older, newer])
            found = [(o["txn"], o["subxid"], o["outcome"], o["at_seq"]) for o in out.outcomes]
            assert found == [(0, None, "aborted", len(older))]


def test_a_new_session_voids_what_is_open_but_not_what_is_prepared() -> None:
    payloads = [
        begin_prepare(6), prepare(6), start(9), STOP, start(8), STOP, begin(), R,
        begin(), insert(b"1"), commit(), commit_prepared(6),
    ]  # fmt: skip
    out = decode(payloads, sessions=[8])
    assert [(o["txn"], o["outcome"], o["at_seq"]) for o in out.outcomes] == [
        (2, "aborted", 8), (4, "aborted", 8), (6, "aborted", 8), (8, "committed", 10), (0, "committed", 11),
    ]  # fmt: skip
    with pytest.raises(ReferenceError):
        decode([start(9), STOP, stream_commit()], sessions=[2])


def test_logical_messages() -> None:
    out = decode(
        [
            message(0),
            begin(),
            message(1),
            message(0, lsn=191),
            commit(),
            start(),
            message(1, xid=9),
            message(0, xid=9, lsn=192),
            STOP,
        ],
        [4] * 9,
    )
    keys = ("seq", "lsn", "txn", "xid", "transactional", "prefix", "content")
    assert [tuple(row[key] for key in keys) for row in out.messages] == [
        (0, 190, None, None, False, "p", b"abc"),
        (2, 190, 1, 7, True, "p", b"abc"),
        (3, 191, None, None, False, "p", b"abc"),
        (6, 190, 5, 9, True, "p", b"abc"),
        (7, 192, None, None, False, "p", b"abc"),
    ]


# --- streamed changes and scopes ----------------------------------------------------------------------------


def test_streamed_rows_know_their_subtransaction_but_not_their_commit() -> None:
    out = decode([start(), R_STREAM, insert(b"1", xid=10), STOP, stream_commit()])
    row = out.rows[0]
    assert (row["_txn"], row["_xid"], row["_subxid"], row["_commit_lsn"], row["_commit_timestamp"]) == (
        0, 9, 10, None, None,
    )  # fmt: skip


WIDE = (b"extra", TEXT, -1)


def columns_after(*messages: bytes) -> list[list[str]]:
    return [list(row["columns"]) for row in decode(list(messages)).rows]


def test_a_relation_of_a_stream_is_unknown_outside_until_it_commits() -> None:
    stream = [start(), relation(ID, WIDE, xid=9), insert(b"1", b"x", xid=9), STOP]
    between = [begin(), R, insert(b"1"), commit()]
    late = [begin(200), insert(b"1"), commit(200)]
    assert malformed([*stream, *late]).seq == 5
    assert columns_after(begin(), R, commit(), *stream, *late)[-1] == ["id"]
    wide_late = [begin(200), insert(b"1", b"x"), commit(200)]
    assert columns_after(*stream, stream_commit(), *wide_late)[-1] == ["id", "extra"]
    assert columns_after(*stream, prepare(9, tag=b"p"), commit_prepared(9), *wide_late)[-1] == ["id", "extra"]
    assert malformed([*stream, abort(), *wide_late]).reason
    # a plain Relation that came later is not overridden, but the stream itself goes on with its own
    more = [start(first=0), insert(b"2", b"x", xid=9), STOP]
    assert columns_after(*stream, *between, *more, stream_commit(), *late) == [
        ["id", "extra"], ["id"], ["id", "extra"], ["id"],
    ]  # fmt: skip


def test_an_aborted_subtransaction_takes_its_relations_along() -> None:
    narrow_again = [start(first=0), insert(b"2", xid=9), STOP]
    first = [start(), R_STREAM, relation(ID, WIDE, xid=10), insert(b"1", b"x", xid=10), STOP]
    assert columns_after(*first, abort(9, 10), *narrow_again) == [["id", "extra"], ["id"]]
    assert malformed([*first, *narrow_again]).reason


def test_types_are_scoped_like_relations() -> None:
    described = relation((b"id", 20000, -1), xid=9)
    stream = [start(), user_type(20000, b"", b"int4", xid=9), described, insert(b"1", xid=9), STOP]
    plain = [begin(), relation((b"other", 20000, -1)), insert(b"1"), commit()]
    assert [next(iter(row["columns"].values())) for row in decode([*stream, *plain]).rows] == [1, "1"]
    assert [
        next(iter(row["columns"].values())) for row in decode([*stream, stream_commit(), *plain]).rows
    ] == [1, 1]


def test_a_version_has_one_meaning() -> None:
    """Its id is made of the Relation alone: under the same bytes a type cannot become another one."""
    described = relation((b"id", 20000, -1))
    as_int, as_text, as_mood, renamed = (
        user_type(20000, namespace, name)
        for namespace, name in ((b"", b"int4"), (b"", b"text"), (b"public", b"mood"), (b"s", b"feeling"))
    )
    problem = malformed([begin(), as_int, described, insert(b"1"), as_text, described])
    assert (problem.seq, problem.relation, problem.column) == (5, "public.t", "id")
    stream = [begin(), as_int, described, insert(b"1"), as_text, described, insert(b"2"), as_int, described]
    out = decode([*stream, insert(b"3"), commit()], on_error="quarantine")
    assert ids(out) == [1, 3]
    assert [row["relation"] for row in out.rejects] == ["public.t"] * 2
    assert ids(decode([begin(), as_mood, described, insert(b"a"), renamed, described, insert(b"b")])) == [
        "a",
        "b",
    ]


def test_a_relation_in_a_prepared_plain_transaction_is_plain() -> None:
    assert ids(decode([begin_prepare(), R, prepare(), begin(), insert(b"1"), commit()])) == [1]


# --- quarantine ---------------------------------------------------------------------------------------------


def test_a_bad_change_is_set_aside_alone() -> None:
    bad = b"U" + u32(1) + b"O" + tup(b"1") + b"N" + tup(b"x")
    out = decode([begin(), R, insert(b"1"), bad, insert(b"2"), commit()], [9] * 6, on_error="quarantine")
    assert ids(out) == [1, 2]
    reject = out.rejects[0]
    assert reject.pop("reason")
    assert reject == {
        "seq": 3, "lsn": 9, "relation": "public.t", "column": "id", "change_type": None, "format": None,
        "type_oid": None, "byte_offset": 22, "raw": bad,
    }  # fmt: skip


OTHER = relation(ID, oid=2, name=b"u")
OTHER_1, OTHER_2 = insert(b"1", oid=2), insert(b"2", oid=2)
ONE_ROW, TWO, THREE = insert(b"1"), insert(b"2"), insert(b"3")
BAD_IN_STREAM = [start(), R_STREAM + b"\0", insert(b"1", xid=9), STOP]


# fmt: off
SET_ASIDE = [
    pytest.param([begin(), R, b"T" + u32(1) + b"\4" + u32(1), TWO], [2], [2], id="a bad truncate alone"),
    pytest.param([begin(), R, message(3), TWO], [2], [2], id="a bad message alone"),
    pytest.param([begin(), R, origin() + b"\0", TWO], [2], [2], id="a bad origin alone"),
    pytest.param([begin(), R, OTHER_1, TWO], [2], [2], id="a change of an unknown relation alone"),
    pytest.param([R, ONE_ROW, begin(), TWO], [2], [1], id="a change outside transactions alone"),
    pytest.param([begin(), R, OTHER, R + b"\0", ONE_ROW, OTHER_2, R, THREE], [2, 3], [3, 4],
                 id="a bad relation with its changes until a valid one"),
    pytest.param([begin(), R, OTHER, b"R\0", ONE_ROW, OTHER_2, R, THREE, OTHER_1], [3], [3, 4, 5, 8],
                 id="a relation of unreadable oid with all changes"),
    pytest.param([begin(), R, commit(), *BAD_IN_STREAM, begin(200), TWO], [2], [4, 5],
                 id="a bad relation in its scope only"),
    pytest.param([begin(), OTHER, b"Y\0", R, ONE_ROW, OTHER_2, R, THREE], [2, 3], [2, 4],
                 id="a bad type with changes of the next relation"),
]
# fmt: on


@pytest.mark.parametrize(("payloads", "decoded", "rejected"), SET_ASIDE)
def test_sets_aside(payloads: list[bytes], decoded: list[int], rejected: list[int]) -> None:
    assert quarantined(payloads) == (decoded, rejected)


@pytest.mark.parametrize(
    "bad", [b"?", b"", b"B", STOP, stream_commit(), commit(101), abort() + b"\0", start()]
)
def test_a_bad_boundary_sets_everything_aside_until_the_next(bad: bytes) -> None:
    payloads = [begin(), R, insert(b"1"), bad, insert(b"2"), R, message(0), commit(),
                begin(200), insert(b"3"), R, insert(b"4"), commit(200)]  # fmt: skip
    assert quarantined(payloads) == ([1, 4], [3, 4, 5, 6, 9])
    out = decode(payloads, on_error="quarantine")
    assert [(row["kind"], row["txn"]) for row in out.transactions] == [
        ("begin", 0), ("commit", None), ("begin", 8), ("commit", 8),
    ]  # fmt: skip
    assert [(row["txn"], row["at_seq"]) for row in out.outcomes] == [(8, 12)]


def test_streams_survive_a_bad_boundary() -> None:
    payloads = [start(), R_STREAM, insert(b"1", xid=9), b"?", insert(b"2", xid=9), STOP,
                start(first=0), insert(b"3", xid=9), R_STREAM, insert(b"4", xid=9), STOP,
                stream_commit()]  # fmt: skip
    assert quarantined(payloads) == ([1, 4], [3, 4, 7])
    out = decode(payloads, on_error="quarantine")
    assert [(row["kind"], row["txn"]) for row in out.transactions][1] == ("stream_stop", None)
    assert [(row["txn"], row["outcome"]) for row in out.outcomes] == [(0, "committed")]


def test_a_prepare_after_a_loss_is_accepted_without_its_transaction() -> None:
    out = decode([b"?", prepare(), commit_prepared()], on_error="quarantine")
    assert [(row["kind"], row["txn"]) for row in out.transactions] == [
        ("prepare", None),
        ("commit_prepared", None),
    ]
    assert out.outcomes == []


def test_every_truncated_message_is_malformed() -> None:
    payloads = [
        start(), user_type(20000, b"", b"int4", xid=9), R_STREAM, insert(b"1", xid=9), message(1, xid=9),
        origin(),
        STOP, stream_commit(), begin(), R, insert(b"1"), b"U" + u32(1) + b"O" + tup(b"1") + b"N" + tup(b"2"),
        b"T" + u32(1) + b"\0" + u32(1), commit(), begin_prepare(), prepare(), commit_prepared(),
        rollback_prepared(), abort(),
    ]  # fmt: skip
    assert len(decode(payloads).rows) == 5
    for seq, payload in enumerate(payloads):
        for length in range(len(payload)):
            assert malformed([*payloads[:seq], payload[:length]]).seq == seq


# --- committed view -----------------------------------------------------------------------------------------


def committed(payloads: list[bytes], **options: Any) -> list[tuple[Any, ...]]:
    out = decode(payloads, transactions="committed", **options)
    return [(row["_commit_lsn"], row["_seq"], row["columns"]["id"]) for row in out.rows]


def test_committed_view_of_interleaved_streams() -> None:
    payloads = [
        start(), R_STREAM, insert(b"10", xid=9), insert(b"11", xid=10), message(1, xid=9), STOP, abort(9, 10),
        begin(300), R, insert(b"50"), commit(300), start(first=0), R_STREAM, insert(b"12", xid=10), STOP,
        stream_commit(), start(12), relation(ID, xid=12), insert(b"99", xid=12), STOP, abort(12),
        begin(500), insert(b"98"),
    ]  # fmt: skip
    assert committed(payloads) == [(300, 9, 50), (400, 2, 10), (400, 13, 12)]
    out = decode(payloads, transactions="committed")
    assert {row["_commit_timestamp"] for row in out.rows} == {TIME_1970}
    assert len(out.messages) == 1
    assert ids(decode(payloads)) == [10, 11, 50, 12, 99, 98]


def test_committed_view_of_prepared_transactions() -> None:
    prepared = [begin_prepare(), R, insert(b"1"), prepare()]
    assert committed(prepared) == []
    assert committed([*prepared, rollback_prepared()]) == []
    assert committed([*prepared, commit_prepared()]) == [(600, 2, 1)]
    streamed = [start(), R_STREAM, insert(b"1", xid=9), STOP, prepare(9, tag=b"p")]
    assert committed([*streamed, commit_prepared(9)]) == [(600, 2, 1)]
    assert committed([*streamed, commit_prepared(9, b"another")]) == []


def test_committed_view_of_a_transaction_sent_again_in_a_new_session() -> None:
    once = [start(), R_STREAM, insert(b"1", xid=9), STOP]
    assert committed([*once, *once, stream_commit()], sessions=[4]) == [(400, 6, 1)]
    assert committed([*once, begin(xid=9), R, insert(b"1"), commit()], sessions=[4]) == [(100, 6, 1)]


def test_committed_view_holds_truncates_and_messages_but_not_non_transactional_ones() -> None:
    truncate = b"T" + u32(10) + u32(1) + b"\0" + u32(1)
    payloads = [start(), R_STREAM, truncate, message(1, xid=9), message(0, xid=9), STOP]
    out = decode(payloads, transactions="committed")
    assert (out.rows, out.truncates, [row["seq"] for row in out.messages]) == ([], [], [4])
    out = decode([*payloads, abort(9, 10), stream_commit()], transactions="committed")
    assert (out.rows, out.truncates, [row["seq"] for row in out.messages]) == ([], [], [4, 3])
    out = decode([*payloads, stream_commit()], transactions="committed")
    assert (out.rows[0]["_commit_lsn"], out.truncates[0]["relations"]) == (400, [1])


def test_committed_view_gives_rejects_with_the_rows() -> None:
    payloads = [start(), relation((b"v", TEXT, -1), xid=9), insert(b"\xff", xid=9), STOP]
    assert decode(payloads, transactions="committed").rejects == []
    assert len(decode([*payloads, stream_commit()], transactions="committed").rejects) == 1
    bad = [start(), R_STREAM, insert(b"x", xid=9), STOP]
    decode([*bad, abort()], transactions="committed")
    with pytest.raises(ReferenceError) as caught:
        decode([*bad, stream_commit()], transactions="committed")
    assert caught.value.seq == 2


def test_committed_view_sets_held_changes_of_a_lost_transaction_aside() -> None:
    payloads = [begin(), R, insert(b"1"), b"?", insert(b"2"), commit()]
    assert quarantined(payloads, transactions="committed") == ([], [3, 2, 4])
