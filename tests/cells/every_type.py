"""Cells of every supported type: from servers, without an Arrow form, and ones that no server sends."""

from __future__ import annotations

import struct

from cells import built_in as cells_built_in
from cells.cell import EMPTY_ARRAY, Cells, array, numeric


def integers(oid: int, code: str, least: int, greatest: int) -> Cells:
    values = sorted(
        {0, 1, 7, 99, 12345, greatest, greatest - 1, least, max(least, -1), max(least, -12345)} - {None}
    )
    values = [value for value in values if least <= value <= greatest]
    wrong = [
        b"",
        b"-",
        b"+1",
        b" 1",
        b"1 ",
        b"01",
        b"00",
        b"-0",
        b"0x1",
        b"1.0",
        b"1e3",
        b"a",
        b"\xff",
        b"1-",
        b"--1",
    ]
    wrong += [
        b"%d" % (greatest + 1),
        b"%d" % (least - 1),
        b"9" * 20,
        b"9" * 19,
        b"1" * 400,
        b"12345678a",
        b"a2345678",
    ]
    width = struct.calcsize(f">{code}")
    return Cells(
        oid,
        both=[(b"%d" % value, struct.pack(f">{code}", value)) for value in values],
        malformed_text=wrong,
        malformed_binary=[b"", b"\0" * (width - 1), b"\0" * (width + 1)],
    )


def floats(oid: int, code: str, good: list[str], beyond: list[str]) -> Cells:
    wrong = [
        "",
        "-",
        "+1",
        "1.",
        ".5",
        "1e5",
        "1e+5",
        "1E+10",
        "1e+0010",
        "1.e+10",
        "01",
        "-01",
        "00",
        "nan",
        "inf",
    ]
    wrong += [
        "infinity",
        "-NaN",
        "NaN ",
        "Infinit",
        "0x10",
        "1e",
        "1e+",
        "1e+1a",
        "1.5.5",
        "1 ",
        " 1",
        "1e+10e",
        "1,5",
    ]
    width = struct.calcsize(f">{code}")
    return Cells(
        oid,
        both=[(text.encode(), struct.pack(f">{code}", float(text))) for text in good],
        unrepresentable_text=[text.encode() for text in beyond],
        malformed_text=[text.encode() for text in wrong] + [b"\xff", b"1\0"],
        malformed_binary=[b"", b"\0" * (width - 1), b"\0" * (width + 1)],
    )


def texts(oid: int) -> Cells:
    good = [
        "",
        "a",
        "naïve",
        "日本語",
        "𝄞" * 9,
        "x" * 15,
        "y" * 16,
        "z" * 17,
        "{",
        "\\",
        "long " * 60,
        "NULL",
    ]
    bad = [
        b"\xff",
        b"abc\x80",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe0\x80\xaf",
        b"a" * 40 + b"\xe2\x82",
    ]
    return Cells(
        oid,
        both=[(text.encode(), text.encode()) for text in good],
        binary=[b"a\0b"],
        unrepresentable_text=bad,
        unrepresentable_binary=bad,
    )


NUMERIC_WRONG = [
    b"", b"-", b"+1", b"1.", b".5", b"-.5", b"01", b"-01", b"00", b"00.1", b"-0", b"-0.00", b"1e5", b"nan", b"inf",
    b"-NaN", b"infinity", b"1..2", b"1.2.3", b"1-", b" 1", b"1 ", b"a", b"1a", b"\xff", b"Infinity ", b"-Infinit",
]  # fmt: skip
NUMERIC_WRONG_BINARY = [
    b"", b"\0" * 7, numeric(0, 0, 0, 1)[:-1], numeric(0, 0, 0, 1) + b"\0", numeric(0, 0, 0, 10000),
    numeric(0, 0x1234, 0, 1), numeric(0, 0, 0x4000, 1), numeric(0, 0xC000, 0, 10000), numeric(0, 0xC000, 0x4000),
]  # fmt: skip
NUMERIC_BOTH = [
    (b"0", numeric(0, 0, 0)),
    (b"1", numeric(0, 0, 0, 1)),
    (b"-1", numeric(0, 0x4000, 0, 1)),
    (b"12345", numeric(1, 0, 0, 1, 2345)),
    (b"0.01", numeric(-1, 0, 2, 100)),
    (b"-10.50", numeric(0, 0x4000, 2, 10, 5000)),
    (b"99999999.99", numeric(1, 0, 2, 9999, 9999, 9900)),
]
NUMERIC_SPECIAL = [
    (b"NaN", numeric(0, 0xC000, 0)),
    (b"Infinity", numeric(0, 0xD000, 32)),
    (b"-Infinity", numeric(0, 0xF000, 32)),
]
DATES = [("2000-01-01", 0), ("1970-01-01", -10957), ("0001-01-01", -730119), ("0001-12-31 BC", -730120)]
DATES += [("2024-02-29", 8825), ("0044-03-15 BC", -746117), ("5874897-12-31", 2147483493 - 2451545)]
DATES += [("4713-01-01 BC", 38 - 2451545)]
DATE_WRONG = [
    "",
    "2000-1-1",
    "2000-01-1",
    "20000101",
    "200-01-01",
    "02000-01-01",
    "0000-01-01",
    "2000-00-01",
    "2000-13-01",
    "2000-01-00",
    "2000-01-32\n2001-02-29",
    "2000-02-30",
    "1900-02-29",
    "15/03/2000",
    "2000-01-01BC",
    "2000-01-01x",
    "x2000-01-01",
    "99999999-01-01",
    "Infinity",
    "-Infinity",
    "infinit\n2000-01-01|BC",
    "2000-01-01|AD",
    "2000/01/01",
    "2000-01-01-",
]
CLOCKS = [
    ("00:00:00", 0),
    ("23:59:59.999999", 86399999999),
    ("01:02:03.4", 3723400000),
    ("12:00:00.000001", 43200000001),
]
CLOCK_WRONG = [
    "",
    "1:00:00",
    "00:00",
    "24:00:01",
    "25:00:00",
    "00:60:00",
    "00:00:60",
    "00:00:00.",
    "00:00:00.1234567",
    "00:00:00,1",
    "0a:00:00",
    "00:00:00x\n00-00-00",
    "00:00:00+00",
    "23:59:59.9999999",
    "24:00:00.000001",
]
STAMPS = [
    ("2000-01-01 00:00:00", 0),
    ("1999-12-31 23:59:59.5", -500000),
    ("4713-01-01 00:00:00 BC", -211810204800000000),
]
STAMPS += [("294246-12-31 23:59:59", 9222424559999000000), ("2038-01-19 03:14:08.123456", 1200798848123456)]


def stamps(oid: int, zone: str) -> Cells:
    with_zone = [
        (text.removesuffix(" BC") + zone + (" BC" if "BC" in text else ""), value) for text, value in STAMPS
    ]
    more = [
        ("2000-01-01 05:30:00+05:30", 0),
        ("1999-12-31 12:00:00-12", 0),
        ("2000-01-01 00:19:32+00:19:32", 0),
        ("1999-12-31 04:00:00-20", 0),
        ("1999-12-25 00:00:00-168", 0),
        ("2000-01-08 01:00:00+169", 0),
    ]
    wrong = [
        "",
        "2000-01-01",
        "2000-01-01T00:00:00" + zone,
        "2000-01-01 24:00:00" + zone,
        "2000-01-01 00:00" + zone,
    ]
    wrong += [
        "2000-01-01  00:00:00" + zone,
        "0000-01-01 00:00:00" + zone,
        "2001-02-29 00:00:00" + zone,
        "infinit",
    ]
    wrong += [
        "2000-01-01 00:00:00" + ("" if zone else "+00"),
        "2000-01-01 00:00:00 UTC",
        "01/02/2000 00:00:00" + zone,
    ]
    if zone:
        wrong += [
            f"2000-01-01 00:00:00{bad}"
            for bad in (
                "+0",
                "+170",
                "+169:00:01",
                "-168:00:01",
                "-169",
                "+016",
                "+1000",
                "+00:60",
                "+00:00:60",
                "+00:",
                "Z",
                "+00 AD",
                "+1:00",
            )
        ]
    return Cells(
        oid,
        both=[
            (text.encode(), struct.pack(">q", value)) for text, value in with_zone + (more if zone else [])
        ],
        unrepresentable_text=[b"infinity", b"-infinity", f"294276-12-31 23:59:59{zone}".encode()],
        unrepresentable_binary=[
            struct.pack(">q", v) for v in (2**63 - 1, -(2**63), 2**63 - 2, 9223371331199999999)
        ],
        malformed_text=[text.encode() for text in wrong] + [b"\xff"],
        malformed_binary=[b"", b"\0" * 7, b"\0" * 9],
    )


UUID = b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"

SCALARS: dict[str, Cells] = {
    "bool": Cells(
        16,
        both=[(b"t", b"\1"), (b"f", b"\0")],
        malformed_text=[b"", b"true", b"T", b"1", b"y", b"\xff"],
        malformed_binary=[b"", b"\2", b"\xff", b"\0\0"],
    ),
    "bytea": Cells(
        17,
        both=[(b"\\x" + raw.hex().encode(), raw) for raw in (b"", b"\0", b"abc", bytes(range(256)), b"\xff" * 33)],
        malformed_text=[b"", b"\\", b"\\x0", b"\\xAB", b"\\xzz", b"abc", b"\\000", b"\\X00", b"x00", b"\\x0g", b"\\x 00"],
    ),
    "name": texts(19),
    "int8": integers(20, "q", -(2**63), 2**63 - 1),
    "int2": integers(21, "h", -(2**15), 2**15 - 1),
    "int4": integers(23, "i", -(2**31), 2**31 - 1),
    "text": texts(25),
    "oid": integers(26, "I", 0, 2**32 - 1),
    "json": texts(114),
    "float4": floats(
        700, "f", ["0", "-0", "1", "-1.5", "0.1", "3.4028235e+38", "1e-45", "1.17549435e-38", "1e+10", "NaN", "Infinity",
                   "-Infinity", "16777216", "123456.79"],
        ["3.4028236e+38", "1e+39", "-1e+300", "1e-46", "-1e-100", "1e+999"],
    ),
    "float8": floats(
        701, "d", ["0", "-0", "1", "-1.5", "0.1", "1.7976931348623157e+308", "5e-324", "2.2250738585072014e-308",
                   "9.999999999999999e+22", "NaN", "Infinity", "-Infinity", "123456789012345", "0.30000000000000004",
                   "1234567890123456789012345678901234567890"],
        ["1.79769313486232e+308", "1e+309", "-1e+999", "1e-324", "-1e-999"],
    ),
    "bpchar": texts(1042),
    "varchar": texts(1043),
    "date": Cells(
        1082,
        both=[(text.encode(), struct.pack(">i", days)) for text, days in DATES],
        unrepresentable_text=[b"infinity", b"-infinity", b"9999999-01-01"],
        unrepresentable_binary=[struct.pack(">i", days) for days in (2**31 - 1, -(2**31), 2**31 - 2)],
        malformed_text=[text.strip("\n").replace("|", " ").encode() for text in DATE_WRONG] + [b"\xff", b"2000-01-01\0"],
        malformed_binary=[b"", b"\0" * 3, b"\0" * 5],
    ),
    "time": Cells(
        1083,
        both=[(text.encode(), struct.pack(">q", micros)) for text, micros in CLOCKS],
        unrepresentable_text=[b"24:00:00"],
        unrepresentable_binary=[struct.pack(">q", 86400000000)],
        malformed_text=[text.strip("\n").encode() for text in CLOCK_WRONG] + [b"infinity"],
        malformed_binary=[b"", b"\0" * 7, struct.pack(">q", -1), struct.pack(">q", 86400000001)],
    ),
    "timestamp": stamps(1114, ""),
    "timestamptz": stamps(1184, "+00"),
    "numeric": Cells(
        1700,
        both=[*NUMERIC_BOTH, *NUMERIC_SPECIAL, (b"1" + b"0" * 40, numeric(10, 0, 0, 1)),
              (b"0." + b"0" * 40 + b"1234", numeric(-11, 0, 44, 1234)), (b"0.0000", numeric(0, 0, 4))],
        binary=[numeric(0, 0x4000, 0), numeric(0, 0x4000, 1, 0, 1), numeric(0, 0, 1, 5, 1234), numeric(32767, 0, 0, 1),
                numeric(-32768, 0, 3, 1), numeric(0, 0, 0, 0, 0), numeric(2, 0, 0, 0, 0, 12)],
        malformed_text=NUMERIC_WRONG,
        malformed_binary=NUMERIC_WRONG_BINARY,
    ),
    "numeric(10,2)": Cells(
        1700,
        typmod=(10 << 16 | 2) + 4,
        both=NUMERIC_BOTH,
        text=[b"1.000", b"0.10000000000000000000000000000000000000000000000"],
        binary=[numeric(0, 0x4000, 0), numeric(0, 0, 1, 5, 1239), numeric(2, 0, 0, 0, 0, 12)],
        unrepresentable_text=[b"NaN", b"Infinity", b"-Infinity", b"100000000", b"0.001", b"9" * 60, b"1.001"],
        unrepresentable_binary=[*(b for _, b in NUMERIC_SPECIAL), numeric(2, 0, 0, 1), numeric(-1, 0, 3, 10),
                                numeric(32767, 0, 0, 1), numeric(0, 0, 16383, 1, 0, 1), numeric(9, 0, 0, *[9999] * 10)],
        malformed_text=NUMERIC_WRONG,
        malformed_binary=NUMERIC_WRONG_BINARY,
    ),
    "numeric(38,0)": Cells(
        1700,
        typmod=(38 << 16) + 4,
        both=[(b"9" * 38, numeric(9, 0, 0, 99, *[9999] * 9)), (b"-" + b"9" * 38, numeric(9, 0x4000, 0, 99, *[9999] * 9))],
        text=[b"12.000"],
        unrepresentable_text=[b"1" + b"0" * 38, b"0.5"],
        unrepresentable_binary=[numeric(9, 0, 0, 100), numeric(-1, 0, 1, 5000)],
    ),
    "numeric(38,38)": Cells(
        1700,
        typmod=(38 << 16 | 38) + 4,
        both=[(b"0." + b"9" * 38, numeric(-1, 0, 38, *[9999] * 9, 9900)), (b"0." + b"0" * 37 + b"1", numeric(-10, 0, 38, 100))],
        unrepresentable_text=[b"1", b"0." + b"0" * 38 + b"1"],
        unrepresentable_binary=[numeric(0, 0, 0, 1), numeric(-10, 0, 39, 10)],
    ),
    "uuid": Cells(
        2950,
        both=[(UUID, bytes.fromhex(UUID.decode().replace("-", ""))), (b"00000000-0000-0000-0000-000000000000", b"\0" * 16)],
        malformed_text=[b"", UUID[:-1], UUID + b"1", UUID.upper(), UUID.replace(b"-", b"a"), b"{" + UUID[:-2] + b"}",
                        b"g" + UUID[1:], UUID.replace(b"-", b"")],
        malformed_binary=[b"", b"\0" * 15, b"\0" * 17, UUID],
    ),
    "jsonb": Cells(
        3802,
        both=[(text, b"\1" + text) for text in (b"{}", b'{"a": [1, "\xc3\xa9"]}', b"null", b'"' + b"x" * 99 + b'"')],
        unrepresentable_text=[b"\xff"],
        unrepresentable_binary=[b"\1\xff"],
        malformed_binary=[b"", b"\0{}", b"\2{}", b"{}"],
    ),
    "unknown": Cells(
        99999,
        text=[b"", b"anything", "naïve".encode()],
        binary=[b"", b"\0\1", b"\xff" * 40],
        unrepresentable_text=[b"\xff"],
    ),
}  # fmt: skip

ARRAY_WRONG = [
    b"", b"{", b"}", b"{}}", b"{1", b"1}", b"{1,}", b"{,1}", b"{,}", b"{1,,2}", b"{ 1}", b"{1 }", b"{1}x", b'{"1}', b'{"1"2}',
    b"{null}", b"{Null}", b"[1:1]={1}", b"[2:3]={1}", b"[2:2]={1,2}", b"[2:2]={}", b"[0:0]", b"[0:0]=1", b"[a:b]={1}",
    b"[3:2]={1}", b"[02:02]={1}", b"[-0:0]={1}", b"[2:2]{1}", b"[2:2={1}", b"[2]={1}", b"[]={1}", b"[2:2][1:1]={1}",
    b"[2:2]={{1}}", b"[4294967298:4294967298]={1}", b"{\\1}", b"{1\\,2}", b'{1"2"}', b"[1:1][1:1]={{1}}", b"{1{2}",
    b'{"1",}', b'{"\\', b'{"', b"{1\n}",
    # Several dimensions, but the parts have different sizes, or sizes that differ from the bounds.
    b"{{}}", b"{{},{}}", b"{{1,2},{3}}", b"{{1},{2,3}}", b"{{1},2}", b"{1,{2}}", b"{{1},{{2}}}", b"{{{1}},{2}}", b"{{1}", b"{{1}}}",
    b"{{1}}{", b"{{1},}", b"{{1,}}", b"{{,1}}", b"{{1}{2}}", b"{{1} ,{2}}", b"{{1},x{2}}", b"{{1}x}", b'{{"1}}', b"{{null}}", b"{{{{{{{1}}}}}}}",
    b"[0:1][1:1]={{1}}", b"[0:0][1:1]={{1,2}}", b"[0:0][1:1]={{{1}}}", b"[0:0][1:1][1:1]={{1}}", b"[1:1][1:1]={{1}}",
]  # fmt: skip


def shape(dimensions: int, oid: int, *sizes: tuple[int, int], flags: int = 0, rest: bytes = b"") -> bytes:
    return (
        struct.pack(">iiI", dimensions, flags, oid)
        + b"".join(struct.pack(">ii", *size) for size in sizes)
        + rest
    )


INT = struct.pack(">i", 4)
INT_1 = INT + struct.pack(">i", 1)
LISTS: dict[str, Cells] = {
    "int4[]": Cells(
        1007,
        both=[
            (b"{}", EMPTY_ARRAY + struct.pack(">I", 23)),
            (b"{1}", array(23, struct.pack(">i", 1))),
            (b"{1,NULL,-3}", array(23, struct.pack(">i", 1), None, struct.pack(">i", -3))),
            (b"{NULL}", array(23, None)),
            (b'{"1",2}', array(23, struct.pack(">i", 1), struct.pack(">i", 2))),
        ],
        binary=[shape(1, 23, (0, 1)), shape(1, 23, (0, 0)), shape(2, 23, (3, 1), (0, 5))],
        unrepresentable_text=[b"{{1,2},{3,4}}", b"[0:1][2:2]={{1},{2}}", b"{{{{{{1}}}}}}", b"[1:1][0:1]={{1,NULL}}", b'{{"1"},{NULL}}'],
        unrepresentable_binary=[
            shape(2, 23, (1, 1), (1, 1), rest=INT_1), shape(6, 23, *[(1, 1)] * 6, rest=INT_1), shape(2, 23, (2, 1), (1, 7), rest=INT_1 * 2),
        ],
        malformed_text=[*ARRAY_WRONG, b"{a}", b"{01}", b"{2147483648}", b"{1,x,3}", b"[2:3]={1,x}", b'{""}', b'{"NULL"}'],
        malformed_binary=[
            b"", EMPTY_ARRAY, shape(0, 25), shape(0, 23, rest=b"\0"), shape(7, 23, *[(1, 1)] * 7), shape(-1, 23),
            shape(1, 23, (1, 1), flags=2, rest=INT_1), shape(1, 23), shape(1, 23, (1, 1)), shape(1, 23, (-1, 1)),
            shape(1, 23, (2, 1), rest=INT_1), shape(1, 23, (1, 1), rest=INT_1 + b"\0"), shape(1, 23, (2**31 - 1, 1), rest=INT_1),
            shape(1, 25, (1, 1), rest=INT_1), shape(1, 23, (1, 1), rest=struct.pack(">i", -2)), shape(1, 23, (1, 1), rest=INT),
            shape(1, 23, (1, 1), rest=struct.pack(">i", 3) + b"\0" * 3), shape(2, 23, (1, 1), (-1, 1)),
            shape(1, 23, (0, 1), rest=b"\0"), shape(1, 23, (1, 1), rest=struct.pack(">i", 2**31 - 1)),
            shape(6, 23, *[(1, 1)] * 6), shape(6, 23, *[(2**31 - 1, 1)] * 6, rest=INT_1), shape(2, 23, (2, 1), (2, 1), rest=INT_1 * 3),
            shape(2, 23, (2, 1), (2, 1), rest=INT_1 * 5), shape(2, 23, (1, 1), (1, 1), rest=INT_1[:-1]),
            shape(2, 23, (1, 1), (1, 1), rest=struct.pack(">i", -2)), shape(2, 23, (1, 1), (1, 1), rest=INT_1 + b"\0"),
        ],
    ),
    "text[]": Cells(
        1009,
        both=[
            (b'{a,"b c","",NULL,"NULL"}', array(25, b"a", b"b c", b"", None, b"NULL")),
            (b'{"a\\"b","\\\\","{}"}', array(25, b'a"b', b"\\", b"{}")),
            ('{naïve,"日本, 語"}'.encode(), array(25, "naïve".encode(), "日本, 語".encode())),
        ],
        unrepresentable_text=[b"{a,\xff}", b'{"\\\xff"}', b"{{a}}"],
        unrepresentable_binary=[array(25, b"a", b"\xff")],
        malformed_text=ARRAY_WRONG,
        malformed_binary=[array(23, b"a"), array(25, b"a")[:-1], array(25, b"a") + b"\0"],
    ),
    "bool[]": Cells(1000, both=[(b"{t,f,NULL,t}", array(16, b"\1", b"\0", None, b"\1"))], malformed_text=[b"{t,x}"],
                    malformed_binary=[array(16, b"\2")]),
    "numeric(10,2)[]": Cells(
        1231,
        typmod=(10 << 16 | 2) + 4,
        both=[(b"{1,-10.50}", array(1700, numeric(0, 0, 0, 1), numeric(0, 0x4000, 2, 10, 5000)))],
        unrepresentable_text=[b"{1,NaN,NULL}", b"{0.001}", b"[0:1]={1,NaN}"],
        unrepresentable_binary=[array(1700, NUMERIC_SPECIAL[0][1], None)],
        malformed_text=[b"{NaN,01}"],
        malformed_binary=[array(1700, b"\0")],
    ),
    "timestamptz[]": Cells(
        1185,
        both=[(b'{"2000-01-01 00:00:00+00"}', array(1184, struct.pack(">q", 0)))],
        unrepresentable_text=[b"{infinity}"],
        unrepresentable_binary=[array(1184, struct.pack(">q", 2**63 - 1))],
    ),
    "jsonb[]": Cells(3807, both=[(b'{"{\\"a\\": 1}"}', array(3802, b'\1{"a": 1}'))], malformed_binary=[array(3802, b"{}")]),
    "uuid[]": Cells(2951, both=[(b"{" + UUID + b"}", array(2950, bytes.fromhex(UUID.decode().replace("-", ""))))]),
    "bytea[]": Cells(1001, both=[(b'{"\\\\x00ff","\\\\x"}', array(17, b"\0\xff", b""))], malformed_text=[b'{"\\\\x0"}', b"{ab}"]),
}  # fmt: skip
for _lists, _low in ((LISTS["int4[]"], 0), (LISTS["text[]"], -3)):
    _element = struct.pack(">i", 5) if _lists.oid == 1007 else b"5"
    _lists.both.append(
        (
            b"[%d:%d]={5,5}" % (_low, _low + 1),
            array(23 if _lists.oid == 1007 else 25, _element, _element, lower=_low),
        )
    )

SCALARS |= cells_built_in.SCALARS | {
    "xid": integers(28, "I", 0, 2**32 - 1),
    "cid": integers(29, "I", 0, 2**32 - 1),
}
LISTS |= cells_built_in.LISTS
ALL = SCALARS | LISTS
