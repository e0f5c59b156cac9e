"""Cells of extensions' types. Those in `both` were sent by PostgreSQL 15.18 with hstore 1.8, cube 1.5, ltree 1.2,
pgvector 0.8.6 and PostGIS 3.3.2: the text of each value beside what its send function gave.
"""

from __future__ import annotations

import struct

from cells.cell import Cells, array
from reference.nested import Described

HSTORE, HSTORES, D_HSTORE, LTREE, CUBE, VECTOR, VECTORS, HALFVEC, SPARSEVEC = range(30101, 30110)
GEOMETRY, GEOMETRIES, GEOGRAPHY, PLACE, PLACES = range(30110, 30115)

DESCRIBED = {
    HSTORE: Described("base", "public", "hstore", extension="hstore"),
    HSTORES: Described("array", "public", "_hstore", HSTORE),
    D_HSTORE: Described("domain", "public", "settings", HSTORE),
    LTREE: Described("base", "public", "ltree", extension="ltree"),
    CUBE: Described("base", "public", "cube", extension="cube"),
    VECTOR: Described("base", "public", "vector", extension="vector"),
    VECTORS: Described("array", "public", "_vector", VECTOR),
    HALFVEC: Described("base", "public", "halfvec", extension="vector"),
    SPARSEVEC: Described("base", "public", "sparsevec", extension="vector"),
    GEOMETRY: Described("base", "public", "geometry", extension="postgis", delimiter=":"),
    GEOMETRIES: Described("array", "public", "_geometry", GEOMETRY),
    GEOGRAPHY: Described("base", "public", "geography", extension="postgis", delimiter=":"),
    PLACE: Described(
        "composite", "public", "place", fields=(("h", HSTORE, -1), ("v", VECTOR, -1), ("g", GEOMETRY, -1))
    ),
    PLACES: Described("array", "public", "_place", PLACE),
}


def sent(text: str, digits: str) -> tuple[bytes, bytes]:
    return text.encode(), bytes.fromhex(digits)


def pairs(*pairs: tuple[bytes, bytes | None]) -> bytes:
    """The bytes of hstore_send."""
    items = [each for pair in pairs for each in pair]
    sized = (struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each for each in items)
    return struct.pack(">i", len(pairs)) + b"".join(sized)


def record(*fields: tuple[int, bytes | None]) -> bytes:
    """The bytes of record_send."""
    parts = (
        struct.pack(">I", oid) + (struct.pack(">i", -1) if raw is None else struct.pack(">i", len(raw)) + raw)
        for oid, raw in fields
    )
    return struct.pack(">i", len(fields)) + b"".join(parts)


def numbers(count: int, unused: int, *words: bytes) -> bytes:
    """The bytes of vector_send or halfvec_send."""
    return struct.pack(">HH", count, unused) + b"".join(words)


ODD = sent(r'"a"=>NULL, "b c"=>"\"x\\"', "000000020000000161ffffffff000000036220630000000322785c")
POINT = sent("0101000000000000000000F03F0000000000000040", "0101000000000000000000f03f0000000000000040")
ONES = numbers(2, 0, b"\x3f\x80\0\0", b"\xbf\x80\0\0")

CELLS: dict[str, Cells] = {
    "hstore": Cells(
        HSTORE,
        both=[
            sent("", "00000000"),
            ODD,
            sent('""=>"1", "bb"=>"", "é"=>"NULL"', "000000030000000000000001310000000262620000000000000002c3a9000000044e554c4c"),
            (b'"' + b"k" * 40 + b'"=>"' + b"v" * 70 + b'"', pairs((b"k" * 40, b"v" * 70))),
        ],
        unrepresentable_text=[b'"a"=>"\xff"', b'"\xff"=>NULL'],
        unrepresentable_binary=[pairs((b"a", b"\xff")), pairs((b"a", None), (b"\xff\xff", b""))],
        malformed_text=[b'"a"', b'"a"=>', b'"a"=>N', b'"a"=>null', b'"a"=>"b', b'"a=>"b"', b'a=>"b"', b'"a"=>b', b'"a"=>"b",', b'"a"=>"b", ',
                        b'"a"=>"b","c"=>"d"', b'"a"=>"b" "c"=>"d"', b'"a"=>"b"x', b' "a"=>"b"', b'"a"=> "b"', b'"\\a"=>"b"', b'"a"=>"\\',
                        b'"a"=>"1", "a"=>"2"', b'"b"=>"1", "a"=>"2"', b'"bb"=>"1", "a"=>"2"', b"{}", b'NULL=>"a"'],
        malformed_binary=[b"", b"\0\0\0", b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0\0\0\0\0", ODD[1][:-1], ODD[1] + b"\0", pairs((b"a", b"b"))[:-5],
                          struct.pack(">iii", 1, -1, 0), struct.pack(">iii", 1, 0, -2), struct.pack(">iii", 1, 0, 2**31 - 1),
                          struct.pack(">iii", 1, 2**31 - 1, 0), pairs((b"a", b"1"), (b"a", b"2")), pairs((b"b", b"1"), (b"a", b"2")),
                          pairs((b"bb", b"1"), (b"a", b"\xff"))],
    ),
    "hstore[]": Cells(
        HSTORES,
        both=[(b'{"",NULL,"\\"a\\"=>\\"1\\""}', array(HSTORE, pairs(), None, pairs((b"a", b"1"))))],
        malformed_text=[b'{"a=>1"}'],
        malformed_binary=[array(HSTORE, b""), array(25, pairs())],
    ),
    "domain over hstore": Cells(D_HSTORE, both=[ODD]),
    "ltree": Cells(LTREE, both=[sent("", "01"), sent("Top.Science", "01546f702e536369656e6365")], unrepresentable_binary=[b"\1\xff"],
                   malformed_binary=[b"", b"\0a", b"\2a"]),
    "cube": Cells(
        CUBE,
        both=[sent("(1, 2),(3, 4.5)", "000000023ff0000000000000400000000000000040080000000000004012000000000000"),
              sent("(0)", "800000010000000000000000"),
              sent("(NaN, Infinity)", "800000027ff80000000000007ff0000000000000"), sent("()", "80000000")],
        binary=[struct.pack(">Idd", 1, 2.5, 2.5), struct.pack(">I", 0)],
        malformed_binary=[b"", b"\0\0\0\1", b"\x80\0\0\1", b"\x80\0\0\0\0", b"\xff" * 4, struct.pack(">I", 101 | 1 << 31) + bytes(808),
                          struct.pack(">Id", 1, 2.5), struct.pack(">Idd", 1 | 1 << 31, 2.5, 2.5)],
    ),
    "vector": Cells(
        VECTOR,
        both=[sent("[1,2.5,-3e-10]", "000300003f80000040200000afa4ed3f"),
              sent("[1e+20,-0,1.6777216e+07,1e-45,3.4028235e+38]", "0005000060ad78ec800000004b800000000000017f7fffff"),
              (b"[" + b",".join([b"0.5"] * 50) + b"]", numbers(50, 0, b"\x3f\0\0\0" * 50))],
        unrepresentable_text=[b"[1,1e+39]"],
        malformed_text=[b"", b"[", b"]", b"[]", b"[,]", b"[1,]", b"[,1]", b"[1,,2]", b"[1", b"1]", b"{1}", b"[1]x", b"x[1]", b"[1 ]", b"[1, 2]",
                        b'["1"]', b"[NULL]", b"[1,null]", b"[a]", b"[1,[2]]", b"[\xff]", b"[1]]", b"[" + b"1," * 60 + b"]",
                        b"[" + b"1," * 31 + b",2]", b"[1;2]"],
        malformed_binary=[b"", b"\0", b"\0\1\0", b"\0\0\0\0", numbers(1, 1, b"\0\0\0\0"), numbers(2, 0, b"\0\0\0\0"), numbers(0xFFFF, 0),
                          ONES + b"\0", ONES[:-1], numbers(1, 0, b"\0\0"), numbers(0x8001, 0, b"\0\0\0\0")],
    ),
    "vector[]": Cells(
        VECTORS,
        both=[(b'{"[1,-1]",NULL}', array(VECTOR, ONES, None))],
        malformed_text=[b"{[1,2]}", b'{"[]"}'],
        malformed_binary=[array(VECTOR, b""), array(700, ONES)],
    ),
    "halfvec": Cells(
        HALFVEC,
        both=[sent("[1,2.5,-2.9981136e-05]", "000300003c00410081f7"),
              sent("[65504,-0,0.099975586,5.9604645e-08]", "000400007bff80002e660001")],
        binary=[numbers(4, 0, b"\x7c\0\xfc\0\x7e\1\xff\xff")],
        malformed_text=[b"[]", b"[1"],
        malformed_binary=[b"", b"\0\0\0\0", numbers(1, 0, b"\0"), numbers(1, 0, b"\0\0\0\0"), numbers(1, 1, b"\0\0"), numbers(2, 0, b"\0\0")],
    ),
    "sparsevec": Cells(
        SPARSEVEC,
        both=[sent("{1:1.5,3:2e-10}/5", "00000005000000020000000000000000000000023fc000002f5be6ff"), sent("{}/3", "000000030000000000000000"),
              sent("{2:-1e+20}/1000000000", "3b9aca00000000010000000000000001e0ad78ec")],
        malformed_binary=[b"", bytes(11), bytes(12), struct.pack(">iii", 3, 0, 1), struct.pack(">iii", 3, 1, 0), struct.pack(">iii", 3, -1, 0),
                          struct.pack(">iiiif", 3, 1, 0, 3, 1), struct.pack(">iiiif", 3, 1, 0, -1, 1), struct.pack(">iii", 3, 2**31 - 1, 0),
                          struct.pack(">iiiiiff", 3, 2, 0, 1, 1, 1, 1), struct.pack(">iiiiiff", 3, 2, 0, 1, 0, 1, 1),
                          struct.pack(">iiiifb", 3, 1, 0, 1, 1, 0)],
    ),
    "geometry": Cells(
        GEOMETRY,
        # POINT(1 2); SRID=4326;POINT Z (1 2 3); GEOMETRYCOLLECTION(POINT M (1 2 3),LINESTRING M EMPTY); POINT EMPTY
        both=[POINT,
              *(sent(digits, digits) for digits in (
                  "01010000A0E6100000000000000000F03F00000000000000400000000000000840",
                  "0107000040020000000101000040000000000000F03F00000000000000400000000000000840010200004000000000",
                  "0101000000000000000000F87F000000000000F87F"))],
        malformed_text=[b"0", b"010", b"\\x01", POINT[0].lower(), b"0G", b"01 2", b"\xff\xff"],
    ),
    "geometry[]": Cells(
        GEOMETRIES,
        both=[(b"{" + POINT[0] + b":NULL}", array(GEOMETRY, POINT[1], None))],
        malformed_text=[b"{" + POINT[0] + b",NULL}", b"{0}"],
        malformed_binary=[array(17, POINT[1])],
    ),
    "geography": Cells(
        GEOGRAPHY,
        both=[sent("0101000020E6100000000000000000F03F0000000000000040", "0101000020e6100000000000000000f03f0000000000000040")],
    ),
    "composite of these": Cells(
        PLACE,
        both=[(b'("""a""=>NULL","[1,-1]",' + POINT[0] + b")", record((HSTORE, pairs((b"a", None))), (VECTOR, ONES), (GEOMETRY, POINT[1]))),
              (b"(,,)", record((HSTORE, None), (VECTOR, None), (GEOMETRY, None)))],
        unrepresentable_text=[b'("""a""=>""\xff""",,)', b'(,"[1e+39]",)'],
        malformed_text=[b"(a,,)", b"(,[],)", b"(,,0)"],
        malformed_binary=[record((HSTORE, b""), (VECTOR, None), (GEOMETRY, None)), record((HSTORE, None), (VECTOR, b""), (GEOMETRY, None))],
    ),
    "composite of these[]": Cells(
        PLACES,
        both=[(rb'{"(\"\"\"a\"\"=>\"\"\\\\\"\"\"\"\",\"[1,-1]\",)",NULL}',
               array(PLACE, record((HSTORE, pairs((b"a", b'"'))), (VECTOR, ONES), (GEOMETRY, None)), None))],
    ),
}  # fmt: skip
