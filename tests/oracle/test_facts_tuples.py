"""What real servers put into tuples, and how they describe it, fact by fact."""

from __future__ import annotations

import itertools
import struct

import psycopg2
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from support import pg
from support.oracle import Replica, changes_of, kinds, oid_of, require, same_as_reference, server_rows

BIG = "x" * 5000  # stored out of line where the column's storage is EXTERNAL
_numbers = itertools.count()


@pytest.fixture
def table() -> str:
    return f"tuples{next(_numbers)}"


def cells(data: bytes) -> list[tuple[str, bytes]]:
    """(kind, bytes) of the cells of an insert outside of a stream block."""
    assert data[:1] + data[5:6] == b"IN"
    (count,) = struct.unpack_from(">h", data, 6)
    found, at = [], 8
    for _ in range(count):
        kind, length = chr(data[at]), 0
        at += 1
        if kind in "tb":
            (length,) = struct.unpack_from(">i", data, at)
            at += 4
        found.append((kind, data[at : at + length]))
        at += length
    assert at == len(data)
    return found


def inserts(payloads: list[pg.Payload]) -> list[bytes]:
    return [data for _, data in payloads if data[:1] == b"I"]


# --- types ------------------------------------------------------------------------------------------------


def test_domains_over_domains_are_their_base_type(database: pg.Database, table: str) -> None:
    """Type gives a domain's base at the bottom, under the domain's own oid."""
    database.execute(
        f"CREATE DOMAIN {table}_a AS int", f"CREATE DOMAIN {table}_b AS {table}_a CHECK (VALUE > 0)",
        f"CREATE DOMAIN {table}_c AS {table}_b", f"CREATE DOMAIN {table}_l AS int[]",
        f"CREATE TABLE {table} (a {table}_a, b {table}_b, c {table}_c, l {table}_l)",
    )  # fmt: skip
    with database.slot(f"FOR TABLE {table}") as slot:
        slot.execute(f"INSERT INTO {table} VALUES (1, 2, 3, '{{4,NULL}}')")
        out = same_as_reference(slot.peek())[0]
        oids = [oid for (oid,) in slot.execute(f"SELECT atttypid::int8 FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum")]  # fmt: skip
        assert kinds(slot.peek()) == "BYYYYRIC"
    (each,) = out.changes
    assert [column.type_oid for column in each.relation.columns] == oids
    named = [(column.type_namespace, column.type_name) for column in each.relation.columns]
    assert named == [("pg_catalog", "int4")] * 3 + [("pg_catalog", "_int4")]
    assert changes_of([out])[0]["columns"] == {"a": 1, "b": 2, "c": 3, "l": [4, None]}


def test_type_is_sent_for_oids_from_10000_on_and_no_others(database: pg.Database, table: str) -> None:
    """So for some of the system's own, too: those of information_schema."""
    database.execute(
        f"CREATE TYPE {table}_mood AS ENUM ('sad')",
        f"CREATE TABLE {table} (i int, s information_schema.cardinal_number, m {table}_mood, l {table}_mood[], t text)",
    )
    with database.slot(f"FOR TABLE {table}") as slot:
        slot.execute(f"INSERT INTO {table} VALUES (1, 2, 'sad', '{{sad}}', 'x')")
        payloads = slot.peek()
        (out,) = same_as_reference(payloads)
    said = {
        int.from_bytes(data[1:5], "big"): data[5:].split(b"\0")[:2]
        for _, data in payloads
        if data[:1] == b"Y"
    }
    columns = out.changes[0].relation.columns
    assert set(said) == {column.type_oid for column in columns if column.type_oid >= 10_000}
    assert [column.name for column in columns if column.type_oid in said] == ["s", "m", "l"]
    assert list(said.values()) == [[b"", b"int4"], [b"public", f"{table}_mood".encode()], [b"public", f"_{table}_mood".encode()]]  # fmt: skip
    assert changes_of([out])[0]["columns"] == {"i": 1, "s": 2, "m": "sad", "l": ["sad"], "t": "x"}
    assert b"sad" not in b"".join(data for _, data in payloads if data[:1] == b"Y"), "labels are never sent"


# --- columns ----------------------------------------------------------------------------------------------


def test_columns_come_in_their_order_without_dropped_ones(database: pg.Database, table: str) -> None:
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (z int, gone text, a int, PRIMARY KEY (z))", f"ALTER TABLE {table} DROP COLUMN gone",
            f"ALTER TABLE {table} ADD COLUMN m int", f"INSERT INTO {table} VALUES (1, 2, 3)",
        )  # fmt: skip
        payloads = slot.peek()
        (out,) = same_as_reference(payloads)
    assert [column.name for column in out.changes[0].relation.columns] == ["z", "a", "m"]
    assert b"gone" not in b"".join(data for _, data in payloads)
    assert cells(inserts(payloads)[0]) == [("t", b"1"), ("t", b"2"), ("t", b"3")]


def test_stored_generated_columns_are_sent_when_published_and_virtual_ones_never(
    database: pg.Database, table: str
) -> None:
    require(database, 12, "generated columns exist")
    virtual = ", v int GENERATED ALWAYS AS (id + 1) VIRTUAL" if database.version >= 18 else ""
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id * 2) STORED{virtual})"
    )
    publications = {f"FOR TABLE {table}": ["id"]}
    if database.version >= 18:
        publications |= {
            f"FOR TABLE {table} WITH (publish_generated_columns = stored)": ["id", "s"],
            f"FOR TABLE {table} (s, id)": ["id", "s"],
        }
    for number, (publication, columns) in enumerate(publications.items()):
        with database.slot(publication) as slot:
            slot.execute(f"INSERT INTO {table} VALUES ({number})")
            (out,) = same_as_reference(slot.peek())
        assert [column.name for column in out.changes[0].relation.columns] == columns
        assert changes_of([out])[0]["columns"] == {
            name: {"id": number, "s": 2 * number}[name] for name in columns
        }


def test_tuple_with_more_cells_than_described_is_an_error() -> None:
    """15.0 and 15.1 could send one; whose cell is whose would be a guess."""
    relation = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23),))
    payloads = [
        encode.encode_begin(1, 0, 7),
        encode.encode_relation(relation),
        encode.encode_insert(16384, ["1", "2"]),
    ]
    with pytest.raises(pgo.DecodeError, match="2 cells, but its Relation describes 1") as caught:
        pgo.decode(payloads)
    assert (caught.value.seq, caught.value.relation) == (2, "public.t")


# --- partitions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["DEFAULT", "FULL"])
@pytest.mark.parametrize("leaf", ["DEFAULT", "FULL"])
def test_partition_root_gives_the_tag_and_the_leaf_the_content(
    database: pg.Database, table: str, root: str, leaf: str
) -> None:
    """Where the root is FULL and the leaf is not, an O holds nulls that were never sent: nothing in the bytes tells."""
    require(database, 13, "publish_via_partition_root exists")
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, t text) PARTITION BY RANGE (id)",
        f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (0) TO (100)",
        f"ALTER TABLE {table} REPLICA IDENTITY {root}", f"ALTER TABLE {table}_1 REPLICA IDENTITY {leaf}",
    )  # fmt: skip
    with database.slot(f"FOR TABLE {table} WITH (publish_via_partition_root = true)") as slot:
        slot.execute(
            f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')", f"UPDATE {table} SET id = 3 WHERE id = 1",
            f"UPDATE {table} SET t = 'c' WHERE id = 3", f"DELETE FROM {table} WHERE id = 2",
        )  # fmt: skip
        payloads = slot.peek()
        (out,) = same_as_reference(payloads)
        oid = oid_of(slot, table)
    relation = out.changes[0].relation
    assert (relation.oid, relation.replica_identity) == (oid, {"DEFAULT": "d", "FULL": "f"}[root])
    tags = [data[5:6].decode() for _, data in payloads if data[:1] in (b"U", b"D")]
    whole = leaf == "FULL"
    old = "O" if root == "FULL" else "K"
    # Without an identity that changed, a leaf with a key sends no old tuple at all.
    assert tags == [old, old if whole else "N", old]
    rows = [row for row in changes_of([out]) if row["_change_type"] in ("update_preimage", "delete")]
    assert [row["_key_only"] for row in rows] == [root == "DEFAULT"] * len(rows)
    texts = [row["columns"]["t"] for row in rows]
    assert texts == (["a", "a", "b"] if whole else [None, None])


# --- tuples -----------------------------------------------------------------------------------------------


def test_key_tuple_has_full_width_and_nulls_that_mean_not_sent(database: pg.Database, table: str) -> None:
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (a text, id int PRIMARY KEY, b text)", f"INSERT INTO {table} VALUES ('a', 1, 'b')",
            f"UPDATE {table} SET id = 2", f"DELETE FROM {table}",
        )  # fmt: skip
        payloads = slot.peek()
        (out,) = same_as_reference(payloads)
    keys = [data[6:] for _, data in payloads if data[5:6] == b"K"]
    assert [key[:2] for key in keys] == [b"\0\3", b"\0\3"]
    assert keys[1] == b"\0\3nt\0\0\0\1" + b"2n"
    rows = [row for row in changes_of([out]) if row["_key_only"]]
    assert [row["columns"] for row in rows] == [
        {"a": None, "id": 1, "b": None},
        {"a": None, "id": 2, "b": None},
    ]


def test_toast_unchanged_is_not_null(database: pg.Database, table: str) -> None:
    """Both are null in the column; `_unchanged` tells which was not sent."""
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int, a text, b text)", f"ALTER TABLE {table} ALTER a SET STORAGE EXTERNAL",
            f"INSERT INTO {table} VALUES (1, 1, '{BIG}', NULL)", f"UPDATE {table} SET n = 2", f"UPDATE {table} SET n = 3, a = NULL",
        )  # fmt: skip
        (out,) = same_as_reference(slot.peek())
        assert Replica().apply([out]).rows(oid_of(slot, table)) == server_rows(slot, table)
    rows = changes_of([out])[1:]
    assert [(row["columns"]["a"], row["columns"]["b"], row["_unchanged"]) for row in rows] == [
        (None, None, ["a"]), (None, None, None),
    ]  # fmt: skip


def test_insert_made_by_a_row_filter_can_hold_unchanged_values(database: pg.Database, table: str) -> None:
    """An update brings the row into the filter: what is stored out of line was never sent, nor is it now."""
    require(database, 15, "row filters exist")
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, n int, t text)",
        f"ALTER TABLE {table} ALTER t SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
    )
    with database.slot(f"FOR TABLE {table} WHERE (n > 10)") as slot:
        slot.execute(f"INSERT INTO {table} VALUES (1, 1, '{BIG}')", f"UPDATE {table} SET n = 20")
        payloads = slot.peek()
        (out,) = same_as_reference(payloads)
    (row,) = changes_of([out])
    assert row["_change_type"] == "insert"
    # With the whole old row at hand the server fills it in.
    assert cells(inserts(payloads)[0])[2] == ("t", BIG.encode())
    assert (row["columns"]["t"], row["_unchanged"]) == (BIG, None)
    database.execute(f"TRUNCATE {table}", f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT")
    with database.slot(f"FOR TABLE {table} WHERE (id > 10) WITH (publish = 'insert, update')") as slot:
        slot.execute(f"INSERT INTO {table} VALUES (1, 1, '{BIG}')", f"UPDATE {table} SET id = 20")
        payloads = slot.peek()
        (out,) = same_as_reference(payloads)
    (row,) = changes_of([out])
    assert (row["_change_type"], row["columns"]["t"], row["_unchanged"]) == ("insert", None, ["t"])
    assert cells(inserts(payloads)[0])[2] == ("u", b"")


def test_row_filter_turns_an_update_out_of_it_into_a_delete(database: pg.Database, table: str) -> None:
    require(database, 15, "row filters exist")
    database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    with database.slot(f"FOR TABLE {table} WHERE (id > 10)") as slot:
        slot.execute(
            f"INSERT INTO {table} VALUES (20)", f"UPDATE {table} SET id = 1", f"UPDATE {table} SET id = 30"
        )
        (out,) = same_as_reference(slot.peek())
    rows = [(row["_change_type"], row["columns"]["id"], row["_key_only"]) for row in changes_of([out])]
    assert rows == [("insert", 20, False), ("delete", 20, True), ("insert", 30, False)]


# --- binary -----------------------------------------------------------------------------------------------


def test_binary_mixes_cells_of_text_and_of_binary_in_one_row(
    database_binary: pg.Database, table: str
) -> None:
    """What has no send function comes as text."""
    acl = database_binary.execute("SELECT current_user || '=r/' || current_user")[0][0]
    with database_binary.slot(options={"binary": "true"}) as slot:
        slot.execute(
            f"CREATE TABLE {table} (i int, a aclitem, t text, j jsonb, l int[])",
            f"INSERT INTO {table} VALUES (7, '{acl}', 'x', '{{\"k\": 1}}', '{{1}}'), (NULL, NULL, NULL, NULL, NULL)",
        )
        payloads = slot.peek()
        same_as_reference(payloads)
    out = pgo.decode([data for _, data in payloads])
    first, second = (cells(data) for data in inserts(payloads))
    assert [kind for kind, _ in first] == ["b", "t", "b", "b", "b"]
    assert [kind for kind, _ in second] == ["n"] * 5
    assert first[0][1] == struct.pack(">i", 7)
    assert first[3][1][:1] == b"\1", "a version before the text of a jsonb"
    assert struct.unpack_from(">iiI", first[4][1]) == (1, 0, 23), "an array holds its elements' oid"
    row = out.table(f"public.{table}").to_pylist()[0]
    assert (row["i"], row["a"], row["t"], row["j"], row["l"]) == (7, acl, "x", '{"k": 1}', [1])


def test_array_of_what_has_no_send_function_ends_the_binary_stream(
    database_binary: pg.Database, table: str
) -> None:
    """A server's error, which text does not have."""
    with database_binary.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (a aclitem[])", f"INSERT INTO {table} VALUES (ARRAY[]::aclitem[])"
        )
        with pytest.raises(psycopg2.Error, match="no binary output function"):
            slot.peek({"binary": "true"})
        assert kinds(slot.peek()).endswith("BRIC")


def test_text_cuts_at_a_zero_byte_that_binary_keeps(database_binary: pg.Database, table: str) -> None:
    with database_binary.slot() as slot:
        slot.execute(f'CREATE TABLE {table} (c "char")', f'INSERT INTO {table} VALUES (0::int::"char")')
        as_text = cells(inserts(slot.peek())[0])
        as_binary = cells(inserts(slot.peek({"binary": "true"}))[0])
    assert (as_text, as_binary) == ([("t", b"")], [("b", b"\0")])


# --- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["text", "binary"])
def test_shortest_float_text_is_the_same_float(database: pg.Database, table: str, format_: str) -> None:
    """Its text is not that of other shortest printers: 1e23 is 9.999999999999999e+22 from 12 on."""
    if format_ == "binary":
        require(database, 14, "binary is sent")
    floats = ["1e23", "9007199254740993", "5e-324", "2.2250738585072011e-308", "1.7976931348623157e308", "-0", "0.1", "NaN", "-Infinity"]  # fmt: skip
    options = {"binary": "true"} if format_ == "binary" else {}
    with database.slot(options=options) as slot:
        slot.execute(
            f"CREATE TABLE {table} (f float8)", *(f"INSERT INTO {table} VALUES ('{f}')" for f in floats)
        )
        payloads = slot.peek()
        (out,) = same_as_reference(payloads)
        sent = [bytes(raw) for (raw,) in slot.execute(f"SELECT float8send(f) FROM {table}")]
    found = [struct.pack(">d", f) for f in out.table(f"public.{table}").column("f").to_pylist()]
    assert found == sent
    if format_ == "text" and database.version >= 12:
        assert cells(inserts(payloads)[0]) == [("t", b"9.999999999999999e+22")]


def test_hostile_session_settings_change_the_text(database: pg.Database, table: str) -> None:
    """The same row under other settings: other bytes, refused where they cannot be read for sure."""
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (d date, b bytea, w timestamptz)",
            f"INSERT INTO {table} VALUES ('0044-03-15 BC', '\\x00ff', '2024-02-29 12:00+00')",
        )
        pinned = slot.peek()
        expected = changes_of(same_as_reference(pinned))[0]["columns"]
        for setting, value, changes in (
            ("DateStyle", "SQL, DMY", True), ("bytea_output", "escape", True), ("TimeZone", "Asia/Kathmandu", False),
        ):  # fmt: skip
            slot.execute(f"SET {setting} = '{value}'")
            other = slot.peek()
            slot.execute(f"RESET {setting}")
            assert inserts(other) != inserts(pinned)
            if changes:
                with pytest.raises(pgo.DecodeError, match=setting):
                    pgo.decode([data for _, data in other])
            else:
                assert changes_of(same_as_reference(other))[0]["columns"] == expected


def test_table_without_columns_has_tuples_without_cells(database: pg.Database, table: str) -> None:
    with database.slot() as slot:
        slot.execute(f"CREATE TABLE {table} ()", f"INSERT INTO {table} DEFAULT VALUES", f"INSERT INTO {table} DEFAULT VALUES")  # fmt: skip
        payloads = slot.peek()
        (out,) = same_as_reference(payloads)
    assert kinds(payloads).endswith("BRICBIC")
    assert [cells(data) for data in inserts(payloads)] == [[], []]
    assert out.table(f"public.{table}").num_rows == 2
