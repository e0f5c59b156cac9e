"""What a live server says of its types: how it is read, how it travels, and what happens when it is no longer so."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
from dataclasses import replace
from typing import Any

import psycopg2.extras
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.nested import record, sized
from pgoutput_fast import Catalog, Column, Decoder, Options, TypeField, UserType, UserTypes
from pgoutput_fast._core.columns.column import convert
from pgoutput_fast.encode import (
    Binary,
    ColumnSpec,
    RelationSpec,
    Writer,
    encode_begin,
    encode_insert,
    encode_relation,
)
from pgoutput_fast.schema.column_types import MAX_TABLE_PARTS, column_type_of, column_types_of
from support import pg

PAIR = UserType(30001, "public", "pair", "composite", fields=(TypeField("a", 23), TypeField("b", 25)))
PAIRS = UserType(30002, "public", "_pair", "array", of=30001)
PRICE = UserType(30003, "public", "price", "domain", of=1700, typmod=(10 << 16 | 2) + 4)
TYPES = UserTypes([PAIR, PAIRS, PRICE])
NAMES = {30001: ("public", "pair"), 30002: ("public", "_pair"), 30003: ("pg_catalog", "numeric")}
TABLE = RelationSpec(
    16401,
    "public",
    "t",
    (ColumnSpec("id", 23, key=True), ColumnSpec("p", 30001), ColumnSpec("ps", 30002), ColumnSpec("d", 30003)),
)
ROW = {"id": 1, "p": {"a": 7, "b": "x"}, "ps": [{"a": None, "b": ""}, None], "d": "1.50"}


def stream(names: dict[int, tuple[str, str]] = NAMES) -> list[bytes]:
    writer = Writer(types=names)
    return [
        *writer.begin(7, 100, 0),
        *writer.change(TABLE, "insert", new=["1", "(7,x)", '{"(,\\"\\")",NULL}', "1.50"]),
        *writer.commit(100, 108, 0),
    ]


def row_of(out: Any) -> dict[str, Any]:
    (row,) = out.table("public.t").select(["id", "p", "ps", "d"]).to_pylist()
    return {**row, "d": str(row["d"])}


def type_of(oid: int, types: UserTypes, namespace: str | None = None, name: str | None = None) -> Any:
    return column_type_of(Column("c", oid, -1, False, namespace, name), Options(), types)


# --- from a server ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def connection(database: pg.Database) -> Any:
    with database.session() as connection, connection.cursor() as cursor:
        for statement in (
            "CREATE TYPE mood AS ENUM ('sad', 'happy')",
            "ALTER TYPE mood ADD VALUE 'ok' BEFORE 'happy'",
            "CREATE TYPE pair AS (a int, gone text, b varchar(7))",
            "ALTER TYPE pair DROP ATTRIBUTE gone",
            "CREATE DOMAIN price AS numeric(10,2)",
            "CREATE DOMAIN discount AS price",
            "CREATE TYPE floats AS RANGE (subtype = float8)",
            'CREATE SCHEMA "Odd ""s"',
            """CREATE TYPE "Odd ""s"."t.'y" AS ENUM ()""",
            "CREATE TABLE alone (id int)",
            "CREATE TABLE member (id int, m mood[])",
            "CREATE TABLE used (m member, c information_schema.cardinal_number)",
        ):
            cursor.execute(statement)
        yield connection


def test_what_is_read(connection: Any, database: pg.Database) -> None:
    types = Catalog().enriched(connection).types
    by_name = {(each.namespace, each.name): each for each in types.values()}
    mood, pair = by_name["public", "mood"], by_name["public", "pair"]
    assert (mood.kind, mood.labels) == ("enum", ("sad", "ok", "happy"))
    assert (pair.kind, pair.fields) == ("composite", (TypeField("a", 23), TypeField("b", 1043, 11)))
    price, discount = by_name["public", "price"], by_name["public", "discount"]
    assert (price.kind, price.of, price.typmod) == ("domain", 1700, (10 << 16 | 2) + 4)
    assert (discount.kind, discount.of, discount.typmod) == ("domain", price.oid, -1)
    assert types.base_of(discount.oid) == 1700
    floats = by_name["public", "floats"]
    assert (floats.kind, floats.of) == ("range", 701)
    assert (by_name["public", "_mood"].kind, by_name["public", "_mood"].of) == ("array", mood.oid)
    assert by_name['Odd "s', "t.'y"].labels == ()
    if database.version >= 14:
        (multirange,) = (each for each in types.values() if each.kind == "multirange")
        assert multirange.of == floats.oid
    # Of tables' row types the used ones, and of the system's schemas what tables use.
    assert by_name["public", "member"].fields[1] == TypeField("m", by_name["public", "_mood"].oid)
    assert ("public", "alone") not in by_name
    assert {each.name for each in types.values() if each.namespace == "information_schema"} == {
        "cardinal_number"
    }
    assert not any(each.namespace == "pg_catalog" for each in types.values())
    assert len(types) < 30


def test_the_connection_is_left_in_its_transaction(connection: Any, database: pg.Database) -> None:
    with database.session() as other:
        other.autocommit = False
        with other.cursor() as cursor:
            cursor.execute("CREATE TYPE unfinished AS ENUM ('x')")
            types = Catalog().enriched(other).types
            assert "unfinished" in {each.name for each in types.values()}
        other.rollback()
    assert "unfinished" not in {each.name for each in Catalog().enriched(connection).types.values()}


def test_a_replication_connection_will_do(database: pg.Database, connection: Any) -> None:
    factory = psycopg2.extras.LogicalReplicationConnection
    with contextlib.closing(psycopg2.connect(database.dsn, connection_factory=factory)) as replication:
        assert Catalog().enriched(replication).types == Catalog().enriched(connection).types


def test_no_connection() -> None:
    with pytest.raises(TypeError, match="DB-API connection"):
        Catalog().enriched("host=localhost")


def test_types_that_change_later(database: pg.Database) -> None:
    """A label more is no matter; a field more is seen by its count, until the catalog is enriched again."""
    database.execute(
        "CREATE TYPE shade AS ENUM ('dark')",
        "CREATE TYPE box2 AS (w int, h int)",
        "CREATE TABLE changing (id int PRIMARY KEY, s shade, b box2)",
    )
    for options in [{}, {"binary": "true"}] if database.version >= 14 else [{}]:
        with database.slot(options=options) as slot:
            before = Catalog().enriched(slot.connection)
            slot.execute(
                "ALTER TYPE shade ADD VALUE IF NOT EXISTS 'light'",
                "INSERT INTO changing VALUES (1, 'light', ROW(1, 2))",
                "ALTER TYPE box2 ADD ATTRIBUTE d int",
                "UPDATE changing SET b.d = 3",
            )
            payloads = [data for _, data in slot.peek()]
            after = before.enriched(slot.connection)
            slot.execute("DELETE FROM changing", "ALTER TYPE box2 DROP ATTRIBUTE d")
        assert before.fingerprint() != after.fingerprint()
        out = Decoder(catalog=before).decode(payloads)
        rows = out.table("public.changing").select(["s", "b", "_unrepresentable"]).to_pylist()
        assert rows[0] == {"s": "light", "b": {"w": 1, "h": 2}, "_unrepresentable": None}
        assert rows[-1] == {"s": "light", "b": None, "_unrepresentable": ["b"]}
        (reject,) = out.rejects.to_pylist()
        assert "enrich" in reject["reason"]
        assert reject["raw"] == (
            b"(1,2,3)" if not options else record(*[(23, struct.pack(">i", n)) for n in (1, 2, 3)])
        )
        with pytest.raises(pgo.DecodeError, match="enrich"):
            Decoder(Options(unrepresentable="raise"), catalog=before).decode(payloads)
        out = Decoder(catalog=after).decode(payloads)
        assert out.table("public.changing").column("b").to_pylist()[-1] == {"w": 1, "h": 2, "d": 3}


def test_a_renamed_type_is_unknown_until_the_catalog_is_enriched_again(database: pg.Database) -> None:
    database.execute("CREATE TYPE tint AS ENUM ('a')", "CREATE TABLE tinted (id int PRIMARY KEY, t tint)")
    with database.slot() as slot:
        before = Catalog().enriched(slot.connection)
        slot.execute("ALTER TYPE tint RENAME TO hue", "INSERT INTO tinted VALUES (1, 'a')")
        payloads = [data for _, data in slot.peek()]
        after = before.enriched(slot.connection)
    fields = [
        Decoder(catalog=each).decode(payloads).changes[0].batch.schema.field("t") for each in (before, after)
    ]
    assert [field.metadata[b"pg.type"] for field in fields] == [b"public.hue", b"public.hue"]
    assert [b"pg.unknown" in field.metadata for field in fields] == [True, False]


# --- how it travels -----------------------------------------------------------------------------------------


def test_catalogs_travel() -> None:
    catalog = Catalog(types=TYPES)
    for again in (pickle.loads(pickle.dumps(catalog)), Catalog.from_json(catalog.to_json())):
        assert again == catalog
        assert again.types == TYPES
        assert again.fingerprint() == catalog.fingerprint() != Catalog().fingerprint()
    assert Catalog.from_dict({"format": 1, "relations": []}).types == UserTypes()
    assert Catalog(types=UserTypes([PAIR])).merged(Catalog(types=UserTypes([PRICE]))).types == UserTypes(
        [PAIR, PRICE]
    )
    newer = UserType(30001, "public", "pair", "enum", labels=("x",))
    assert catalog.merged(Catalog(types=UserTypes([newer]))).types[30001] == newer
    assert catalog.merged(Catalog()).types == TYPES
    assert hash(UserTypes([PAIR, PRICE])) == hash(UserTypes([PRICE, PAIR]))
    assert UserTypes([PAIR]) != UserTypes([newer])


def test_fingerprints_tell_every_detail_apart() -> None:
    base = UserType(1, "n", "t", "enum", labels=("a", "b"))
    others = [
        UserType(2, "n", "t", "enum", labels=("a", "b")), UserType(1, "m", "t", "enum", labels=("a", "b")),
        UserType(1, "n", "u", "enum", labels=("a", "b")), UserType(1, "n", "t", "enum", labels=("b", "a")), PAIR, PAIRS, PRICE,
        UserType(30003, "public", "price", "domain", of=1700), UserType(1, "n", "t", "base"), UserType(1, "n", "t", "base", delimiter=";"),
        UserType(1, "n", "t", "base", extension="e"), UserType(1, "n", "t", "composite"),
    ]  # fmt: skip
    assert (
        len({Catalog(types=UserTypes([each])).fingerprint() for each in [base, *others]}) == len(others) + 1
    )


def test_decoders_take_it_and_pass_it_on() -> None:
    payloads = stream()
    decoder = Decoder(catalog=Catalog(types=TYPES))
    assert decoder.catalog.types == TYPES
    assert row_of(decoder.decode(payloads)) == ROW
    state = pickle.loads(pickle.dumps(decoder.state))
    assert state.catalog.types == TYPES
    assert row_of(Decoder(state=state).decode(stream())) == ROW
    bare = Decoder()
    bare.decode(payloads)
    assert [r.version for r in bare.catalog.relations] == [r.version for r in decoder.catalog.relations]
    assert bare.catalog.fingerprint() != decoder.catalog.fingerprint()
    # Enriched later: the next decoder goes on with it.
    again = Decoder(state=bare.state, catalog=Catalog(types=TYPES))
    assert row_of(again.decode(stream())) == ROW
    assert (
        row_of(Decoder(Options(transactions="committed"), catalog=Catalog(types=TYPES)).decode(payloads))
        == ROW
    )


@pytest.mark.parametrize("transactions", ["as_sent", "committed"])
def test_tables_pinned_to_a_relation_version_take_it(transactions: Any) -> None:
    decoder = Decoder(Options(transactions=transactions), catalog=Catalog(types=TYPES))
    out = decoder.decode(stream())
    (pinned,) = decoder.catalog.relations
    assert out.table("public.t", pinned).equals(out.table("public.t"))


def test_tagged_payloads_take_it() -> None:
    tagged, state = pgo.tag(stream(), pgo.StreamState(catalog=Catalog(types=TYPES)))
    assert row_of(pgo.decode_tagged(tagged, state.catalog)) == ROW
    tagged, state = pgo.tag(stream())
    assert row_of(pgo.decode_tagged(tagged, state.catalog.merged(Catalog(types=TYPES)))) == ROW
    assert pgo.decode_tagged(tagged, state.catalog).table("public.t").column("p").to_pylist() == ["(7,x)"]


def test_rejects_and_errors_name_the_type() -> None:
    writer = Writer(types=NAMES)
    payloads = [*writer.begin(7, 100, 0), *writer.change(TABLE, "insert", new=["1", "(7", None, None])]
    with pytest.raises(pgo.DecodeError, match=r"malformed.*|.*public\.pair") as caught:
        Decoder(catalog=Catalog(types=TYPES)).decode(payloads)
    assert (caught.value.column, caught.value.relation) == ("p", "public.t")
    assert "public.pair" in str(caught.value)
    payloads[-1:] = writer.change(TABLE, "insert", new=["1", "(7)", None, "NaN"])
    rejects = Decoder(catalog=Catalog(types=TYPES)).decode(payloads).rejects.to_pylist()
    assert [(each["column"], each["raw"]) for each in rejects] == [("p", b"(7)"), ("d", b"NaN")]
    assert "decimal128(10, 2)" in rejects[1]["reason"]


# --- when it does not fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("oid", "namespace", "name", "known"),
    [
        (30001, None, None, True),
        (30001, "public", "pair", True),
        (30001, "public", "other", False),
        (30001, "elsewhere", "pair", False),
        (30001, "pg_catalog", "int4", False),
        (30003, "pg_catalog", "numeric", True),  # a domain bears its base's name
        (30003, "public", "price", False),
        (30002, "public", "_pair", True),
        (30002, "public", "_other", False),
        (40000, "public", "pair", False),
    ],
)
def test_what_a_type_message_says_prevails(
    oid: int, namespace: str | None, name: str | None, known: bool
) -> None:
    found, bare = type_of(oid, TYPES, namespace, name), type_of(oid, UserTypes(), namespace, name)
    assert (found == bare) is not known


def test_arrays_with_another_delimiter_stay_unknown() -> None:
    """Cut at commas, they would be other arrays."""
    types = [
        UserType(1_000_000, "s", "odd", "base", delimiter=";"),
        UserType(1_000_001, "s", "_odd", "array", of=1_000_000),
    ]
    found = type_of(1_000_001, Catalog(types=types).types)
    assert (found.arrow, found.kernel, found.unknown) == (pa.string(), "unknown", True)


def test_names_that_other_types_take_are_theirs() -> None:
    """Built-in types are what their oids say, whatever a catalog claims."""
    claimed = UserTypes(
        [UserType(23, "public", "int4", "enum"), UserType(3904, "public", "int4range", "enum")]
    )
    assert type_of(23, claimed).arrow == pa.int32()
    assert pa.types.is_struct(type_of(3904, claimed).arrow)


def test_types_without_end_stay_unknown() -> None:
    circle = UserType(1_000_000, "s", "circle", "composite", fields=(TypeField("again", 1_000_000),))
    domains = [UserType(50_000 + k, "s", "d", "domain", of=50_000 + (k + 1) % 2) for k in range(2)]
    endless = [UserType(60_000 + k, "s", f"t{k}", "array", of=60_001 + k) for k in range(50)]
    wide = [
        UserType(
            70_000 + k,
            "s",
            f"w{k}",
            "composite",
            fields=tuple(TypeField(f"f{n}", 70_001 + k) for n in range(100)),
        )
        for k in range(20)
    ]
    types = UserTypes([circle, *domains, *endless, *wide])
    for oid in (1_000_000, 50_000, 60_000, 70_000):
        found = type_of(oid, types)
        assert (found.arrow, found.kernel, found.unknown) == (pa.string(), "unknown", True)
        assert type_of(oid, types, "s", "d").unknown
    # One that ends is what it is, however deep its neighbours are.
    assert type_of(60_030, types).arrow.num_fields == 1


def test_a_table_of_types_that_double_at_each_level_is_bounded() -> None:
    """Each type has two fields of the one below: a row of a table would have a million columns of numbers or more."""
    pairs = [
        UserType(50_000 + k, "s", f"t{k}", "composite", fields=(TypeField("a", below), TypeField("b", below)))
        for k in range(40)
        for below in [50_000 + k - 1 if k else 23]
    ]
    types = UserTypes(pairs)
    columns = tuple(Column(f"c{n}", 50_000 + (n * 7) % 40, -1, False) for n in range(1600))
    found = column_types_of(columns, Options(), types)
    assert sum(each.size for each in found) <= MAX_TABLE_PARTS + len(columns)
    # Each type can be had alone, up to the limit of a column. What comes first is what it would be alone.
    assert not column_type_of(Column("c", 50_010, -1, False), Options(), types).unknown
    assert found[0] == column_type_of(columns[0], Options(), types)
    assert sum(each.kernel == "composite" for each in found) > 10
    # The types that a decoder makes are the same.
    table = RelationSpec(16500, "public", "t", tuple(ColumnSpec(c.name, c.type_oid) for c in columns))
    out = Decoder(catalog=Catalog(types=types)).decode(
        [encode_begin(1, 0, 1), encode_relation(table), encode_insert(table.oid, [None] * 1600)]
    )
    ((_, batch),) = [(each.relation, each.batch) for each in out.changes]
    assert [batch.schema.field(c.name).type for c in columns] == [each.arrow for each in found]


@pytest.mark.parametrize(
    "types",
    [5, [5], [{}], ["x"], [{"oid": 1, "namespace": "n", "name": "t", "kind": "odd"}],
     [{"oid": -1, "namespace": "n", "name": "t", "kind": "enum"}], [{"oid": "1", "namespace": "n", "name": "t", "kind": "enum"}],
     [{"oid": 1, "namespace": "n", "name": None, "kind": "enum"}], [{"oid": 1, "namespace": "n", "name": "t", "kind": "enum", "labels": [1]}],
     [{"oid": 1, "namespace": "n", "name": "t", "kind": "composite", "fields": [["a"]]}],
     [{"oid": 1, "namespace": "n", "name": "t", "kind": "composite", "fields": [["a", 1 << 32, -1]]}],
     [{"oid": 1, "namespace": "n", "name": "t", "kind": "composite", "fields": [["a", 23, 1 << 31]]}],
     [{"oid": 1, "namespace": "n", "name": "t", "kind": "domain", "of": 23, "typmod": "x"}]],
)  # fmt: skip
def test_documents_that_are_no_catalog(types: Any) -> None:
    with pytest.raises(ValueError, match="not a"):
        Catalog.from_json(json.dumps({"format": 1, "relations": [], "types": types}))


WIDE = UserType(30010, "s", "wide", "composite", fields=tuple(TypeField(f"f{n}", 20) for n in range(1000)))
WIDE_TYPES = UserTypes([WIDE, UserType(30011, "s", "_wide", "array", of=30010)])


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_more_nulls_than_fields_have_room_for(binary: bool) -> None:
    """A few bytes on the wire would take a place in each of a thousand columns. Of narrow composites there is no limit."""

    def cell(*elements: bool) -> bytes:
        if not binary:
            return b"{%s}" % b",".join(b'"(%s)"' % (b"," * 999) if each else b"NULL" for each in elements)
        one = record(*[(20, None)] * 1000)
        head = struct.pack(">iiI", 1, 1, 30010) + struct.pack(">ii", len(elements), 1)
        return head + b"".join(sized(one if each else None) for each in elements)

    cells = [cell(False, False), cell(False), cell(*[False, True] * 50), cell(*[False] * 100, True)]
    got, issues = convert(type_of(30011, WIDE_TYPES), cells, binary)
    assert [(row, inside) for row, code, inside in issues if 64 <= code < 128] == [(0, False), (3, False)]
    nothing = dict.fromkeys(f"f{n}" for n in range(1000))
    assert got.to_pylist() == [None, [None], [None, nothing] * 50, None]
    narrow = replace(WIDE, fields=WIDE.fields[:32])
    kind = type_of(30011, UserTypes([narrow, UserType(30011, "s", "_wide", "array", of=30010)]))
    cells = [struct.pack(">iiIii", 1, 1, 30010, 5000, 1) + sized(None) * 5000]
    assert convert(kind, cells if binary else [b"{" + b"NULL," * 4999 + b"NULL}"], binary)[1] == []


def test_rejects_do_not_name_every_field_of_a_wide_composite() -> None:
    table = RelationSpec(16500, "public", "t", (ColumnSpec("w", 30010),))
    payloads = [encode_begin(1, 0, 1), encode_relation(table), encode_insert(table.oid, ["(1,2)"])]
    out = Decoder(catalog=Catalog(types=WIDE_TYPES)).decode(payloads)
    assert [len(reason) < 400 for reason in out.rejects.column("reason").to_pylist()] == [True]
    refused = encode_insert(table.oid, [b"(" + b"," * 998 + b"\xff)"])
    out = Decoder(catalog=Catalog(types=WIDE_TYPES), options=Options(on_error="quarantine")).decode(
        [*payloads[:2], refused]
    )
    assert [len(reason) < 400 for reason in out.rejects.column("reason").to_pylist()] == [True]


def test_nulls_of_wide_composites_do_not_make_batches_large() -> None:
    """What a batch holds is bounded, however short its messages are."""
    table = RelationSpec(16500, "public", "t", (ColumnSpec("w", 30010), ColumnSpec("l", 30011)))
    cell = Binary(struct.pack(">iiIii", 1, 1, 30010, 1, 1) + sized(None))
    payloads = [encode_begin(1, 0, 1), encode_relation(table)]
    payloads += [encode_insert(table.oid, [None, cell])] * 3000
    out = Decoder(Options(batch_bytes=1 << 24), catalog=Catalog(types=WIDE_TYPES)).decode(payloads)
    sizes = [each.batch.nbytes for each in out.changes]
    assert sum(each.batch.num_rows for each in out.changes) == 3000
    assert len(sizes) > 2
    assert max(sizes) < 1 << 25


def test_binary_composites_through_the_decoder() -> None:
    writer = Writer(types=NAMES)
    one = record((23, struct.pack(">i", 7)), (25, b"x"))
    payloads = [
        *writer.begin(7, 100, 0),
        *writer.change(TABLE, "insert", new=[Binary(struct.pack(">i", 1)), Binary(one), None, None]),
        *writer.change(TABLE, "insert", new=["2", "(8,y)", None, None]),  # formats mixed in one block
    ]
    table = Decoder(catalog=Catalog(types=TYPES)).decode(payloads).table("public.t")
    assert table.column("p").to_pylist() == [{"a": 7, "b": "x"}, {"a": 8, "b": "y"}]
