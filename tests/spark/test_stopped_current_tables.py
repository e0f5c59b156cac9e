"""`current_sink` with `on_table_error="skip"`: a table that cannot go on is set aside, and the others go on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast import spark as pgspark
from pgoutput_fast.capture import create_slot
from pgoutput_fast.mirror import at
from pgoutput_fast.spark.current.batch_checks import check_tables
from pgoutput_fast.spark.current.notes import NOTES_FILE, Notes, read_notes
from pgoutput_fast.spark.tables.status import _current_rows
from pgoutput_fast.spark.tasks.current.jobs import Failed, packed, unpacked
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.damaged import DamagedError
from support.current_queries import Query
from support.mirrors import Place, expect_equal, lose_rows, make_two_tables, place

__all__ = ["place"]


def _status(spark: Any, place: Place) -> dict[str, dict[str, Any]]:
    rows = pgspark.table_status(place.target, spark=spark).collect()
    return {row["table"]: row.asDict() for row in rows}


@pytest.mark.slow
def test_a_stopped_table_is_taken_up_when_the_query_starts_again(spark: Any, place: Place) -> None:
    """Its files are gone for a while. It then has the batches that it missed, and the others do not get theirs twice."""
    make_two_tables(place)
    database, b = place.database, place.target / "current" / "public.b"
    create_slot(database.dsn, place.slot)
    database.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (2, 'y')")
    query = Query(spark, place, on_table_error="skip")
    query.follow()
    shutil.move(b, place.target.parent / "b")
    database.execute("INSERT INTO a VALUES (2)", "UPDATE b SET note = 'z'")
    query.follow()
    database.execute("DELETE FROM a WHERE id = 1", "INSERT INTO b VALUES (3, 'z')")
    query.follow()
    expect_equal(place, "public.a")
    assert set(at(place.target)) == {"public.a"}
    first = _status(spark, place)
    assert (first["public.a"]["state"], first["public.a"]["lag"]) == ("follow", 0)
    assert first["public.b"]["state"] == "stopped"
    assert "public.b is damaged" in first["public.b"]["reason"]
    assert first["public.b"]["lag"] == first["public.a"]["position"] - first["public.b"]["position"] > 0
    # The cause is still there.
    database.execute("INSERT INTO a VALUES (4)")
    again = Query(spark, place, on_table_error="skip")
    again.follow()
    second = _status(spark, place)["public.b"]
    assert second["since"] == first["public.b"]["since"]
    assert second["position"] == first["public.b"]["position"]
    shutil.move(place.target.parent / "b", b)
    database.execute("INSERT INTO a VALUES (5)", "DELETE FROM b WHERE id = 2")
    again.follow()
    assert _status(spark, place)["public.b"]["state"] == "stopped"
    database.execute("UPDATE b SET id = 7 WHERE id = 3")
    Query(spark, place, on_table_error="skip").follow()
    expect_equal(place, "public.a", "public.b")
    assert set(at(place.target)) == {"public.a", "public.b"}
    assert {each["state"] for each in _status(spark, place).values()} == {"follow"}


@pytest.mark.slow
def test_a_table_that_a_mirror_loads_again(spark: Any, place: Place) -> None:
    """A task meets the error. The query goes on with the rows of the load, and needs no segments before it."""
    make_two_tables(place)
    database = place.database
    place.run()
    lose_rows(place, "public.b")
    database.execute("INSERT INTO a VALUES (1)", "UPDATE b SET id = 2")
    with pytest.raises(ValueError, match="the table lacks 1 row that changes refer to"):
        Query(spark, place).follow()
    query = Query(spark, place, on_table_error="skip")
    query.follow()
    expect_equal(place, "public.a")
    assert "lacks 1 row that changes refer to" in _status(spark, place)["public.b"]["reason"]
    database.execute("INSERT INTO a VALUES (2)", "INSERT INTO b VALUES (5, 'x')")
    query.follow()
    with place.mirror() as mirror:
        mirror.reload("public.b")
        mirror.run(until_lsn="now")
    expect_equal(place, "public.a", "public.b")
    for name in ("a", "b"):
        database.execute(f"INSERT INTO {name} VALUES (9)")
    Query(spark, place, on_table_error="skip").follow()
    expect_equal(place, "public.a", "public.b")
    assert {each["state"] for each in _status(spark, place).values()} == {"follow"}


@pytest.mark.slow
def test_the_error_is_raised_if_no_table_is_left(spark: Any, place: Place) -> None:
    make_two_tables(place)
    place.run()
    lose_rows(place, "public.b")
    place.database.execute("UPDATE b SET id = 2")
    with pytest.raises(ValueError, match="the table lacks 1 row that changes refer to"):
        Query(spark, place, tables=["public.b"], on_table_error="skip").follow()
    with pytest.raises(ValueError, match="on_table_error must be 'stop' or 'skip', not 'ignore'"):
        pgspark.current_sink(place.target, on_table_error="ignore")  # type: ignore[arg-type]


def test_a_stopped_table_that_is_left_out_is_not_tried_again() -> None:
    notes = Notes("segments", None, 9).with_stops({"public.a": "it is damaged", "public.b": "the same"}, 5)
    assert set(notes.within("segments", ["public.b"]).stopped) == {"public.b"}
    assert set(notes.within("segments", None).stopped) == {"public.a", "public.b"}
    known = replace(notes, oids={"public.a": 1, "public.b": 2, "public.c": 3})
    states = [row[:2] for row in _current_rows(known.within("segments", ["public.b", "public.c"]))]
    assert states == [("public.b", "stopped"), ("public.c", "follow")]


def test_segments_of_another_directory_do_not_hide_what_a_stopped_table_lacks(tmp_path: Path) -> None:
    store, before = open_store(tmp_path), str(tmp_path / "before")
    notes = Notes(before, None, 9).with_stops({"public.b": "it is damaged"}, 5)
    check_tables(store, None, notes, before, 6)
    check_tables(store, ["public.a"], notes, str(tmp_path / "now"), 0)
    with pytest.raises(ValueError, match=r"public\.b in .* is stopped, and lacks changes from .*before: let"):
        check_tables(store, None, notes, str(tmp_path / "now"), 0)


def test_the_error_of_a_damaged_table_comes_from_a_task() -> None:
    error = unpacked(packed(Failed(DamagedError("public.b", OSError("cut off"), None)))).problem
    assert isinstance(error, DamagedError)
    assert str(error).startswith("public.b is damaged: cut off. Restore it.")


@pytest.mark.parametrize(
    "edited",
    [
        {"seq": "7"},
        {"lsn": None},
        {"stopped": []},
        {"stopped": {"public.a": []}},
        {"stopped": {"public.a": {"reason": "", "since": "", "seq": "7"}}},
        {"stopped": {"public.a": {"reason": 1, "since": "", "seq": 7}}},
    ],
    ids=str,
)
def test_notes_that_somebody_edited(tmp_path: Path, edited: dict[str, Any]) -> None:
    store = open_store(tmp_path)
    store.put(NOTES_FILE, json.dumps(edited).encode())
    with pytest.raises(ValueError, match=r"spark\.json is damaged: restore it"):
        read_notes(store)
