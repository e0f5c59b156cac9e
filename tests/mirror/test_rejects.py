"""What a mirror keeps of values that its tables cannot have: those of loads and repairs as those of changes."""

from __future__ import annotations

import logging
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pgoutput_fast import Options
from pgoutput_fast.mirror import Mirror, status_of
from support.capturing import drop_when_free
from support.mirrors import Place, current_of, place

__all__ = ["place"]

_LISTS, _LARGE = "an array of several dimensions", "does not fit decimal128(38, 6)"


def _rejects(place: Place, table: str = "public.t") -> list[dict[str, Any]]:
    """The rejects of a table, in the order in which they came."""
    rows = deltalake.DeltaTable(str(place.target / "_rejects" / table)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["lsn"], row["column"], row["raw"]))


def _options() -> Options:
    return Options(on_error="quarantine", numeric=pa.decimal128(38, 6))


def _counts(mirror: Mirror) -> dict[str, int]:
    return {each.table: each.rejects for each in mirror.status()}


def test_loads_keep_their_rejects_as_changes_do(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The first load, changes, and a reload; status, metrics and log count them."""
    caplog.set_level(logging.WARNING, "pgoutput_fast.mirror")
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int[], n numeric)",
        "INSERT INTO t SELECT i, ARRAY[[1, i]], 1 FROM generate_series(1, 20) i",
        "INSERT INTO t SELECT i, '{1}', '1e60' FROM generate_series(21, 25) i",
        "CREATE TABLE sound (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    with place.mirror(options=_options()) as mirror:
        place.run_in(mirror)
        first = _rejects(place)
        assert [(row["column"], row["seq"], row["change_type"]) for row in first] == [
            *[("a", -1, "insert")] * 20,
            *[("n", -1, "insert")] * 5,
        ]
        assert {_LISTS in row["reason"] or _LARGE in row["reason"] for row in first} == {True}
        # The rows of a load have its position: the rejects have it, too.
        (position,) = set(current_of(place.target, "public.t")["_commit_lsn"].to_pylist())
        assert {row["lsn"] for row in first} == {position}
        assert _counts(mirror) == {"public.t": 25, "public.sound": 0}
        assert "public.t: 25 values or changes without an Arrow form" in caplog.text
        assert "_rejects/public.t" in caplog.text
        place.database.execute("INSERT INTO t VALUES (26, '{{1}}', 1)")
        place.run_in(mirror)
        assert _counts(mirror)["public.t"] == 26
        mirror.reload("public.t")
        place.run_in(mirror)
        assert _counts(mirror)["public.t"] == len(_rejects(place)) == 26 + 26
        assert 'rejects_total{slot="' in (text := mirror.metrics.to_prometheus())
        assert 'table="public.t"} 52' in text
    (stored, _) = sorted(status_of(place.target), key=lambda each: -each.rejects)
    assert (stored.table, stored.rejects) == ("public.t", 52)
    assert "its rejects have 52 values or changes" in str(stored)
    # None of them is of the changes again: they come behind the load.
    place.database.execute("INSERT INTO t VALUES (27, '{{1}}', 1)")
    place.run(options=_options())
    assert len(_rejects(place)) == 53


@pytest.mark.slow
def test_a_repair_keeps_the_rejects_of_rows_that_differ(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int[])",
        "INSERT INTO t SELECT i, '{1}' FROM generate_series(1, 2000) i",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    place.run()
    drop_when_free(place.database.dsn, place.slot)
    place.database.execute("UPDATE t SET a = '{{5}}' WHERE id = 7", "INSERT INTO t VALUES (9000, '{{6}}')")
    with place.mirror() as mirror:
        (done,) = mirror.repair()
        assert (done.loaded, done.inserted, done.updated) == (None, 1, 1)
        place.run_in(mirror)
        assert [(row["column"], row["seq"]) for row in _rejects(place)] == [("a", -1)] * 2
        assert _counts(mirror) == {"public.t": 2}


def test_a_row_that_a_load_cannot_decode_stops_the_table(place: Place) -> None:
    """The current table would lack it without a word."""
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date)",
        "INSERT INTO t VALUES (1, '2026-01-01'), (2, NULL)",
        "CREATE TABLE sound (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
        # A server that sends dates in another binary form.
        "UPDATE pg_catalog.pg_type SET typsend = 'pg_catalog.int8send'::regproc WHERE typname = 'date'",
    )
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        states = {each.table: each for each in mirror.status()}
        assert (states["public.t"].state, states["public.sound"].state) == ("stopped", "follow")
        assert "a row of it cannot be decoded: its rejects say why" in str(states["public.t"].error)
        (reject,) = _rejects(place)
        assert (reject["column"], reject["change_type"]) == ("d", None)


@pytest.mark.slow
def test_rejects_that_somebody_changed_stop_their_table_alone(place: Place) -> None:
    """The mirror goes on. The table stops with the next reject, which would be lost."""
    place.database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, a int[])" for name in ("t", "other")),
        "INSERT INTO t VALUES (1, '{{1}}')",
        "CREATE PUBLICATION mirrored FOR TABLE t, other",
    )
    place.run()
    deltalake.DeltaTable(str(place.target / "_rejects" / "public.t")).alter.add_feature(
        deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with place.mirror() as mirror:
        place.database.execute("INSERT INTO t VALUES (2, '{2}')", "INSERT INTO other VALUES (1, '{1}')")
        mirror.run(until_lsn="now")
        assert [each.state for each in mirror.status()] == ["follow", "follow"]
        assert current_of(place.target, "public.t").num_rows == 2
        place.database.execute("INSERT INTO t VALUES (3, '{{3}}')", "INSERT INTO other VALUES (2, '{1}')")
        mirror.run(until_lsn="now")
        stopped = {each.table: each for each in mirror.status()}
        assert (stopped["public.t"].state, stopped["public.other"].state) == ("stopped", "follow")
        assert "it has deletionVectors, which this package does not know" in str(stopped["public.t"].error)
        assert current_of(place.target, "public.other").num_rows == 2
