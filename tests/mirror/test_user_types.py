"""Types that users made, and altered: composites whose attributes come, go, and get other names, and enums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pgoutput_fast.mirror import fresh, points
from reference.current import CurrentRows
from support.current_tables import KINDS
from support.forms import and_slow
from support.mirrors import Place, current_of, history_of, place

__all__ = ["place"]

# Name of a table -> its column's type, the first value, what is done to the type, and a value of then.
_ALTERED = {
    "grown": ("k_grown", "(1,2)", "ALTER TYPE k_grown ADD ATTRIBUTE z text CASCADE", "(1,2,new)"),
    "lists": ("k_lists[]", '{"(1,2)",NULL}', "ALTER TYPE k_lists ADD ATTRIBUTE z int CASCADE", '{"(1,2,3)"}'),
    "nested": ("k_outer", '("(1,2)",5)', "ALTER TYPE k_nested ADD ATTRIBUTE z int CASCADE", '("(1,2,3)",5)'),
    "less": ("k_less", "(1,2)", "ALTER TYPE k_less DROP ATTRIBUTE y CASCADE", "(1)"),
    "named": ("k_named", "(1,2)", "ALTER TYPE k_named RENAME ATTRIBUTE y TO z CASCADE", "(3,4)"),
    "again": (
        "k_again",
        "(1,2)",
        "ALTER TYPE k_again DROP ATTRIBUTE y CASCADE, ADD ATTRIBUTE y text CASCADE",
        "(1,now)",
    ),
    "labels": ("k_labels", "x", "ALTER TYPE k_labels ADD VALUE 'w' BEFORE 'x'", "w"),
}
_GO_ON = {"grown", "lists", "nested", "labels"}
# What the rows of before have then, and a new one.
_VALUES = {
    "grown": ({"x": 1, "y": 2, "z": None}, {"x": 1, "y": 2, "z": "new"}),
    "lists": ([{"x": 1, "y": 2, "z": None}, None], [{"x": 1, "y": 2, "z": 3}]),
    "nested": ({"i": {"x": 1, "y": 2, "z": None}, "n": 5}, {"i": {"x": 1, "y": 2, "z": 3}, "n": 5}),
    "less": ({"x": 1}, {"x": 1}),
    "named": ({"x": 1, "z": 2}, {"x": 3, "z": 4}),
    "again": ({"x": 1, "y": None}, {"x": 1, "y": "now"}),
    "labels": ("x", "w"),
}


def _make(place: Place, names: Iterable[str]) -> None:
    for name in ("grown", "lists", "less", "named", "again", "nested"):
        place.database.execute(f"CREATE TYPE k_{name} AS (x int, y int)")
    place.database.execute(
        "CREATE TYPE k_outer AS (i k_nested, n int)", "CREATE TYPE k_labels AS ENUM ('x', 'y')"
    )
    for name in names:
        kind, first, _, _ = _ALTERED[name]
        place.database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind})",
            f"INSERT INTO {name} VALUES (1, '{first}'), (2, NULL)",
        )
    place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")


def _change(place: Place, names: Iterable[str], number: int, *, is_new: bool) -> None:
    for name in names:
        value = _ALTERED[name][3 if is_new else 1]
        place.database.execute(
            f"INSERT INTO {name} VALUES ({number}, '{value}')",
            f"UPDATE {name} SET v = '{value}' WHERE id = 2",
        )


def _values(rows: pa.Table) -> dict[int, Any]:
    return {row["id"]: row["v"] for row in rows.to_pylist()}


def _replayed(place: Place, name: str) -> dict[int, Any]:
    """What the history gives, if it is applied to an empty table."""
    history = history_of(place.target, f"public.{name}")
    rows = CurrentRows(["id"], history.select(["id", "v"]).schema)
    rows.apply_changes(history.to_pylist())
    return {row["id"]: row["v"] for row in rows.rows}


@pytest.mark.slow
@pytest.mark.parametrize("format", and_slow(["delta"], [each for each in KINDS if each != "delta"]))
def test_types_that_are_altered(place: Place, format: str) -> None:
    """Current tables are loaded again. Histories go on if a composite gets attributes, or an enum gets labels."""
    names = list(_ALTERED) if format == "delta" else ["grown", "lists"]
    _make(place, names)
    place.run(format=format)
    _change(place, names, 3, is_new=False)
    place.run(format=format)
    before = points(place.target)[-1].position
    place.database.execute(*(_ALTERED[name][2] for name in names))
    with place.mirror(format=format) as mirror:
        for number in (4, 5):
            _change(place, names, number, is_new=True)
            mirror.run(until_lsn="now")
        assert {each.table for each in mirror.status() if each.error} == set()
        stopped = {each.table: str(each.history_error) for each in mirror.status() if each.history_error}
        assert stopped.keys() == {f"public.{name}" for name in names if name not in _GO_ON}
        for said in stopped.values():
            assert "its column 'v' is struct<x: int32, y: int32>, and the rows have struct<x: int32" in said
            assert (
                "load the table again with Mirror.reload (pgoutput-fast mirror ... --reload): then a new history begins"
                in said
            )
        for table in stopped:
            mirror.reload(table)
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    for name in names:
        old, new = _VALUES[name]
        expected = {1: old, 2: new, 3: old, 4: new, 5: new}
        table = f"public.{name}"
        assert _values(current_of(place.target, table, format=format)) == expected
        assert _values(fresh(place.target, table)) == expected
        assert _replayed(place, name) == expected
        if format != "duckdb" and name in _GO_ON:
            _expect_as_before(place, table, before)


def _expect_as_before(place: Place, table: str, position: int) -> None:
    """A position before the type got an attribute has the structs of then."""
    rows = fresh(place.target, table, position=position)
    assert "z" not in str(rows.schema.field("v").type)
    assert _values(rows).keys() == {1, 2, 3}


def test_changes_of_before_that_the_mirror_takes_behind_an_alteration(place: Place) -> None:
    """It knows only the type of now: such a value is null in the history, with its name, and a reject keeps it.
    The current table is loaded again, and has it. An older position leaves out a field that came later."""
    _make(place, ["grown"])
    place.run()
    place.database.execute("INSERT INTO grown VALUES (3, '(7,8)')")
    place.run()
    _change(place, ["grown"], 4, is_new=False)
    place.database.execute(_ALTERED["grown"][2])
    _change(place, ["grown"], 5, is_new=True)
    place.run()
    old, new = _VALUES["grown"]
    expected = {1: old, 2: new, 3: {"x": 7, "y": 8, "z": None}, 4: old, 5: new}
    assert _values(current_of(place.target, "public.grown")) == _replayed(place, "grown") == expected
    (row,) = [
        each
        for each in history_of(place.target, "public.grown").to_pylist()
        if each["id"] == 4 and each["_seq"] >= 0
    ]
    assert (row["v"], row["_unrepresentable"]) == (None, ["v"])
    rejects = deltalake.DeltaTable(str(place.target / "_rejects" / "public.grown")).to_pyarrow_table()
    assert set(rejects["raw"].to_pylist()) == {b"(1,2)"}


# Name of a table -> its column's type, a value, and the type that gets another name.
_RENAMED = {
    "pairs": ("r_pair", "(1,2)", "TYPE r_pair"),
    "listed": ("r_listed[]", '{"(1,2)"}', "TYPE r_listed"),
    "nested": ("r_outer", '("(1,2)",5)', "TYPE r_inner"),
    "spans": ("r_span", "[1.5,2.5)", "TYPE r_span"),
    "prices": ("r_price[]", "{1.25,2.50}", "DOMAIN r_price"),
    "price": ("r_cents", "1.25", "DOMAIN r_cents"),
    "labels": ("r_label", "x", "TYPE r_label"),
}


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "run again"])
def test_types_that_get_another_name(place: Place, is_open: bool) -> None:
    """The stream names a type as it was when a row was changed, the server as it is now. Neither matters."""
    database = place.database
    database.execute(
        *(f"CREATE TYPE {name} AS (x int, y int)" for name in ("r_pair", "r_listed", "r_inner")),
        "CREATE TYPE r_outer AS (i r_inner, n int)",
        "CREATE TYPE r_span AS RANGE (subtype = float8)",
        "CREATE DOMAIN r_price AS numeric(10, 2)",
        "CREATE DOMAIN r_cents AS numeric(10, 2)",
        "CREATE TYPE r_label AS ENUM ('x')",
        "CREATE SCHEMA elsewhere",
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind})" for name, (kind, _, _) in _RENAMED.items()),
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    numbers = iter(range(100))

    def change() -> None:
        n = next(numbers)
        database.execute(
            *(f"INSERT INTO {name} VALUES ({n}, '{value}')" for name, (_, value, _) in _RENAMED.items())
        )

    def follow() -> None:
        mirror.run(until_lsn="now") if is_open else place.run()

    change()
    with place.mirror() as mirror:
        if not is_open:
            mirror.close()
        follow()
        for number, alter in enumerate(("{} RENAME TO {}2", "{} RENAME TO {}", "{} SET SCHEMA elsewhere")):
            change()
            for kind, name in (each.split() for _, _, each in _RENAMED.values()):
                database.execute(f"ALTER {kind} " + alter.format(name + "2" * (number == 1), name))
            change()
            follow()
            change()
            follow()
        if is_open:
            place.expect_no_errors(mirror)
    for name in _RENAMED:
        values = set(map(str, history_of(place.target, f"public.{name}")["v"].to_pylist()))
        assert len(values) == 1, name
        assert "truncate" not in history_of(place.target, f"public.{name}")["_change_type"].to_pylist()
        assert set(map(str, current_of(place.target, f"public.{name}")["v"].to_pylist())) == values
