"""Cells of types that contain values, and of user types. `cells.py` has the other types.

`DESCRIBED` is the user types as a server's catalog describes them. `TYPES` is the same for the package under test.
"""

from __future__ import annotations

import struct

from cells import extensions
from cells.every_type import ALL, EMPTY_ARRAY, Cells, array, numeric
from pgoutput_fast.catalog.user_types import TypeField, UserType, UserTypes
from reference.nested import Described

DECIMAL_10_2 = (10 << 16 | 2) + 4
MOOD, MOODS, PAIR, PAIRS, PRICE, DPRICE, PRICES, INTS = range(30001, 30009)
FRANGE, FRANGES, FMULTI, DEEP, ONE, NOTHING, TRANGE, GADGET, GADGETS, MAYBE = range(30009, 30019)

DESCRIBED = {
    MOOD: Described("enum", "public", "mood"),
    MOODS: Described("array", "public", "_mood", MOOD),
    PAIR: Described("composite", "public", "pair", fields=(("a", 23, -1), ("b", 25, -1), ("c", 1700, DECIMAL_10_2))),
    PAIRS: Described("array", "public", "_pair", PAIR),
    PRICE: Described("domain", "public", "price", 1700, DECIMAL_10_2),
    DPRICE: Described("domain", "public", "dprice", PRICE),
    PRICES: Described("array", "public", "_price", PRICE),
    INTS: Described("domain", "public", "ints", 1007),
    FRANGE: Described("range", "public", "frange", 701),
    FRANGES: Described("array", "public", "_frange", FRANGE),
    FMULTI: Described("multirange", "public", "fmulti", FRANGE),
    DEEP: Described(
        "composite", "Odd Schema", "dee\"p",
        fields=(("p", PAIR, -1), ("ps", PAIRS, -1), ("m", MOOD, -1), ("when", 3908, -1), ("d", DPRICE, -1),
                ("at", 600, -1), ("i", INTS, -1)),
    ),
    ONE: Described("composite", "public", "one", fields=(("x", 25, -1),)),
    NOTHING: Described("composite", "public", "nothing"),
    TRANGE: Described("range", "public", "trange", 25),
    GADGET: Described("base", "public", "gadget"),
    GADGETS: Described("array", "public", "_gadget", GADGET),
    MAYBE: Described("composite", "public", "maybe", fields=(("g", GADGET, -1), ("gone", 40000, -1), ("b", 16, -1))),
} | extensions.DESCRIBED  # fmt: skip

TYPES = UserTypes(
    UserType(
        oid,
        one.namespace,
        one.name,
        one.kind,
        one.of,
        one.typmod,
        fields=tuple(TypeField(*f) for f in one.fields),
        delimiter=one.delimiter,
        extension=one.extension,
    )  # type: ignore[arg-type]
    for oid, one in DESCRIBED.items()
)


def sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def span(flags: int, *bounds: bytes | None) -> bytes:
    """The bytes of range_send. Flags: 1 is empty, 2 and 4 include a bound, 8 and 16 mean that a bound is missing."""
    return bytes([flags]) + b"".join(map(sized, bounds))


def spans(*ranges: bytes) -> bytes:
    """The bytes of multirange_send."""
    return struct.pack(">i", len(ranges)) + b"".join(map(sized, ranges))


def record(*fields: tuple[int, bytes | None]) -> bytes:
    """The bytes of record_send."""
    return struct.pack(">i", len(fields)) + b"".join(
        struct.pack(">I", oid) + sized(data) for oid, data in fields
    )


def i4(value: int) -> bytes:
    return struct.pack(">i", value)


def i8(value: int) -> bytes:
    return struct.pack(">q", value)


def f8(*values: float) -> bytes:
    return struct.pack(f">{len(values)}d", *values)


RANGE_WRONG = [
    b"", b"[", b"[]", b"(,", b"[1]", b"[1,2", b"1,2)", b"{1,2}", b"Empty", b"empt", b"empty ", b" empty", b"[,2)", b"(1,]", b"[1,2,3)",
    b"[1,2)x", b"x[1,2)", b"[1 ,2)", b"[1, 2)", b'["1,2)', b'["1"x,2)', b'["1\\,2)', b'["1\\2",3)', b"[1\\,2)", b"[(1),2)", b"[1,2))",
    b"[[1,2)", b'[1"",2)', b'[""",2)', b"[1,\n2)", b"()", b"(,,)", b"[\xff,2)",
]  # fmt: skip
RANGE_WRONG_BINARY = [
    b"", span(1, b"x"), span(3), span(9), span(0x20, i4(1), i4(2)), span(0x80, i4(1), i4(2)), span(10, i4(1)), span(20, i4(1)), span(0),
    span(0, i4(1)), span(0, i4(1), i4(2)) + b"\0", span(0, None, i4(2)), span(0, i4(1), None), span(0, i4(1), i4(2))[:-1],
    span(0)[:1] + struct.pack(">i", 2**31 - 1), span(0) + struct.pack(">i", -2), span(24) + b"\0", span(8, i4(1), i4(2)),
]  # fmt: skip
RECORD_WRONG = [
    b"", b"(", b")", b"1,x,2", b"(1,x,2", b"1,x,2)", b"(1,x,2)y", b"(1,x ,2)", b"( 1,x,2)", b'(1,"x,2)', b'(1,"x"y,2)', b"(1,x\\y,2)",
    b'(1,"x\\y",2)', b"(1,(x),2)", b'(1,"""",2)x', b"{1,x,2}", b'(1,""",2)', b"(x,x,2)", b"(1,x,y)", b'("",x,2)', b"(1,x,2\n)", b"(1,x))",
]  # fmt: skip

NESTED: dict[str, Cells] = {
    "int4range": Cells(
        3904,
        both=[(b"[1,5)", span(2, i4(1), i4(5))), (b"empty", span(1)), (b"(,)", span(24)), (b"(,5)", span(8, i4(5))),
              (b"[-2147483648,)", span(18, i4(-(2**31)))), (b"[1,5]", span(6, i4(1), i4(5))), (b"(1,5]", span(4, i4(1), i4(5))),
              (b'["1",5)', span(2, i4(1), i4(5)))],
        malformed_text=[*RANGE_WRONG, b"[a,2)", b"[1,b)", b"[01,2)", b'["",2)', b"[2147483648,)"],
        malformed_binary=[*RANGE_WRONG_BINARY, span(2, i8(1), i4(5)), span(2, i4(1), b""), span(2, b"", i4(1))],
    ),
    "int8range": Cells(3926, both=[(b"[1,9223372036854775807)", span(2, i8(1), i8(2**63 - 1)))], malformed_text=[b"[1,9223372036854775808)"]),
    "numrange": Cells(
        3906,
        both=[(b"[1,-10.50]", span(6, numeric(0, 0, 0, 1), numeric(0, 0x4000, 2, 10, 5000))),
              (b"(NaN,Infinity)", span(0, numeric(0, 0xC000, 0), numeric(0, 0xD000, 32))), (b"(,0.0000)", span(8, numeric(0, 0, 4)))],
        malformed_text=[b"[1e5,)", b"[-0,)"],
        malformed_binary=[span(0, b"\0", numeric(0, 0, 0, 1))],
    ),
    "tsrange": Cells(
        3908,
        both=[(b'["2000-01-01 00:00:00","2000-01-01 00:00:01.5")', span(2, i8(0), i8(1500000))), (b"empty", span(1)),
              (b'(,"2000-01-01 00:00:00"]', span(12, i8(0)))],
        unrepresentable_text=[b"[infinity,infinity]", b'["2000-01-01 00:00:00",infinity)', b"[-infinity,)",
                              b'["294276-12-31 23:59:59","294276-12-31 23:59:59"]'],
        unrepresentable_binary=[span(6, i8(2**63 - 1), i8(2**63 - 1)), span(2, i8(0), i8(2**63 - 1)), span(18, i8(-(2**63)))],
        malformed_text=[b"[2000-01-01 00:00:00,)", b'["2000-01-01",)', b"[infinity,x)", b'[infinity,"2000-13-01 00:00:00")'],
        malformed_binary=[span(2, i8(2**63 - 1), b"\0")],
    ),
    "tstzrange": Cells(
        3910,
        both=[(b'["2000-01-01 00:00:00+00","2000-01-01 00:00:01+00")', span(2, i8(0), i8(1000000))),
              (b'["2000-01-01 05:30:00+05:30",)', span(18, i8(0)))],
        unrepresentable_text=[b"(-infinity,)"],
        unrepresentable_binary=[span(16, i8(-(2**63)))],
    ),
    "daterange": Cells(
        3912,
        both=[(b"[2000-01-01,2000-01-02)", span(2, i4(0), i4(1))), (b'("0001-12-31 BC",2000-01-02)', span(0, i4(-730120), i4(1)))],
        unrepresentable_text=[b"[2000-01-01,infinity)", b"[-infinity,infinity]"],
        unrepresentable_binary=[span(2, i4(0), i4(2**31 - 1)), span(6, i4(-(2**31)), i4(2**31 - 1))],
        malformed_text=[b"[01/02/2000,)"],
    ),
    "int4range[]": Cells(
        3905,
        both=[(b"{}", EMPTY_ARRAY + struct.pack(">I", 3904)), (b'{"[1,5)",NULL,empty}', array(3904, span(2, i4(1), i4(5)), None, span(1)))],
        unrepresentable_text=[b'{{"[1,5)"}}'],
        malformed_text=[b"{[1,5)}", b'{"[1,5)x"}', b'{"[1,x)"}', b"{NULL,1}", b'{""}'],
        malformed_binary=[array(3904, b""), array(23, span(1)), array(3904, span(0))],
    ),
    "tsrange[]": Cells(
        3909,
        both=[(b'{"[\\"2000-01-01 00:00:00\\",\\"2000-01-01 00:00:01\\")"}', array(3908, span(2, i8(0), i8(1000000))))],
        unrepresentable_text=[b'{empty,"[infinity,)","[infinity,infinity]"}', b'[0:0]={"[infinity,)"}'],
        unrepresentable_binary=[array(3908, span(1), span(18, i8(2**63 - 1))), array(3908, span(18, i8(2**63 - 1)), lower=0)],
        malformed_text=[b'{"[infinity,)","[x,)"}'],
    ),
    "int4multirange": Cells(
        4451,
        both=[(b"{}", spans()), (b"{[1,5)}", spans(span(2, i4(1), i4(5)))), (b"{(,)}", spans(span(24))),
              (b"{(,1),[3,5),[7,)}", spans(span(8, i4(1)), span(2, i4(3), i4(5)), span(18, i4(7))))],
        malformed_text=[b"", b"{", b"}", b"{}}", b"{,}", b"{[1,5),}", b"{[1,5)", b"{[1,5)}x", b"{[1,5)[7,9)}", b"{empty}", b"{NULL}", b"{[1,5}",
                        b'{["1,5)}', b'{"[1,5)"}', b"{[x,5)}", b"{[1,5), [7,9)}", b"{[1,5);[7,9)}", b'{["1\\', b"{[1,5)},", b"[1,5)"],
        malformed_binary=[b"", b"\0\0\0", spans() + b"\0", struct.pack(">i", -1), struct.pack(">i", 2**31 - 1), spans(b""), spans(span(1)),
                          spans(span(2, i4(1), i4(5)))[:-1], struct.pack(">ii", 1, -1), spans(span(2, i4(1), i4(5))) + b"\0", spans(span(0))],
    ),
    "tsmultirange": Cells(
        4533,
        both=[(b'{["2000-01-01 00:00:00","2000-01-01 00:00:01"),["2000-01-02 00:00:00",)}',
               spans(span(2, i8(0), i8(1000000)), span(18, i8(86400000000))))],
        unrepresentable_text=[b"{[-infinity,infinity]}"],
        unrepresentable_binary=[spans(span(6, i8(-(2**63)), i8(2**63 - 1)))],
    ),
    "nummultirange[]": Cells(
        6151,
        both=[(b'{"{}","{(,1],[2.5,3.0)}",NULL}', array(4532, spans(), spans(span(12, numeric(0, 0, 0, 1)),
               span(2, numeric(0, 0, 1, 2, 5000), numeric(0, 0, 1, 3))), None))],
        malformed_text=[b"{{}}x", b"{{}}", b'{"{(,1e5]}"}'],
        unrepresentable_text=[b'{{"{}"}}'],
    ),
    "tsmultirange[]": Cells(
        6152,
        both=[(b'{"{}"}', array(4533, spans()))],
        unrepresentable_text=[b'{"{[-infinity,infinity]}","{[\\"2000-01-01 00:00:00\\",infinity)}"}', b'[3:3]={"{[-infinity,)}"}'],
        unrepresentable_binary=[array(4533, spans(span(6, i8(-(2**63)), i8(2**63 - 1))), spans(span(18, i8(-(2**63)))))],
    ),
    "point": Cells(
        600,
        both=[(b"(1,2)", f8(1, 2)), (b"(-0,1.5e+300)", f8(-0.0, 1.5e300)), (b"(NaN,-Infinity)", f8(float("nan"), float("-inf")))],
        unrepresentable_text=[b"(1,1.79769313486232e+308)"],
        malformed_text=[b"", b"(", b"()", b"(1)", b"(1,)", b"(,1)", b"(1,2", b"1,2)", b"(1,2,3)", b"(1, 2)", b"((1,2))", b"(1,2)x", b"<1,2>", b'("1",2)',
                        b"(a,1.79769313486232e+308)"],
        malformed_binary=[b"", b"\0" * 15, b"\0" * 17, b"\0" * 8],
    ),
    "point[]": Cells(1017, both=[(b'{"(1,2)",NULL}', array(600, f8(1, 2), None))], malformed_text=[b"{(1,2)}"], malformed_binary=[array(600, b"\0")]),
}  # fmt: skip

USER: dict[str, Cells] = {
    "mood": Cells(MOOD, both=[(b"ok", b"ok"), ("très, \"bien\"".encode(), "très, \"bien\"".encode())], unrepresentable_text=[b"\xff"]),
    "mood[]": Cells(MOODS, both=[(b'{ok,NULL,"a \\"b\\""}', array(MOOD, b"ok", None, b'a "b"'))], malformed_binary=[array(25, b"ok")]),
    "price": Cells(PRICE, both=[(b"1.50", numeric(0, 0, 2, 1, 5000))], unrepresentable_text=[b"NaN"]),
    "dprice": Cells(DPRICE, both=[(b"1.50", numeric(0, 0, 2, 1, 5000))], unrepresentable_text=[b"0.001"]),
    "price[]": Cells(PRICES, both=[(b"{1.50,NULL}", array(PRICE, numeric(0, 0, 2, 1, 5000), None))], unrepresentable_text=[b"{NaN,1}"],
                     malformed_binary=[array(1700, numeric(0, 0, 2, 1, 5000))]),
    "ints": Cells(INTS, both=[(b"{1,NULL}", array(23, i4(1), None))], malformed_text=[b"{x}"]),
    "frange": Cells(FRANGE, both=[(b"[1.5,2.5]", span(6, f8(1.5), f8(2.5))), (b"(-Infinity,NaN)", span(0, f8(float("-inf")), f8(float("nan"))))],
                    unrepresentable_text=[b"[1,1e+309]"], malformed_text=RANGE_WRONG),
    "frange[]": Cells(FRANGES, both=[(b'{"[1.5,2.5]",empty}', array(FRANGE, span(6, f8(1.5), f8(2.5)), span(1)))]),
    "fmulti": Cells(FMULTI, both=[(b"{[1.5,2.5],(7,)}", spans(span(6, f8(1.5), f8(2.5)), span(16, f8(7))))]),
    "trange": Cells(
        TRANGE,
        both=[(b"[a,b)", span(2, b"a", b"b")), (b'["",)', span(18, b"")), (b'["a,""b""","\\\\[x])")', span(2, b'a,"b"', b"\\[x])")),
              (b'(""""," ")', span(0, b'"', b" ")), ("[naïve,日本)".encode(), span(2, "naïve".encode(), "日本".encode()))],
        unrepresentable_text=[b"[\xff,b)", b'["""\xff",b)', b"[a,b\xe2\x82)"],
        unrepresentable_binary=[span(2, b"\xff", b"b")],
        malformed_text=[b"", b"[a,b", b"[a b,c)", b"[a[,c)", b'["a"b,c)'],
    ),
    "pair": Cells(
        PAIR,
        both=[(b"(1,x,2.50)", record((23, i4(1)), (25, b"x"), (1700, numeric(0, 0, 2, 2, 5000)))),
              (b"(,,)", record((23, None), (25, None), (1700, None))),
              (b'(,"",)', record((23, None), (25, b""), (1700, None))),
              (b'(1,"a ""b\\\\",2)', record((23, i4(1)), (25, b'a "b\\'), (1700, numeric(0, 0, 0, 2)))),
              (b"(1,a[b]{c},2)", record((23, i4(1)), (25, b"a[b]{c}"), (1700, numeric(0, 0, 0, 2)))),
              (b'("1","(x)","2")', record((23, i4(1)), (25, b"(x)"), (1700, numeric(0, 0, 0, 2))))],
        unrepresentable_text=[b"(1,x,NaN)", b"(1,\xff,NaN)", b"(1,x)", b"(1,x,2,3)", b"()", b"(x,y)", b"(,,,)", b"(1,x,0.001)"],
        unrepresentable_binary=[record(), record((23, i4(1))), record((23, i4(1)), (23, i4(1)), (1700, None)),
                                record((23, None), (25, None), (1700, None), (23, None)), record((23, i4(1)), (25, b"\xff"), (1700, None)),
                                record((23, None), (25, None), (1700, numeric(0, 0xC000, 0)))],
        malformed_text=RECORD_WRONG,
        malformed_binary=[b"", b"\0\0\0", struct.pack(">i", -1), struct.pack(">i", 3), struct.pack(">i", 2**31 - 1),
                          record((23, None), (25, None), (1700, None)) + b"\0", record((23, i4(1)), (25, b"x"), (1700, None))[:-1],
                          record((23, b"\0"), (25, None), (1700, None)), struct.pack(">iIi", 1, 23, -2), struct.pack(">iIi", 1, 23, 2**31 - 1)],
    ),
    "pair[]": Cells(
        PAIRS,
        both=[(b'{"(1,x,2)",NULL,"(,\\"a \\"\\"b\\\\\\\\\\\\\\\\\\",)"}',
               array(PAIR, record((23, i4(1)), (25, b"x"), (1700, numeric(0, 0, 0, 2))), None,
                     record((23, None), (25, b'a "b\\\\'), (1700, None))))],
        unrepresentable_text=[b'{"(1,x)","(,,)"}', b'{"(1,x,NaN)","(1,\xff,2)"}', b'[0:0]={"(1,x,NaN)"}', b'{{"(,,)"}}'],
        unrepresentable_binary=[array(PAIR, record((23, i4(1))), record((23, None), (25, None), (1700, None)))],
        malformed_text=[b"{(,,)}", b'{"(1,x,NaN)","(a,x,2)"}'],
        malformed_binary=[array(PAIR, b""), array(PAIRS, record((23, None), (25, None), (1700, None)))],
    ),
    "deep": Cells(
        DEEP,
        both=[(b'("(1,""x y"",2)","{""(,\\\\""\\\\""\\\\"" \\\\"",)"",NULL}",ok,"[""2000-01-01 00:00:00"",)",1.50,"(1,2)","{1,NULL}")',
               record((PAIR, record((23, i4(1)), (25, b"x y"), (1700, numeric(0, 0, 0, 2)))),
                      (PAIRS, array(PAIR, record((23, None), (25, b'" '), (1700, None)), None)), (MOOD, b"ok"), (3908, span(18, i8(0))),
                      (DPRICE, numeric(0, 0, 2, 1, 5000)), (600, f8(1, 2)), (INTS, array(23, i4(1), None)))),
              (b"(,,,,,,)", record(*[(oid, None) for oid in (PAIR, PAIRS, MOOD, 3908, DPRICE, 600, INTS)]))],
        text=[b'(,,,,,,"[0:0]={5}")', b'("(,,)",{},"",empty,0,"(0,0)",{})'],
        unrepresentable_text=[b'(,,,"[infinity,)",,,)', b'("(1,x)",,,,NaN,,)', b"(,,,,,,{{1}})", b'(,"{""(1,x)""}",\xff,,,,"[0:0]={5}")', b"(,,,,,)"],
        malformed_text=[b'("(a,x,2)",,,,,,)', b"(,,,[,),,,)", b'(,,,"[infinity,x)",NaN,,)'],
        malformed_binary=[record(*[(oid, b"") for oid in (PAIR, PAIRS, MOOD, 3908, DPRICE, 600, INTS)])],
    ),
    "one": Cells(ONE, both=[(b"()", record((25, None))), (b'("")', record((25, b""))), (b"(a)", record((25, b"a")))], unrepresentable_text=[b"(,)"],
                 unrepresentable_binary=[record()]),
    "nothing": Cells(NOTHING, both=[(b"()", record())], unrepresentable_text=[b"(a)", b"(,)"], unrepresentable_binary=[record((25, None))],
                     malformed_text=[b"", b"(", b"(()", b"( )"], malformed_binary=[b"", record() + b"\0"]),
    "gadget": Cells(GADGET, text=[b"any thing", b""], binary=[b"\0\1"]),
    "gadget[]": Cells(GADGETS, text=[b'{any,"thing else"}'], binary=[array(GADGET, b"\0", None)], malformed_text=[b"x"],
                      malformed_binary=[array(25, b"")]),
    "maybe": Cells(MAYBE, text=[b"(any,thing,t)"], binary=[record((GADGET, b"\0"), (40000, b"\1"), (16, b"\1"))]),
}  # fmt: skip

EVERY = ALL | NESTED | USER | extensions.CELLS
