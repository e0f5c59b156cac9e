"""A mirror of some of the published tables."""

from __future__ import annotations

import pytest

from pgoutput_fast.mirror import Mirror, MirrorError, at
from support.mirrors import Place, current_of, expect_equal, place

__all__ = ["place"]


def states(place: Place, **more: object) -> dict[str, str]:
    with place.mirror(**more) as mirror:
        mirror.run(until_lsn="now")
        return {each.table: each.state for each in mirror.status()}


def test_tables_are_chosen_and_left_out(place: Place) -> None:
    database = place.database
    database.execute(
        "CREATE SCHEMA audit",
        *(
            f"CREATE TABLE {name} (id int PRIMARY KEY)"
            for name in ("orders", "log_1", "audit.orders", '"Odd"')
        ),
        "INSERT INTO orders VALUES (1)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    some = {"tables": ["PUBLIC.*"], "exclude": ["public.log_?"]}
    assert states(place, **some) == {'public."Odd"': "follow", "public.orders": "follow"}
    database.execute(
        "INSERT INTO orders VALUES (2)",
        "INSERT INTO log_1 VALUES (1)",
        "INSERT INTO audit.orders VALUES (1)",
        'TRUNCATE log_1, "Odd"',
        "CREATE TABLE log_2 (id int PRIMARY KEY)",
        "CREATE TABLE more (id int PRIMARY KEY)",
    )
    database.execute("INSERT INTO log_2 VALUES (1)", "INSERT INTO more VALUES (1)")
    assert states(place, **some) == dict.fromkeys(('public."Odd"', "public.more", "public.orders"), "follow")
    expect_equal(place, "public.orders")
    # Left out: it stays as it is at once, and says so.
    database.execute("INSERT INTO orders VALUES (3)")
    less = {"tables": ["public.*"], "exclude": ["public.log_?", "public.orders"]}
    assert states(place, **less)["public.orders"] == "unpublished"
    database.execute("INSERT INTO orders VALUES (4)")
    states(place, **less)
    assert "public.orders" not in at(place.target)
    # Chosen again, as are all others: they are loaded.
    found = states(place)
    assert set(found.values()) == {"follow"}
    assert len(found) == 6
    for name in found:
        expect_equal(place, name)
    assert sorted(current_of(place.target, "public.orders")["id"].to_pylist()) == [1, 2, 3, 4]


def test_a_table_gets_a_name_that_is_left_out(place: Place) -> None:
    """What changes under that name is not lost without notice."""
    database = place.database
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    states(place, exclude=["public.old"])
    database.execute("ALTER TABLE orders RENAME TO old", "INSERT INTO old VALUES (2)")
    database.execute("ALTER TABLE old RENAME TO orders", "INSERT INTO orders VALUES (3)")
    assert states(place, exclude=["public.old"]) == {"public.orders": "follow"}
    expect_equal(place, "public.orders")


def test_a_misspelt_name_leaves_the_other_tables_alone(place: Place) -> None:
    database = place.database
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    for wrong in (["public.oders"], ["audit.*"], ["public.orders", "public.x"]):
        with pytest.raises(
            MirrorError, match=r"there is no published table (public\.oders; the nearest|audit|public\.x)"
        ):
            states(place, tables=wrong)
    assert states(place, tables=["public.orders"]) == {"public.orders": "follow"}
    with pytest.raises(MirrorError, match="no published table"):
        states(place, tables=["public.order"])
    assert states(place) == {"public.orders": "follow"}
    # A table that was dropped is no mistake.
    database.execute("DROP TABLE orders", "CREATE TABLE more (id int PRIMARY KEY)")
    assert states(place, tables=["public.orders", "public.more"])["public.more"] == "follow"


def test_wrong_names() -> None:
    for more, error in (
        ({"tables": "public.*"}, TypeError),
        ({"exclude": ["orders"]}, ValueError),
        ({"tables": [7]}, TypeError),
        ({"tables": []}, ValueError),
    ):
        with pytest.raises(error, match=r"tables|exclude"):
            Mirror("", "s", ["p"], "lake", **more)  # type: ignore[arg-type]
