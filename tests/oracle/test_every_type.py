"""No built-in type that a table can hold is forgotten, on any server; and those that need more than values."""

from __future__ import annotations

import pytest

import pgoutput_fast as pgo
from cells.built_in_cases import CASES, COLUMN_TYPES, LEFT_OUT, pg_type_sql
from cells.range_cases import RANGES
from cells.scalar_cases import CASES as OTHER_CASES
from pgoutput_fast.decoding.result import Decoded
from pgoutput_fast.schema.column_types import column_type_of
from support import pg
from support.oracle import same_as_reference
from support.paths import DOCS

# --- none is forgotten --------------------------------------------------------------------------------------


def test_every_built_in_type_that_a_table_can_hold_is_decoded_or_listed(database: pg.Database) -> None:
    """A table with a column of each, as pg_type has them: none falls through to the unknown but those listed."""
    types = database.execute(COLUMN_TYPES)
    assert len(types) > 120
    with database.slot() as slot:
        columns = ", ".join(f"c{oid} {pg_type_sql(name)}" for oid, name, *_ in types)
        slot.execute(f"CREATE TABLE every_type (id int, {columns})", "INSERT INTO every_type VALUES (1)")
        (out,) = same_as_reference(slot.peek())
    schema = out.table("public.every_type").schema
    documented = (DOCS / "types.md").read_text()
    tested = {*CASES, *OTHER_CASES, *RANGES, "aclitem", "gtsvector", "pg_node_tree", "point"}
    tested |= {name.replace("range", "multirange") for name in RANGES}
    for oid, name, element_oid, element, category, delimiter in types:
        found = schema.field(f"c{oid}")
        if element in LEFT_OUT or category == "c":
            assert found.metadata[b"pg.unknown"] == b"true", name
            assert (f"`{element}`" if category != "c" else "rows of system catalogs") in documented, element
            continue
        assert b"pg.unknown" not in found.metadata, f"{name} ({oid}) is neither decoded nor listed"
        assert found.metadata[b"pg.type"].decode() == (f"{element}[]" if element_oid else name)
        assert element in tested, f"no values of {element} are tested"
        if element_oid:
            kind = column_type_of(pgo.Column("c", oid, -1, False), pgo.Options())
            assert kind.element_oid == element_oid
            assert kind.kernel == ("list_of_boxes" if delimiter == ";" else "list")


# --- types that need more than values -----------------------------------------------------------------------


def decode_rows(database: pg.Database, format_: str, *statements: str) -> Decoded:
    options = {"binary": "true"} if format_ == "binary" else {}
    (out,) = same_as_reference(database.capture(statements, options=options))
    return out


def test_aclitem_comes_as_text_in_both_formats(database: pg.Database, format_: str) -> None:
    """It has no send function. An array of it ends a binary stream with the server's own error."""
    table = f"acl_{format_}"
    acl = "'=r*w/' || quote_ident(current_user)"
    database.execute(f"CREATE TABLE {table} (v aclitem, a aclitem[], g gtsvector, gs gtsvector[])")
    array = f"ARRAY[({acl})::aclitem, NULL]" if format_ == "text" else "NULL"
    out = decode_rows(database, format_, f"INSERT INTO {table} VALUES (({acl})::aclitem, {array})")
    said = database.execute(f"SELECT v::text, array_to_json(a::text[])::text, g::text FROM {table}")[0]
    (row,) = out.table(f"public.{table}").select(["v", "a", "g", "gs"]).to_pylist()
    assert row["v"] == said[0]
    assert row["a"] == ([said[0], None] if format_ == "text" else None)
    assert (row["g"], row["gs"]) == (None, None)
    if format_ == "binary":
        with pytest.raises(Exception, match="no binary output function available for type aclitem"):
            decode_rows(
                database, format_, f"INSERT INTO {table} VALUES (NULL, ARRAY[({acl})::aclitem], NULL, NULL)"
            )


def test_expression_trees_are_strings(database: pg.Database, format_: str) -> None:
    """pg_node_tree takes no input, but a table made from a catalog holds it."""
    table = f"trees_{format_}"
    database.execute(
        f"CREATE TABLE {table} AS SELECT 1 AS id, ev_action AS v FROM pg_rewrite ORDER BY oid LIMIT 0",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
    )
    out = decode_rows(
        database, format_, f"INSERT INTO {table} SELECT 1, ev_action FROM pg_rewrite ORDER BY oid LIMIT 3"
    )
    said = database.execute(f"SELECT v::text FROM {table}")
    assert out.table(f"public.{table}").column("v").to_pylist() == [text for (text,) in said]


def test_statistics_are_left_as_they_came(database: pg.Database, format_: str) -> None:
    """Their binary form is the server's memory: text in one format, bytes in the other."""
    table = f"statistics_{format_}"
    catalog = "pg_statistic_ext_data" if database.version >= 14 else "pg_statistic_ext"
    database.execute(
        f"CREATE TABLE s_{table} AS SELECT n % 5 AS a, n % 5 AS b FROM generate_series(1, 100) AS n",
        f"CREATE STATISTICS st_{table} (ndistinct, dependencies) ON a, b FROM s_{table}",
        f"ANALYZE s_{table}",
        f"CREATE TABLE {table} AS SELECT stxdndistinct AS v, stxddependencies AS w FROM {catalog} LIMIT 0"
        if database.version >= 14
        else f"CREATE TABLE {table} AS SELECT stxndistinct AS v, stxdependencies AS w FROM {catalog} LIMIT 0",
    )
    columns = "stxdndistinct, stxddependencies" if database.version >= 14 else "stxndistinct, stxdependencies"
    out = decode_rows(
        database, format_, f"INSERT INTO {table} SELECT {columns} FROM {catalog} LIMIT 1"
    ).table(f"public.{table}")
    ((ndistinct, dependencies),) = database.execute(f"SELECT v::text, w::text FROM {table}")
    (row,) = out.select(["v", "w"]).to_pylist()
    if format_ == "text":
        assert (row["v"], row["w"]) == (ndistinct, dependencies)
    else:
        assert row["v"].startswith("\\x")
        assert row["w"].startswith("\\x")


def test_char_beyond_ascii_is_what_15_prints(database: pg.Database, format_: str) -> None:
    """Servers before 15 print the bare byte, which is no UTF-8."""
    table = f"high_{format_}"
    database.execute(f'CREATE TABLE {table} (v "char")')
    value = "\\303" if database.version >= 15 else "é"
    out = decode_rows(database, format_, f"INSERT INTO {table} VALUES ('{value}'::text::\"char\")")
    (row,) = out.table(f"public.{table}").select(["v", "_unrepresentable"]).to_pylist()
    assert row == {"v": "\\303", "_unrepresentable": None}


@pytest.mark.parametrize(
    ("setting", "column", "literal", "hint"),
    [
        ("IntervalStyle = 'iso_8601'", "interval", "1 day 02:00", "IntervalStyle"),
        ("IntervalStyle = 'sql_standard'", "interval", "1 year 1 day 02:00", "IntervalStyle"),
        ("IntervalStyle = 'postgres_verbose'", "interval", "1 day 02:00", "IntervalStyle"),
    ],
)
def test_text_of_a_session_with_other_settings_is_refused_not_guessed(
    database: pg.Database, setting: str, column: str, literal: str, hint: str
) -> None:
    table = "hostile_" + setting.split("'")[1]
    database.execute(f"CREATE TABLE {table} (v {column})")
    with database.slot() as slot:
        slot.execute(f"INSERT INTO {table} VALUES ('{literal}')", f"SET {setting}")
        payloads = slot.peek()
    with pytest.raises(pgo.DecodeError, match=hint) as caught:
        pgo.decode([data for _, data in payloads])
    assert (caught.value.relation, caught.value.column) == (f"public.{table}", "v")
