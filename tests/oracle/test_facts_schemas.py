"""Relations as real servers describe them, again and again: which versions there are, and which become one table."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.decoding.result import Decoded
from support import pg
from support.oracle import changes_of, kinds, oid_of, same_as_reference, same_as_reference_in_both_views

_numbers = itertools.count()


@pytest.fixture
def table() -> str:
    return f"shaped{next(_numbers)}"


def decoded(slot: pg.Slot, **options: Any) -> Decoded:
    """The same in both formats, where the server has two."""
    payloads = slot.peek()
    if slot.connection.server_version >= 140000:
        same_as_reference_in_both_views(slot.peek({"binary": "true"}))
    same_as_reference_in_both_views(payloads)
    return pgo.decode([data for _, data in payloads], options=pgo.Options(**options))


def values(out: Decoded | pa.Table, table: str, **arguments: Any) -> list[dict[str, Any]]:
    whole = out if isinstance(out, pa.Table) else out.table(f"public.{table}", **arguments)
    return whole.select([name for name in whole.column_names if not name.startswith("_")]).to_pylist()


def test_relation_is_sent_again_without_any_change_of_it(database: pg.Database, table: str) -> None:
    """After ANALYZE, in a new session, for a new transaction that is streamed: the same bytes, the same version."""
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, t text)", f"INSERT INTO {table} VALUES (1, 'a')"
        )
        for number in range(2, 6):
            slot.execute(f"ANALYZE {table}", f"INSERT INTO {table} VALUES ({number}, 'b')")
        first, second = slot.peek(), slot.peek()
    assert kinds(first).count("R") > 1
    assert len({data for _, data in first if data[:1] == b"R"}) == 1
    decoder = pgo.Decoder()
    outs = [decoder.decode([data for _, data in payloads]) for payloads in (first, second)]
    assert len(decoder.catalog) == 1
    assert [len(out.changes) for out in outs] == [1, 1]
    assert outs[0].changes[0].relation == outs[1].changes[0].relation


def test_version_that_comes_back_is_the_same_version(database: pg.Database, table: str) -> None:
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)",
            f"ALTER TABLE {table} ADD COLUMN a int", f"INSERT INTO {table} VALUES (2, 2)",
            f"ALTER TABLE {table} DROP COLUMN a", f"INSERT INTO {table} VALUES (3)",
        )  # fmt: skip
        out = decoded(slot)
    assert [each.batch.column("id").to_pylist() for each in out.changes] == [[1, 3], [2]]
    assert values(out, table) == [{"id": 1, "a": None}, {"id": 2, "a": 2}, {"id": 3, "a": None}]


def test_altered_types_widen(database: pg.Database, table: str) -> None:
    steps = [
        "ALTER a TYPE int4, ALTER f TYPE float8, ALTER n TYPE numeric(8, 2), ALTER v TYPE varchar(30), ALTER l TYPE int8[]",
        "ALTER a TYPE int8, ALTER n TYPE numeric(10, 4), ALTER v TYPE text",
    ]
    insert = f"INSERT INTO {table} VALUES (%s, 0.5, 1.25, 'x', '{{1,NULL}}')"
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (a int2, f float4, n numeric(5,2), v varchar(5), l int4[])", insert.replace("%s", "7"),
            f"ALTER TABLE {table} {steps[0]}", insert.replace("%s", "70000"),
            f"ALTER TABLE {table} {steps[1]}", insert.replace("%s", "5000000000"),
        )  # fmt: skip
        out = decoded(slot)
    assert len(out.changes) == 3
    whole = out.table(f"public.{table}")
    kinds_of = {name: str(whole.schema.field(name).type) for name in ("a", "f", "n", "v")}
    assert kinds_of == {"a": "int64", "f": "double", "n": "decimal128(10, 4)", "v": "string"}
    assert whole.schema.field("l").type.value_type == pa.int64()
    rows = values(whole, table)
    assert [row["a"] for row in rows] == [7, 70_000, 5_000_000_000]
    assert {(row["f"], str(row["n"]), row["v"], tuple(row["l"])) for row in rows} == {
        (0.5, "1.2500", "x", (1, None))
    }


def test_altered_type_that_cannot_widen_names_both_versions_and_changes_gives_each(
    database: pg.Database, table: str
) -> None:
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (id int, v int)", f"INSERT INTO {table} VALUES (1, 5)",
            f"ALTER TABLE {table} ALTER v TYPE date USING '2020-01-01'::date + v", f"INSERT INTO {table} VALUES (2, '2024-02-29')",
        )  # fmt: skip
        out = decoded(slot)
    with pytest.raises(ValueError, match=r"'v' is int32 in version -?\d+ and date32") as caught:
        out.table(f"public.{table}")
    assert all(str(each.relation.version) in str(caught.value) for each in out.changes)
    assert [each.batch.num_rows for each in out.changes] == [1, 1]


def test_dropped_column_is_not_described_and_null_after(database: pg.Database, table: str) -> None:
    """Also one that was dropped before the slot was: attribute numbers have gaps, the wire has none."""
    database.execute(
        f"CREATE TABLE {table} (gone text, id int PRIMARY KEY, a int, b int)",
        f"ALTER TABLE {table} DROP COLUMN gone",
    )
    with database.slot() as slot:
        slot.execute(
            f"INSERT INTO {table} VALUES (1, 2, 3)",
            f"ALTER TABLE {table} DROP COLUMN a",
            f"INSERT INTO {table} VALUES (4, 5)",
        )
        out = decoded(slot)
    names = [[column.name for column in each.relation.columns] for each in out.changes]
    assert names == [["id", "a", "b"], ["id", "b"]]
    assert values(out, table) == [{"id": 1, "b": 3, "a": 2}, {"id": 4, "b": 5, "a": None}]


def test_renamed_column_is_another_column(database: pg.Database, table: str) -> None:
    """Names are all that the wire has of a column."""
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, a int)", f"INSERT INTO {table} VALUES (1, 1)",
            f"ALTER TABLE {table} RENAME COLUMN a TO b", f"INSERT INTO {table} VALUES (2, 2)",
        )  # fmt: skip
        out = decoded(slot)
    assert values(out, table) == [{"id": 1, "b": None, "a": 1}, {"id": 2, "b": 2, "a": None}]


def test_renamed_table_is_found_by_oid_under_both_names(database: pg.Database, table: str) -> None:
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)",
            f"ALTER TABLE {table} RENAME TO {table}_new", f"INSERT INTO {table}_new VALUES (2)",
            f"CREATE TABLE {table} (id int8 PRIMARY KEY)", f"INSERT INTO {table} VALUES (3)",
        )  # fmt: skip
        oid = oid_of(slot, f"{table}_new")
        out = decoded(slot)
    assert out.table(oid).column("id").to_pylist() == [1, 2]
    assert out.table(f"public.{table}_new").column("id").to_pylist() == [2]
    assert out.table(f"public.{table}").column("id").to_pylist() == [1, 3]
    assert out.table(f"public.{table}").schema.field("id").type == pa.int64()


def test_pinned_schema_outlives_every_alter(database: pg.Database, table: str) -> None:
    """Decoded transaction by transaction, each table is the same whatever has been altered."""
    pinned = pa.schema([("id", pa.int64()), ("note", pa.string()), ("n", pa.decimal128(20, 4))])
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} (id int2, n numeric(5,2))", f"INSERT INTO {table} VALUES (1, 1.5)",
            f"ALTER TABLE {table} ALTER id TYPE int, ADD COLUMN note varchar(9)", f"INSERT INTO {table} VALUES (2, 2.5, 'two')",
            f"ALTER TABLE {table} DROP COLUMN n, ADD COLUMN extra date", f"INSERT INTO {table} VALUES (3, 'three', '2020-01-01')",
            f"ALTER TABLE {table} ALTER note TYPE text", f"INSERT INTO {table} VALUES (4)",
        )  # fmt: skip
        payloads = [data for _, data in slot.peek()]
    options = pgo.Options(schemas={f"public.{table}": pinned}, extra_columns="drop")
    decoder, tables = pgo.Decoder(options), []
    for payload in payloads:
        out = decoder.decode([payload])
        if out.changes:
            tables.append(out.table(f"public.{table}"))
    assert len({each.schema.to_string() for each in tables}) == 1
    rows = values(pa.concat_tables(tables), table)
    assert [(row["id"], row["note"], row["n"] and str(row["n"])) for row in rows] == [
        (1, None, "1.5000"), (2, "two", "2.5000"), (3, "three", None), (4, None, None),
    ]  # fmt: skip
    strict = pgo.decode(payloads, options=pgo.Options(schemas={f"public.{table}": pinned}))
    with pytest.raises(ValueError, match="has 'extra'"):
        strict.table(f"public.{table}")
    narrow = pa.schema([("id", pa.int16())])
    with pytest.raises(ValueError, match="'id' as int32"):
        strict.table(f"public.{table}", schema=narrow, extra_columns="drop")


def test_numeric_typmod_has_a_signed_scale(database: pg.Database, table: str) -> None:
    """numeric(3,-2) since 15: beyond decimal128's scales, so a string; numeric(38,38) and (38,0) just fit."""
    odd = ["numeric(3,-2)", "numeric(2,5)"] if database.version >= 15 else []
    columns = ["numeric(38,38)", "numeric(38,0)", "numeric(39,1)", "numeric", *odd]
    named = ", ".join(f"c{number} {kind}" for number, kind in enumerate(columns))
    with database.slot() as slot:
        slot.execute(f"CREATE TABLE {table} ({named})")
        cells = ["-0." + "9" * 38, "9" * 38, "1" * 38 + ".5", "1e3", "12345", "0.00012"][: len(columns)]
        slot.execute(f"INSERT INTO {table} VALUES ({', '.join(cells)})")
        out = decoded(slot)
        typmods = [mod for (mod,) in slot.execute(f"SELECT atttypmod FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum")]  # fmt: skip
    assert [column.typmod for column in out.changes[0].relation.columns] == typmods
    kinds_of = [str(out.changes[0].batch.schema.field(f"c{number}").type) for number in range(len(columns))]
    assert kinds_of == ["decimal128(38, 38)", "decimal128(38, 0)", *["string"] * (len(columns) - 2)]
    row = values(out, table)[0]
    assert str(row["c0"]) == cells[0]
    if odd:
        assert typmods[4] == ((3 << 16) | (-2 & 0x7FF)) + 4
        assert (row["c4"], row["c5"]) == ("12300", "0.00012")


def test_empty_namespace_stands_for_pg_catalog(database: pg.Database) -> None:
    """A system table can be published by no one; only types show it."""
    database.execute("CREATE DOMAIN whole AS int", "CREATE TABLE spaced (w whole)")
    with database.slot("FOR TABLE spaced") as slot:
        slot.execute("INSERT INTO spaced VALUES (1)")
        payloads = slot.peek()
        out = decoded(slot)
    (said,) = [data for _, data in payloads if data[:1] == b"Y"]
    assert said[5:].split(b"\0")[:2] == [b"", b"int4"] or said[5:].split(b"\0")[:2] == [
        b"pg_catalog",
        b"int4",
    ]
    assert said[5:6] == b"\0"
    (column,) = out.changes[0].relation.columns
    assert (column.type_namespace, column.type_name) == ("pg_catalog", "int4")


def test_wide_table_has_all_its_columns(database: pg.Database, table: str) -> None:
    """As many as a table can have, some 1600."""
    count = 1600
    with database.slot() as slot:
        slot.execute(
            f"CREATE TABLE {table} ({', '.join(f'c{n} int' for n in range(count))})",
            f"INSERT INTO {table} (c0, c{count - 1}) VALUES (1, 2)",
        )
        out = same_as_reference(slot.peek())
    (row,) = changes_of(out)
    assert len(row["columns"]) == count
    assert {name: value for name, value in row["columns"].items() if value is not None} == {
        "c0": 1,
        f"c{count - 1}": 2,
    }
