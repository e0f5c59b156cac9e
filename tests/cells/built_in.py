"""Cells of the types that have their own binary form and that become text."""

from __future__ import annotations

import struct
from dataclasses import replace
from decimal import Decimal

from cells.cell import Cells, array
from pgoutput_fast.encode.values import to_binary, to_text

NOT_UTF8 = b"\xff"


def printed(
    oid: int, name: str, texts: list[str], *, binary: list[bytes] | None = None, wrong: list[bytes]
) -> Cells:
    """A type whose text is taken as it is: `texts` in both formats, and binary cells that no server sends."""
    # One byte of a "char" may be any: servers before 15 print it as it is.
    not_utf8 = 2 * NOT_UTF8 if name == "char" else NOT_UTF8
    return Cells(
        oid,
        both=[(text.encode(), to_binary(name, text)) for text in texts],
        binary=binary or [],
        text=[] if name in NO_SUCH_TEXT else [b"whatever it says"],
        unrepresentable_text=[] if name in NO_SUCH_TEXT else [not_utf8],
        malformed_text=[*NO_SUCH_TEXT[name].split(b" "), NOT_UTF8] if name in NO_SUCH_TEXT else [],
        malformed_binary=wrong,
    )


V4_WRONG = b"1 1.2.3 1.2.3.4.5 1.2.3.256 1.2.3.04 1.2.3. .1.2.3 1..2.3 a.b.c.d 1.2.3.4/33 1.2.3.4/ 1.2.3.4/08 1.2.3.4/-1 1.2.3.4x"
V6_WRONG = (
    b"abc ::: 1::2::3 1:2:3:4:5:6:7 1:2:3:4:5:6:7:8:9 1:2:3:4:5:6:7::8 12345:: 01:: A:: g:: 1: :1 1:2:3:4:5:6:7: ::1%lo ::/129 ::/ "
    b"::1.2.3 ::1.2.3.4.5 1:2:3:4:5:6:7:1.2.3.4 ::1.2.3.04 ::1.2.3.4:5 :/1 1:/1"
)
# Text that no server prints, for types whose text is checked. The empty text is added for all of them but bits.
NO_SUCH_TEXT = {
    "tid": b" ( () (1,2 1,2 (1,2)x (01,2) (1,65536) (4294967296,1) (-1,2) (1,) (,2) (1,2,3) (1;2)",
    "xid8": b" -1 01 x 1x 18446744073709551616 99999999999999999999999",
    "oid8": b" -1 01 x 1x 18446744073709551616",
    "pg_lsn": b" / 0 0/ /0 01/0 0/01 0/0000001 0/000000001 123456789/0 0/123456789 0/a A/0x 0/0/0 0/G 00/0 0/00 0-0",
    "bit": b"2 012 x 1.0",
    "varbit": b"2 012 x 101O",
    "inet": b" " + V4_WRONG + b" " + V6_WRONG,
    "cidr": b" " + V4_WRONG + b" " + V6_WRONG + b" 1.2.3.4 ::",
    "macaddr": b" 08:00:2b:01:02:fF 08:00:2b:01:02 08:00:2b:01:02:ff:00 08-00:2b:01:02:ff 08:00:2b:01:02:fg 08002b0102ff00000",
    "macaddr8": b" 08:00:2b:01:02:03:04:fF 08:00:2b:01:02:ff 08:00:2b:01:02:03:04:ff:00 08:00:2b:01:02:03:04-ff",
}


def wrong_widths(width: int) -> list[bytes]:
    return [b"", b"\0" * (width - 1), b"\0" * (width + 1)]


def reg(oid: int, name: str) -> Cells:
    return printed(oid, name, ["1259", "4294967295"], binary=[b"\0\0\0\0"], wrong=wrong_widths(4))


def vector(oid: int, name: str, element_oid: int, width: int) -> Cells:
    one = struct.pack(">i", width) + b"\0" * width
    head = struct.pack(">iiIii", 1, 0, element_oid, 1, 0)
    return printed(
        oid, name, ["", "0", "1 2 300"],
        binary=[struct.pack(">iiI", 0, 0, element_oid)],
        wrong=[
            b"", head, head + one[:-1], head + one + b"\0", head[:-4] + b"\0\0\0\1" + one, b"\0\0\0\2" + head[4:] + one,
            head[:4] + b"\0\0\0\1" + head[8:] + one, struct.pack(">iiIii", 1, 0, 25, 1, 0) + one,
            head + struct.pack(">i", -1) + b"\0" * width, struct.pack(">iiIii", 1, 0, element_oid, -1, 0),
            struct.pack(">iiIii", 1, 0, element_oid, 2**31 - 1, 0) + one, struct.pack(">iiI", 1, 0, element_oid),
        ],
    )  # fmt: skip


# Parts of a tsquery: a value, an operator, a phrase operator.
def word(text: bytes, weights: int = 0, prefix: int = 0) -> bytes:
    return bytes([1, weights, prefix]) + text + b"\0"


NOT, AND, OR = b"\2\1", b"\2\2", b"\2\3"


def phrase(distance: int) -> bytes:
    return b"\2\4" + struct.pack(">h", distance)


def query(*items: bytes, count: int | None = None) -> bytes:
    return struct.pack(">i", len(items) if count is None else count) + b"".join(items)


# Deep enough to overflow the stack of a recursive function.
DEEP = query(*[NOT] * 50_000, word(b"a"))
DEEP_LEFT = query(*[AND, word(b"r")] * 20_000, word(b"a"))
DEEP_RIGHT = query(*[OR] * 20_000, *[word(b"r")] * 20_001)


def interval_binary(months: int, days: int, micros: int) -> bytes:
    return struct.pack(">qii", micros, days, months)


INTERVALS = [
    (0, 0, 0), (1, 0, 0), (-1, 0, 0), (12, 0, 0), (13, 1, 1_000_000_000), (-14, -3, -1000), (-1, 1, 0), (1, -1, 1000),
    (0, 1, -1000), (11, 0, 0), (-23, 29, 86_399_999_999_000), (2**31 - 1, -(2**31), 0), (-(2**31), 2**31 - 1, 3600 * 10**9),
    (0, 0, 9223372036854775000), (0, 0, -9223372036854775000), (0, -1, 360_000 * 10**9), (0, 0, 100_000_000),
]  # fmt: skip
INTERVAL_WRONG = [
    "", " ", "0", "1", "1 day ", " 1 day", "1 days", "-1 day", "2 day", "+1 day", "0 days", "1 day 0 days", "01 days",
    "1 mon 1 year", "1 day 1 day", "12 mons", "1 year -1 mons", "1 year  1 mon", "1 year 1 mon1 day", "00:00", "0:00:00", "000:00:00",
    "00:60:00", "00:00:60", "00:00:00.", "00:00:00.0", "00:00:00.10", "00:00:00.1234567", "-00:00:00", "+00:00:01",
    "1 day 00:00:00", "-1 days 00:00:01", "-1 days 1 mon", "1 day +00:00:01", "00:00:01 1 day", "1 day 00:00:01x", "1 mons", "P1D",
    "@ 1 day", "1 day ago", "1 year 2 months", "1-2", "Infinity", "infinit", "00:00:01 ", "99999999999:00:00", "1 day 00:00:0a",
    "178956971 years", "178956970 years 8 mons", "2147483648 days", "-2147483649 days", "2562047788:00:54.775808",
    "-2562047788:00:54.775809", "9999999999 days", "9999999999:00:00", "12345678901 days", "1 day\n", "1 century", "-",
]  # fmt: skip
MONEY = [
    "0", "0.01", "-0.01", "1", "12.34", "123.00", "-1234.56", "12345", "999999.99", "1000000", "92233720368547758.07",
    "-92233720368547758.08",
]  # fmt: skip
MONEY_WRONG = [
    "", "$", "-$", "$.00", "$1", "$1.0", "$1.000", "1.00", "$-1.00", "-$0.00", "+$1.00", "$1234.00", "$1,23.00", "$,123.00", "$12,3456.00",
    "$01.00", "$00.00", "$0,123.00", "$1.2a", "$a.00", "$ 1.00", "$1.00 ", "€1.00", "1.00 €", "$1,.00", "$1.00.00", "$92,233,720,368,547,758.08",
    "-$92,233,720,368,547,758.09", "$999,999,999,999,999,999,999,999,999,999,999,999,999,999.00", "$1,,234.00", "($1.00)",
]  # fmt: skip
FLOATS = [
    "0", "-0", "1", "-1.5", "0.1", "0.0001", "1e-05", "100000000000000", "1e+15", "123456789012345.67", "1e+22",
    "9.999999999999999e+22", "5e-324", "2.2250738585072014e-308", "1.7976931348623157e+308", "NaN", "Infinity", "-Infinity",
    "0.30000000000000004", "9007199254740992", "4503599627370497.5", "9.5367431640625e-07", "-123456.789",
]  # fmt: skip
FLOATS = [text if text != "9007199254740992" else "9.007199254740992e+15" for text in FLOATS]
FLOATS = [text if text != "4503599627370497.5" else "4.503599627370497e+15" for text in FLOATS]


def shape(oid: int, name: str, pattern: str, width: int) -> Cells:
    """A geometric type. Each `#` of the pattern is a float; there are `width` // 8 floats."""
    texts = []
    for at in range(len(FLOATS)):
        pieces = pattern.split("#")
        numbers = [FLOATS[(at + k) % len(FLOATS)] for k in range(len(pieces) - 1)]
        texts.append("".join(a + b for a, b in zip(pieces, [*numbers, ""], strict=True)))
    return printed(oid, name, texts, wrong=wrong_widths(width))


def points(oid: int, name: str, texts: list[str], head: bytes) -> Cells:
    point = b"\0" * 16
    wrong = [
        b"",
        head,
        head + b"\0\0\0\0",
        head + b"\0\0\0\1",
        head + b"\0\0\0\1" + point[:-1],
        head + b"\0\0\0\1" + point + b"\0",
    ]
    wrong += [head + b"\0\0\0\2" + point, head + struct.pack(">i", -1), head + b"\x10\0\0\1" + point]
    return printed(oid, name, [*texts, "((1e+23,2),(NaN,-0))".replace("1e+23", "9.999999999999999e+22")], wrong=wrong)  # fmt: skip


ADDRESS_WRONG = [
    b"", b"\2\x20\0", b"\2\x20\0\4\1\2\3", b"\2\x20\0\4\1\2\3\4\5", b"\1\x20\0\4\1\2\3\4", b"\2\x21\0\4\1\2\3\4",
    b"\2\x20\2\4\1\2\3\4", b"\2\x20\0\5\1\2\3\4", b"\3\x20\0\4\1\2\3\4", b"\2\x20\0\x10" + b"\0" * 16, b"\3\x81\0\x10" + b"\0" * 16,
]  # fmt: skip
V6 = [
    "::", "::1", "1::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "::1.2.3.4", "::0.1.0.0", "2001:db8::8:800:200c:417a",
    "::ffff:0:0:1", "0:1::1", "1::1:0:0:2", "1:0:0:2::3", "::2:0:0:0:0", "abcd:ef01:2345:6789:abcd:ef01:2345:6789", "::1:2:3",
    "::ffff:ffff:1:2",
]  # fmt: skip
# The server shortens the first of the longest runs of zeros.
V6 = [text for text in V6 if text not in ("1:0:0:2::3", "::2:0:0:0:0")]

SCALARS: dict[str, Cells] = {
    "char": replace(printed(18, "char", ["", "a", "\\", "'", "\x01", "\x7f", "\\200", "\\303", "\\377"], wrong=[b"", b"ab"]), text=[b"\x80", b"\xff", b"ab"]),
    "int2vector": vector(22, "int2vector", 21, 2),
    "regproc": reg(24, "regproc"),
    "tid": printed(27, "tid", ["(0,0)", "(4294967295,65535)", "(10,1)"], wrong=wrong_widths(6)),
    "oidvector": vector(30, "oidvector", 26, 4),
    "xml": Cells(142, both=[(b"<a>\xc3\xa9</a>", b"<a>\xc3\xa9</a>")], unrepresentable_text=[NOT_UTF8], unrepresentable_binary=[NOT_UTF8]),
    "lseg": shape(601, "lseg", "[(#,#),(#,#)]", 32),
    "path": points(602, "path", ["[(1,2)]", "((1,2))", "[(0.1,-3),(1e+20,5)]"], b"\1"),
    "box": shape(603, "box", "(#,#),(#,#)", 32),
    "polygon": points(604, "polygon", ["((1,2))", "((1,2),(3,4),(5,6))"], b""),
    "line": shape(628, "line", "{#,#,#}", 24),
    "cidr": printed(650, "cidr", ["0.0.0.0/0", "10.0.0.0/8", "1.2.3.4/32", *(f"{text}/128" for text in V6)], wrong=ADDRESS_WRONG),
    "circle": shape(718, "circle", "<(#,#),#>", 24),
    "macaddr8": printed(774, "macaddr8", ["08:00:2b:01:02:03:04:ff"], wrong=wrong_widths(8)),
    "money": Cells(
        790,
        both=[(to_text("money", Decimal(text)).encode(), to_binary("money", Decimal(text))) for text in MONEY],
        malformed_text=[text.encode() for text in MONEY_WRONG] + [NOT_UTF8],
        malformed_binary=wrong_widths(8),
    ),
    "macaddr": printed(829, "macaddr", ["08:00:2b:01:02:ff"], wrong=wrong_widths(6)),
    "inet": printed(869, "inet", ["0.0.0.0", "255.255.255.255", "192.168.1.5/24", "9.10.99.100/31", "1.2.3.4/0", *V6, "::/0", "1::2/127"],
                    binary=[b"\2\x20\1\4\1\2\3\4"], wrong=ADDRESS_WRONG),
    "aclitem": Cells(1033, text=[b"=r/postgres"], binary=[b"\0\1"], unrepresentable_text=[NOT_UTF8]),
    "interval": Cells(
        1186,
        both=[(to_text("interval", value).encode(), to_binary("interval", value)) for value in INTERVALS],
        unrepresentable_text=[b"infinity", b"-infinity", b"2562047:47:16.854776", b"-2562047:47:16.854776", b"2562047788:00:54.775807",
                              b"1 day -2562047788:00:54.775808", b"178956970 years 7 mons 2147483647 days 2562047788:00:54.775807",
                              b"-178956970 years -8 mons -2147483648 days -2562047788:00:54.775808"],
        unrepresentable_binary=[interval_binary(2**31 - 1, 2**31 - 1, 2**63 - 1), interval_binary(-(2**31), -(2**31), -(2**63)),
                                interval_binary(0, 0, 9223372036854776), interval_binary(0, 0, -9223372036854776), interval_binary(0, 0, 2**63 - 1)],
        malformed_text=[text.encode() for text in INTERVAL_WRONG] + [NOT_UTF8, b"1 day\0"],
        malformed_binary=wrong_widths(16),
    ),
    "timetz": printed(
        1266, "timetz", ["00:00:00+00", "24:00:00-15:59:59", "12:34:56.7+05:30", "23:59:59.999999+00:19:32", "01:02:03.045-08", "00:00:00+00:00:01",
                         "17:52:02-20", "00:00:00+99:59:59", "00:00:00-100", "23:59:59.999999+596523:14:07", "24:00:00-596523:14:07",
                         "23:59:59.999999+4294370773:4294967282:4294967288"],
        wrong=[*wrong_widths(12), struct.pack(">qi", -1, 0), struct.pack(">qi", 86_400_000_001, 0)],
    ),
    "bit": printed(1560, "bit", ["0", "1", "10110"], binary=[b"\0\0\0\3\xff"], wrong=[b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\0\0", b"\xff\xff\xff\xff"]),
    "varbit": printed(1562, "varbit", ["", "1", "10101010", "101010101", "01" * 40],
                      wrong=[b"", b"\0\0\0\0\0", b"\x80\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\x09\0"]),
    "regclass": reg(2205, "regclass"),
    "txid_snapshot": printed(2970, "txid_snapshot", ["1:1:", "10:20:10,14,15"], wrong=[b"", b"\0" * 19, b"\0" * 21, b"\0\0\0\1" + b"\0" * 16]),
    "pg_lsn": printed(3220, "pg_lsn", ["0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848", "A0/1", "0/10", "0/00000000", "A/0000000F", "10/01000000"],
                      wrong=wrong_widths(8)),
    "tsvector": Cells(
        3614,
        both=[(text.encode(), to_binary("tsvector", text)) for text in (
            "", "'a'", "'a' 'b''c':1A,2B,3C,4 'd\\\\e':16383", "'é €' 'z':1", "''")],
        binary=[b"\0\0\0\1a\0\0\2\0\0\xff\xff"],
        text=[b"whatever it says"],
        unrepresentable_text=[NOT_UTF8],
        unrepresentable_binary=[b"\0\0\0\1\xff\0\0\0", b"\0\0\0\2\xc3\0\0\0\xa9\0\0\0"],
        malformed_binary=[b"", b"\0\0\0", b"\0\0\0\0\0", b"\0\0\0\1", b"\0\0\0\1a", b"\0\0\0\1a\0", b"\0\0\0\1a\0\0", b"\0\0\0\1a\0\0\1",
                          b"\0\0\0\1a\0\0\1\0", b"\0\0\0\1a\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\2a\0\0\0"],
    ),
    "tsquery": Cells(
        3615,
        both=[(text.encode(), to_binary("tsquery", text)) for text in (
            "", "'a'", "!'a'", "!!'a'", "'a' & 'b' | 'c'", "'a' & ( 'b' | 'c' )", "( 'a' | 'b' ) & 'c'", "'a' <-> 'b' <2> 'c'",
            "'a' <-> ( 'b' <-> 'c' )", "!( 'a' & 'b' )", "( 'a' & 'b' ) <-> !'c'", "'a':*", "'a':ABCD", "'a':*AD & 'b':C", "'it''s' | 'b\\\\s'",
            "'é' <0> 'sp ace'", "'a' <16384> 'b'", "''")],
        binary=[query(OR, OR, word(b"c"), word(b"b"), word(b"a")), query(phrase(-1), word(b"a"), word(b"b")), DEEP, DEEP_LEFT, DEEP_RIGHT],
        text=[b"whatever it says"],
        unrepresentable_text=[NOT_UTF8],
        unrepresentable_binary=[query(word(b"\xff"))],
        malformed_binary=[
            b"", b"\0\0\0", query() + b"\0", query(AND, word(b"a")), query(NOT), query(word(b"a"), word(b"b")), query(word(b"a"), count=2),
            query(word(b"a"), count=-1), query(word(b"a"), count=2**31 - 1), query(b"\2\0"), query(b"\2\5"), query(b"\3\1"), query(b"\0\1"),
            query(word(b"a", 16)), query(word(b"a", 0, 2)), query(b"\1\0\0a"), query(b"\1\0\0"), query(b"\1\0"), query(b"\2\4\0"),
            query(AND, NOT, word(b"a"), word(b"b"), word(b"c")), query(word(b"a")) + b"\0",
        ],
    ),
    "jsonpath": Cells(4072, both=[(b"$.a", b"\1$.a")], unrepresentable_text=[NOT_UTF8], unrepresentable_binary=[b"\1\xff"],
                      malformed_binary=[b"", b"\2$", b"$"]),
    "xid8": printed(5069, "xid8", ["0", "18446744073709551615"], wrong=wrong_widths(8)),
    "oid8": printed(6437, "oid8", ["0", "18446744073709551615"], wrong=wrong_widths(8)),
}  # fmt: skip

LISTS: dict[str, Cells] = {
    "box[]": Cells(
        1020,
        both=[(b"{(1,2),(0,0);NULL;(3,4),(-0,5)}", array(603, to_binary("box", "(1,2),(0,0)"), None, to_binary("box", "(3,4),(-0,5)")))],
        text=[b"{whatever;it,says}"],
        unrepresentable_text=[b"{{(1,2),(0,0)};{(1,2),(0,0)}}"],
        malformed_text=[b"{(1,2),(0,0);}", b"{;}", b"{a;;b}", b"{a b}"],
        malformed_binary=[array(603, b"\0" * 31), array(601, b"\0" * 32)],
    ),
    "interval[]": Cells(
        1187,
        both=[(b'{"1 year -2 days",00:00:01,NULL}', array(1186, interval_binary(12, -2, 0), interval_binary(0, 0, 10**6), None))],
        unrepresentable_text=[b"{infinity,00:00:00}"],
        unrepresentable_binary=[array(1186, interval_binary(2**31 - 1, 2**31 - 1, 2**63 - 1), interval_binary(0, 0, 0))],
        malformed_text=[b'{"1 days"}'],
        malformed_binary=[array(1186, b"\0" * 15)],
    ),
    "money[]": Cells(791, both=[(b'{$0.50,"-$1,000.00"}', array(790, struct.pack(">q", 50), struct.pack(">q", -100000)))],
                     malformed_text=[b"{1.00}"]),
    "macaddr[]": Cells(1040, both=[(b"{08:00:2b:01:02:ff,NULL}", array(829, bytes.fromhex("08002b0102ff"), None))],
                       malformed_binary=[array(829, b"\0" * 6, b"\0" * 5)]),
    "timetz[]": Cells(1270, both=[(b"{00:00:00+00}", array(1266, b"\0" * 12))], malformed_binary=[array(1266, b"\0" * 12, b"\xff" * 12)]),
    "tsquery[]": Cells(3645, both=[(b"{'a','b'}", array(3615, query(word(b"a")), query(word(b"b"))))]),
    "int2vector[]": Cells(1006, both=[(b'{"1 2",""}', array(22, to_binary("int2vector", "1 2"), to_binary("int2vector", "")))]),
    "varbit[]": Cells(1563, both=[(b'{101,""}', array(1562, to_binary("varbit", "101"), to_binary("varbit", "")))]),
    "xid[]": Cells(1011, both=[(b"{1,4294967295}", array(28, b"\0\0\0\1", b"\xff\xff\xff\xff"))], malformed_text=[b"{-1}"]),
}  # fmt: skip
